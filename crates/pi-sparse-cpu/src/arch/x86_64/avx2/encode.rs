//! The encoder of activations. It writes the same bytes as the portable one, for any input.
#![allow(unsafe_code)]

use super::lanes::*;
use crate::activations::{Activations, BLOCK, Encode, lanes15, pairs15, scales, split15};
use std::arch::x86_64::*;

/// [`Activations::SPLIT15`] with this encoder.
pub(super) const SPLIT15: Activations = Activations { encode: SPLIT, ..Activations::SPLIT15 };
/// [`Activations::PAIRS15`] with this encoder.
pub(super) const PAIRS15: Activations = Activations { encode: PAIRS, ..Activations::PAIRS15 };

/// [`Activations::LANES15`] with this encoder.
pub(super) const LANES15: Activations = Activations { encode: LANES, ..Activations::LANES15 };

// SAFETY: leaves this module only through `super::kernels`, after the CPU was found to have the features.
const SPLIT: Encode = |x, out| unsafe { split(x, out) };
// SAFETY: as above.
const PAIRS: Encode = |x, out| unsafe { pairs(x, out) };
// SAFETY: as above.
const LANES: Encode = |x, out| unsafe { lanes(x, out) };

#[target_feature(enable = "avx2,fma,f16c")]
fn split(x: &[f32], out: &mut [u8]) {
    use split15::{BYTES, HALF_SUMS, SCALE, SUMS};
    encode(x, out, SCALE, |out: &mut [u8; BYTES], i, [first, second], [a, b]| {
        store32(part(out, 64 * i), pack(even(first), even(second)));
        store32(part(out, 64 * i + 32), pack(odd(first), odd(second)));
        put(out, SUMS + 4 * i, (a + b) as f32);
        put(out, HALF_SUMS + 8 * i, a as f32);
        put(out, HALF_SUMS + 8 * i + 4, b as f32);
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
fn pairs(x: &[f32], out: &mut [u8]) {
    use pairs15::{BYTES, SCALE, SUMS};
    encode(x, out, SCALE, |out: &mut [u8; BYTES], i, [first, second], _| {
        let at = 128 * (i / 2) + 16 * (i % 2);
        let mut sums = _mm_setzero_si128();
        for (at, v) in [(at, even(first)), (at + 32, odd(first)), (at + 64, even(second)), (at + 96, odd(second))] {
            let codes = _mm256_castsi256_si128(pack(v, v));
            sums = _mm_add_epi32(sums, _mm_madd_epi16(codes, _mm_set1_epi16(1)));
            store16(part(out, at), codes);
        }
        store16(part(out, SUMS + 16 * i), _mm_castps_si128(_mm_cvtepi32_ps(sums)));
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
fn lanes(x: &[f32], out: &mut [u8]) {
    use lanes15::{BYTES, SCALE, SUMS};
    encode(x, out, SCALE, |out: &mut [u8; BYTES], i, [first, second], [a, b]| {
        for (half, v) in [first, second].into_iter().enumerate() {
            let mut codes = [0; 32];
            store32(&mut codes, v);
            for (k, two) in codes.as_chunks::<4>().0.iter().enumerate() {
                *part(out, 32 * (8 * half + k) + 4 * i) = *two;
            }
        }
        put(out, SUMS + 4 * i, (a + b) as f32);
    });
}

/// `group` writes a group's codes (pairs in 32 bits, the even one below the odd one; its first half, then its second) and
/// their sums over halves.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn encode<const B: usize>(
    x: &[f32],
    out: &mut [u8],
    scale_at: usize,
    group: impl Fn(&mut [u8; B], usize, [__m256i; 2], [i32; 2]),
) {
    for (x, out) in x.chunks(BLOCK).zip(out.as_chunks_mut::<B>().0) {
        let mut filled_up = [0.0; BLOCK];
        let x = x.first_chunk().unwrap_or_else(|| {
            filled_up[..x.len()].copy_from_slice(x);
            &filled_up
        });
        let groups = x.as_chunks::<32>().0;
        let mut bits = _mm256_setzero_si256();
        for x in groups {
            bits = _mm256_max_epi32(bits, magnitudes(load32_numbers(x)));
        }
        let (scale, by) = scales(f32::from_bits(max_i32(bits) as u32));
        if scale.is_nan() {
            out[..scale_at].fill(0);
        } else {
            let by = _mm256_set1_ps(by);
            for (i, x) in groups.iter().enumerate() {
                let [a, b, c, d] = load32_numbers(x).map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, by)));
                let sums = [sum_i32(_mm256_add_epi32(a, b)), sum_i32(_mm256_add_epi32(c, d))];
                group(out, i, [pack(a, b), pack(c, d)], sums);
            }
        }
        out[scale_at..].fill(0);
        put(out, scale_at, scale);
    }
}

#[inline(always)]
fn part<const B: usize, const N: usize>(out: &mut [u8; B], at: usize) -> &mut [u8; N] {
    out[at..].first_chunk_mut().expect("within the block")
}

#[inline(always)]
fn put<const B: usize>(out: &mut [u8; B], at: usize, v: f32) {
    *part(out, at) = v.to_le_bytes();
}

/// The lower of two numbers in 32 bits.
#[target_feature(enable = "avx2")]
#[inline]
fn even(v: __m256i) -> __m256i {
    _mm256_srai_epi32(_mm256_slli_epi32(v, 16), 16)
}

/// The upper.
#[target_feature(enable = "avx2")]
#[inline]
fn odd(v: __m256i) -> __m256i {
    _mm256_srai_epi32(v, 16)
}

/// 32-bit integers as 16 bits, in order.
#[target_feature(enable = "avx2")]
#[inline]
fn pack(a: __m256i, b: __m256i) -> __m256i {
    _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0b11_01_10_00)
}

#[target_feature(enable = "avx2")]
#[inline]
fn load32_numbers(x: &[f32; 32]) -> [__m256; 4] {
    let x = x.as_chunks().0;
    [load(&x[0]), load(&x[1]), load(&x[2]), load(&x[3])]
}

/// The largest bits of magnitudes, lane by lane: bits of magnitudes sort like the numbers, and NaN above all.
#[target_feature(enable = "avx2")]
#[inline]
fn magnitudes(v: [__m256; 4]) -> __m256i {
    let [a, b, c, d] = v.map(|v| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(i32::MAX)));
    _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d))
}

#[target_feature(enable = "avx2")]
#[inline]
fn max_i32(v: __m256i) -> i32 {
    let v = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    let v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0b01_00_11_10));
    _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32(v, 0b10_11_00_01)))
}
