//! Q5_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::small::{self, Pair, four_nibbles, nibbles_of, put2, scales_at};
use std::arch::x86_64::*;

super::small::small_kernels!(44, 16, false, PAIRS15);
super::small::packed_kernels!(22, 44, 16, false, super::unpack_packed, super::pack);

fn fill(lone: &[u8]) -> [u8; 44] {
    small::fill_plain(lone)
}

/// 16 in each byte whose bit in `bits` is set.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn fifth_bits(bits: u32) -> __m256i {
    // each byte gets the byte of `bits` that holds its bit, then is compared with that bit
    let place = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), place), bit);
    _mm256_and_si256(_mm256_cmpeq_epi8(spread, bit), _mm256_set1_epi8(16))
}

/// The codes of a pair of blocks from their nibbles and fifth bits.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn five_bits(packed: __m256i, a: u32, b: u32) -> [__m256i; 4] {
    let bits = _mm256_set_m128i(_mm_set1_epi32(b as i32), _mm_set1_epi32(a as i32));
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let fifth = |place: __m256i| {
        let spread = _mm256_and_si256(_mm256_shuffle_epi8(bits, place), bit);
        _mm256_and_si256(_mm256_cmpeq_epi8(spread, bit), _mm256_set1_epi8(16))
    };
    let first = _mm256_set_epi64x(0x0101_0101_0101_0101, 0, 0x0101_0101_0101_0101, 0);
    let second = _mm256_or_si256(first, _mm256_set1_epi8(2));
    let low = _mm256_or_si256(shift_mask(packed, 0, 15), fifth(first));
    let high = _mm256_or_si256(shift_mask(packed, 4, 15), fifth(second));
    let ([a, b], [c, d]) = (unsigned(low), unsigned(high));
    [a, b, c, d]
}

/// The fifth bits of two blocks in the order of a repacked pair: byte `j` has those of lanes `2 j` (bits 0 to 3, one per
/// vector) and `2 j + 1`.
pub(super) fn pack_fifth(a: u32, b: u32, out: &mut [u8]) {
    let bits = |word: u32| std::array::from_fn(|i| (word >> i & 1) as u8);
    let codes = small::in_turns(&bits(a), &bits(b));
    for (j, out) in out.iter_mut().enumerate().take(8) {
        *out = (0..4).fold(0, |byte, k| byte | codes[k][2 * j] << k | codes[k][2 * j + 1] << (4 + k));
    }
}

/// Codes of 5 bits from nibbles and what [`pack_fifth`] wrote.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn with_fifth(nibbles: [__m256i; 4], fifth: u64) -> [__m256i; 4] {
    let bytes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(fifth as i64));
    // the bits of even lanes stay, those of odd lanes go 12 up, into theirs
    let bits = _mm256_or_si256(bytes, _mm256_slli_epi32(bytes, 12));
    let bit = _mm256_set1_epi16(16);
    let [a, b, c, d] = nibbles;
    [
        _mm256_or_si256(a, _mm256_and_si256(_mm256_slli_epi16(bits, 4), bit)),
        _mm256_or_si256(b, _mm256_and_si256(_mm256_slli_epi16(bits, 3), bit)),
        _mm256_or_si256(c, _mm256_and_si256(_mm256_slli_epi16(bits, 2), bit)),
        _mm256_or_si256(d, _mm256_and_si256(_mm256_slli_epi16(bits, 1), bit)),
    ]
}

/// 32 bits at byte `at`.
pub(super) fn bits_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 22]) -> __m256i {
    _mm256_or_si256(halves(load16(w, 6)), fifth_bits(bits_at(w, 2)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack(w: &[u8; 44]) -> Pair {
    let codes = five_bits(load16_each(w, 6, 28), bits_at(w, 2), bits_at(w, 24));
    Pair { codes, scales: half_each(w, 0, 22), mins: None }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 44], b: usize) -> [__m256; 4] {
    let w = small::block::<22, 44>(w, b);
    let d = half_all(w, 0);
    let codes = _mm256_sub_epi8(bytes(w), _mm256_set1_epi8(16));
    times(widen(codes), d, None)
}

/// Repacked: two scales, fifth bits, then the low bits of codes.
fn pack(a: &[u8; 22], b: &[u8; 22], out: &mut [u8; 44]) {
    put2(out, 0, a, b, 0);
    pack_fifth(bits_at(a, 2), bits_at(b, 2), &mut out[4..12]);
    small::pack_nibbles(&nibbles_of(&a[6..]), &nibbles_of(&b[6..]), &mut out[12..]);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack_packed(w: &[u8; 44]) -> Pair {
    let codes = with_fifth(four_nibbles(load32(w, 12)), word_at(w, 4));
    Pair { codes, scales: scales_at(w, 0), mins: None }
}
