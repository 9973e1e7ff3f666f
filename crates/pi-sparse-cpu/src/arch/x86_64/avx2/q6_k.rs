//! Q6_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::large::{Head, Table};
use crate::activations::split15::SUMS;
use std::arch::x86_64::*;

super::large::large_kernels!(210, 0, SUMS);

/// Codes of 0…63 of numbers `32 i` and on.
#[target_feature(enable = "avx2")]
#[inline]
fn raised(w: &[u8; 210], i: usize) -> __m256i {
    let (half, quarter) = (i / 4, i % 4);
    let low = shift_mask(load32(w, 64 * half + 32 * (quarter % 2)), 4 * (quarter / 2), 15);
    let high = shift_mask(load32(w, 128 + 32 * half), 2 * quarter, 3);
    _mm256_or_si256(low, _mm256_slli_epi16(high, 4))
}

#[target_feature(enable = "avx2")]
#[inline]
fn prepare(w: &[u8; 210]) -> __m256i {
    _mm256_zextsi128_si256(load16(w, 192))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn head(w: &[u8; 210]) -> Head<0> {
    Head { scale: half_all(w, 208), mins: [] }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn table(w: &[u8; 210]) -> Table {
    let d = half_at(w, 208);
    Table { scales: std::array::from_fn(|i| d * f32::from(w[192 + i] as i8)), mins: [0.0; 16] }
}

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 210], i: usize) -> __m256i {
    _mm256_sub_epi8(raised(w, i), _mm256_set1_epi8(32))
}

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 210], scales: __m256i, i: usize) -> [__m256i; 2] {
    let scale = two_scales(_mm256_castsi256_si128(scales), i);
    signed(bytes(w, i)).map(|v| _mm256_mullo_epi16(v, scale))
}
