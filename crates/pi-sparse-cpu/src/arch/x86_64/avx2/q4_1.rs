//! Q4_1 with Q8_1. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_1, 20, 36, 32);

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 20], x: &[u8; 36], acc: __m256) -> __m256 {
    let sums = _mm256_maddubs_epi16(halves(load16(w, 4)), load32(x, 4));
    add_with_min(acc, float_at(w, 0), x, pairs(sums))
}

/// Adds `d_w · d_x · sums`, and `m_w · s_x` to one lane. The first four bytes of a block of either type hold two
/// half-precision numbers: scale and minimum of the weights, scale and scaled sum of the activations. A sum too large for
/// half precision is infinite there, and made anew from the codes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_with_min(acc: __m256, w: f32, x: &[u8; 36], sums: __m256i) -> __m256 {
    let halves = |two: f32| _mm_cvtph_ps(_mm_cvtsi32_si128(two.to_bits() as i32));
    let both = _mm_mul_ps(halves(w), halves(float_at(x, 0)));
    let min = match x[3] & 0x7c {
        0x7c => _mm_mul_ps(halves(w), _mm_set1_ps(large_sum(x))),
        _ => both,
    };
    let min = _mm_blend_ps(min, _mm_setzero_ps(), 0b1101);
    let acc = _mm256_add_ps(acc, _mm256_zextps128_ps256(min));
    _mm256_fmadd_ps(_mm256_broadcastss_ps(both), _mm256_cvtepi32_ps(sums), acc)
}

#[cold]
fn large_sum(x: &[u8; 36]) -> f32 {
    let sum: i32 = x[4..].iter().map(|&q| i32::from(q as i8)).sum();
    half::f16::from_le_bytes([x[0], x[1]]).to_f32() * sum as f32
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 20], mut emit: impl FnMut(usize, __m256)) {
    let (d, m) = (half_all(w, 0), half_all(w, 2));
    widen(halves(load16(w, 4)), 0, |i, q| emit(i, _mm256_add_ps(_mm256_mul_ps(q, d), m)));
}
