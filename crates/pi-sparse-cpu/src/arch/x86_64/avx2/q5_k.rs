//! Q5_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::q4_k::{head, prepare, scaled, table};
use crate::activations::split15::SUMS;
use std::arch::x86_64::*;

super::large::large_kernels!(176, 1, SUMS);

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 176], i: usize) -> __m256i {
    let low = shift_mask(load32(w, 48 + 32 * (i / 2)), 4 * (i % 2), 15);
    let high = shift_mask(load32(w, 16), i, 1);
    _mm256_or_si256(low, _mm256_slli_epi16(high, 4))
}

#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 176], scales: __m256i, i: usize) -> [__m256i; 2] {
    scaled(bytes(w, i), scales, i)
}
