//! Types of blocks of 32 with a scale each (and a minimum, in some), beside activations in blocks of 256.
//!
//! A type says what the codes of a block are: 16 bits each, the even ones and the odd ones. Products of codes and their sums
//! are exact, and the few roundings have one order; so one row, four, and a tile of rows and tokens give the same bits.

use super::lanes::*;
use super::rows::{GROUPS, TOKENS, X, block_of};
use crate::activations::{SCALE, SUMS};
use std::arch::x86_64::*;

/// Rows of equal length beside one row of activations. `product` adds one block beside one group, but for the activations' scale.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dots<const R: usize, const W: usize>(
    w: [&[u8]; R],
    x: &[u8],
    product: impl Fn(&[u8; W], &X, usize, __m256) -> __m256,
) -> [f32; R] {
    let w: [&[[u8; W]]; R] = w.map(|w| w.as_chunks().0);
    let mut total = [_mm256_setzero_ps(); R];
    let blocks = w[0].len().div_ceil(GROUPS);
    for (s, x) in x.as_chunks().0.iter().enumerate().take(blocks) {
        let w = w.map(|w| w.get(GROUPS * s..).unwrap_or(&[]));
        let mut part = [_mm256_setzero_ps(); R];
        let whole: [Option<&[[u8; W]; GROUPS]>; R] = w.map(|w| w.first_chunk());
        if whole.iter().all(Option::is_some) {
            for i in 0..GROUPS {
                for r in 0..R {
                    if let Some(w) = whole[r] {
                        part[r] = product(&w[i], x, i, part[r]);
                    }
                }
            }
        } else {
            for r in 0..R {
                for (i, w) in w[r].iter().take(GROUPS).enumerate() {
                    part[r] = product(w, x, i, part[r]);
                }
            }
        }
        for r in 0..R {
            total[r] = _mm256_fmadd_ps(part[r], float_all(x, SCALE), total[r]);
        }
    }
    let mut y = [0.0; R];
    for r in 0..R {
        y[r] = sum(total[r]);
    }
    y
}

/// One block's product with group `i`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn product(
    [even, odd]: [__m256i; 2],
    scale: __m256,
    min: Option<__m256>,
    x: &X,
    i: usize,
    part: __m256,
) -> __m256 {
    let sums = _mm256_add_epi32(
        _mm256_madd_epi16(even, load32(x, 64 * i)),
        _mm256_madd_epi16(odd, load32(x, 64 * i + 32)),
    );
    let part = add_scaled_i32(part, scale, sums);
    min.map_or(part, |min| _mm256_fmadd_ps(min, first_float(x, SUMS + 4 * i), part))
}

/// Weights of four rows beside one block of activations, unpacked.
pub(super) struct Panel {
    groups: usize,
    codes: [[[__m256i; 2]; 4]; GROUPS],
    scales: [[__m256; 4]; GROUPS],
    mins: Option<[[__m256; 4]; GROUPS]>,
}

/// Four rows of equal length with several rows of activations. `unpack` gives codes, scale and minimum of a block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn tile<const W: usize>(
    w: [&[u8]; 4],
    x: &[u8],
    row_bytes: usize,
    y: &mut [[f32; 4]],
    unpack: impl Fn(&[u8; W]) -> ([__m256i; 2], __m256, Option<__m256>),
) {
    let w: [&[[u8; W]]; 4] = w.map(|w| w.as_chunks().0);
    let blocks = w[0].len();
    let zero = _mm256_setzero_ps();
    for (c, y) in y.chunks_mut(TOKENS).enumerate() {
        let x = x.get(c * TOKENS * row_bytes..).unwrap_or(&[]);
        let mut totals = [[zero; 4]; TOKENS];
        for s in 0..blocks.div_ceil(GROUPS) {
            let mut panel = Panel {
                groups: (blocks - s * GROUPS).min(GROUPS),
                codes: [[[_mm256_setzero_si256(); 2]; 4]; GROUPS],
                scales: [[zero; 4]; GROUPS],
                mins: None,
            };
            for i in 0..panel.groups {
                for r in 0..4 {
                    let (codes, scale, min) = unpack(&w[r][s * GROUPS + i]);
                    (panel.codes[i][r], panel.scales[i][r]) = (codes, scale);
                    if let Some(min) = min {
                        panel.mins.get_or_insert([[zero; 4]; GROUPS])[i][r] = min;
                    }
                }
            }
            pass(&panel, x, row_bytes, s, &mut totals[..y.len()]);
        }
        for (y, totals) in y.iter_mut().zip(totals) {
            *y = [sum(totals[0]), sum(totals[1]), sum(totals[2]), sum(totals[3])];
        }
    }
}

/// Block `s` of the tokens' activations passes by a panel.
#[target_feature(enable = "avx2,fma,f16c")]
fn pass(panel: &Panel, x: &[u8], row_bytes: usize, s: usize, totals: &mut [[__m256; 4]]) {
    let (twos, one) = totals.as_chunks_mut::<2>();
    for (t, totals) in twos.iter_mut().enumerate() {
        if let (Some(a), Some(b)) = (block_of(x, row_bytes, 2 * t, s), block_of(x, row_bytes, 2 * t + 1, s)) {
            add(panel, [a, b], totals);
        }
    }
    let last = twos.len() * 2;
    if let ([total], Some(x)) = (one, block_of(x, row_bytes, last, s)) {
        add(panel, [x], std::array::from_mut(total));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add<const T: usize>(panel: &Panel, x: [&X; T], totals: &mut [[__m256; 4]; T]) {
    let mut parts = [[_mm256_setzero_ps(); 4]; T];
    for i in 0..panel.groups.min(GROUPS) {
        let mut codes = [[_mm256_setzero_si256(); 2]; T];
        for t in 0..T {
            codes[t] = [load32(x[t], 64 * i), load32(x[t], 64 * i + 32)];
        }
        for r in 0..4 {
            let ([even, odd], scale) = (panel.codes[i][r], panel.scales[i][r]);
            for t in 0..T {
                let sums =
                    _mm256_add_epi32(_mm256_madd_epi16(even, codes[t][0]), _mm256_madd_epi16(odd, codes[t][1]));
                parts[t][r] = add_scaled_i32(parts[t][r], scale, sums);
            }
        }
        if let Some(mins) = &panel.mins {
            for t in 0..T {
                let sum = first_float(x[t], SUMS + 4 * i);
                for r in 0..4 {
                    parts[t][r] = _mm256_fmadd_ps(mins[i][r], sum, parts[t][r]);
                }
            }
        }
    }
    for t in 0..T {
        for r in 0..4 {
            totals[t][r] = _mm256_fmadd_ps(parts[t][r], float_all(x[t], SCALE), totals[t][r]);
        }
    }
}

/// The kernels of a type whose file has `codes`, `scale`, `min` and `numbers`; bytes per block.
macro_rules! small_kernels {
    ($w:literal) => {
        pub(super) const KERNELS: crate::kernels::TypeKernels = {
            use super::{lanes, rows, small};
            use std::arch::x86_64::*;

            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            fn dots<const R: usize>(w: [&[u8]; R], x: &[u8]) -> [f32; R] {
                small::dots(w, x, |w: &[u8; $w], x: &rows::X, i: usize, part: __m256| {
                    small::product(codes(w), scale(w), min(w), x, i, part)
                })
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            fn tiles(w: [&[u8]; 4], x: &[u8], row_bytes: usize, y: &mut [[f32; 4]]) {
                small::tile(w, x, row_bytes, y, |w: &[u8; $w]| (codes(w), scale(w), min(w)));
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            fn axpys<const R: usize>(w: [&[u8]; R], a: [f32; R], y: &mut [f32]) {
                let w: [&[[u8; $w]]; R] = w.map(|w| w.as_chunks().0);
                for (b, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    let y = y.as_chunks_mut().0;
                    let mut v = [lanes::load(&y[0]), lanes::load(&y[1]), lanes::load(&y[2]), lanes::load(&y[3])];
                    for r in 0..R {
                        let Some(w) = w[r].get(b) else { return };
                        let a = _mm256_set1_ps(a[r]);
                        numbers(w, |i, n| v[i] = _mm256_fmadd_ps(a, n, v[i]));
                    }
                    for i in 0..4 {
                        lanes::store(&mut y[i], v[i]);
                    }
                }
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            fn decode(w: &[u8], out: &mut [f32]) {
                for (w, out) in w.as_chunks::<$w>().0.iter().zip(out.as_chunks_mut::<32>().0) {
                    numbers(w, |i, v| lanes::store(&mut out.as_chunks_mut().0[i], v));
                }
            }

            super::rows::row_kernels!(SPLIT15)
        };
    };
}
pub(super) use small_kernels;
