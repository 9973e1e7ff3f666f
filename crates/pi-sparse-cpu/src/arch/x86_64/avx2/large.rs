//! Types of blocks of 256, whose groups of 16 or 32 have small integers as scales (and minima, in some).
//!
//! A type says what the bytes of a group are and what its scales are; their products fit in 16 bits. Sums over a block are
//! exact integers, and the few roundings have one order; so one row, four, and a tile of rows and tokens give the same bits.

use super::lanes::*;
use super::rows;
use crate::activations::split15::{BYTES, SCALE};
use std::arch::x86_64::*;

/// Groups of 32 in a block.
const GROUPS: usize = 8;
/// Panels of four rows that pass by all tokens one after the other: those of two fours fill most of the nearest cache.
const PANELS: usize = 4;
/// Tokens that pass by a panel before the next is made: their sums stay in the nearest cache. (Unpacking takes too long here to be
/// done for every eight tokens, as in `small`: prompts would be up to a fifth slower.)
const TOKENS: usize = 32;

type X = [u8; BYTES];

/// What a block is beside the codes of its groups.
#[derive(Clone, Copy)]
pub(super) struct Head<const M: usize> {
    /// The scale, in all lanes.
    pub scale: __m256,
    /// Minima of eight groups, or of sixteen halves.
    pub mins: [__m256; M],
}

/// Rows of equal length beside one row of activations. `prepare` reads a block's scales; `codes` gives a group's codes times scales: 16 bits
/// each, the even ones and the odd ones; `head` the rest. `sums` is where the activations' sums are that minima meet.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dots<const R: usize, const W: usize, const M: usize>(
    w: [&[u8]; R],
    next: [&[u8]; R],
    x: &[u8],
    sums: usize,
    prepare: impl Fn(&[u8; W]) -> __m256i,
    codes: impl Fn(&[u8; W], __m256i, usize) -> [__m256i; 2],
    head: impl Fn(&[u8; W]) -> Head<M>,
) -> [f32; R] {
    let bytes = w;
    let w: [&[[u8; W]]; R] = w.map(|w| w.as_chunks().0);
    let ahead = rows::Ahead::new(&bytes, next);
    let mut total = [_mm256_setzero_ps(); R];
    for (s, x) in x.as_chunks().0.iter().enumerate().take(w[0].len()) {
        ahead.ask(&bytes, s * W, W);
        for r in 0..R {
            let Some(w) = w[r].get(s) else { break };
            let scales = prepare(w);
            let mut products = _mm256_setzero_si256();
            for i in 0..GROUPS {
                let [even, odd] = codes(w, scales, i);
                products = _mm256_add_epi32(products, _mm256_madd_epi16(even, load32(x, 64 * i)));
                products = _mm256_add_epi32(products, _mm256_madd_epi16(odd, load32(x, 64 * i + 32)));
            }
            total[r] = finish(products, &head(w), x, sums, total[r]);
        }
    }
    let mut y = [0.0; R];
    for r in 0..R {
        y[r] = sum(total[r]);
    }
    y
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn finish<const M: usize>(products: __m256i, head: &Head<M>, x: &X, sums: usize, total: __m256) -> __m256 {
    let mut part = _mm256_mul_ps(head.scale, _mm256_cvtepi32_ps(products));
    for m in 0..M {
        part = _mm256_fnmadd_ps(head.mins[m], _mm256_castsi256_ps(load32(x, sums + 32 * m)), part);
    }
    _mm256_fmadd_ps(part, float_all(x, SCALE), total)
}

/// Weights of four rows beside one block of activations, unpacked.
#[derive(Clone, Copy)]
struct Panel<const M: usize> {
    codes: [[[__m256i; 2]; 4]; GROUPS],
    heads: [Head<M>; 4],
}

/// A multiple of four rows of equal length beside several rows of activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn tile<const W: usize, const M: usize>(
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    (y, stride): (&mut [f32], usize),
    sums_at: usize,
    prepare: impl Fn(&[u8; W]) -> __m256i,
    codes: impl Fn(&[u8; W], __m256i, usize) -> [__m256i; 2],
    head: impl Fn(&[u8; W]) -> Head<M>,
) {
    let zero = _mm256_setzero_ps();
    let empty =
        Panel { codes: [[[_mm256_setzero_si256(); 2]; 4]; GROUPS], heads: [Head { scale: zero, mins: [zero; M] }; 4] };
    let mut panels = [[empty; PANELS]; 2];
    let mut totals = [[[zero; 4]; TOKENS]; 2];
    let blocks = w[0].len() / W;
    for (c, y) in y.chunks_mut(TOKENS * stride).enumerate() {
        let x = x.get(c * TOKENS * row_bytes..).unwrap_or(&[]);
        for (e, eight) in w.chunks(8).enumerate() {
            let fours = eight.as_chunks::<4>().0;
            for from in (0..blocks.max(1)).step_by(PANELS) {
                let to = (from + PANELS).min(blocks);
                for (four, panels) in fours.iter().zip(&mut panels) {
                    for (s, panel) in (from..to).zip(panels) {
                        for r in 0..4 {
                            let Some(w) = four[r].as_chunks().0.get(s) else { break };
                            let scales = prepare(w);
                            for i in 0..GROUPS {
                                panel.codes[i][r] = codes(w, scales, i);
                            }
                            panel.heads[r] = head(w);
                        }
                    }
                }
                for (t, y) in y.chunks_exact_mut(stride).enumerate() {
                    for four in 0..fours.len() {
                        let mut acc = if from == 0 { [zero; 4] } else { totals[four][t] };
                        for (s, panel) in (from..to).zip(&panels[four]) {
                            if let Some(x) = block_of(x, row_bytes, t, s) {
                                add(panel, x, sums_at, &mut acc);
                            }
                        }
                        if to < blocks {
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

/// Block `s` of row `t` of the activations.
#[inline(always)]
fn block_of(x: &[u8], row_bytes: usize, t: usize, s: usize) -> Option<&X> {
    x.get(t * row_bytes + s * BYTES..)?.first_chunk()
}

/// A token's block beside a panel.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add<const M: usize>(panel: &Panel<M>, x: &X, sums_at: usize, totals: &mut [__m256; 4]) {
    let mut products = [_mm256_setzero_si256(); 4];
    for i in 0..GROUPS {
        let (even, odd) = (load32(x, 64 * i), load32(x, 64 * i + 32));
        for r in 0..4 {
            let [a, b] = panel.codes[i][r];
            products[r] = _mm256_add_epi32(products[r], _mm256_madd_epi16(a, even));
            products[r] = _mm256_add_epi32(products[r], _mm256_madd_epi16(b, odd));
        }
    }
    for r in 0..4 {
        totals[r] = finish(products[r], &panel.heads[r], x, sums_at, totals[r]);
    }
}

/// Scales and minima of the sixteen halves of groups, as numbers.
pub(super) struct Table {
    pub scales: [f32; 16],
    pub mins: [f32; 16],
}

/// The 32 numbers of group `i`, from its codes as signed bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn numbers(bytes: __m256i, i: usize, table: &Table, has_min: bool) -> [__m256; 4] {
    let mut v = widen(bytes);
    for (at, v) in v.iter_mut().enumerate() {
        let half = 2 * i + at / 2;
        let scale = _mm256_set1_ps(table.scales[half]);
        // products of codes and scales are exact
        *v = match has_min {
            true => _mm256_fmsub_ps(scale, *v, _mm256_set1_ps(table.mins[half])),
            false => _mm256_mul_ps(scale, *v),
        };
    }
    v
}

/// The kernels of a type whose file has `prepare`, `codes`, `head`, `bytes` and `table`; bytes per block, number of vectors
/// of minima, and where the sums are that they meet.
macro_rules! large_kernels {
    ($w:literal, $m:literal, $sums:expr) => {
        super::large::large_kernels!(KERNELS, Avx2, "avx2,fma,f16c", $w, $m, $sums);
        super::large::large_kernels!(
            AVX512,
            Avx512,
            "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
            $w,
            $m,
            $sums
        );
    };
    ($name:ident, $isa:ident, $features:literal, $w:literal, $m:literal, $sums:expr) => {
        pub(in crate::arch::x86_64) const $name: crate::kernels::TypeKernels = {
            use super::{lanes, large, rows};
            use std::arch::x86_64::*;

            #[target_feature(enable = $features)]
            #[inline]
            fn dots<const R: usize>(w: [&[u8]; R], next: [&[u8]; R], x: &[u8]) -> [f32; R] {
                large::dots::<R, $w, $m>(w, next, x, $sums, |w| prepare(w), |w, s, i| codes(w, s, i), |w| head(w))
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn tiles(w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32], stride: usize) {
                let (x, y) = ((x, row_bytes), (y, stride));
                large::tile::<$w, $m>(w, x, y, $sums, |w| prepare(w), |w, s, i| codes(w, s, i), |w| head(w));
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn axpys<const R: usize>(w: [&[u8]; R], next: [&[u8]; R], a: [f32; R], y: &mut [f32]) {
                let (bytes_of, ahead) = (w, rows::Ahead::picked(next));
                let w: [&[[u8; $w]]; R] = w.map(|w| w.as_chunks().0);
                for (b, y) in y.as_chunks_mut::<256>().0.iter_mut().enumerate().take(w[0].len()) {
                    ahead.ask(&bytes_of, b * $w, $w);
                    let tables: [large::Table; R] = std::array::from_fn(|r| table(&w[r][b]));
                    for (i, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                        let y = y.as_chunks_mut().0;
                        let mut v = [lanes::load(&y[0]), lanes::load(&y[1]), lanes::load(&y[2]), lanes::load(&y[3])];
                        for r in 0..R {
                            let a = _mm256_set1_ps(a[r]);
                            let n = large::numbers(bytes(&w[r][b], i), i, &tables[r], $m > 0);
                            for j in 0..4 {
                                v[j] = _mm256_fmadd_ps(a, n[j], v[j]);
                            }
                        }
                        for j in 0..4 {
                            lanes::store(&mut y[j], v[j]);
                        }
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn decode(w: &[u8], out: &mut [f32]) {
                for (w, out) in w.as_chunks::<$w>().0.iter().zip(out.as_chunks_mut::<256>().0) {
                    let table = table(w);
                    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                        let n = large::numbers(bytes(w, i), i, &table, $m > 0);
                        for (out, n) in out.as_chunks_mut().0.iter_mut().zip(n) {
                            lanes::store(out, n);
                        }
                    }
                }
            }

            super::rows::row_kernels!(SPLIT15, $isa, $features)
        };
    };
}
pub(super) use large_kernels;
