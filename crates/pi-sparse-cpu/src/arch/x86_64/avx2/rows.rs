//! Rows from blocks: what all block types share.

use super::lanes::{load, store, sum};
use std::arch::x86_64::*;

/// The product of two rows. `product` adds one pair of blocks to eight sums.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dot<const W: usize, const X: usize>(
    w: &[u8],
    x: &[u8],
    product: impl Fn(&[u8; W], &[u8; X], __m256) -> __m256,
) -> f32 {
    let mut acc = _mm256_setzero_ps();
    for (w, x) in w.as_chunks().0.iter().zip(x.as_chunks().0) {
        acc = product(w, x, acc);
    }
    sum(acc)
}

/// Four rows with one: a block of activations is loaded and prepared once for all four.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dot4<const W: usize, const X: usize>(
    w: [&[u8]; 4],
    x: &[u8],
    product: impl Fn(&[u8; W], &[u8; X], __m256) -> __m256,
) -> [f32; 4] {
    let [w0, w1, w2, w3] = w;
    if w1.len() != w0.len() || w2.len() != w0.len() || w3.len() != w0.len() {
        return [dot(w0, x, &product), dot(w1, x, &product), dot(w2, x, &product), dot(w3, x, &product)];
    }
    let [w0, w1, w2, w3] = [w0.as_chunks().0, w1.as_chunks().0, w2.as_chunks().0, w3.as_chunks().0];
    let mut acc = [_mm256_setzero_ps(); 4];
    for ((((w0, w1), w2), w3), x) in w0.iter().zip(w1).zip(w2).zip(w3).zip(x.as_chunks().0) {
        acc[0] = product(w0, x, acc[0]);
        acc[1] = product(w1, x, acc[1]);
        acc[2] = product(w2, x, acc[2]);
        acc[3] = product(w3, x, acc[3]);
    }
    [sum(acc[0]), sum(acc[1]), sum(acc[2]), sum(acc[3])]
}

/// Leaves a product alone.
#[inline(always)]
pub(super) fn as_it_is(product: f32, _: &[u8], _: &[u8]) -> f32 {
    product
}

/// Calls `f` with each whole block and its place in `y`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn update<const W: usize, const N: usize>(w: &[u8], y: &mut [f32], f: impl Fn(&[u8; W], &mut [f32; N])) {
    for (w, y) in w.as_chunks().0.iter().zip(y.as_chunks_mut().0) {
        f(w, y);
    }
}

/// `y += a * v`.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(super) fn add_scaled(y: &mut [f32; 8], a: f32, v: __m256) {
    store(y, _mm256_fmadd_ps(_mm256_set1_ps(a), v, load(y)));
}
