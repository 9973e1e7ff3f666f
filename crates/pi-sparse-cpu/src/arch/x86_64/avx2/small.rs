//! Types of blocks of 32 with a scale each (and a minimum, in some), beside activations in blocks of 256.
//!
//! Blocks are taken in pairs. As files have them, the one is in the lower half of a vector and the other in the upper; so
//! nibbles become 16-bit numbers by shifts and masks alone, and one conversion to floats serves both. (Repacked rows:
//! [`super::eights`].) A type says what the codes of a pair are. Products of codes and their sums are exact, and the few roundings have one order;
//! so one row, four, and a tile of rows and tokens give the same bits.

use super::lanes::*;
use super::rows::{self, ROWS};
use crate::activations::pairs15::{BYTES, SCALE, SUMS};
use std::arch::x86_64::*;

/// Pairs of blocks beside a block of activations.
const PAIRS: usize = 4;
pub(super) type X = [u8; BYTES];

/// A pair of blocks: codes of 16 bits in the order of the activations, scales and minima, each in the lanes of its block.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub codes: [__m256i; 4],
    pub scales: __m256,
    pub mins: Option<__m256>,
}

/// Rows of equal length beside one row of activations. `P`: bytes of a pair; `O`: what is to be taken from each code; `fill`
/// makes a pair of a lone last block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dots<const R: usize, const P: usize, const O: i16>(
    bytes: [&[u8]; R],
    next: [&[u8]; R],
    x: &[u8],
    unpack: impl Fn(&[u8; P]) -> Pair,
    fill: fn(&[u8]) -> [u8; P],
) -> [f32; R] {
    let w: [(&[[u8; P]], &[u8]); R] = bytes.map(|w| w.as_chunks());
    let (pairs, lone) = (w[0].0.len(), has_block::<P>(w[0].1));
    let ahead = rows::Ahead::new(&bytes, next);
    let mut total = [_mm256_setzero_ps(); R];
    for (s, x) in x.as_chunks::<BYTES>().0.iter().enumerate().take((pairs + usize::from(lone)).div_ceil(PAIRS)) {
        let mut part = [_mm256_setzero_ps(); R];
        let first = s * PAIRS;
        let n = (pairs - first).min(PAIRS);
        ahead.ask(&bytes, first * P, n * P);
        if n == PAIRS {
            let mut whole = [&[[0; P]; PAIRS]; R];
            for r in 0..R {
                whole[r] = w[r].0[first..].first_chunk().unwrap_or(whole[r]);
            }
            for i in 0..PAIRS {
                for r in 0..R {
                    part[r] = product::<O>(&unpack(&whole[r][i]), x, i, part[r]);
                }
            }
        } else {
            for r in 0..R {
                for (i, w) in w[r].0[first..].iter().enumerate().take(n) {
                    part[r] = product::<O>(&unpack(w), x, i, part[r]);
                }
                if lone {
                    part[r] = product::<O>(&unpack(&fill(w[r].1)), x, n, part[r]);
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

/// Whether a row goes on for a block after its last pair.
#[inline(always)]
fn has_block<const P: usize>(rest: &[u8]) -> bool {
    rest.len() >= P / 2
}

/// Adds the product with pair `i` of the activations, but for their scale.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product<const O: i16>(pair: &Pair, x: &X, i: usize, part: __m256) -> __m256 {
    let codes = |k: usize| load32(x, 128 * i + 32 * k);
    let sums = || _mm256_castsi256_ps(load32(x, SUMS + 32 * i));
    let a = _mm256_add_epi32(_mm256_madd_epi16(pair.codes[0], codes(0)), _mm256_madd_epi16(pair.codes[1], codes(1)));
    let b = _mm256_add_epi32(_mm256_madd_epi16(pair.codes[2], codes(2)), _mm256_madd_epi16(pair.codes[3], codes(3)));
    let mut products = _mm256_cvtepi32_ps(_mm256_add_epi32(a, b));
    if O != 0 {
        // still an integer of less than 24 bits
        products = _mm256_fmadd_ps(_mm256_set1_ps(-f32::from(O)), sums(), products);
    }
    let part = _mm256_fmadd_ps(pair.scales, products, part);
    match pair.mins {
        Some(mins) => _mm256_fmadd_ps(mins, sums(), part),
        None => part,
    }
}

/// A multiple of four rows of equal length beside several rows of activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn tile<const P: usize, const O: i16>(
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    (y, stride): (&mut [f32], usize),
    unpack: impl Fn(&[u8; P]) -> Pair + Copy,
    fill: fn(&[u8]) -> [u8; P],
) {
    rows::by_tokens!(some_tokens::<P, O>, w, (x, row_bytes), (y, stride), unpack, fill);
}

/// The same for `T` tokens or one less.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn some_tokens<const T: usize, const P: usize, const O: i16>(
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    (y, stride): (&mut [f32], usize),
    unpack: impl Fn(&[u8; P]) -> Pair,
    fill: fn(&[u8]) -> [u8; P],
) {
    let blocks = rows::tokens::<T, BYTES>(x, row_bytes, y.len() / stride);
    let pairs = w[0].len() / P + usize::from(has_block::<P>(w[0].as_chunks::<P>().1));
    let in_all = pairs.div_ceil(PAIRS).min(row_bytes / BYTES);
    for (c, some) in w.chunks(ROWS).enumerate() {
        let mut totals = [[_mm256_setzero_ps(); T]; ROWS];
        for s in 0..in_all {
            let xs = rows::block_of(&blocks, s);
            for (r, (row, totals)) in some.iter().zip(&mut totals).enumerate() {
                rows::ask_next(row, w.get(ROWS * (c + 1) + r), (s + 1) * PAIRS * P, in_all * PAIRS * P, PAIRS * P);
                let (whole, lone) = row.as_chunks::<P>();
                let mut parts = [_mm256_setzero_ps(); T];
                for i in 0..PAIRS.min(pairs - s * PAIRS) {
                    let mut pair = match whole.get(s * PAIRS + i) {
                        Some(w) => unpack(w),
                        None => unpack(&fill(lone)),
                    };
                    if O != 0 {
                        pair.codes = less(pair.codes, O);
                    }
                    for t in 0..T {
                        parts[t] = product::<0>(&pair, xs[t], i, parts[t]);
                    }
                }
                for t in 0..T {
                    totals[t] = _mm256_fmadd_ps(parts[t], float_all(xs[t], SCALE), totals[t]);
                }
            }
        }
        rows::store_sums(&totals[..some.len()], &mut y[ROWS * c..], stride);
    }
}

/// `y += a * row` for some rows of equal length, whole blocks of 32. `numbers` gives those of a block of a pair.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn axpys<const R: usize, const P: usize>(
    w: [&[u8]; R],
    next: [&[u8]; R],
    a: [f32; R],
    y: &mut [f32],
    numbers: impl Fn(&[u8; P], usize) -> [__m256; 4],
    fill: fn(&[u8]) -> [u8; P],
) {
    let mut by = [_mm256_setzero_ps(); R];
    for r in 0..R {
        by[r] = _mm256_set1_ps(a[r]);
    }
    let rows: [(&[[u8; P]], &[u8]); R] = w.map(|w| w.as_chunks());
    let whole = rows[0].0.len().min(y.len() / 64);
    let mut pairs = [&rows[0].0[..0]; R];
    for r in 0..R {
        pairs[r] = &rows[r].0[..whole];
    }
    let (y, rest) = y.split_at_mut(64 * whole);
    let ahead = rows::Ahead::picked(next);
    for (i, y) in y.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        if i.is_multiple_of(PAIRS) {
            ahead.ask(&w, i * P, PAIRS * P);
        }
        // A block at a time: with the sums of two, there would be too few registers.
        for (b, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let y = y.as_chunks_mut().0;
            let mut v = [load(&y[0]), load(&y[1]), load(&y[2]), load(&y[3])];
            for r in 0..R {
                let n = numbers(&pairs[r][i], b);
                for j in 0..4 {
                    v[j] = _mm256_fmadd_ps(by[r], n[j], v[j]);
                }
            }
            for j in 0..4 {
                store(&mut y[j], v[j]);
            }
        }
    }
    // one block more
    let y = rest.as_chunks_mut::<8>().0;
    if y.len() >= 4 {
        for r in 0..R {
            let n = match rows[r].0.get(whole) {
                Some(pair) => numbers(pair, 0),
                None if has_block::<P>(rows[r].1) => numbers(&fill(rows[r].1), 0),
                None => return,
            };
            for (y, n) in y.iter_mut().zip(n) {
                store(y, _mm256_fmadd_ps(by[r], n, load(y)));
            }
        }
    }
}

/// Decodes whole blocks of 32.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn decode<const P: usize>(
    w: &[u8],
    out: &mut [f32],
    numbers: impl Fn(&[u8; P], usize) -> [__m256; 4],
    fill: fn(&[u8]) -> [u8; P],
) {
    let (pairs, lone) = w.as_chunks::<P>();
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let n = match pairs.get(i / 2) {
            Some(pair) => numbers(pair, i % 2),
            None if i == 2 * pairs.len() && has_block::<P>(lone) => numbers(&fill(lone), 0),
            None => return,
        };
        for (out, n) in out.as_chunks_mut().0.iter_mut().zip(n) {
            store(out, n);
        }
    }
}

/// Block `b` of a pair.
#[inline(always)]
pub(super) fn block<const W: usize, const P: usize>(pair: &[u8; P], b: usize) -> &[u8; W] {
    &pair.as_chunks().0[b]
}

/// A pair of blocks as files have it, of a lone one and nothing.
pub(super) fn fill_plain<const P: usize>(lone: &[u8]) -> [u8; P] {
    let mut pair = [0; P];
    pair[..P / 2].copy_from_slice(&lone[..P / 2]);
    pair
}

/// The kernels of a type whose file has `unpack` and `numbers` for pairs of blocks, and `fill`; bytes per pair, what is to be
/// taken from codes, whether there are minima, and the form of activations.
macro_rules! small_kernels {
    ($p:literal, $offset:literal, $mins:literal, $form:ident) => {
        crate::arch::x86_64::avx2::small::small_kernels!(KERNELS, Avx2, "avx2,fma,f16c", $p, $offset, $mins, $form);
        crate::arch::x86_64::avx2::small::small_kernels!(
            AVX512,
            Avx512,
            "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
            $p,
            $offset,
            $mins,
            $form
        );
    };
    ($name:ident, $isa:ident, $features:literal, $p:literal, $offset:literal, $mins:literal, $form:ident) => {
        pub(in crate::arch::x86_64) const $name: crate::kernels::TypeKernels = {
            use crate::arch::x86_64::avx2::{rows, small};

            #[target_feature(enable = $features)]
            #[inline]
            fn dots<const R: usize>(w: [&[u8]; R], next: [&[u8]; R], x: &[u8]) -> [f32; R] {
                small::dots::<R, $p, $offset>(w, next, x, |w: &[u8; $p]| unpack(w), fill)
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn tiles(w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32], stride: usize) {
                small::tile::<$p, $offset>(w, (x, row_bytes), (y, stride), |w: &[u8; $p]| unpack(w), fill);
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn axpys<const R: usize>(w: [&[u8]; R], next: [&[u8]; R], a: [f32; R], y: &mut [f32]) {
                small::axpys(w, next, a, y, |w: &[u8; $p], b| numbers(w, b), fill);
            }

            #[target_feature(enable = $features)]
            fn decode(w: &[u8], out: &mut [f32]) {
                small::decode(w, out, |w: &[u8; $p], b| numbers(w, b), fill);
            }

            rows::row_kernels!($form, $isa, $features)
        };
    };
}
pub(super) use small_kernels;
