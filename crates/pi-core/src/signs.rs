//! Packed signs: what predictions from signs alone are made of (SparseInfer, arXiv 2411.12692).

/// How signs are packed and compared. [`Device::signs`](crate::Device::signs) hands out what is fastest.
#[derive(Clone, Copy, Debug)]
pub struct SignKernels {
    /// Signs of numbers, 64 to a word, the first in the lowest bit: 1 where the sign bit is set. Words are filled as far as
    /// there are numbers; bits beyond the last one are 0.
    pub pack: fn(numbers: &[f32], words: &mut [u64]),
    /// In how many bits each row of `x.len()` words differs from `x`: as many rows as there is room for in `out`.
    pub differing: fn(rows: &[u64], x: &[u64], out: &mut [u32]),
}

impl SignKernels {
    /// Plain code for any CPU.
    pub const PLAIN: Self = Self { pack, differing };
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

/// See [`SignKernels::differing`]. Inlined, so that callers compile it for the instructions they have.
#[inline(always)]
pub fn differing(rows: &[u64], x: &[u64], out: &mut [u32]) {
    for (row, out) in rows.chunks_exact(x.len().max(1)).zip(out) {
        let bits: u64 = row.iter().zip(x).map(|(a, b)| u64::from((a ^ b).count_ones())).sum();
        *out = bits as u32;
    }
}
