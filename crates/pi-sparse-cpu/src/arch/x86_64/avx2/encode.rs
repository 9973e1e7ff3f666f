//! Encoders of activations. They write the same bytes as those of `pi_core`, for any input: blocks with numbers that are
//! not finite, or all nearly zero, go through these.
#![allow(unsafe_code)]

use super::lanes::*;
use crate::kernels::Encode;
use pi_core::QuantType;
use std::arch::x86_64::*;

// SAFETY: leaves this module only through `super::kernels`, after the CPU was found to have the features.
pub(super) const Q8_0: Encode = |x, out| unsafe { q8_0(x, out) };
// SAFETY: as above.
pub(super) const Q8_1: Encode = |x, out| unsafe { q8_1(x, out) };
// SAFETY: as above.
pub(super) const Q8_K: Encode = |x, out| unsafe { q8_k(x, out) };

#[target_feature(enable = "avx2,fma,f16c")]
fn q8_0(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<34>().0) {
        let v = load32_numbers(x);
        let d = magnitude(v) / 127.0;
        let id = 1.0 / d;
        if !(d.is_finite() && id.is_finite()) {
            (QuantType::Q8_0.info().encode)(x, out);
            continue;
        }
        put_half(out, 0, d);
        store32(out[2..].first_chunk_mut().expect("34 bytes"), narrow(v.map(|v| nearest_away(scaled(v, id)))));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q8_1(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<36>().0) {
        let v = load32_numbers(x);
        let max = magnitude(v);
        let (d, id) = (max / 127.0, 127.0 / max);
        if !(d.is_finite() && id.is_finite()) {
            (QuantType::Q8_1.info().encode)(x, out);
            continue;
        }
        let q = v.map(|v| _mm256_cvtps_epi32(scaled(v, id)));
        put_half(out, 0, d);
        put_half(out, 2, d * sum_i32(add4(q)) as f32);
        store32(out[4..].first_chunk_mut().expect("36 bytes"), narrow(q));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q8_k(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.as_chunks::<256>().0.iter().zip(out.as_chunks_mut::<292>().0) {
        let parts = x.as_chunks::<32>().0;
        let mut bits = _mm256_setzero_si256();
        for x in parts {
            bits = _mm256_max_epi32(bits, magnitudes(load32_numbers(x)));
        }
        let max = f32::from_bits(max_i32(bits) as u32);
        let id = -127.0 / first_of(x, max);
        if !(max.is_finite() && id.is_finite()) {
            (QuantType::Q8_K.info().encode)(x, out);
            continue;
        }
        out[..4].copy_from_slice(&(1.0 / id).to_le_bytes());
        for (i, x) in parts.iter().enumerate() {
            let q = load32_numbers(x).map(|v| _mm256_cvtps_epi32(scaled(v, id)));
            store32(out[4 + 32 * i..].first_chunk_mut().expect("292 bytes"), narrow(q));
            for half in 0..2 {
                let sum = sum_i32(_mm256_add_epi32(q[2 * half], q[2 * half + 1])) as i16;
                out[260 + 4 * i + 2 * half..][..2].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}

/// The first number of this magnitude, with its sign; 0 if there is none.
#[target_feature(enable = "avx2")]
#[inline]
fn first_of(x: &[f32; 256], magnitude: f32) -> f32 {
    for x in x.as_chunks::<8>().0 {
        let v = _mm256_andnot_ps(_mm256_set1_ps(-0.0), load(x));
        let equal = _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(magnitude), _CMP_EQ_OQ)) as u32;
        if equal != 0 {
            return x[equal.trailing_zeros() as usize % 8];
        }
    }
    0.0
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

/// The largest magnitude; NaN if there is any.
#[target_feature(enable = "avx2")]
#[inline]
fn magnitude(v: [__m256; 4]) -> f32 {
    f32::from_bits(max_i32(magnitudes(v)) as u32)
}

#[target_feature(enable = "avx2")]
#[inline]
fn max_i32(v: __m256i) -> i32 {
    let v = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    let v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0b01_00_11_10));
    _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32(v, 0b10_11_00_01)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn scaled(v: __m256, by: f32) -> __m256 {
    _mm256_mul_ps(v, _mm256_set1_ps(by))
}

/// Nearest integers, ties away from zero: adds just less than a half, and drops the fraction.
#[target_feature(enable = "avx2")]
#[inline]
fn nearest_away(v: __m256) -> __m256i {
    let sign = _mm256_and_ps(v, _mm256_set1_ps(-0.0));
    _mm256_cvttps_epi32(_mm256_add_ps(v, _mm256_or_ps(sign, _mm256_set1_ps(0.499_999_97))))
}

#[target_feature(enable = "avx2")]
#[inline]
fn add4(v: [__m256i; 4]) -> __m256i {
    _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]))
}

/// 32 integers as bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn narrow(v: [__m256i; 4]) -> __m256i {
    let bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    // packing works in halves of vectors: fours of bytes come out in the order 0 2 4 6 1 3 5 7
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn put_half<const B: usize>(out: &mut [u8; B], at: usize, v: f32) {
    let bits = _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(v), _MM_FROUND_TO_NEAREST_INT)) as u16;
    out[at..at + 2].copy_from_slice(&bits.to_le_bytes());
}
