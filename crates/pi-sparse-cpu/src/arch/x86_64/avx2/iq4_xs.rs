//! IQ4_XS. Layout: see `pi_core::quant`.

use super::iq4_nl::values;
use super::lanes::*;
use super::large::{Head, Table};
use crate::activations::split15::SUMS;
use std::arch::x86_64::*;

super::large::large_kernels!(136, 0, SUMS);

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

#[target_feature(enable = "avx2")]
#[inline]
fn prepare(w: &[u8; 136]) -> __m256i {
    _mm256_broadcastsi128_si256(scales(w))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn head(w: &[u8; 136]) -> Head<0> {
    Head { scale: half_all(w, 0), mins: [] }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn table(w: &[u8; 136]) -> Table {
    let mut scales_of = [0.0; 8];
    store(&mut scales_of, _mm256_mul_ps(half_all(w, 0), _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(scales(w)))));
    Table { scales: std::array::from_fn(|i| scales_of[i / 2]), mins: [0.0; 16] }
}

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 136], i: usize) -> __m256i {
    values(load16(w, 8 + 16 * i))
}

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 136], scales: __m256i, i: usize) -> [__m256i; 2] {
    let scale = spread(scales, i);
    signed(bytes(w, i)).map(|v| _mm256_mullo_epi16(v, scale))
}
