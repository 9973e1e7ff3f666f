//! Q4_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::small::Pair;
use std::arch::x86_64::*;

super::small::small_kernels!(18, false);

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn unpack(a: &[u8; 18], b: &[u8; 18]) -> Pair {
    Pair { codes: less(nibbles(load16_each(a, b, 2)), 8), scales: half_each(a, b, 0), mins: None }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 18], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    let codes = _mm256_sub_epi8(halves(load16(w, 2)), _mm256_set1_epi8(8));
    widen(codes, 0, |i, q| emit(i, _mm256_mul_ps(q, d)));
}
