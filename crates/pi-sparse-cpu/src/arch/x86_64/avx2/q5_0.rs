//! Q5_0. Layout: see `pi_core::quant`.

use super::eights::{four_nibbles, nibbles_of, pack_bits, pack_nibbles, put2, with_fifth};
use super::lanes::*;
use super::small::{self, Pair};
use std::arch::x86_64::*;

super::small::small_kernels!(44, 16, false, PAIRS15);
super::eights::packed_kernels!(22, 176, 16, false, super::four, super::pack);

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

/// The bits of a word, one by one.
pub(super) fn bits_of(word: u32) -> [u8; 32] {
    std::array::from_fn(|i| (word >> i & 1) as u8)
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

/// Repacked: eight scales, fifth bits, then the low bits of codes.
fn pack(blocks: &[[u8; 22]; 8], out: &mut [u8; 176]) {
    put2(out, 0, blocks, 0);
    pack_bits(&blocks.map(|b| bits_of(bits_at(&b, 2))), &mut out[16..48]);
    pack_nibbles(&blocks.map(|b| nibbles_of(&b[6..])), &mut out[48..]);
}

#[target_feature(enable = "avx2")]
#[inline]
fn four(w: &[u8; 176], i: usize) -> [__m256i; 4] {
    with_fifth(four_nibbles(w, 48, i), w, 16, i)
}
