//! Types of blocks of 32 with a scale each (and a minimum, in some), beside activations in blocks of 256.
//!
//! Blocks are taken in pairs, the one in the lower half of a vector and the other in the upper: so nibbles become 16-bit
//! numbers by shifts and masks alone, and one conversion to floats serves both. A type says what the codes of a pair are.
//! Products of codes and their sums are exact, and the few roundings have one order; so one row, four, and a tile of rows and
//! tokens give the same bits.

use super::lanes::*;
use super::rows::{self, TOKENS, block_of};
use crate::activations::pairs15::{BYTES, SCALE, SUMS};
use std::arch::x86_64::*;

/// Pairs of blocks beside a block of activations.
const PAIRS: usize = 4;
/// Panels of four rows that pass by all tokens one after the other: those of two fours fill most of the nearest cache.
const PANELS: usize = 4;

pub(super) type X = [u8; BYTES];

/// A pair of blocks: codes of 16 bits (of the first halves the even ones and the odd ones, then of the second halves), scales
/// and minima, each in the lanes of its block.
pub(super) struct Pair {
    pub codes: [__m256i; 4],
    pub scales: __m256,
    pub mins: Option<__m256>,
}

/// Rows of equal length beside one row of activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dots<const R: usize, const W: usize>(
    w: [&[u8]; R],
    x: &[u8],
    unpack: impl Fn(&[u8; W], &[u8; W]) -> Pair,
) -> [f32; R] {
    let bytes = w;
    let w: [&[[u8; W]]; R] = w.map(|w| w.as_chunks().0);
    let mut total = [_mm256_setzero_ps(); R];
    let blocks = w[0].len();
    let ahead = rows::ahead(&bytes);
    for (s, x) in x.as_chunks::<BYTES>().0.iter().enumerate().take(blocks.div_ceil(2 * PAIRS)) {
        let mut part = [_mm256_setzero_ps(); R];
        let first = s * 2 * PAIRS;
        let n = (blocks - first).min(2 * PAIRS);
        rows::ask(&bytes, first * W, n * W, ahead);
        if n == 2 * PAIRS {
            let mut whole = [&[[0; W]; 2 * PAIRS]; R];
            for r in 0..R {
                whole[r] = w[r][first..].first_chunk().unwrap_or(whole[r]);
            }
            for i in 0..PAIRS {
                for r in 0..R {
                    let pair = unpack(&whole[r][2 * i], &whole[r][2 * i + 1]);
                    part[r] = product(&pair, x, i, part[r]);
                }
            }
        } else {
            for i in 0..n.div_ceil(2) {
                for r in 0..R {
                    part[r] = product(&pair_at(w[r], first + 2 * i, &unpack), x, i, part[r]);
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

/// The blocks from `at` on; after the last one, a block of nothing.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pair_at<const W: usize>(w: &[[u8; W]], at: usize, unpack: impl Fn(&[u8; W], &[u8; W]) -> Pair) -> Pair {
    unpack(w.get(at).unwrap_or(&[0; W]), w.get(at + 1).unwrap_or(&[0; W]))
}

/// Adds the product with pair `i` of the activations, but for their scale.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(pair: &Pair, x: &X, i: usize, part: __m256) -> __m256 {
    let codes = |k: usize| load32(x, 128 * i + 32 * k);
    let a = _mm256_add_epi32(_mm256_madd_epi16(pair.codes[0], codes(0)), _mm256_madd_epi16(pair.codes[1], codes(1)));
    let b = _mm256_add_epi32(_mm256_madd_epi16(pair.codes[2], codes(2)), _mm256_madd_epi16(pair.codes[3], codes(3)));
    let part = add_scaled_i32(part, pair.scales, _mm256_add_epi32(a, b));
    match pair.mins {
        Some(mins) => _mm256_fmadd_ps(mins, _mm256_castsi256_ps(load32(x, SUMS + 32 * i)), part),
        None => part,
    }
}

/// Weights of four rows beside a block of activations, unpacked.
#[derive(Clone, Copy)]
struct Panel {
    pairs: usize,
    codes: [[[__m256i; 4]; 4]; PAIRS],
    scales: [[__m256; 4]; PAIRS],
    mins: [[__m256; 4]; PAIRS],
}

/// A multiple of four rows of equal length beside several rows of activations. `M` if the type has minima.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn tile<const W: usize, const M: bool>(
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    y: &mut [f32],
    stride: usize,
    unpack: impl Fn(&[u8; W], &[u8; W]) -> Pair,
) {
    let zero = _mm256_setzero_ps();
    let codes = [[[_mm256_setzero_si256(); 4]; 4]; PAIRS];
    let empty = Panel { pairs: 0, codes, scales: [[zero; 4]; PAIRS], mins: [[zero; 4]; PAIRS] };
    let mut panels = [[empty; PANELS]; 2];
    let mut totals = [[[zero; 4]; TOKENS]; 2];
    let blocks = w[0].len() / W;
    let panels_in_all = blocks.div_ceil(2 * PAIRS).max(1);
    for (c, y) in y.chunks_mut(TOKENS * stride).enumerate() {
        let x = x.get(c * TOKENS * row_bytes..).unwrap_or(&[]);
        for (e, eight) in w.chunks(8).enumerate() {
            let fours = eight.as_chunks::<4>().0;
            for from in (0..panels_in_all).step_by(PANELS) {
                let to = (from + PANELS).min(panels_in_all);
                for (four, panels) in fours.iter().zip(&mut panels) {
                    for (s, panel) in (from..to).zip(panels) {
                        let first = s * 2 * PAIRS;
                        panel.pairs = (blocks - first).div_ceil(2).min(PAIRS);
                        for i in 0..panel.pairs {
                            for r in 0..4 {
                                let pair = pair_at(four[r].as_chunks().0, first + 2 * i, &unpack);
                                (panel.codes[i][r], panel.scales[i][r]) = (pair.codes, pair.scales);
                                if let (true, Some(mins)) = (M, pair.mins) {
                                    panel.mins[i][r] = mins;
                                }
                            }
                        }
                    }
                }
                for (t, y) in y.chunks_exact_mut(stride).enumerate() {
                    for four in 0..fours.len() {
                        let mut acc = if from == 0 { [zero; 4] } else { totals[four][t] };
                        for (s, panel) in (from..to).zip(&panels[four]) {
                            if let Some(x) = block_of(x, row_bytes, t, s) {
                                add::<M>(panel, x, &mut acc);
                            }
                        }
                        if to < panels_in_all {
                            totals[four][t] = acc;
                        } else if let Some(y) = y[8 * e + 4 * four..].first_chunk_mut() {
                            *y = sums(acc);
                        }
                    }
                }
            }
        }
    }
}

/// A token's block beside a panel.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add<const M: bool>(panel: &Panel, x: &X, totals: &mut [__m256; 4]) {
    let mut parts = [_mm256_setzero_ps(); 4];
    for i in 0..panel.pairs.min(PAIRS) {
        for r in 0..4 {
            let mins = if M { Some(panel.mins[i][r]) } else { None };
            let pair = Pair { codes: panel.codes[i][r], scales: panel.scales[i][r], mins };
            parts[r] = product(&pair, x, i, parts[r]);
        }
    }
    for r in 0..4 {
        totals[r] = _mm256_fmadd_ps(parts[r], float_all(x, SCALE), totals[r]);
    }
}

/// The kernels of a type whose file has `unpack` and `numbers`; bytes per block, and whether `unpack` gives minima.
macro_rules! small_kernels {
    ($w:literal, $mins:literal) => {
        super::small::small_kernels!(KERNELS, Avx2, "avx2,fma,f16c", $w, $mins);
        super::small::small_kernels!(
            AVX512,
            Avx512,
            "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
            $w,
            $mins
        );
    };
    ($name:ident, $isa:ident, $features:literal, $w:literal, $mins:literal) => {
        pub(in crate::arch::x86_64) const $name: crate::kernels::TypeKernels = {
            use super::{lanes, rows, small};
            use std::arch::x86_64::*;

            #[target_feature(enable = $features)]
            #[inline]
            fn dots<const R: usize>(w: [&[u8]; R], x: &[u8]) -> [f32; R] {
                small::dots(w, x, |a: &[u8; $w], b: &[u8; $w]| unpack(a, b))
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn tiles(w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32], stride: usize) {
                small::tile::<$w, $mins>(w, (x, row_bytes), y, stride, |a, b| unpack(a, b));
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn axpys<const R: usize>(w: [&[u8]; R], a: [f32; R], y: &mut [f32]) {
                let w: [&[[u8; $w]]; R] = w.map(|w| w.as_chunks().0);
                for (b, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate().take(w[0].len()) {
                    let y = y.as_chunks_mut().0;
                    let mut v = [lanes::load(&y[0]), lanes::load(&y[1]), lanes::load(&y[2]), lanes::load(&y[3])];
                    for r in 0..R {
                        let a = _mm256_set1_ps(a[r]);
                        numbers(&w[r][b], |i, n| v[i] = _mm256_fmadd_ps(a, n, v[i]));
                    }
                    for i in 0..4 {
                        lanes::store(&mut y[i], v[i]);
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn decode(w: &[u8], out: &mut [f32]) {
                for (w, out) in w.as_chunks::<$w>().0.iter().zip(out.as_chunks_mut::<32>().0) {
                    numbers(w, |i, v| lanes::store(&mut out.as_chunks_mut().0[i], v));
                }
            }

            super::rows::row_kernels!(PAIRS15, $isa, $features)
        };
    };
}
pub(super) use small_kernels;
