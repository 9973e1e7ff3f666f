//! Q4_K with Q8_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_K, 144, 292, 256);

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

/// The product of a block of Q4_K or Q5_K with one of Q8_K. `pair(i)` gives the codes of groups `2 i` and `2 i + 1`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn product_of<const B: usize>(
    w: &[u8; B],
    x: &[u8; 292],
    acc: __m256,
    pair: impl Fn(usize) -> (__m256i, __m256i),
) -> __m256 {
    let (scales, mins) = scales_and_mins(w);
    let (scales, mins) = (widen_twice(scales), widen_twice(mins));
    let mut sums = _mm256_setzero_si256();
    for i in 0..4 {
        let (a, b) = pair(i);
        let a = _mm256_madd_epi16(_mm256_maddubs_epi16(a, load32(x, 4 + 64 * i)), spread(scales, 2 * i));
        let b = _mm256_madd_epi16(_mm256_maddubs_epi16(b, load32(x, 36 + 64 * i)), spread(scales, 2 * i + 1));
        sums = _mm256_add_epi32(sums, _mm256_add_epi32(a, b));
    }
    // a minimum counts for two of the sums over 16 activations
    let twice = _mm256_setr_epi8(
        0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9, 8, 9, 10, 11, 10, 11, 12, 13, 12, 13, 14, 15, 14, 15,
    );
    let min_sums = _mm256_madd_epi16(_mm256_shuffle_epi8(mins, twice), load32(x, 260));
    let d = float_all(x, 0);
    let acc = add_scaled_i32(acc, _mm256_mul_ps(d, half_all(w, 0)), sums);
    _mm256_fnmadd_ps(_mm256_mul_ps(d, half_all(w, 2)), _mm256_cvtepi32_ps(min_sums), acc)
}

/// The numbers of a block of Q4_K or Q5_K.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn numbers_of<const B: usize>(
    w: &[u8; B],
    pair: impl Fn(usize) -> (__m256i, __m256i),
    mut emit: impl FnMut(usize, __m256),
) {
    let (d, dmin) = (half_at(w, 0), half_at(w, 2));
    let (scales, mins) = scales_and_mins(w);
    for i in 0..4 {
        let (a, b) = pair(i);
        for (codes, group) in [(a, 2 * i), (b, 2 * i + 1)] {
            let scale = _mm256_set1_ps(d * f32::from(scales[group]));
            let min = _mm256_set1_ps(dmin * f32::from(mins[group]));
            widen(codes, 4 * group, |i, q| emit(i, _mm256_sub_ps(_mm256_mul_ps(scale, q), min)));
        }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn pair(w: &[u8; 144], i: usize) -> (__m256i, __m256i) {
    let q = load32(w, 16 + 32 * i);
    (shift_mask(q, 0, 15), shift_mask(q, 4, 15))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 144], x: &[u8; 292], acc: __m256) -> __m256 {
    product_of(w, x, acc, |i| pair(w, i))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 144], emit: impl FnMut(usize, __m256)) {
    numbers_of(w, |i| pair(w, i), emit);
}
