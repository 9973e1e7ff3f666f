//! Q3_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::large::{Head, Table};
use crate::activations::split15::SUMS;
use std::arch::x86_64::*;

super::large::large_kernels!(110, 0, SUMS);

/// Codes of 0…7 of numbers `32 i` and on.
#[target_feature(enable = "avx2")]
#[inline]
fn raised(w: &[u8; 110], i: usize) -> __m256i {
    let low = shift_mask(load32(w, 32 + 32 * (i / 4)), 2 * (i % 4), 3);
    let high = shift_mask(load32(w, 0), i, 1);
    _mm256_or_si256(low, _mm256_slli_epi16(high, 2))
}

/// Scales from −32 to 31, as bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn scales(w: &[u8; 110]) -> __m128i {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    const HIGH: u64 = 0x3030_3030_3030_3030;
    let (low, high) = (word_at(w, 96), word_at(w, 102) >> 16 & 0xffff_ffff);
    // of each byte of `high`, bits 0…3 belong to the first eight scales, 4…7 to the others; the lower two of them to the
    // first four of the eight
    let first = low & LOW | (high << 4 | high << 34) & HIGH;
    let others = low >> 4 & LOW | (high | high << 30) & HIGH;
    _mm_sub_epi8(_mm_set_epi64x(others as i64, first as i64), _mm_set1_epi8(32))
}

#[target_feature(enable = "avx2")]
#[inline]
fn prepare(w: &[u8; 110]) -> __m256i {
    _mm256_zextsi128_si256(scales(w))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn head(w: &[u8; 110]) -> Head<0> {
    Head { scale: half_all(w, 108), mins: [] }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn table(w: &[u8; 110]) -> Table {
    let mut bytes = [0; 32];
    store32(&mut bytes, prepare(w));
    let d = half_at(w, 108);
    Table { scales: std::array::from_fn(|i| d * f32::from(bytes[i] as i8)), mins: [0.0; 16] }
}

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 110], i: usize) -> __m256i {
    _mm256_sub_epi8(raised(w, i), _mm256_set1_epi8(4))
}

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 110], scales: __m256i, i: usize) -> [__m256i; 2] {
    let scale = two_scales(_mm256_castsi256_si128(scales), i);
    signed(bytes(w, i)).map(|v| _mm256_mullo_epi16(v, scale))
}
