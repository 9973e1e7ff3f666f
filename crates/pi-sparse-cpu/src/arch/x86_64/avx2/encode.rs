//! The encoder of activations. It writes the same bytes as the portable one, for any input.
#![allow(unsafe_code)]

use super::lanes::*;
use crate::activations::{Activations, BLOCK, Encode, HALF_SUMS, SCALE, SPLIT_BYTES, SUMS, scales};
use std::arch::x86_64::*;

/// [`Activations::SPLIT15`] with this encoder.
pub(super) const SPLIT15: Activations = Activations { encode: ENCODE, ..Activations::SPLIT15 };

// SAFETY: leaves this module only through `super::kernels`, after the CPU was found to have the features.
const ENCODE: Encode = |x, out| unsafe { encode(x, out) };

#[target_feature(enable = "avx2,fma,f16c")]
fn encode(x: &[f32], out: &mut [u8]) {
    let (whole, rest) = x.as_chunks::<BLOCK>();
    let out = out.as_chunks_mut::<SPLIT_BYTES>().0;
    for (x, out) in whole.iter().zip(out.iter_mut()) {
        block(x, out);
    }
    if let (false, Some(out)) = (rest.is_empty(), out.get_mut(whole.len())) {
        let mut x = [0.0; BLOCK];
        x[..rest.len()].copy_from_slice(rest);
        block(&x, out);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn block(x: &[f32; BLOCK], out: &mut [u8; SPLIT_BYTES]) {
    let groups = x.as_chunks::<32>().0;
    let mut bits = _mm256_setzero_si256();
    for x in groups {
        bits = _mm256_max_epi32(bits, magnitudes(load32_numbers(x)));
    }
    let (scale, by) = scales(f32::from_bits(max_i32(bits) as u32));
    if scale.is_nan() {
        out.fill(0);
        return put(out, SCALE, scale);
    }
    let by = _mm256_set1_ps(by);
    for (i, x) in groups.iter().enumerate() {
        let [a, b, c, d] = load32_numbers(x).map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, by)));
        let (first, second) = (pack(a, b), pack(c, d));
        // a pair in 32 bits is the even number below the odd one
        let even = |v| _mm256_srai_epi32(_mm256_slli_epi32(v, 16), 16);
        let odd = |v| _mm256_srai_epi32(v, 16);
        store32(part(out, 64 * i), pack(even(first), even(second)));
        store32(part(out, 64 * i + 32), pack(odd(first), odd(second)));
        let (a, b) = (sum_i32(_mm256_add_epi32(a, b)), sum_i32(_mm256_add_epi32(c, d)));
        put(out, SUMS + 4 * i, (a + b) as f32);
        put(out, HALF_SUMS + 8 * i, a as f32);
        put(out, HALF_SUMS + 8 * i + 4, b as f32);
    }
    put(out, SCALE, scale);
    out[SCALE + 4..].fill(0);
}

#[inline(always)]
fn part<const N: usize>(out: &mut [u8; SPLIT_BYTES], at: usize) -> &mut [u8; N] {
    out[at..].first_chunk_mut().expect("within the block")
}

#[inline(always)]
fn put(out: &mut [u8; SPLIT_BYTES], at: usize, v: f32) {
    *part(out, at) = v.to_le_bytes();
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
