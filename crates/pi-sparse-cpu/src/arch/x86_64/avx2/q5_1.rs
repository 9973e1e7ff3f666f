//! Q5_1. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::q5_0::{bits_at, fifth_bits, five_bits, pack_fifth, with_fifth};
use super::small::{self, Pair, four_nibbles, nibbles_of, put2, scales_at};
use std::arch::x86_64::*;

super::small::small_kernels!(48, 0, true, PAIRS15);
super::small::packed_kernels!(24, 48, 0, true, super::unpack_packed, super::pack);

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

/// Repacked: two scales, two minima, fifth bits, then the low bits of codes.
fn pack(a: &[u8; 24], b: &[u8; 24], out: &mut [u8; 48]) {
    put2(out, 0, a, b, 0);
    put2(out, 4, a, b, 2);
    pack_fifth(bits_at(a, 4), bits_at(b, 4), &mut out[8..16]);
    small::pack_nibbles(&nibbles_of(&a[8..]), &nibbles_of(&b[8..]), &mut out[16..]);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack_packed(w: &[u8; 48]) -> Pair {
    let codes = with_fifth(four_nibbles(load32(w, 16)), word_at(w, 8));
    Pair { codes, scales: scales_at(w, 0), mins: Some(scales_at(w, 4)) }
}
