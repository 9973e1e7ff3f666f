//! Q4_1 with Q8_1. Layout: see `pi_core::quant`.

use super::{lanes::*, rows};
use half::f16;
use std::arch::x86_64::*;

super::block_kernels!(Q8_1, 20, 36, 32, finish);

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 20], x: &[u8; 36], acc: __m256) -> __m256 {
    let sums = _mm256_maddubs_epi16(halves(load16(w, 4)), load32(x, 4));
    add_with_min(acc, float_at(w, 0), float_at(x, 0), pairs(sums))
}

/// Adds `d_w · d_x · sums`, and `m_w · s_x` to one lane. The first four bytes of a block of either type hold two
/// half-precision numbers: scale and minimum of the weights, scale and scaled sum of the activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_with_min(acc: __m256, w: f32, x: f32, sums: __m256i) -> __m256 {
    let halves = |two: f32| _mm_cvtph_ps(_mm_cvtsi32_si128(two.to_bits() as i32));
    let both = _mm_mul_ps(halves(w), halves(x));
    let min = _mm_blend_ps(both, _mm_setzero_ps(), 0b1101);
    let acc = _mm256_add_ps(acc, _mm256_zextps128_ps256(min));
    _mm256_fmadd_ps(_mm256_broadcastss_ps(both), _mm256_cvtepi32_ps(sums), acc)
}

/// A sum too large for half precision is infinite in its block, and so is the product: then it is made from the codes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn finish(y: f32, w: &[u8], x: &[u8]) -> f32 {
    if y.is_finite() { y } else { large_sums(w, x, |w: &[u8; 20], x, acc| product(w, x, acc)) }
}

/// The product of two rows, where sums that are not finite are made from the codes.
#[cold]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn large_sums<const W: usize>(
    w: &[u8],
    x: &[u8],
    product: impl Fn(&[u8; W], &[u8; 36], __m256) -> __m256,
) -> f32 {
    rows::dot(w, x, |w: &[u8; W], x: &[u8; 36], acc: __m256| {
        if x[3] & 0x7c != 0x7c {
            return product(w, x, acc);
        }
        let half = |b: &[u8], at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
        let sum: i32 = x[4..].iter().map(|&q| i32::from(q as i8)).sum();
        let min = half(w, 2) * (half(x, 0) * sum as f32);
        let mut rest = *x;
        rest[2..4].fill(0);
        product(w, &rest, _mm256_add_ps(acc, _mm256_zextps128_ps256(_mm_set_ss(min))))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 20], mut emit: impl FnMut(usize, __m256)) {
    let (d, m) = (half_all(w, 0), half_all(w, 2));
    widen(halves(load16(w, 4)), 0, |i, q| emit(i, _mm256_add_ps(_mm256_mul_ps(q, d), m)));
}
