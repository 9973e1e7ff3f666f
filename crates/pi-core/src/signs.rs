//! Packed signs: what predictions from signs alone are made of (SparseInfer, arXiv 2411.12692).

/// How signs are packed and compared. [`Device::signs`](crate::Device::signs) hands out what is fastest.
#[derive(Clone, Copy, Debug)]
pub struct SignKernels {
    /// Signs of numbers, 64 to a word, the first in the lowest bit: 1 where the sign bit is set. Words are filled as far as
    /// there are numbers; bits beyond the last one are 0.
    pub pack: fn(numbers: &[f32], words: &mut [u64]),
    /// For rows of `x.len()` words, 64 rows at most: bit `i` is set if row `i` differs from `x` in at most `most` bits.
    pub near: fn(rows: &[u64], x: &[u64], most: u32) -> u64,
}

impl SignKernels {
    /// Plain code for any CPU.
    pub const PLAIN: Self = Self { pack, near };
}

impl Default for SignKernels {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// See [`SignKernels::pack`]. Inlined, so that callers compile it for the instructions they have.
#[inline(always)]
pub fn pack(numbers: &[f32], words: &mut [u64]) {
    for (numbers, word) in numbers.chunks(64).zip(words) {
        *word = numbers.iter().enumerate().fold(0, |bits, (i, v)| bits | u64::from(v.to_bits() >> 31) << i);
    }
}

/// See [`SignKernels::near`]. Inlined, so that callers compile it for the instructions they have.
#[inline(always)]
pub fn near(rows: &[u64], x: &[u64], most: u32) -> u64 {
    let rows = rows.chunks_exact(x.len().max(1)).take(64);
    rows.enumerate().fold(0, |bits, (i, row)| {
        let differing: u64 = row.iter().zip(x).map(|(a, b)| u64::from((a ^ b).count_ones())).sum();
        bits | u64::from(differing <= u64::from(most)) << i
    })
}
