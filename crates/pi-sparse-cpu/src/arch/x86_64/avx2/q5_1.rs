//! Q5_1. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::q5_0::{fifth_bits, five_bits};
use super::small::Pair;
use std::arch::x86_64::*;

super::small::small_kernels!(24, true);

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 24]) -> __m256i {
    _mm256_or_si256(halves(load16(w, 8)), fifth_bits(float_at(w, 4).to_bits()))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn unpack(a: &[u8; 24], b: &[u8; 24]) -> Pair {
    let codes = five_bits(load16_each(a, b, 8), float_at(a, 4).to_bits(), float_at(b, 4).to_bits());
    let (scales, mins) = two_halves_each(a, b);
    Pair { codes, scales, mins: Some(mins) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 24], mut emit: impl FnMut(usize, __m256)) {
    let (d, m) = (half_all(w, 0), half_all(w, 2));
    widen(bytes(w), 0, |i, q| emit(i, _mm256_add_ps(_mm256_mul_ps(q, d), m)));
}
