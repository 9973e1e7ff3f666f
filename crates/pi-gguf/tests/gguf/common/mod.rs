//! Files put together byte by byte, without the crate's writer, so that anything in them can be wrong.
#![allow(dead_code)] // each test file uses a part of this

use std::path::{Path, PathBuf};

use pi_gguf::{Error, File, Source};

pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// A file as one wants it. What is not set is right.
#[derive(Clone)]
pub struct Raw {
    pub magic: [u8; 4],
    pub version: u32,
    pub key_count: Option<u64>,
    pub tensor_count: Option<u64>,
    pub keys: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl Raw {
    pub fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            key_count: None,
            tensor_count: None,
            keys: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }

    pub fn key(mut self, key: &str, ty: u32, value: &[u8]) -> Self {
        self.keys.push([&string(key.as_bytes()), &ty.to_le_bytes()[..], value].concat());
        self
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        self.key(key, STRING, &string(value.as_bytes()))
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.key(key, U32, &value.to_le_bytes())
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let mut row = string(name.as_bytes());
        row.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| row.extend(dim.to_le_bytes()));
        row.extend(ty.to_le_bytes());
        row.extend(offset.to_le_bytes());
        self.tensors.push(row);
        self
    }

    pub fn data(mut self, bytes: usize) -> Self {
        self.data = (0..bytes).map(|i| i as u8).collect();
        self
    }

    /// The header, without padding after it.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        self.keys.iter().chain(&self.tensors).for_each(|bytes| out.extend(bytes));
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        if !self.data.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&self.data);
        }
        out
    }

    pub fn open(&self) -> Result<File, Error> {
        File::from_bytes(self.bytes(), "model.gguf")
    }

    /// The message of the error that the file must give; mapped, read and from memory it must be the same.
    pub fn error(&self) -> String {
        let message = self.open().expect_err("must be refused").to_string();
        let folder = tempfile::tempdir().expect("folder");
        let path = write(folder.path(), "model.gguf", &self.bytes());
        for source in [Source::Mapped, Source::InMemory] {
            let other = File::open_with(&path, source).expect_err("must be refused").to_string();
            assert_eq!(other, format!("{}{}", path.display(), message.trim_start_matches("model.gguf")));
        }
        message
    }
}

/// A string as it is in a file.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// An array's element type, length and elements, as they are in a file.
pub fn array(ty: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

/// A small good file with a key of each kind and two tensors, the last of which ends where the file ends.
pub fn good() -> Raw {
    let strings: Vec<u8> = ["a", "", "\u{2581}b"].iter().flat_map(|s| string(s.as_bytes())).collect();
    Raw::new()
        .text("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .key("scale", F32, &0.5f32.to_le_bytes())
        .key("flag", BOOL, &[1])
        .key("big", U64, &u64::MAX.to_le_bytes())
        .key("ids", ARRAY, &array(I32, 3, &[1, 0, 0, 0, 254, 255, 255, 255, 3, 0, 0, 0]))
        .key("tokens", ARRAY, &array(STRING, 3, &strings))
        .tensor("token_embd.weight", &[4, 3], 0, 0)
        .tensor("blk.0.ffn_up.weight", &[32, 2], 8, 64)
        .data(64 + 2 * 34)
}

pub fn write(folder: &Path, name: impl AsRef<Path>, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("write");
    path
}

/// Fails unless all of `words` are in `message`.
#[track_caller]
pub fn says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "'{word}' is not in: {message}");
    }
}
