//! Q5_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::small::small_kernels!(22);

/// 16 in each byte whose bit in `bits` is set.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn fifth_bits(bits: u32) -> __m256i {
    // each byte gets the byte of `bits` that holds its bit, then is compared with that bit
    let place = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), place), bit);
    _mm256_and_si256(_mm256_cmpeq_epi8(spread, bit), _mm256_set1_epi8(16))
}

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 22]) -> __m256i {
    _mm256_or_si256(halves(load16(w, 6)), fifth_bits(float_at(w, 2).to_bits()))
}

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 22]) -> [__m256i; 2] {
    unsigned(bytes(w)).map(|v| _mm256_sub_epi16(v, _mm256_set1_epi16(16)))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn scale(w: &[u8; 22]) -> __m256 {
    half_all(w, 0)
}

#[inline(always)]
fn min(_: &[u8; 22]) -> Option<__m256> {
    None
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 22], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    widen(_mm256_sub_epi8(bytes(w), _mm256_set1_epi8(16)), 0, |i, q| emit(i, _mm256_mul_ps(q, d)));
}
