//! Q5_1 with Q8_1. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::q4_1::{add_with_min, large_sums};
use super::q5_0::fifth_bits;
use std::arch::x86_64::*;

super::block_kernels!(Q8_1, 24, 36, 32, finish);

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn codes(w: &[u8; 24]) -> __m256i {
    _mm256_or_si256(halves(load16(w, 8)), fifth_bits(float_at(w, 4).to_bits()))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 24], x: &[u8; 36], acc: __m256) -> __m256 {
    let sums = _mm256_maddubs_epi16(codes(w), load32(x, 4));
    add_with_min(acc, float_at(w, 0), float_at(x, 0), pairs(sums))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn finish(y: f32, w: &[u8], x: &[u8]) -> f32 {
    if y.is_finite() { y } else { large_sums(w, x, |w: &[u8; 24], x, acc| product(w, x, acc)) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 24], mut emit: impl FnMut(usize, __m256)) {
    let (d, m) = (half_all(w, 0), half_all(w, 2));
    widen(codes(w), 0, |i, q| emit(i, _mm256_add_ps(_mm256_mul_ps(q, d), m)));
}
