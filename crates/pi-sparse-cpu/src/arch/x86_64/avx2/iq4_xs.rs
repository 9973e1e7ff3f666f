//! IQ4_XS with Q8_K. Layout: see `pi_core::quant`.

use super::iq4_nl::{products, values};
use super::lanes::*;
use std::arch::x86_64::*;

super::block_kernels!(Q8_K, 136, 292, 256);

/// Scales from −32 to 31.
#[inline(always)]
fn scales(w: &[u8; 136]) -> [i8; 8] {
    let high = u16::from_le_bytes([w[2], w[3]]);
    std::array::from_fn(|i| {
        let low = w[4 + i / 2] >> (4 * (i % 2)) & 15;
        (low | ((high >> (2 * i)) as u8 & 3) << 4) as i8 - 32
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product(w: &[u8; 136], x: &[u8; 292], acc: __m256) -> __m256 {
    let scales = scales(w);
    let mut sums = _mm256_setzero_si256();
    for i in 0..8 {
        let p = products(values(load16(w, 8 + 16 * i)), load32(x, 4 + 32 * i));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(p, _mm256_set1_epi16(scales[i].into())));
    }
    add_scaled_i32(acc, _mm256_mul_ps(half_all(w, 0), float_all(x, 0)), sums)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn numbers(w: &[u8; 136], mut emit: impl FnMut(usize, __m256)) {
    let d = half_at(w, 0);
    for (i, s) in scales(w).into_iter().enumerate() {
        let scale = _mm256_set1_ps(d * f32::from(s));
        widen(values(load16(w, 8 + 16 * i)), 4 * i, |i, q| emit(i, _mm256_mul_ps(scale, q)));
    }
}
