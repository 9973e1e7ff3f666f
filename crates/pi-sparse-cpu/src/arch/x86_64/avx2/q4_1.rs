//! Q4_1. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::small::{self, Pair, four_nibbles, nibbles_of, put2, scales_at};
use std::arch::x86_64::*;

super::small::small_kernels!(40, 0, true, PAIRS15);
super::small::packed_kernels!(20, 40, 0, true, super::unpack_packed, super::pack);

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

/// Repacked: two scales, two minima, then codes.
fn pack(a: &[u8; 20], b: &[u8; 20], out: &mut [u8; 40]) {
    put2(out, 0, a, b, 0);
    put2(out, 4, a, b, 2);
    small::pack_nibbles(&nibbles_of(&a[4..]), &nibbles_of(&b[4..]), &mut out[8..]);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack_packed(w: &[u8; 40]) -> Pair {
    Pair { codes: four_nibbles(load32(w, 8)), scales: scales_at(w, 0), mins: Some(scales_at(w, 4)) }
}
