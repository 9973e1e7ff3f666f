//! Q5_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::small::Pair;
use std::arch::x86_64::*;

super::small::small_kernels!(22, false);

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

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn unpack(a: &[u8; 22], b: &[u8; 22]) -> Pair {
    let codes = five_bits(load16_each(a, b, 6), float_at(a, 2).to_bits(), float_at(b, 2).to_bits());
    Pair { codes: less(codes, 16), scales: half_each(a, b, 0), mins: None }
}

/// The codes of a pair of blocks from their nibbles and fifth bits.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn five_bits(packed: __m256i, a: u32, b: u32) -> [__m256i; 4] {
    let bits = _mm256_set_m128i(_mm_set1_epi32(b as i32), _mm_set1_epi32(a as i32));
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let fifth = |place: __m256i| {
        let spread = _mm256_and_si256(_mm256_shuffle_epi8(bits, place), bit);
        _mm256_and_si256(_mm256_cmpeq_epi8(spread, bit), _mm256_set1_epi8(16))
    };
    let first = _mm256_set_epi64x(0x0101_0101_0101_0101, 0, 0x0101_0101_0101_0101, 0);
    let second = _mm256_or_si256(first, _mm256_set1_epi8(2));
    let low = _mm256_or_si256(shift_mask(packed, 0, 15), fifth(first));
    let high = _mm256_or_si256(shift_mask(packed, 4, 15), fifth(second));
    let ([a, b], [c, d]) = (unsigned(low), unsigned(high));
    [a, b, c, d]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 22], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    widen(_mm256_sub_epi8(bytes(w), _mm256_set1_epi8(16)), 0, |i, q| emit(i, _mm256_mul_ps(q, d)));
}
