//! Q8_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::small::{self, Pair, put2, scales_at};
use std::arch::x86_64::*;

super::small::small_kernels!(68, 0, false, PAIRS15);
super::small::packed_kernels!(34, 68, 0, false, super::unpack_packed, super::pack);

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

/// Repacked: two scales, then codes; those of even vectors in even bytes.
fn pack(a: &[u8; 34], b: &[u8; 34], out: &mut [u8; 68]) {
    put2(out, 0, a, b, 0);
    let bytes = |w: &[u8; 34]| std::array::from_fn(|i| w[2 + i]);
    small::pack_bytes(&bytes(a), &bytes(b), &mut out[4..]);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack_packed(w: &[u8; 68]) -> Pair {
    let (first, second) = (signed(load32(w, 4)), signed(load32(w, 36)));
    Pair { codes: [first[0], first[1], second[0], second[1]], scales: scales_at(w, 0), mins: None }
}
