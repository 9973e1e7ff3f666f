//! IQ4_XS with Q8_K. Layout: see `pi_core::quant`.

use super::iq4_nl::{products, values};
use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_K, 136, 292, 256);

/// Scales from −32 to 31, in 16 bits.
#[target_feature(enable = "avx2")]
#[inline]
fn scales(w: &[u8; 136]) -> __m128i {
    let low = _mm_cvtsi32_si128(i32::from_le_bytes([w[4], w[5], w[6], w[7]]));
    let low = _mm_unpacklo_epi8(low, _mm_srli_epi16(low, 4));
    let low = _mm_cvtepu8_epi16(_mm_and_si128(low, _mm_set1_epi8(15)));
    // scale `i` has bits `2 i` and `2 i + 1`: to the top of its lane, then down
    let up = _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1);
    let high = _mm_mullo_epi16(_mm_set1_epi16(i16::from_le_bytes([w[2], w[3]])), up);
    let high = _mm_slli_epi16(_mm_srli_epi16(high, 14), 4);
    _mm_sub_epi16(_mm_or_si128(low, high), _mm_set1_epi16(32))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 136], x: &[u8; 292], acc: __m256) -> __m256 {
    let scales = _mm256_broadcastsi128_si256(scales(w));
    let mut sums = _mm256_setzero_si256();
    for i in 0..8 {
        let p = products(values(load16(w, 8 + 16 * i)), load32(x, 4 + 32 * i));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(p, spread(scales, i)));
    }
    add_scaled_i32(acc, _mm256_mul_ps(half_all(w, 0), float_all(x, 0)), sums)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 136], mut emit: impl FnMut(usize, __m256)) {
    let mut scales_of = [0.0; 8];
    store(&mut scales_of, _mm256_mul_ps(half_all(w, 0), _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(scales(w)))));
    for (i, scale) in scales_of.into_iter().enumerate() {
        let scale = _mm256_set1_ps(scale);
        widen(values(load16(w, 8 + 16 * i)), 4 * i, |i, q| emit(i, _mm256_mul_ps(scale, q)));
    }
}
