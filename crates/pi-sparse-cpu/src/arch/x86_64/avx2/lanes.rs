//! Loads, stores and small helpers over vectors.
//!
//! Loads and stores take references to arrays or check bounds, so they are safe for any argument; for a constant place in
//! a block the compiler drops the check.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

/// Asks for the cache line of a row's byte `at`, which may lie beyond its end, as nothing is read.
#[inline(always)]
pub(in crate::arch::x86_64) fn prefetch(row: &[u8], at: usize) {
    // SAFETY: a hint that reads nothing and cannot fault, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(at).cast()) }
}

/// 32 bytes of `b` from `at`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load32<const B: usize>(b: &[u8; B], at: usize) -> __m256i {
    let bytes: &[u8; 32] = b[at..].first_chunk().expect("within the block");
    // SAFETY: 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 16 bytes of `b` from `at`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load16<const B: usize>(b: &[u8; B], at: usize) -> __m128i {
    let bytes: &[u8; 16] = b[at..].first_chunk().expect("within the block");
    // SAFETY: 16 readable bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Eight numbers from their bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load_bytes(b: &[[u8; 4]; 8]) -> __m256 {
    // SAFETY: 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_ps(b.as_ptr().cast()) }
}

/// Eight numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(x: &[f32; 8]) -> __m256 {
    // SAFETY: 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

/// Stores eight numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store(out: &mut [f32; 8], v: __m256) {
    // SAFETY: 32 writable bytes; the store needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), v) }
}

/// Stores four numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store4(out: &mut [f32; 4], v: __m128) {
    // SAFETY: 16 writable bytes; the store needs no alignment.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), v) }
}

/// Stores 16 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store16(out: &mut [u8; 16], v: __m128i) {
    // SAFETY: 16 writable bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), v) }
}

/// Stores 32 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store32(out: &mut [u8; 32], v: __m256i) {
    // SAFETY: 32 writable bytes; the store needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), v) }
}

/// The half-precision number at byte `at`.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn half_at<const B: usize>(b: &[u8; B], at: usize) -> f32 {
    let bits = u16::from_le_bytes([b[at], b[at + 1]]);
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits.into())))
}

/// The half-precision number at byte `at`, in all lanes.
///
/// Not by way of one lane: the compiler then inserts into some register it takes for free, often the running sum, and the
/// CPU waits for it.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn half_all<const B: usize>(b: &[u8; B], at: usize) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([b[at], b[at + 1]])))
}

/// The single-precision number at byte `at`, in all lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn float_all<const B: usize>(b: &[u8; B], at: usize) -> __m256 {
    _mm256_set1_ps(float_at(b, at))
}

/// The single-precision number at byte `at`.
#[inline(always)]
pub(super) fn float_at<const B: usize>(b: &[u8; B], at: usize) -> f32 {
    f32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Sum of eight numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn sum(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// Sums of eight numbers each, added as in [`sum`].
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn sums(v: [__m256; 4]) -> [f32; 4] {
    let half = |v: __m256| _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    let two = |a: __m128, b: __m128| _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    let (a, b) = (two(half(v[0]), half(v[1])), two(half(v[2]), half(v[3])));
    let mut out = [0.0; 4];
    store4(&mut out, _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a)));
    out
}

/// Sum of eight integers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn sum_i32(v: __m256i) -> i32 {
    let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0b01_00_11_10));
    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0b10_11_00_01)))
}

/// 16 bytes from `first`, then those from `second`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load16_each<const B: usize>(w: &[u8; B], first: usize, second: usize) -> __m256i {
    _mm256_set_m128i(load16(w, second), load16(w, first))
}

/// The half-precision number at byte `first` in the lower lanes, that at `second` in the upper.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn half_each<const B: usize>(w: &[u8; B], first: usize, second: usize) -> __m256 {
    let both = i32::from_le_bytes([w[first], w[first + 1], w[second], w[second + 1]]);
    let four_each = _mm_set_epi64x(0x0302_0302_0302_0302, 0x0100_0100_0100_0100);
    _mm256_cvtph_ps(_mm_shuffle_epi8(_mm_cvtsi32_si128(both), four_each))
}

/// The half-precision numbers at bytes `first` and `first + 2`, and those at `second`: the first of each and the second of
/// each, as [`half_each`].
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn two_halves_each<const B: usize>(w: &[u8; B], first: usize, second: usize) -> (__m256, __m256) {
    let word = |at: usize| i32::from_le_bytes([w[at], w[at + 1], w[at + 2], w[at + 3]]);
    let all = _mm_insert_epi32(_mm_cvtsi32_si128(word(first)), word(second), 1);
    let first = _mm_set_epi64x(0x0504_0504_0504_0504, 0x0100_0100_0100_0100);
    let second = _mm_set_epi64x(0x0706_0706_0706_0706, 0x0302_0302_0302_0302);
    (_mm256_cvtph_ps(_mm_shuffle_epi8(all, first)), _mm256_cvtph_ps(_mm_shuffle_epi8(all, second)))
}

/// Half bytes as 16-bit numbers: the low ones of even bytes, of odd bytes, the high ones of even bytes, of odd bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn nibbles(v: __m256i) -> [__m256i; 4] {
    let low = _mm256_set1_epi16(15);
    [
        _mm256_and_si256(v, low),
        _mm256_and_si256(_mm256_srli_epi16(v, 8), low),
        _mm256_and_si256(_mm256_srli_epi16(v, 4), low),
        _mm256_srli_epi16(v, 12),
    ]
}

/// 16-bit numbers, each less by `by`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn less(v: [__m256i; 4], by: i16) -> [__m256i; 4] {
    let sub = |v| _mm256_sub_epi16(v, _mm256_set1_epi16(by));
    [sub(v[0]), sub(v[1]), sub(v[2]), sub(v[3])]
}

/// 32 unsigned bytes as 16-bit numbers: the even ones, the odd ones.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn unsigned(v: __m256i) -> [__m256i; 2] {
    [_mm256_and_si256(v, _mm256_set1_epi16(255)), _mm256_srli_epi16(v, 8)]
}

/// 32 signed bytes as 16-bit numbers: the even ones, the odd ones.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn signed(v: __m256i) -> [__m256i; 2] {
    [_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), _mm256_srai_epi16(v, 8)]
}

/// The low halves of 16 bytes, then their high halves.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn halves(bytes: __m128i) -> __m256i {
    let both = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Bytes shifted right by `by` bits and cut to `mask`, which must drop what came from the neighbouring byte.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn shift_mask(v: __m256i, by: usize, mask: i8) -> __m256i {
    _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(by as i32)), _mm256_set1_epi8(mask))
}

/// 32 signed codes as numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn widen(codes: __m256i) -> [__m256; 4] {
    let (a, b) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    let eight = |part| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(part));
    [eight(a), eight(_mm_srli_si128(a, 8)), eight(b), eight(_mm_srli_si128(b, 8))]
}

/// The low halves of the 16 bytes at `at`, then their high halves, as numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn nibble_numbers<const B: usize>(w: &[u8; B], at: usize) -> [__m256; 4] {
    let bytes = |at: usize| _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(word_at(w, at) as i64));
    let (a, b) = (bytes(at), bytes(at + 8));
    let low = |v| _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(15)));
    let high = |v| _mm256_cvtepi32_ps(_mm256_srli_epi32(v, 4));
    [low(a), low(b), high(a), high(b)]
}

/// Codes times a scale and, where there is one, plus a minimum. Products of codes and scales are exact, so that one rounding
/// is the same as two.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(super) fn times(mut v: [__m256; 4], scale: __m256, min: Option<__m256>) -> [__m256; 4] {
    for v in &mut v {
        *v = match min {
            Some(min) => _mm256_fmadd_ps(*v, scale, min),
            None => _mm256_mul_ps(*v, scale),
        };
    }
    v
}

/// One 16-bit number for each half of a vector, from bytes `2 i` and `2 i + 1` of signed `bytes`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn two_scales(bytes: __m128i, i: usize) -> __m256i {
    const ONES: i64 = 0x0101_0101_0101_0101;
    let i = i as i64 * 2;
    _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, _mm_set_epi64x((i + 1) * ONES, i * ONES)))
}

/// 16-bit number `i` of either half of `v`, in all lanes of that half.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn spread(v: __m256i, i: usize) -> __m256i {
    _mm256_shuffle_epi8(v, _mm256_set1_epi16(0x0100 + 0x0202 * i as i16))
}

/// The eight bytes at `at`.
#[inline(always)]
pub(super) fn word_at<const B: usize>(b: &[u8; B], at: usize) -> u64 {
    u64::from_le_bytes(*b[at..].first_chunk().expect("within the block"))
}
