//! Q8_0 with Q8_0. Layout: see `pi_core::quant`.

use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_0, 34, 34, 32);

/// In 16 bits, because −128 times −128 on both sides of a pair is beyond what the instruction for bytes can hold.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 34], x: &[u8; 34], acc: __m256) -> __m256 {
    let part = |b: &[u8; 34], at| _mm256_cvtepi8_epi16(load16(b, at));
    let sums = _mm256_add_epi32(_mm256_madd_epi16(part(w, 2), part(x, 2)), _mm256_madd_epi16(part(w, 18), part(x, 18)));
    add_scaled_i32(acc, _mm256_mul_ps(half_all(w, 0), half_all(x, 0)), sums)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 34], mut emit: impl FnMut(usize, __m256)) {
    let d = half_all(w, 0);
    widen(load32(w, 2), 0, |i, q| emit(i, _mm256_mul_ps(q, d)));
}
