//! Q4_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::small::small_kernels!(18);

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 18]) -> [__m256i; 2] {
    unsigned(halves(load16(w, 2))).map(|v| _mm256_sub_epi16(v, _mm256_set1_epi16(8)))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn scale(w: &[u8; 18]) -> __m256 {
    half_all(w, 0)
}

#[inline(always)]
fn min(_: &[u8; 18]) -> Option<__m256> {
    None
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 18], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    let codes = _mm256_sub_epi8(halves(load16(w, 2)), _mm256_set1_epi8(8));
    widen(codes, 0, |i, q| emit(i, _mm256_mul_ps(q, d)));
}
