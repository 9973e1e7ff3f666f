//! Q4_0. Layout: see `pi_core::quant`.

use super::eights::{four_nibbles, nibbles_of, pack_nibbles, put2};
use super::lanes::*;
use super::small::{self, Pair};
use std::arch::x86_64::*;

super::small::small_kernels!(36, 8, false, PAIRS15);
super::eights::packed_kernels!(18, 144, 8, false, super::four, super::pack);

fn fill(lone: &[u8]) -> [u8; 36] {
    small::fill_plain(lone)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack(w: &[u8; 36]) -> Pair {
    Pair { codes: nibbles(load16_each(w, 2, 20)), scales: half_each(w, 0, 18), mins: None }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 36], b: usize) -> [__m256; 4] {
    let w = small::block::<18, 36>(w, b);
    let d = half_all(w, 0);
    let mut v = nibble_numbers(w, 2);
    for v in &mut v {
        *v = _mm256_sub_ps(*v, _mm256_set1_ps(8.0));
    }
    times(v, d, None)
}

/// Repacked: eight scales, then codes.
fn pack(blocks: &[[u8; 18]; 8], out: &mut [u8; 144]) {
    put2(out, 0, blocks, 0);
    pack_nibbles(&blocks.map(|b| nibbles_of(&b[2..])), &mut out[16..]);
}

#[target_feature(enable = "avx2")]
#[inline]
fn four(w: &[u8; 144], i: usize) -> [__m256i; 4] {
    four_nibbles(w, 16, i)
}
