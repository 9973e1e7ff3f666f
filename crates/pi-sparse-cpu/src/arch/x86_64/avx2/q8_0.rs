//! Q8_0. Layout: see `pi_core::quant`.

use super::eights::{pack_bytes, put2};
use super::lanes::*;
use super::small::{self, Pair};
use std::arch::x86_64::*;

super::small::small_kernels!(68, 0, false, PAIRS15);
super::eights::packed_kernels!(34, 272, 0, false, super::four, super::pack);

fn fill(lone: &[u8]) -> [u8; 68] {
    small::fill_plain(lone)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack(w: &[u8; 68]) -> Pair {
    let (first, second) = (signed(load16_each(w, 2, 36)), signed(load16_each(w, 18, 52)));
    Pair { codes: [first[0], first[1], second[0], second[1]], scales: half_each(w, 0, 34), mins: None }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 68], b: usize) -> [__m256; 4] {
    let w = small::block::<34, 68>(w, b);
    let d = half_all(w, 0);
    times(widen(load32(w, 2)), d, None)
}

/// Repacked: eight scales, then codes; those of even vectors in even bytes.
fn pack(blocks: &[[u8; 34]; 8], out: &mut [u8; 272]) {
    put2(out, 0, blocks, 0);
    pack_bytes(&blocks.map(|b| std::array::from_fn(|i| b[2 + i])), &mut out[16..]);
}

#[target_feature(enable = "avx2")]
#[inline]
fn four(w: &[u8; 272], i: usize) -> [__m256i; 4] {
    let (first, second) = (signed(load32(w, 16 + 64 * i)), signed(load32(w, 48 + 64 * i)));
    [first[0], first[1], second[0], second[1]]
}
