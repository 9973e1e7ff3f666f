//! IQ4_NL. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::small::Pair;
use std::arch::x86_64::*;

super::small::small_kernels!(18, false);

/// What codes mean.
#[target_feature(enable = "avx2")]
#[inline]
fn table() -> __m128i {
    _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
}

/// The values that 16 bytes of codes name.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn values(packed: __m128i) -> __m256i {
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table()), halves(packed))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn unpack(a: &[u8; 18], b: &[u8; 18]) -> Pair {
    let packed = load16_each(a, b, 2);
    let named = |codes| _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table()), codes);
    let (first, second) = (signed(named(shift_mask(packed, 0, 15))), signed(named(shift_mask(packed, 4, 15))));
    Pair { codes: [first[0], first[1], second[0], second[1]], scales: half_each(a, b, 0), mins: None }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 18], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    widen(values(load16(w, 2)), 0, |i, q| emit(i, _mm256_mul_ps(d, q)));
}
