//! Q5_K with Q8_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::q4_k::{numbers_of, product_of};
use std::arch::x86_64::*;

super::block_kernels!(Q8_K, 176, 292, 256);

#[target_feature(enable = "avx2")]
#[inline]
fn pair(w: &[u8; 176], i: usize) -> (__m256i, __m256i) {
    let q = load32(w, 48 + 32 * i);
    let high = shift_mask(load32(w, 16), 2 * i, 3);
    let (a, b) = (_mm256_slli_epi16(high, 4), _mm256_slli_epi16(high, 3));
    let bit = _mm256_set1_epi8(16);
    (
        _mm256_or_si256(shift_mask(q, 0, 15), _mm256_and_si256(a, bit)),
        _mm256_or_si256(shift_mask(q, 4, 15), _mm256_and_si256(b, bit)),
    )
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 176], x: &[u8; 292], acc: __m256) -> __m256 {
    product_of(w, x, acc, |i| pair(w, i))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 176], emit: impl FnMut(usize, __m256)) {
    numbers_of(w, |i| pair(w, i), emit);
}
