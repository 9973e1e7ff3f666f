//! Good files with random damage: whatever opens can be read to the end, and nothing panics. The fuzz target does the same
//! without end.

use crate::common::*;
use pi_gguf::{File, NeuronIndex};

/// Small numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

/// Opens the bytes and, if they open, reads everything. True if they did.
fn read_all(bytes: Vec<u8>) -> bool {
    let len = bytes.len();
    let Ok(file) = File::from_bytes(bytes, "x") else { return false };
    let mut total = 0;
    for (key, value) in file.metadata().iter() {
        assert_eq!(file.metadata().value(key).map(|v| v.ty()), Some(value.ty()));
        let _ = (value.to_string(), value.to::<Vec<f32>>(), value.to::<Vec<&str>>());
    }
    for tensor in file.tensors() {
        assert_eq!(file.tensor(tensor.name()).map(|t| t.range()), Some(tensor.range()));
        let row = tensor.cols() / tensor.ty().block_len() * tensor.ty().block_bytes();
        assert_eq!(row * tensor.rows(), tensor.data().len());
        total += tensor.data().len();
    }
    assert!(total <= len, "tensors have more bytes than the file");
    let _ = NeuronIndex::from_file(&file);
    true
}

#[test]
fn damage_at_any_byte_never_panics() {
    let index = Raw { magic: *b"PWRI", ..Raw::new() }
        .text("general.architecture", "generic.gpu_index")
        .u32("generic.gpu_index.block_count", 1)
        .key("split.vram_capacity", U64, &5u64.to_le_bytes())
        .tensor("blk.0.gpu_idx", &[4], 18, 0)
        .data(16);
    let mut opened = 0;
    for seed in [good().bytes(), index.bytes(), Raw::new().bytes()] {
        assert!(read_all(seed.clone()));
        for at in 0..seed.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff, seed[at] ^ 1, seed[at].wrapping_add(1), seed[at].wrapping_sub(1)] {
                let mut bytes = seed.clone();
                bytes[at] = byte;
                opened += usize::from(read_all(bytes));
            }
        }
    }
    assert!(opened > 100, "only {opened} damaged files opened: the test does not reach far");
}

#[test]
fn many_kinds_of_damage_at_once_never_panic() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let seed = good().bytes();
    for _ in 0..30_000 {
        let mut bytes = seed.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            match random.below(5) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes[at] ^= 1 << random.below(8),
                2 => bytes.truncate(at.max(1)),
                3 => {
                    let from = random.below(bytes.len());
                    let len = random.below(16).min(bytes.len() - from.max(at));
                    bytes.copy_within(from..from + len, at);
                }
                _ => bytes.splice(at..at, (0..random.below(9)).map(|i| i as u8)).for_each(drop),
            }
        }
        read_all(bytes);
    }
}
