//! Repacked rows of types with blocks of 32 and a scale each (and a minimum, in some): eight blocks side by side.
//!
//! Each block has a lane of a vector: vector `k` of 16 has codes `2 k` and `2 k + 1` of all eight. So the products of a block
//! end up in one number, and conversions to floats and scales come once per 256 numbers and not four times: on CPUs with AVX2
//! they want the units that multiply. Products of codes and their sums are exact, and the few roundings have one order; so one
//! row, four, and a tile of rows and tokens give the same bits.
//!
//! Eight blocks become: eight scales, eight minima if there are any, then codes, as the type has them. Less than eight at the
//! end of a row stay as they are; they are repacked each time they are used, so such rows should not be.

use super::lanes::*;
use super::rows::{self, ROWS};
use crate::activations::lanes15::{BYTES, SCALE, SUMS};
use std::arch::x86_64::*;

/// Numbers that are packed together.
pub(super) const COLUMNS: usize = 256;

type X = [u8; BYTES];

/// Rows of equal length beside one row of activations. `P`: bytes of eight blocks; `O`: what is to be taken from each code;
/// `M`: whether there are minima; `codes` gives vectors `4 i` to `4 i + 3`; `fill` makes eight blocks of less.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn dots<const R: usize, const P: usize, const O: i16, const M: bool>(
    bytes: [&[u8]; R],
    next: [&[u8]; R],
    x: &[u8],
    codes: impl Fn(&[u8; P], usize) -> [__m256i; 4],
    fill: fn(&[u8]) -> [u8; P],
) -> [f32; R] {
    let ahead = rows::Ahead::new(&bytes, next);
    let mut total = [_mm256_setzero_ps(); R];
    for (s, x) in x.as_chunks::<BYTES>().0.iter().enumerate().take(eights::<P>(bytes[0])) {
        ahead.ask(&bytes, s * P, P);
        let mut filled = [[0; P]; R];
        let mut w = [&[0; P]; R];
        for (r, filled) in filled.iter_mut().enumerate() {
            w[r] = eight(bytes[r], s, filled, fill);
        }
        let mut products = [_mm256_setzero_si256(); R];
        for i in 0..4 {
            for r in 0..R {
                let codes = codes(w[r], i);
                products[r] = add_products(codes, x, i, products[r]);
            }
        }
        for r in 0..R {
            total[r] = finish::<O>(products[r], scales(w[r]), mins::<P, M>(w[r]), x, total[r]);
        }
    }
    let mut y = [0.0; R];
    for r in 0..R {
        y[r] = sum(total[r]);
    }
    y
}

/// How many eights a row has, the last one perhaps with less than eight blocks.
#[inline(always)]
fn eights<const P: usize>(row: &[u8]) -> usize {
    row.len() / P + usize::from(row.len() % P >= P / 8)
}

/// Eight blocks of a row; `filled` is room for those that are less.
#[inline(always)]
fn eight<'a, const P: usize>(
    row: &'a [u8],
    s: usize,
    filled: &'a mut [u8; P],
    fill: fn(&[u8]) -> [u8; P],
) -> &'a [u8; P] {
    let (whole, rest) = row.as_chunks();
    match whole.get(s) {
        Some(eight) => eight,
        None => {
            *filled = fill(rest);
            filled
        }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn add_products(codes: [__m256i; 4], x: &X, i: usize, mut sum: __m256i) -> __m256i {
    for (k, codes) in codes.into_iter().enumerate() {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes, load32(x, 128 * i + 32 * k)));
    }
    sum
}

/// Adds what the products of eight blocks come to.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn finish<const O: i16>(products: __m256i, scales: __m256, mins: Option<__m256>, x: &X, total: __m256) -> __m256 {
    let sums = || _mm256_castsi256_ps(load32(x, SUMS));
    let mut products = _mm256_cvtepi32_ps(products);
    if O != 0 {
        // still an integer of less than 24 bits
        products = _mm256_fmadd_ps(_mm256_set1_ps(-f32::from(O)), sums(), products);
    }
    let mut part = _mm256_mul_ps(scales, products);
    if let Some(mins) = mins {
        part = _mm256_fmadd_ps(mins, sums(), part);
    }
    _mm256_fmadd_ps(part, float_all(x, SCALE), total)
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn scales<const P: usize>(w: &[u8; P]) -> __m256 {
    _mm256_cvtph_ps(load16(w, 0))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn mins<const P: usize, const M: bool>(w: &[u8; P]) -> Option<__m256> {
    M.then(|| _mm256_cvtph_ps(load16(w, 16)))
}

/// A multiple of four rows of equal length beside several rows of activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn tile<const P: usize, const O: i16, const M: bool>(
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    (y, stride): (&mut [f32], usize),
    codes: impl Fn(&[u8; P], usize) -> [__m256i; 4] + Copy,
    fill: fn(&[u8]) -> [u8; P],
) {
    rows::by_tokens!(some_tokens::<P, O, M>, w, (x, row_bytes), (y, stride), codes, fill);
}

/// The same for `T` tokens or one less.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn some_tokens<const T: usize, const P: usize, const O: i16, const M: bool>(
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    (y, stride): (&mut [f32], usize),
    codes: impl Fn(&[u8; P], usize) -> [__m256i; 4],
    fill: fn(&[u8]) -> [u8; P],
) {
    let blocks = rows::tokens::<T, BYTES>(x, row_bytes, y.len() / stride);
    let in_all = eights::<P>(w[0]).min(row_bytes / BYTES);
    for (c, some) in w.chunks(ROWS).enumerate() {
        let mut totals = [[_mm256_setzero_ps(); T]; ROWS];
        for s in 0..in_all {
            let xs = rows::block_of(&blocks, s);
            for (r, (row, totals)) in some.iter().zip(&mut totals).enumerate() {
                rows::ask_next(row, w.get(ROWS * (c + 1) + r), (s + 1) * P, in_all * P, P);
                let mut filled = [0; P];
                let w = eight(row, s, &mut filled, fill);
                let mut products = [_mm256_setzero_si256(); T];
                for i in 0..4 {
                    let codes = codes(w, i);
                    for t in 0..T {
                        products[t] = add_products(codes, xs[t], i, products[t]);
                    }
                }
                let (scales, mins) = (scales(w), mins::<P, M>(w));
                for t in 0..T {
                    totals[t] = finish::<O>(products[t], scales, mins, xs[t], totals[t]);
                }
            }
        }
        rows::store_sums(&totals[..some.len()], &mut y[ROWS * c..], stride);
    }
}

/// `y += a * row` for some rows of equal length, whole blocks of 32.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn axpys<const R: usize, const P: usize, const O: i16, const M: bool>(
    w: [&[u8]; R],
    a: [f32; R],
    y: &mut [f32],
    codes: impl Fn(&[u8; P], usize) -> [__m256i; 4] + Copy,
    fill: fn(&[u8]) -> [u8; P],
) {
    let mut numbers = [0.0; COLUMNS];
    for (s, y) in y.chunks_mut(COLUMNS).enumerate() {
        for r in 0..R {
            let n = decode_at::<P, O, M>(w[r], s, &mut numbers[..y.len()], codes, fill);
            let by = _mm256_set1_ps(a[r]);
            for (y, n) in y[..n].as_chunks_mut().0.iter_mut().zip(numbers.as_chunks().0) {
                store(y, _mm256_fmadd_ps(by, load(n), load(y)));
            }
        }
    }
}

/// Decodes whole blocks of 32.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn decode<const P: usize, const O: i16, const M: bool>(
    w: &[u8],
    out: &mut [f32],
    codes: impl Fn(&[u8; P], usize) -> [__m256i; 4] + Copy,
    fill: fn(&[u8]) -> [u8; P],
) {
    for (s, out) in out.chunks_mut(COLUMNS).enumerate() {
        decode_at::<P, O, M>(w, s, out, codes, fill);
    }
}

/// Decodes what there is of eight blocks; how many numbers. Not the way to compute with repacked rows, so no more than right.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn decode_at<const P: usize, const O: i16, const M: bool>(
    row: &[u8],
    s: usize,
    out: &mut [f32],
    codes: impl Fn(&[u8; P], usize) -> [__m256i; 4],
    fill: fn(&[u8]) -> [u8; P],
) -> usize {
    let blocks = (row.len() / (P / 8)).saturating_sub(8 * s).min(8).min(out.len() / 32);
    if blocks == 0 {
        return 0;
    }
    let mut filled = [0; P];
    let w = eight(row, s, &mut filled, fill);
    let (mut by, mut from) = ([0.0; 8], [0.0; 8]);
    store(&mut by, scales(w));
    if let Some(mins) = mins::<P, M>(w) {
        store(&mut from, mins);
    }
    for i in 0..4 {
        for (k, codes) in codes(w, i).into_iter().enumerate() {
            let mut bytes = [0; 32];
            store32(&mut bytes, codes);
            for (b, two) in bytes.as_chunks::<4>().0.iter().enumerate().take(blocks) {
                for (h, code) in two.as_chunks().0.iter().enumerate() {
                    let code = f32::from(i16::from_le_bytes(*code) - O);
                    out[32 * b + 2 * (4 * i + k) + h] = if M { code.mul_add(by[b], from[b]) } else { code * by[b] };
                }
            }
        }
    }
    32 * blocks
}

/// The two bytes at `from` of each block, at `at`.
pub(super) fn put2<const W: usize>(out: &mut [u8], at: usize, blocks: &[[u8; W]; 8], from: usize) {
    for (b, block) in blocks.iter().enumerate() {
        out[at + 2 * b..][..2].copy_from_slice(&block[from..from + 2]);
    }
}

/// Code `place` of vector `k`.
fn code_of(codes: &[[u8; 32]; 8], k: usize, place: usize) -> u8 {
    codes[place / 2][2 * k + place % 2]
}

/// Codes of 4 bits: four vectors in each 32 bytes, one above the other in 16 bits.
pub(super) fn pack_nibbles(codes: &[[u8; 32]; 8], out: &mut [u8]) {
    for (at, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(64) {
        let word = (0..4).fold(0u16, |word, k| word | u16::from(code_of(codes, at / 16 * 4 + k, at % 16)) << (4 * k));
        *out = word.to_le_bytes();
    }
}

/// Vectors `4 i` to `4 i + 3` of what [`pack_nibbles`] wrote at byte `at`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn four_nibbles<const P: usize>(w: &[u8; P], at: usize, i: usize) -> [__m256i; 4] {
    let (v, low) = (load32(w, at + 32 * i), _mm256_set1_epi16(15));
    [
        _mm256_and_si256(v, low),
        _mm256_and_si256(_mm256_srli_epi16(v, 4), low),
        _mm256_and_si256(_mm256_srli_epi16(v, 8), low),
        _mm256_srli_epi16(v, 12),
    ]
}

/// Codes of 8 bits: two vectors in each 32 bytes, one in the even bytes and one in the odd ones.
pub(super) fn pack_bytes(codes: &[[u8; 32]; 8], out: &mut [u8]) {
    for (at, out) in out.iter_mut().enumerate().take(256) {
        *out = code_of(codes, at / 32 * 2 + at % 2, at % 32 / 2);
    }
}

/// A bit of each code: 16 vectors, one above the other in 16 bits.
pub(super) fn pack_bits(bits: &[[u8; 32]; 8], out: &mut [u8]) {
    for (at, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(16) {
        let word = (0..16).fold(0u16, |word, k| word | u16::from(code_of(bits, k, at)) << k);
        *out = word.to_le_bytes();
    }
}

/// `codes` with what [`pack_bits`] wrote at byte `at` as their fifth bits.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn with_fifth<const P: usize>(codes: [__m256i; 4], w: &[u8; P], at: usize, i: usize) -> [__m256i; 4] {
    // the bits of the four vectors become bits 4 to 7
    let bits = _mm256_slli_epi16(_mm256_srl_epi16(load32(w, at), _mm_cvtsi32_si128(4 * i as i32)), 4);
    let bit = _mm256_set1_epi16(16);
    let [a, b, c, d] = codes;
    [
        _mm256_or_si256(a, _mm256_and_si256(bits, bit)),
        _mm256_or_si256(b, _mm256_and_si256(_mm256_srli_epi16(bits, 1), bit)),
        _mm256_or_si256(c, _mm256_and_si256(_mm256_srli_epi16(bits, 2), bit)),
        _mm256_or_si256(d, _mm256_and_si256(_mm256_srli_epi16(bits, 3), bit)),
    ]
}

/// Codes of half bytes as files have them.
pub(super) fn nibbles_of(packed: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { packed[i] & 15 } else { packed[i - 16] >> 4 })
}

/// Eight repacked blocks of less and nothing.
pub(super) fn fill<const W: usize, const P: usize>(rest: &[u8], pack: fn(&[[u8; W]; 8], &mut [u8; P])) -> [u8; P] {
    let (mut blocks, mut out) = ([[0; W]; 8], [0; P]);
    for (block, rest) in blocks.iter_mut().zip(rest.as_chunks().0) {
        *block = *rest;
    }
    pack(&blocks, &mut out);
    out
}

/// Repacks a row.
pub(super) fn pack_row<const W: usize, const P: usize>(
    row: &[u8],
    out: &mut [u8],
    pack: fn(&[[u8; W]; 8], &mut [u8; P]),
) {
    let (eights, rest) = row.as_chunks::<P>();
    let (out_eights, out_rest) = out.as_chunks_mut::<P>();
    for (eight, out) in eights.iter().zip(out_eights) {
        if let Some(blocks) = eight.as_chunks().0.first_chunk() {
            pack(blocks, out);
        }
    }
    out_rest.iter_mut().zip(rest).for_each(|(out, byte)| *out = *byte);
}

/// Kernels for repacked rows of a type: bytes of a block and of eight, what is to be taken from codes, whether there are
/// minima, how four vectors are unpacked and how eight blocks are packed.
macro_rules! packed_kernels {
    ($w:literal, $p:literal, $offset:literal, $mins:literal, $codes:path, $pack:path) => {
        mod packed {
            use crate::arch::x86_64::avx2::eights;

            pub(in crate::arch::x86_64) const PACK: crate::kernels::Pack = |row, out| eights::pack_row(row, out, $pack);

            fn fill(rest: &[u8]) -> [u8; $p] {
                eights::fill::<$w, $p>(rest, $pack)
            }

            eights::packed_kernels!(KERNELS, Avx2, "avx2,fma,f16c", $p, $offset, $mins, $codes);
            eights::packed_kernels!(
                AVX512,
                Avx512,
                "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
                $p,
                $offset,
                $mins,
                $codes
            );
        }
        pub(in crate::arch::x86_64) use packed::{AVX512 as PACKED_AVX512, KERNELS as PACKED, PACK};
    };
    ($name:ident, $isa:ident, $features:literal, $p:literal, $offset:literal, $mins:literal, $codes:path) => {
        pub(in crate::arch::x86_64) const $name: crate::kernels::TypeKernels = {
            use crate::arch::x86_64::avx2::{eights, rows};

            #[target_feature(enable = $features)]
            #[inline]
            fn dots<const R: usize>(w: [&[u8]; R], next: [&[u8]; R], x: &[u8]) -> [f32; R] {
                eights::dots::<R, $p, $offset, $mins>(w, next, x, |w: &[u8; $p], i| $codes(w, i), fill)
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn tiles(w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32], stride: usize) {
                let codes = |w: &[u8; $p], i| $codes(w, i);
                eights::tile::<$p, $offset, $mins>(w, (x, row_bytes), (y, stride), codes, fill);
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn axpys<const R: usize>(w: [&[u8]; R], _: [&[u8]; R], a: [f32; R], y: &mut [f32]) {
                eights::axpys::<R, $p, $offset, $mins>(w, a, y, |w: &[u8; $p], i| $codes(w, i), fill);
            }

            #[target_feature(enable = $features)]
            fn decode(w: &[u8], out: &mut [f32]) {
                eights::decode::<$p, $offset, $mins>(w, out, |w: &[u8; $p], i| $codes(w, i), fill);
            }

            rows::row_kernels!(LANES15, $isa, $features)
        };
    };
}
pub(super) use packed_kernels;
