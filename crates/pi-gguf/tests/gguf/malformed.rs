//! Damaged and hostile files give errors that name the place; nothing panics, and nothing is allocated that the file does
//! not have the bytes for.

use crate::common::*;
use pi_gguf::{Error, File, Source};

#[test]
fn a_good_file_opens_with_everything_in_it() {
    let file = good().open().expect("opens");
    assert_eq!(file.metadata().len(), 7);
    let tensor = file.require_tensor("blk.0.ffn_up.weight").expect("tensor");
    assert_eq!((tensor.cols(), tensor.rows(), tensor.data().len()), (32, 2, 68));
    assert_eq!(tensor.data()[0], 64);
}

#[test]
fn every_prefix_of_a_good_file_is_refused_as_truncated() {
    let bytes = good().bytes();
    let header = good().header().len();
    let folder = tempfile::tempdir().expect("folder");
    for len in 0..bytes.len() {
        let path = write(folder.path(), "cut.gguf", &bytes[..len]);
        for source in [Source::Mapped, Source::InMemory] {
            let message = File::open_with(&path, source).expect_err("must be refused").to_string();
            let word = match len {
                0 => "an empty file",
                _ if len < header => "truncated",
                _ => "not within the file bounds",
            };
            says(&message, &["cut.gguf", word]);
        }
    }
}

#[test]
fn a_file_cut_in_its_data_names_the_tensor() {
    let mut raw = good();
    raw.data.pop();
    says(&raw.error(), &["model.gguf", "'blk.0.ffn_up.weight'", "68 bytes", "not within the file bounds"]);
    raw.data.truncate(47);
    says(&raw.error(), &["'token_embd.weight'", "48 bytes"]);
}

#[test]
fn huge_counts_and_lengths_are_refused_before_anything_is_allocated() {
    for huge in [1 << 32, 1 << 63, u64::MAX, u64::MAX / 56] {
        let mut raw = good();
        raw.key_count = Some(huge);
        says(&raw.error(), &["number of keys", &huge.to_string()]);
        let mut raw = good();
        raw.tensor_count = Some(huge);
        says(&raw.error(), &["number of tensors", &huge.to_string()]);
        for element in [U8, U32, U64, STRING] {
            let raw = Raw::new().key("list", ARRAY, &array(element, huge, &[]));
            says(&raw.error(), &["length of 'list'", &huge.to_string()]);
        }
        says(&Raw::new().key("text", STRING, &huge.to_le_bytes()).error(), &["'text'", &huge.to_string()]);
        let mut raw = Raw::new();
        raw.keys.push([&huge.to_le_bytes()[..], &[b'k'; 20]].concat());
        says(&raw.error(), &["key 0", &huge.to_string()]);
        let mut raw = Raw::new();
        raw.tensors.push([&huge.to_le_bytes()[..], &[b't'; 40]].concat());
        says(&raw.error(), &["tensor 0", &huge.to_string()]);
    }
}

#[test]
fn a_string_that_is_longer_than_the_rest_of_its_array_is_named_by_its_index() {
    let strings = [string(b"one"), 1000u64.to_le_bytes().to_vec()].concat();
    says(&Raw::new().key("tokens", ARRAY, &array(STRING, 2, &strings)).error(), &["string 1 of 'tokens'", "truncated"]);
}

#[test]
fn an_alignment_that_is_not_a_power_of_two_or_too_large_is_refused() {
    for alignment in [0, 3, 13, 1 << 31, u32::MAX] {
        let message = Raw::new().u32("general.alignment", alignment).error();
        says(&message, &["general.alignment", "power of two", &alignment.to_string()]);
    }
}

#[test]
fn an_alignment_of_another_type_than_u32_is_refused() {
    says(&Raw::new().key("general.alignment", I32, &32i32.to_le_bytes()).error(), &["expected u32, got i32 32"]);
    says(&Raw::new().text("general.alignment", "32").error(), &["expected u32, got string \"32\""]);
}

#[test]
fn an_alignment_of_one_loads() {
    let mut raw = Raw::new().u32("general.alignment", 1).tensor("a", &[3], 24, 0).tensor("b", &[2], 24, 3).data(5);
    raw.alignment = 1;
    let file = raw.open().expect("opens");
    assert_eq!(file.alignment(), 1);
    assert_eq!(file.require_tensor("b").expect("b").data(), [3, 4]);
}

#[test]
fn tensors_that_were_laid_out_for_a_smaller_alignment_are_refused() {
    let raw = Raw::new().u32("general.alignment", 64).tensor("a", &[4], 0, 0).tensor("b", &[4], 0, 32).data(48);
    says(&raw.error(), &["'b'", "multiple of 64", "got 32"]);
}

#[test]
fn a_file_that_is_only_a_header_loads() {
    for version in [2, 3] {
        let raw = Raw { version, ..Raw::new() };
        let file = raw.open().expect("opens");
        assert_eq!((file.version(), file.metadata().len(), file.tensors().len()), (version, 0, 0));
    }
}

#[test]
fn other_versions_are_named() {
    for version in [0, 1, 4, 65535] {
        let message = Raw { version, ..good() }.error();
        says(&message, &[&format!("version {version} is not supported"), "2 or 3"]);
    }
}

#[test]
fn big_endian_files_are_named_as_such() {
    for version in [2u32, 3] {
        let raw = Raw { version: version.swap_bytes(), ..good() };
        assert!(matches!(raw.open(), Err(Error::BigEndian { .. })));
        says(&raw.error(), &["big endian", "not supported"]);
    }
}

#[test]
fn shapes_whose_size_overflows_are_refused() {
    let shapes: [&[u64]; 6] = [
        &[i64::MAX as u64, 2, 1, 1],
        &[1 << 42, (1 << 42) + 1],
        &[1 << 40, 1 << 40],
        &[u64::MAX],
        &[1 << 32, 1 << 32, 1 << 32, 1 << 32],
        &[256, 1 << 63, 0, 1],
    ];
    for dims in shapes {
        for ty in [0, 8, 24] {
            let message = Raw::new().tensor("t", dims, ty, 0).data(64).error();
            says(&message, &["'t'"]);
        }
    }
}

#[test]
fn offsets_whose_sum_overflows_are_refused() {
    let near = 0x7FFF_FFFF_FFFF_FFC0;
    let raw = Raw::new().tensor("a", &[near], 24, 0).tensor("b", &[near], 24, near).data(64);
    says(&raw.error(), &["'a'", "not within the file bounds"]);
    for offset in [u64::MAX - 31, 1 << 63, 1 << 32, 64] {
        let raw = Raw::new().tensor("a", &[8], 0, offset).data(64);
        says(&raw.error(), &["'a'", "not within the file bounds"]);
    }
}

#[test]
fn removed_and_unknown_tensor_types_are_refused_by_number() {
    for ty in [4, 5, 31, 32, 33, 36, 37, 38, 41, 200, u32::MAX] {
        let message = Raw::new().tensor("t", &[256], ty, 0).data(4096).error();
        says(&message, &["'t'", &format!("unsupported tensor type {ty}")]);
    }
}

#[test]
fn types_that_the_engine_does_not_compute_with_open_and_keep_their_bounds() {
    for (ty, name, bytes) in [(16, "IQ2_XXS", 66), (26, "I32", 1024), (28, "F64", 2048), (39, "MXFP4", 8 * 17)] {
        let raw = Raw::new().tensor("t", &[256], ty, 0).data(bytes);
        let file = raw.open().expect("opens");
        let tensor = file.require_tensor("t").expect("t");
        assert_eq!((tensor.ty().name(), tensor.quant(), tensor.data().len()), (name, None, bytes));
        says(&Raw::new().tensor("t", &[256], ty, 0).data(bytes - 1).error(), &["not within the file bounds"]);
    }
}

#[test]
fn rows_that_are_not_whole_blocks_are_refused() {
    // Q4_K in blocks of 256: 4544 columns are 17.75 of them.
    for cols in [100, 4544] {
        let message = Raw::new().tensor("t", &[cols, 2], 12, 0).data(8192).error();
        says(&message, &["'t'", "Q4_K", "blocks of 256", &cols.to_string()]);
    }
}

#[test]
fn a_tensor_has_one_to_four_dimensions() {
    says(&Raw::new().tensor("t", &[], 0, 0).data(64).error(), &["'t'", "1 to 4 dimensions, got 0"]);
    says(&Raw::new().tensor("t", &[1; 5], 0, 0).data(64).error(), &["'t'", "1 to 4 dimensions, got 5"]);
    for count in [1_000_000, u32::MAX] {
        let mut raw = Raw::new().data(64);
        raw.tensors.push([&string(b"t")[..], &count.to_le_bytes(), &[0; 64]].concat());
        says(&raw.error(), &["'t'", &format!("got {count}")]);
    }
}

#[test]
fn a_tensor_without_numbers_is_good_wherever_it_is_said_to_be() {
    let file = Raw::new().tensor("none", &[0], 26, 64).open().expect("opens");
    let tensor = file.require_tensor("none").expect("none");
    assert_eq!((tensor.data().len(), tensor.rows()), (0, 0));
}

#[test]
fn arrays_of_arrays_are_refused_however_deep() {
    let mut nested = array(U8, 0, &[]);
    for _ in 0..10_000 {
        nested = array(ARRAY, 1, &nested);
    }
    says(&Raw::new().key("deep", ARRAY, &nested).error(), &["'deep'", "an array of arrays"]);
}

#[test]
fn unknown_value_types_are_refused() {
    for ty in [13, 14, u32::MAX] {
        says(&Raw::new().key("odd", ty, &[0; 16]).error(), &["'odd'", &format!("type {ty}")]);
        says(&Raw::new().key("odd", ARRAY, &array(ty, 1, &[0; 16])).error(), &["'odd'", &format!("type {ty}")]);
    }
}

#[test]
fn booleans_other_than_0_and_1_are_refused() {
    says(&Raw::new().key("flag", BOOL, &[2]).error(), &["'flag'", "0 or 1, got 2"]);
    says(&Raw::new().key("flags", ARRAY, &array(BOOL, 3, &[0, 1, 255])).error(), &["'flags'", "got 255"]);
}

#[test]
fn keys_are_1_to_65535_bytes_of_utf8() {
    says(&Raw::new().u32("", 0).error(), &["key 0", "got 0 bytes"]);
    says(&Raw::new().u32("k", 0).u32(&"k".repeat(65536), 0).error(), &["key 1", "got 65536 bytes"]);
    Raw::new().u32(&"k".repeat(65535), 0).open().expect("the longest key");
    let mut raw = Raw::new();
    raw.keys.push([&string(b"\xff\xfe")[..], &U32.to_le_bytes(), &[0; 4]].concat());
    says(&raw.error(), &["key 0", "UTF-8", "\\xff\\xfe"]);
}

#[test]
fn tensor_names_are_1_to_63_bytes_of_utf8() {
    says(&Raw::new().tensor("", &[1], 0, 0).data(32).error(), &["tensor 0", "got 0 bytes"]);
    says(&Raw::new().tensor(&"t".repeat(64), &[1], 0, 0).data(32).error(), &["tensor 0", "got 64 bytes"]);
    Raw::new().tensor(&"t".repeat(63), &[1], 0, 0).data(32).open().expect("the longest name");
}

#[test]
fn a_key_or_tensor_that_appears_twice_is_refused() {
    says(&good().u32("scale", 1).error(), &["key 'scale' appears twice"]);
    says(&good().tensor("token_embd.weight", &[1], 0, 160).data(192).error(), &["'token_embd.weight' appears twice"]);
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let raw = Raw::new().tensor("b", &[16], 0, 32).tensor("a", &[9], 0, 0).data(96);
    says(&raw.error(), &["'a' and 'b' overlap"]);
    Raw::new().tensor("b", &[16], 0, 32).tensor("a", &[8], 0, 0).data(96).open().expect("side by side");
}

#[test]
fn values_that_are_not_utf8_open_and_can_be_had_as_bytes() {
    let tokens = [string(b"ok"), string(b"\xf0\x9f")].concat();
    let file = Raw::new()
        .key("text", STRING, &string(b"\xff"))
        .key("tokens", ARRAY, &array(STRING, 2, &tokens))
        .open()
        .expect("opens");
    let metadata = file.metadata();
    let text: pi_gguf::Text<'_> = metadata.require("text").expect("bytes");
    assert_eq!(text.as_bytes(), b"\xff");
    says(&metadata.get::<&str>("text").expect_err("not UTF-8").to_string(), &["'text'", "not UTF-8"]);
    let tokens: pi_gguf::Array<'_> = metadata.require("tokens").expect("array");
    let tokens: Vec<&[u8]> = tokens.texts().expect("strings").map(|text| text.as_bytes()).collect();
    assert_eq!(tokens, [&b"ok"[..], b"\xf0\x9f"]);
}

#[test]
fn a_file_in_memory_does_not_notice_that_it_was_truncated() {
    let folder = tempfile::tempdir().expect("folder");
    let path = write(folder.path(), "model.gguf", &good().bytes());
    let file = File::open_with(&path, Source::InMemory).expect("opens");
    std::fs::write(&path, b"").expect("truncate");
    assert_eq!(file.require_tensor("blk.0.ffn_up.weight").expect("tensor").data().len(), 68);
    assert!(!file.bytes(0).expect("part").is_mapped());
}

#[test]
fn the_bytes_of_a_tensor_outlive_the_file() {
    let file = good().open().expect("opens");
    let tensor = file.require_tensor("token_embd.weight").expect("tensor");
    let (owner, range) = (tensor.owner().clone(), tensor.range());
    drop(file);
    assert_eq!((*owner).as_ref()[range], (0..48).collect::<Vec<u8>>());
}

#[test]
fn tensors_are_as_well_aligned_in_memory_as_they_are_in_the_file() {
    // From a vector that begins anywhere: its bytes move where they are aligned.
    for shift in 0..4 {
        let mut bytes = Vec::with_capacity(1000 + shift);
        bytes.extend(good().bytes());
        let file = File::from_bytes(bytes, "model.gguf").expect("opens");
        for tensor in file.tensors() {
            assert_eq!(tensor.data().as_ptr().align_offset(32), 0, "{}", tensor.name());
        }
    }
}

#[test]
fn an_error_fits_where_results_are_returned() {
    assert!(size_of::<Error>() <= 128, "{}", size_of::<Error>());
}

#[test]
fn names_from_a_file_cannot_steer_the_terminal() {
    let message = Raw::new().u32("a\u{1b}[2J\n", 1).u32("a\u{1b}[2J\n", 1).error();
    says(&message, &["'a\\u{1b}[2J\\n' appears twice"]);
    let message = Raw::new().tensor("\u{7}", &[1], 4, 0).data(32).error();
    says(&message, &["'\\u{7}'"]);
    let message = Raw::new().key("\u{7}", STRING, &9u64.to_le_bytes()).error();
    says(&message, &["the value of '\\u{7}'"]);
}
