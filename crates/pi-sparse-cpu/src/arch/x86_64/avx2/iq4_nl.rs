//! IQ4_NL with Q8_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_0, 18, 34, 32);

/// The values that 16 bytes of codes name.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn values(packed: __m128i) -> __m256i {
    let table = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), halves(packed))
}

/// Products in pairs. The sign goes from the activations, which may be −128, to the values, which never are: so nothing
/// overflows (128 · 127 · 2 fits in 16 bits).
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn products(values: __m256i, x: __m256i) -> __m256i {
    _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(values, x))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 18], x: &[u8; 34], acc: __m256) -> __m256 {
    let sums = products(values(load16(w, 2)), load32(x, 2));
    add_scaled_i32(acc, _mm256_mul_ps(half_all(w, 0), half_all(x, 0)), pairs(sums))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 18], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    widen(values(load16(w, 2)), 0, |i, q| emit(i, _mm256_mul_ps(d, q)));
}
