//! Q3_K with Q8_K. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_K, 110, 292, 256);

/// Codes of 0…7 of numbers `32 i` and on.
#[target_feature(enable = "avx2")]
#[inline]
fn codes(w: &[u8; 110], i: usize) -> __m256i {
    let low = shift_mask(load32(w, 32 + 32 * (i / 4)), 2 * (i % 4), 3);
    let high = shift_mask(load32(w, 0), i, 1);
    _mm256_or_si256(low, _mm256_slli_epi16(high, 2))
}

/// Scales from −32 to 31, as bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn scales(w: &[u8; 110]) -> __m128i {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    const HIGH: u64 = 0x3030_3030_3030_3030;
    let (low, high) = (word_at(w, 96), word_at(w, 102) >> 16 & 0xffff_ffff);
    // of each byte of `high`, bits 0…3 belong to the first eight scales, 4…7 to the others; the lower two of them to the
    // first four of the eight
    let first = low & LOW | (high << 4 | high << 34) & HIGH;
    let others = low >> 4 & LOW | (high | high << 30) & HIGH;
    _mm_sub_epi8(_mm_set_epi64x(others as i64, first as i64), _mm_set1_epi8(32))
}

/// As for Q4_0, with 4 instead of 8.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 110], x: &[u8; 292], acc: __m256) -> __m256 {
    let scales = scales(w);
    let mut sums = _mm256_setzero_si256();
    for i in 0..8 {
        let q = load32(x, 4 + 32 * i);
        let raised = _mm256_maddubs_epi16(codes(w, i), q);
        let p = _mm256_sub_epi16(raised, _mm256_maddubs_epi16(_mm256_set1_epi8(4), q));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(p, two_scales(scales, i)));
    }
    add_scaled_i32(acc, _mm256_mul_ps(half_all(w, 108), float_all(x, 0)), sums)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 110], mut emit: impl FnMut(usize, __m256)) {
    let d = half_at(w, 108);
    let mut bytes = [0; 32];
    store32(&mut bytes, _mm256_zextsi128_si256(scales(w)));
    let scale = |group: usize| _mm256_set1_ps(d * f32::from(bytes[group] as i8));
    for i in 0..8 {
        let scales = [scale(2 * i), scale(2 * i + 1)];
        let q = _mm256_sub_epi8(codes(w, i), _mm256_set1_epi8(4));
        widen(q, 4 * i, |at, q| emit(at, _mm256_mul_ps(scales[at / 2 % 2], q)));
    }
}
