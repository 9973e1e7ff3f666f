//! Q4_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::large::{Head, Table};
use crate::activations::split15::SUMS;
use std::arch::x86_64::*;

super::large::large_kernels!(144, 1, SUMS);

/// The 6-bit scales and minima of eight groups, from the 12 bytes at byte 4 of a block of Q4_K or Q5_K.
#[inline(always)]
pub(super) fn scales_and_mins<const B: usize>(w: &[u8; B]) -> ([u8; 8], [u8; 8]) {
    const SIX: u32 = 0x3f3f_3f3f;
    const FOUR: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x3030_3030;
    let word = |at: usize| u32::from_le_bytes([w[at], w[at + 1], w[at + 2], w[at + 3]]);
    let (s, m, rest) = (word(4), word(8), word(12));
    let join = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
    (join(s & SIX, rest & FOUR | s >> 2 & TWO), join(m & SIX, rest >> 4 & FOUR | m >> 2 & TWO))
}

/// Eight bytes as 16-bit numbers, in both halves of a vector.
#[target_feature(enable = "avx2")]
#[inline]
fn widen_twice(bytes: [u8; 8]) -> __m256i {
    let v = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(i64::from_le_bytes(bytes)));
    _mm256_broadcastsi128_si256(v)
}

/// Scales of the groups of a block of Q4_K or Q5_K.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn prepare<const B: usize>(w: &[u8; B]) -> __m256i {
    widen_twice(scales_and_mins(w).0)
}

/// What a block of Q4_K or Q5_K is beside its codes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn head<const B: usize>(w: &[u8; B]) -> Head<1> {
    let mins = _mm_cvtsi64_si128(i64::from_le_bytes(scales_and_mins(w).1));
    let mins = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(mins));
    Head { scale: half_all(w, 0), mins: [_mm256_mul_ps(half_all(w, 2), mins)] }
}

/// Scales and minima of a block of Q4_K or Q5_K.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn table<const B: usize>(w: &[u8; B]) -> Table {
    let (d, dmin) = (half_at(w, 0), half_at(w, 2));
    let (scales, mins) = scales_and_mins(w);
    Table {
        scales: std::array::from_fn(|i| d * f32::from(scales[i / 2])),
        mins: std::array::from_fn(|i| dmin * f32::from(mins[i / 2])),
    }
}

/// Unsigned bytes of group `i`, times its scale.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn scaled(bytes: __m256i, scales: __m256i, i: usize) -> [__m256i; 2] {
    let scale = spread(scales, i);
    unsigned(bytes).map(|v| _mm256_mullo_epi16(v, scale))
}

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 144], i: usize) -> __m256i {
    shift_mask(load32(w, 16 + 32 * (i / 2)), 4 * (i % 2), 15)
}

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 144], scales: __m256i, i: usize) -> [__m256i; 2] {
    scaled(bytes(w, i), scales, i)
}
