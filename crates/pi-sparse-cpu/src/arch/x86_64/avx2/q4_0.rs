//! Q4_0 with Q8_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_0, 18, 34, 32);

/// Codes are taken as 0…15, and eight times the activations subtracted: so no byte of activations can overflow.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 18], x: &[u8; 34], acc: __m256) -> __m256 {
    let codes = load32(x, 2);
    let raised = _mm256_maddubs_epi16(halves(load16(w, 2)), codes);
    let sums = _mm256_sub_epi16(raised, _mm256_maddubs_epi16(_mm256_set1_epi8(8), codes));
    add_scaled_i32(acc, _mm256_mul_ps(half_all(w, 0), half_all(x, 0)), pairs(sums))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 18], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    let codes = _mm256_sub_epi8(halves(load16(w, 2)), _mm256_set1_epi8(8));
    widen(codes, 0, |i, q| emit(i, _mm256_mul_ps(q, d)));
}
