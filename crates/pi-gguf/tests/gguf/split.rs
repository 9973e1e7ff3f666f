//! Models in several files.

use std::path::{Path, PathBuf};

use crate::common::*;
use pi_gguf::{Error, File, Kind, Source};

const U16: u32 = 2;

fn part(no: u16, count: u16, tensors: i32) -> Raw {
    let raw = Raw::new().key("split.no", U16, &no.to_le_bytes()).key("split.count", U16, &count.to_le_bytes()).key(
        "split.tensors.count",
        I32,
        &tensors.to_le_bytes(),
    );
    if no == 0 { raw.text("general.architecture", "llama") } else { raw }
}

/// Three parts: one of keys, two with a tensor each. (Some writers leave the first part without tensors.)
fn parts() -> [Raw; 3] {
    [part(0, 3, 2), part(1, 3, 2).tensor("b", &[8], 0, 0).data(32), part(2, 3, 2).tensor("a", &[4], 24, 0).data(4)]
}

fn write_parts(folder: &Path, name: &str, parts: &[Raw]) -> Vec<PathBuf> {
    let name = |i: usize| format!("{name}-{:05}-of-{:05}.gguf", i + 1, parts.len());
    parts.iter().enumerate().map(|(i, part)| write(folder, name(i), &part.bytes())).collect()
}

fn refused(path: &Path) -> String {
    File::open(path).expect_err("must be refused").to_string()
}

#[test]
fn any_part_opens_the_whole_model() {
    let folder = tempfile::tempdir().expect("folder");
    for path in write_parts(folder.path(), "model", &parts()) {
        for source in [Source::Mapped, Source::InMemory] {
            let file = File::open_with(&path, source).expect("opens");
            assert_eq!(file.parts(), 3);
            assert_eq!(file.metadata().require::<&str>("general.architecture").expect("first part's key"), "llama");
            let tensors: Vec<_> = file.tensors().map(|t| (t.name().to_owned(), t.part(), t.data().len())).collect();
            assert_eq!(tensors, [("b".to_owned(), 1, 32), ("a".to_owned(), 2, 4)]);
            assert!(file.path().ends_with("model-00001-of-00003.gguf"));
            assert!(file.part_path(2).expect("path").ends_with("model-00003-of-00003.gguf"));
            assert!(file.part_path(3).is_none() && file.bytes(3).is_none());
        }
    }
}

#[test]
fn parts_lie_in_folders_and_under_names_of_any_script() {
    let folder = tempfile::tempdir().expect("folder");
    let inner = folder.path().join("Željko/模型 dir");
    std::fs::create_dir_all(&inner).expect("folder");
    let paths = write_parts(&inner, "模型 .q4", &parts());
    assert_eq!(File::open(&paths[2]).expect("opens").tensors().len(), 2);
}

#[cfg(target_os = "linux")]
#[test]
fn names_that_are_not_unicode_open_whole_and_split() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().expect("folder");
    let whole = write(folder.path(), OsStr::from_bytes(b"mod\xffel .gguf"), &good().bytes());
    assert_eq!(File::open(whole).expect("opens").tensors().len(), 2);
    for (i, part) in parts().iter().enumerate() {
        let name = [&b"\xff\xfe"[..], format!("-{:05}-of-00003.gguf", i + 1).as_bytes()].concat();
        write(folder.path(), OsStr::from_bytes(&name), &part.bytes());
    }
    let third = folder.path().join(OsStr::from_bytes(b"\xff\xfe-00003-of-00003.gguf"));
    assert_eq!(File::open(third).expect("opens").tensors().len(), 2);
}

#[test]
fn a_missing_part_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let paths = write_parts(folder.path(), "model", &parts());
    std::fs::remove_file(&paths[1]).expect("remove");
    for path in [&paths[0], &paths[2]] {
        let error = File::open(path).expect_err("must be refused");
        assert!(matches!(&error, Error::MissingPart { missing, part: 2, count: 3, .. } if *missing == paths[1]));
        says(&error.to_string(), &["part 2 is missing", "model-00002-of-00003.gguf"]);
    }
}

#[test]
fn parts_joined_with_cat_are_recognised_under_any_name() {
    let folder = tempfile::tempdir().expect("folder");
    let first = part(0, 2, 2).tensor("a", &[3], 24, 0).data(3);
    let second = part(1, 2, 2).tensor("b", &[8], 0, 0).data(32);
    let mut padded = first.bytes();
    padded.resize(padded.len().next_multiple_of(32), 0);
    let bare = part(0, 2, 1);
    for start in [first.bytes(), padded, bare.bytes()] {
        for name in ["model.gguf", "model-00001-of-00002.gguf"] {
            let path = write(folder.path(), name, &[start.clone(), second.bytes()].concat());
            let message = refused(&path);
            says(&message, &[name, "split.count", "2 files", "`cat`"]);
        }
        let message = File::from_bytes([start, second.bytes()].concat(), "x").expect_err("refused").to_string();
        says(&message, &["`cat`"]);
    }
}

#[test]
fn a_part_under_another_name_says_what_its_name_should_end_in() {
    let folder = tempfile::tempdir().expect("folder");
    for name in ["model.gguf", "model-2-of-3.gguf", "model-00001-of-00003.gguf", "é.gguf", "模型模型模型模.gguf"]
    {
        let path = write(folder.path(), name, &parts()[1].bytes());
        says(&refused(&path), &[name, "-00002-of-00003.gguf"]);
    }
}

#[test]
fn a_part_alone_in_memory_is_refused() {
    says(&parts()[1].open().expect_err("refused").to_string(), &["a whole model", "part 2 of 3"]);
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let open = |parts: &[Raw]| refused(&write_parts(folder.path(), "model", parts)[0]);
    let [first, second, third] = parts();

    says(&open(&[first.clone(), third.clone(), second.clone()]), &["-00002-of-", "split.no 1 of 3", "got 2 of 3"]);
    says(&open(&[first.clone(), part(1, 4, 2), third.clone()]), &["-00002-of-", "split.no 1 of 3", "got 1 of 4"]);
    says(&open(&[first.clone(), Raw::new(), third.clone()]), &["-00002-of-", "part 2 of 3", "a whole model"]);
    says(&open(&[part(0, 3, 7), second.clone(), third.clone()]), &["7 tensors", "split.tensors.count", "got 2"]);
    let twice = part(1, 3, 2).tensor("a", &[4], 24, 0).data(4);
    says(&open(&[first.clone(), twice, third.clone()]), &["-00003-of-", "tensor 'a' appears twice"]);
    let other = Raw { magic: *b"PWRI", ..second.clone() };
    says(&open(&[first.clone(), other, third.clone()]), &["-00002-of-", "magic GGUF", "got PWRI"]);
    let mut cut = second;
    cut.data.pop();
    says(&open(&[first, cut, third]), &["-00002-of-", "tensor 'b'", "not within the file bounds"]);
}

#[test]
fn split_keys_that_make_no_sense_are_refused() {
    says(&part(3, 3, 0).error(), &["split.no below split.count", "got 3 of 3"]);
    says(&part(0, 0, 0).error(), &["split.count", "got 0"]);
    says(&Raw::new().text("split.count", "3").error(), &["'split.count'", "expected u16, got string"]);
    says(&Raw::new().u32("split.count", 3).error(), &["'split.no' is missing"]);
}

#[test]
fn a_model_in_one_part_may_have_any_name() {
    let folder = tempfile::tempdir().expect("folder");
    let path = write(folder.path(), "whole.gguf", &part(0, 1, 1).tensor("a", &[8], 0, 0).data(32).bytes());
    assert_eq!(File::open(path).expect("opens").parts(), 1);
}

#[test]
fn the_powerinfer_variant_can_be_split_too() {
    let folder = tempfile::tempdir().expect("folder");
    let parts = parts().map(|part| Raw { magic: *b"PWRI", ..part });
    let file = File::open(&write_parts(folder.path(), "m", &parts)[1]).expect("opens");
    assert_eq!((file.kind(), file.parts()), (Kind::PowerInfer, 3));
}
