//! Q4_1. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::small::Pair;
use std::arch::x86_64::*;

super::small::small_kernels!(20, true);

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn unpack(a: &[u8; 20], b: &[u8; 20]) -> Pair {
    let (scales, mins) = two_halves_each(a, b);
    Pair { codes: nibbles(load16_each(a, b, 4)), scales, mins: Some(mins) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 20], mut emit: impl FnMut(usize, __m256)) {
    let (d, m) = (half_all(w, 0), half_all(w, 2));
    widen(halves(load16(w, 4)), 0, |i, q| emit(i, _mm256_add_ps(_mm256_mul_ps(q, d), m)));
}
