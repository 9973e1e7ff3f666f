//! Files that are not GGUF are called what they are.

use crate::common::*;
use pi_gguf::{File, Format, Source, identify};

#[test]
fn files_of_other_formats_are_named_when_they_are_opened() {
    let safetensors =
        [&60u64.to_le_bytes()[..], b"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"].concat();
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n";
    let torch = [&b"PK\x03\x04\0\0\x08\x08\0\0"[..], &[0; 20], b"archive/data.pkl"].concat();
    let cases: [(&[u8], Format, &str); 20] = [
        (&safetensors, Format::Safetensors, "a safetensors file"),
        (b"<!DOCTYPE html>\n<html>", Format::Html, "a web page"),
        (b"\xef\xbb\xbf \n<HTML lang=en>", Format::Html, "a web page"),
        (lfs, Format::GitLfsPointer, "git lfs pull"),
        (b"lmgg\x01\0\0\0", Format::OldGgml("GGML"), "a GGML file"),
        (b"fmgg\x01\0\0\0", Format::OldGgml("GGMF"), "a GGMF file"),
        (b"tjgg\x03\0\0\0", Format::OldGgml("GGJT"), "a GGJT file"),
        (b"algg\x01\0\0\0", Format::OldGgml("GGLA"), "a GGLA file"),
        (&torch, Format::PyTorch, "a PyTorch checkpoint"),
        (b"PK\x03\x04 and something", Format::Zip, "a zip archive"),
        (b"\x80\x02}q\0", Format::Pickle, "pickle"),
        (b"\x1f\x8b\x08\0", Format::Compressed("gzip"), "gzip"),
        (b"\x28\xb5\x2f\xfd", Format::Compressed("zstd"), "zstd"),
        (b"\xfd7zXZ\0", Format::Compressed("xz"), "xz"),
        (b"BZh91AY&SY", Format::Compressed("bzip2"), "bzip2"),
        (b"\x89HDF\r\n\x1a\n", Format::Hdf5, "HDF5"),
        (b"  {\"error\": \"not found\"}", Format::Json, "a JSON file"),
        (b"[1, 2]", Format::Json, "a JSON file"),
        (b"Entry not found", Format::Unknown(*b"Entr"), "begins with \"Entr\""),
        (b"\0", Format::Unknown([0; 4]), "begins with"),
    ];
    let folder = tempfile::tempdir().expect("folder");
    for (bytes, format, words) in cases {
        assert_eq!(identify(bytes), format, "{:?}", bytes.escape_ascii().to_string());
        let path = write(folder.path(), "model.gguf", bytes);
        for source in [Source::Mapped, Source::InMemory] {
            let message = File::open_with(&path, source).expect_err("must be refused").to_string();
            says(&message, &["model.gguf: expected a GGUF file, got", words]);
        }
    }
}

#[test]
fn gguf_itself_is_known_in_all_its_kinds() {
    assert_eq!(identify(b"GGUF"), Format::Gguf);
    assert_eq!(identify(b"GGUF\x03\0\0\0"), Format::Gguf);
    assert_eq!(identify(b"PWRI\x03\0\0\0"), Format::PowerInfer);
    assert_eq!(identify(b"GGUF\0\0\0\x03"), Format::GgufBigEndian);
    assert_eq!(identify(b"FUGG\0\0\0\x03"), Format::GgufBigEndian);
    assert_eq!(identify(b""), Format::Empty);
}

#[test]
fn empty_files_directories_and_missing_files_are_named() {
    let folder = tempfile::tempdir().expect("folder");
    let message = |path: &std::path::Path| File::open(path).expect_err("must be refused").to_string();
    says(&message(&write(folder.path(), "none.gguf", b"")), &["none.gguf", "an empty file"]);
    says(&File::from_bytes(Vec::new(), "memory").expect_err("refused").to_string(), &["memory", "an empty file"]);
    says(&message(folder.path()), &["a directory"]);
    says(&message(&folder.path().join("absent.gguf")), &["absent.gguf", "cannot open"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_is_refused_before_it_is_read() {
    says(&File::open("/dev/zero").expect_err("must be refused").to_string(), &["/dev/zero", "a pipe or device"]);
}
