//! Q8_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::small::small_kernels!(34);

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 34]) -> [__m256i; 2] {
    signed(load32(w, 2))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn scale(w: &[u8; 34]) -> __m256 {
    half_all(w, 0)
}

#[inline(always)]
fn min(_: &[u8; 34]) -> Option<__m256> {
    None
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 34], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    widen(load32(w, 2), 0, |i, q| emit(i, _mm256_mul_ps(q, d)));
}
