//! Q3_K with Q8_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_K, 110, 292, 256);

/// Codes of 0…7 of numbers `32 i` and on.
#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 110], i: usize) -> __m256i {
    let low = shift_mask(load32(w, 32 + 32 * (i / 4)), 2 * (i % 4), 3);
    let high = shift_mask(load32(w, 0), i, 1);
    _mm256_or_si256(low, _mm256_slli_epi16(high, 2))
}

/// Scales from −32 to 31.
#[inline(always)]
fn scales(w: &[u8; 110]) -> [u8; 16] {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    const HIGH: u64 = 0x3030_3030_3030_3030;
    let byte = |at: usize| u64::from(w[at]);
    let word = |at: usize, n: usize| (0..n).fold(0, |v, i| v | byte(at + i) << (8 * i));
    let (low, high) = (word(96, 8), word(104, 4));
    // bits 0…3 of `high` belong to the first half, 4…7 to the second; in each, the lower two to its first four scales
    let first = low & LOW | (high << 4 | high << 34) & HIGH;
    let second = low >> 4 & LOW | (high | high << 30) & HIGH;
    let mut scales = [0; 16];
    scales[..8].copy_from_slice(&first.to_le_bytes());
    scales[8..].copy_from_slice(&second.to_le_bytes());
    scales.map(|s| s.wrapping_sub(32))
}

/// As for Q4_0, with 4 instead of 8.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 110], x: &[u8; 292], acc: __m256) -> __m256 {
    let scales = load16(&scales(w), 0);
    let mut sums = _mm256_setzero_si256();
    for i in 0..8 {
        let q = load32(x, 4 + 32 * i);
        let raised = _mm256_maddubs_epi16(codes(w, i), q);
        let p = _mm256_sub_epi16(raised, _mm256_maddubs_epi16(_mm256_set1_epi8(4), q));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(p, two_scales(scales, i)));
    }
    add_scaled_i32(acc, _mm256_mul_ps(half_all(w, 108), float_all(x, 0)), sums)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 110], mut emit: impl FnMut(usize, __m256)) {
    let d = half_at(w, 108);
    let scales = scales(w).map(|s| d * f32::from(s as i8));
    for i in 0..8 {
        let scales = [_mm256_set1_ps(scales[2 * i]), _mm256_set1_ps(scales[2 * i + 1])];
        let q = _mm256_sub_epi8(codes(w, i), _mm256_set1_epi8(4));
        widen(q, 4 * i, |at, q| emit(at, _mm256_mul_ps(scales[at / 2 % 2], q)));
    }
}
