//! IQ4_NL. Layout: see `pi_core::quant`.

use super::eights::{nibbles_of, pack_bytes, put2};
use super::lanes::*;
use super::small::{self, Pair};
use std::arch::x86_64::*;

super::small::small_kernels!(36, 0, false, PAIRS15);
super::eights::packed_kernels!(18, 144, 0, false, super::four, super::pack);

fn fill(lone: &[u8]) -> [u8; 36] {
    small::fill_plain(lone)
}

/// What codes mean.
#[target_feature(enable = "avx2")]
#[inline]
fn table() -> __m128i {
    _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
}

/// The values that codes in bytes name.
#[target_feature(enable = "avx2")]
#[inline]
fn named(codes: __m256i) -> __m256i {
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table()), codes)
}

/// The values that 16 bytes of codes name.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn values(packed: __m128i) -> __m256i {
    named(halves(packed))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack(w: &[u8; 36]) -> Pair {
    let packed = load16_each(w, 2, 20);
    let (first, second) = (signed(named(shift_mask(packed, 0, 15))), signed(named(shift_mask(packed, 4, 15))));
    Pair { codes: [first[0], first[1], second[0], second[1]], scales: half_each(w, 0, 18), mins: None }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 36], b: usize) -> [__m256; 4] {
    let w = small::block::<18, 36>(w, b);
    let d = half_all(w, 0);
    times(widen(values(load16(w, 2))), d, None)
}

/// Repacked: eight scales, then codes: bytes as in Q8_0, of which the first half of each 64 is in the low half bytes.
fn pack(blocks: &[[u8; 18]; 8], out: &mut [u8; 144]) {
    put2(out, 0, blocks, 0);
    let mut bytes = [0; 256];
    pack_bytes(&blocks.map(|b| nibbles_of(&b[2..])), &mut bytes);
    for (out, bytes) in out[16..].as_chunks_mut::<32>().0.iter_mut().zip(bytes.as_chunks::<64>().0) {
        (0..32).for_each(|i| out[i] = bytes[i] | bytes[32 + i] << 4);
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn four(w: &[u8; 144], i: usize) -> [__m256i; 4] {
    let packed = load32(w, 16 + 32 * i);
    let (first, second) = (signed(named(shift_mask(packed, 0, 15))), signed(named(shift_mask(packed, 4, 15))));
    [first[0], first[1], second[0], second[1]]
}
