//! Q8_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use super::small::Pair;
use std::arch::x86_64::*;

super::small::small_kernels!(34, false);

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn unpack(a: &[u8; 34], b: &[u8; 34]) -> Pair {
    let (first, second) = (signed(load16_each(a, b, 2)), signed(load16_each(a, b, 18)));
    Pair { codes: [first[0], first[1], second[0], second[1]], scales: half_each(a, b, 0), mins: None }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 34], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    widen(load32(w, 2), 0, |i, q| emit(i, _mm256_mul_ps(q, d)));
}
