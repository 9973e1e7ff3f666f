//! Types of blocks of 32 with a scale each (and a minimum, in some), beside activations in blocks of 256.
//!
//! Blocks are taken in pairs. As files have them, the one is in the lower half of a vector and the other in the upper; so
//! nibbles become 16-bit numbers by shifts and masks alone, and one conversion to floats serves both. Rows may also be
//! [repacked](crate::Packed): then each pair's scales lie side by side before its codes, and the blocks have turns in a vector.
//! A type says what the codes of a pair are. Products of codes and their sums are exact, and the few roundings have one order;
//! so one row, four, and a tile of rows and tokens give the same bits.

use super::lanes::*;
use super::rows::{self, TOKENS, block_of};
use crate::activations::pairs15::{BYTES, SCALE, SUMS};
use std::arch::x86_64::*;

/// Pairs of blocks beside a block of activations.
const PAIRS: usize = 4;
/// Panels of four rows that pass by all tokens one after the other: those of two fours fill most of the nearest cache.
const PANELS: usize = 4;

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
pub(super) fn tile<const P: usize, const O: i16, const M: bool>(
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    y: &mut [f32],
    stride: usize,
    unpack: impl Fn(&[u8; P]) -> Pair,
    fill: fn(&[u8]) -> [u8; P],
) {
    let zero = _mm256_setzero_ps();
    let codes = [[[_mm256_setzero_si256(); 4]; 4]; PAIRS];
    let empty = Panel { pairs: 0, codes, scales: [[zero; 4]; PAIRS], mins: [[zero; 4]; PAIRS] };
    let mut panels = [[empty; PANELS]; 2];
    let mut totals = [[[zero; 4]; TOKENS]; 2];
    let pairs = w[0].len() / P + usize::from(has_block::<P>(w[0].as_chunks::<P>().1));
    let panels_in_all = pairs.div_ceil(PAIRS).max(1);
    for (c, y) in y.chunks_mut(TOKENS * stride).enumerate() {
        let x = x.get(c * TOKENS * row_bytes..).unwrap_or(&[]);
        for (e, eight) in w.chunks(8).enumerate() {
            let fours = eight.as_chunks::<4>().0;
            for from in (0..panels_in_all).step_by(PANELS) {
                let to = (from + PANELS).min(panels_in_all);
                for (four, panels) in fours.iter().zip(&mut panels) {
                    for (s, panel) in (from..to).zip(panels) {
                        let first = s * PAIRS;
                        panel.pairs = (pairs - first).min(PAIRS);
                        for i in 0..panel.pairs {
                            for r in 0..4 {
                                let (whole, lone) = four[r].as_chunks();
                                let pair = match whole.get(first + i) {
                                    Some(w) => unpack(w),
                                    None => unpack(&fill(lone)),
                                };
                                panel.codes[i][r] = if O == 0 { pair.codes } else { less(pair.codes, O) };
                                panel.scales[i][r] = pair.scales;
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
            parts[r] = product::<0>(&pair, x, i, parts[r]);
        }
    }
    for r in 0..4 {
        totals[r] = _mm256_fmadd_ps(parts[r], float_all(x, SCALE), totals[r]);
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

/// The numbers of block `b` of a repacked pair.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn numbers_of<const O: i16>(pair: &Pair, b: usize) -> [__m256; 4] {
    let of = |v: __m256| if b == 0 { _mm256_moveldup_ps(v) } else { _mm256_movehdup_ps(v) };
    let codes = if O == 0 { pair.codes } else { less(pair.codes, O) };
    let mut n = [_mm256_setzero_ps(); 4];
    for k in 0..4 {
        // in turns by twos: first to either half, then from both halves to one
        let apart = _mm256_permute4x64_epi64(_mm256_shuffle_epi32(codes[k], 0b11_01_10_00), 0b11_01_10_00);
        let half = if b == 0 { _mm256_castsi256_si128(apart) } else { _mm256_extracti128_si256(apart, 1) };
        n[k] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(half));
    }
    times(n, of(pair.scales), pair.mins.map(of))
}

/// Codes of two blocks in the order of a repacked pair, vector by vector.
pub(super) fn in_turns(a: &[u8; 32], b: &[u8; 32]) -> [[u8; 16]; 4] {
    std::array::from_fn(|k| {
        std::array::from_fn(|l| {
            let block = if l / 2 % 2 == 0 { a } else { b };
            block[8 * k + l / 4 * 2 + l % 2]
        })
    })
}

/// Codes of 4 bits of two blocks: lane by lane, those of the four vectors from low to high.
pub(super) fn pack_nibbles(a: &[u8; 32], b: &[u8; 32], out: &mut [u8]) {
    let codes = in_turns(a, b);
    for (l, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        *out = (0..4).fold(0u16, |word, k| word | u16::from(codes[k][l]) << (4 * k)).to_le_bytes();
    }
}

/// Codes of 8 bits of two blocks: those of the first two vectors in turns, then those of the others.
pub(super) fn pack_bytes(a: &[u8; 32], b: &[u8; 32], out: &mut [u8]) {
    let codes = in_turns(a, b);
    for (i, out) in out.iter_mut().enumerate().take(64) {
        *out = codes[i / 32 * 2 + i % 2][i % 32 / 2];
    }
}

/// Puts the two bytes at `from` of each block at `at`.
pub(super) fn put2(out: &mut [u8], at: usize, a: &[u8], b: &[u8], from: usize) {
    out[at..at + 2].copy_from_slice(&a[from..from + 2]);
    out[at + 2..at + 4].copy_from_slice(&b[from..from + 2]);
}

/// What [`pack_nibbles`] wrote.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn four_nibbles(v: __m256i) -> [__m256i; 4] {
    let low = _mm256_set1_epi16(15);
    [
        _mm256_and_si256(v, low),
        _mm256_and_si256(_mm256_srli_epi16(v, 4), low),
        _mm256_and_si256(_mm256_srli_epi16(v, 8), low),
        _mm256_srli_epi16(v, 12),
    ]
}

/// Codes of half bytes as files have them.
pub(super) fn nibbles_of(packed: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { packed[i] & 15 } else { packed[i - 16] >> 4 })
}

/// The two scales at byte `at` of a repacked pair, in turns.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn scales_at<const P: usize>(w: &[u8; P], at: usize) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi32(i32::from_le_bytes([w[at], w[at + 1], w[at + 2], w[at + 3]])))
}

/// A pair of blocks as files have it, of a lone one and nothing.
pub(super) fn fill_plain<const P: usize>(lone: &[u8]) -> [u8; P] {
    let mut pair = [0; P];
    pair[..P / 2].copy_from_slice(&lone[..P / 2]);
    pair
}

/// A repacked pair of a lone block and nothing: such a block stays as it is in a repacked row.
pub(super) fn fill_packed<const W: usize, const P: usize>(
    lone: &[u8],
    pack: fn(&[u8; W], &[u8; W], &mut [u8; P]),
) -> [u8; P] {
    let (mut block, mut pair) = ([0; W], [0; P]);
    block.copy_from_slice(&lone[..W]);
    pack(&block, &[0; W], &mut pair);
    pair
}

/// Repacks a row, or does the reverse with `pack` for that.
pub(super) fn pack_row<const W: usize, const P: usize>(
    row: &[u8],
    out: &mut [u8],
    pack: fn(&[u8; W], &[u8; W], &mut [u8; P]),
) {
    let (pairs, lone) = row.as_chunks::<P>();
    let (out_pairs, out_lone) = out.as_chunks_mut::<P>();
    for (pair, out) in pairs.iter().zip(out_pairs) {
        if let [a, b] = pair.as_chunks().0 {
            pack(a, b, out);
        }
    }
    out_lone.iter_mut().zip(lone).for_each(|(out, byte)| *out = *byte);
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
                small::tile::<$p, $offset, $mins>(w, (x, row_bytes), y, stride, |w| unpack(w), fill);
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

/// Kernels for repacked rows of a type: bytes of a block and of a pair, what is to be taken from codes, whether there are
/// minima, how to unpack a pair and how to pack two blocks.
macro_rules! packed_kernels {
    ($w:literal, $p:literal, $offset:literal, $mins:literal, $unpack:path, $pack:path) => {
        mod packed {
            use crate::arch::x86_64::avx2::small;
            use std::arch::x86_64::*;

            small::small_kernels!($p, $offset, $mins, LANES15);

            pub(in crate::arch::x86_64) const PACK: crate::kernels::Pack = |row, out| small::pack_row(row, out, $pack);

            fn fill(lone: &[u8]) -> [u8; $p] {
                small::fill_packed::<$w, $p>(lone, $pack)
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            fn unpack(w: &[u8; $p]) -> small::Pair {
                $unpack(w)
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            fn numbers(w: &[u8; $p], b: usize) -> [__m256; 4] {
                small::numbers_of::<$offset>(&unpack(w), b)
            }
        }
        pub(in crate::arch::x86_64) use packed::{AVX512 as PACKED_AVX512, KERNELS as PACKED, PACK};
    };
}
pub(super) use packed_kernels;
