//! Q5_1. Layout: see `pi_core::quant`.

use super::eights::{four_nibbles, nibbles_of, pack_bits, pack_nibbles, put2, with_fifth};
use super::lanes::*;
use super::q5_0::{bits_at, bits_of, fifth_bits, five_bits};
use super::small::{self, Pair};
use std::arch::x86_64::*;

super::small::small_kernels!(48, 0, true, PAIRS15);
super::eights::packed_kernels!(24, 192, 0, true, super::four, super::pack);

fn fill(lone: &[u8]) -> [u8; 48] {
    small::fill_plain(lone)
}

#[target_feature(enable = "avx2")]
#[inline]
fn bytes(w: &[u8; 24]) -> __m256i {
    _mm256_or_si256(halves(load16(w, 8)), fifth_bits(bits_at(w, 4)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack(w: &[u8; 48]) -> Pair {
    let codes = five_bits(load16_each(w, 8, 32), bits_at(w, 4), bits_at(w, 28));
    let (scales, mins) = two_halves_each(w, 0, 24);
    Pair { codes, scales, mins: Some(mins) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 48], b: usize) -> [__m256; 4] {
    let w = small::block::<24, 48>(w, b);
    let (d, m) = (half_all(w, 0), half_all(w, 2));
    times(widen(bytes(w)), d, Some(m))
}

/// Repacked: eight scales, eight minima, fifth bits, then the low bits of codes.
fn pack(blocks: &[[u8; 24]; 8], out: &mut [u8; 192]) {
    put2(out, 0, blocks, 0);
    put2(out, 16, blocks, 2);
    pack_bits(&blocks.map(|b| bits_of(bits_at(&b, 4))), &mut out[32..64]);
    pack_nibbles(&blocks.map(|b| nibbles_of(&b[8..])), &mut out[64..]);
}

#[target_feature(enable = "avx2")]
#[inline]
fn four(w: &[u8; 192], i: usize) -> [__m256i; 4] {
    with_fifth(four_nibbles(w, 64, i), w, 32, i)
}
