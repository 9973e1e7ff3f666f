//! Q2_K with Q8_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_K, 84, 292, 256);

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 84], x: &[u8; 292], acc: __m256) -> __m256 {
    let both = load16(w, 0);
    let scales = _mm_and_si128(both, _mm_set1_epi8(15));
    let mins = _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
    let mut sums = _mm256_setzero_si256();
    for i in 0..8 {
        let codes = shift_mask(load32(w, 16 + 32 * (i / 4)), 2 * (i % 4), 3);
        let p = _mm256_maddubs_epi16(codes, load32(x, 4 + 32 * i));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(p, two_scales(scales, i)));
    }
    let min_sums = _mm256_madd_epi16(_mm256_cvtepi8_epi16(mins), load32(x, 260));
    let d = float_all(x, 0);
    let acc = add_scaled_i32(acc, _mm256_mul_ps(d, half_all(w, 80)), sums);
    _mm256_fnmadd_ps(_mm256_mul_ps(d, half_all(w, 82)), _mm256_cvtepi32_ps(min_sums), acc)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 84], mut emit: impl FnMut(usize, __m256)) {
    let (d, dmin) = (half_at(w, 80), half_at(w, 82));
    let scale = |group: usize| _mm256_set1_ps(d * f32::from(w[group] & 15));
    let min = |group: usize| _mm256_set1_ps(dmin * f32::from(w[group] >> 4));
    for i in 0..8 {
        let scales = [scale(2 * i), scale(2 * i + 1)];
        let mins = [min(2 * i), min(2 * i + 1)];
        let codes = shift_mask(load32(w, 16 + 32 * (i / 4)), 2 * (i % 4), 3);
        widen(codes, 4 * i, |at, q| {
            let group = at / 2 % 2;
            emit(at, _mm256_sub_ps(_mm256_mul_ps(scales[group], q), mins[group]));
        });
    }
}
