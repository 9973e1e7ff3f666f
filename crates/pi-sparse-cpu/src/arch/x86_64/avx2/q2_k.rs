//! Q2_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::large::{Head, Table};
use crate::activations::split15::HALF_SUMS;
use std::arch::x86_64::*;

super::large::large_kernels!(84, 2, HALF_SUMS);

#[target_feature(enable = "avx2")]
#[inline]
fn prepare(w: &[u8; 84]) -> __m256i {
    _mm256_zextsi128_si256(_mm_and_si128(load16(w, 0), _mm_set1_epi8(15)))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn head(w: &[u8; 84]) -> Head<2> {
    let mins = _mm_and_si128(_mm_srli_epi16(load16(w, 0), 4), _mm_set1_epi8(15));
    let (d, dmin) = (half_all(w, 80), half_all(w, 82));
    let eight = |bytes| _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)));
    Head { scale: d, mins: [eight(mins), eight(_mm_srli_si128(mins, 8))] }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn table(w: &[u8; 84]) -> Table {
    let (d, dmin) = (half_at(w, 80), half_at(w, 82));
    Table {
        scales: std::array::from_fn(|i| d * f32::from(w[i] & 15)),
        mins: std::array::from_fn(|i| dmin * f32::from(w[i] >> 4)),
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 84], i: usize) -> __m256i {
    shift_mask(load32(w, 16 + 32 * (i / 4)), 2 * (i % 4), 3)
}

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 84], scales: __m256i, i: usize) -> [__m256i; 2] {
    let scale = two_scales(_mm256_castsi256_si128(scales), i);
    unsigned(bytes(w, i)).map(|v| _mm256_mullo_epi16(v, scale))
}
