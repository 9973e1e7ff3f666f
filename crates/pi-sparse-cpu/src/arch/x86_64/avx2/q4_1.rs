//! Q4_1. Layout: see `pi_core::quant`.

use super::eights::{four_nibbles, nibbles_of, pack_nibbles, put2};
use super::lanes::*;
use super::small::{self, Pair};
use std::arch::x86_64::*;

super::small::small_kernels!(40, 0, true, PAIRS15);
super::eights::packed_kernels!(20, 160, 0, true, super::four, super::pack);

fn fill(lone: &[u8]) -> [u8; 40] {
    small::fill_plain(lone)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack(w: &[u8; 40]) -> Pair {
    let (scales, mins) = two_halves_each(w, 0, 20);
    Pair { codes: nibbles(load16_each(w, 4, 24)), scales, mins: Some(mins) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 40], b: usize) -> [__m256; 4] {
    let w = small::block::<20, 40>(w, b);
    let (d, m) = (half_all(w, 0), half_all(w, 2));
    times(nibble_numbers(w, 4), d, Some(m))
}

/// Repacked: eight scales, eight minima, then codes.
fn pack(blocks: &[[u8; 20]; 8], out: &mut [u8; 160]) {
    put2(out, 0, blocks, 0);
    put2(out, 16, blocks, 2);
    pack_nibbles(&blocks.map(|b| nibbles_of(&b[4..])), &mut out[32..]);
}

#[target_feature(enable = "avx2")]
#[inline]
fn four(w: &[u8; 160], i: usize) -> [__m256i; 4] {
    four_nibbles(w, 32, i)
}
