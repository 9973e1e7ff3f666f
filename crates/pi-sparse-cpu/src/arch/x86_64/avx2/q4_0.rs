//! Q4_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::small::{self, Pair, four_nibbles, nibbles_of, put2, scales_at};
use std::arch::x86_64::*;

super::small::small_kernels!(36, 8, false, PAIRS15);
super::small::packed_kernels!(18, 36, 8, false, super::unpack_packed, super::pack);

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

/// Repacked: two scales, then codes.
fn pack(a: &[u8; 18], b: &[u8; 18], out: &mut [u8; 36]) {
    put2(out, 0, a, b, 0);
    small::pack_nibbles(&nibbles_of(&a[2..]), &nibbles_of(&b[2..]), &mut out[4..]);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack_packed(w: &[u8; 36]) -> Pair {
    Pair { codes: four_nibbles(load32(w, 4)), scales: scales_at(w, 0), mins: None }
}
