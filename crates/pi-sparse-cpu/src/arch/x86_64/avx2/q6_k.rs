//! Q6_K with Q8_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_K, 210, 292, 256);

/// Codes of 0…63 of numbers `32 i` and on.
#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 210], i: usize) -> __m256i {
    let (half, quarter) = (i / 4, i % 4);
    let low = shift_mask(load32(w, 64 * half + 32 * (quarter % 2)), 4 * (quarter / 2), 15);
    let high = shift_mask(load32(w, 128 + 32 * half), 2 * quarter, 3);
    _mm256_or_si256(low, _mm256_slli_epi16(high, 4))
}

/// As for Q4_0, with 32 instead of 8.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 210], x: &[u8; 292], acc: __m256) -> __m256 {
    let scales = load16(w, 192);
    let mut sums = _mm256_setzero_si256();
    for i in 0..8 {
        let q = load32(x, 4 + 32 * i);
        let raised = _mm256_maddubs_epi16(codes(w, i), q);
        let p = _mm256_sub_epi16(raised, _mm256_maddubs_epi16(_mm256_set1_epi8(32), q));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(p, two_scales(scales, i)));
    }
    add_scaled_i32(acc, _mm256_mul_ps(half_all(w, 208), float_all(x, 0)), sums)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 210], mut emit: impl FnMut(usize, __m256)) {
    let d = half_at(w, 208);
    let scale = |group: usize| _mm256_set1_ps(d * f32::from(w[192 + group] as i8));
    for i in 0..8 {
        let scales = [scale(2 * i), scale(2 * i + 1)];
        let q = _mm256_sub_epi8(codes(w, i), _mm256_set1_epi8(32));
        widen(q, 4 * i, |at, q| emit(at, _mm256_mul_ps(scales[at / 2 % 2], q)));
    }
}
