//! IQ4_NL. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::small::small_kernels!(18);

/// The values that 16 bytes of codes name.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn values(packed: __m128i) -> __m256i {
    let table = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), halves(packed))
}

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 18]) -> [__m256i; 2] {
    signed(values(load16(w, 2)))
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
    widen(values(load16(w, 2)), 0, |i, q| emit(i, _mm256_mul_ps(d, q)));
}
