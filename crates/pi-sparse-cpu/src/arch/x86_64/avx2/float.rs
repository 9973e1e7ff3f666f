//! F32, F16 and BF16 with F32.

use super::lanes::*;
use super::rows::add_scaled;
use crate::kernels::TypeKernels;
use std::arch::x86_64::*;

/// A row of `N`-byte numbers, eight at a time. `f` gets eight numbers as f32, as many activations, and how many of them
/// there are; the last eight are filled up with zeros.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dot<const N: usize>(w: &[u8], x: &[u8], read: impl Fn(&[[u8; N]; 8]) -> __m256) -> f32 {
    let (w, x) = (w.as_chunks::<N>().0, x.as_chunks::<4>().0);
    let n = w.len().min(x.len());
    let (w, x) = (&w[..n], &x[..n]);
    let (w32, w_rest) = w.as_chunks::<32>();
    let (x32, x_rest) = x.as_chunks::<32>();
    let mut acc = [_mm256_setzero_ps(); 4];
    for (w, x) in w32.iter().zip(x32) {
        for i in 0..4 {
            acc[i] = _mm256_fmadd_ps(read(&w.as_chunks().0[i]), load_bytes(&x.as_chunks().0[i]), acc[i]);
        }
    }
    for (w, x) in w_rest.chunks(8).zip(x_rest.chunks(8)) {
        let (mut w8, mut x8) = ([[0; N]; 8], [[0; 4]; 8]);
        w8[..w.len()].copy_from_slice(w);
        x8[..x.len()].copy_from_slice(x);
        acc[0] = _mm256_fmadd_ps(read(&w8), load_bytes(&x8), acc[0]);
    }
    sum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])))
}

/// Calls `f` with eight numbers and their places in `y`; at the end with a copy, of which only what there is counts.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn update<const N: usize>(
    w: &[u8],
    y: &mut [f32],
    read: impl Fn(&[[u8; N]; 8]) -> __m256,
    f: impl Fn(__m256, &mut [f32; 8]),
) {
    let w = w.as_chunks::<N>().0;
    let n = w.len().min(y.len());
    let (w8, w_rest) = w[..n].as_chunks::<8>();
    let (y8, y_rest) = y[..n].as_chunks_mut::<8>();
    for (w, y) in w8.iter().zip(y8) {
        f(read(w), y);
    }
    let (mut w, mut y) = ([[0; N]; 8], [0.0; 8]);
    w[..w_rest.len()].copy_from_slice(w_rest);
    y[..y_rest.len()].copy_from_slice(y_rest);
    f(read(&w), &mut y);
    y_rest.copy_from_slice(&y[..y_rest.len()]);
}

macro_rules! float_kernels {
    ($name:ident, $bytes:literal, $read:ident) => {
        pub(super) const $name: TypeKernels = {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn row(w: &[u8], x: &[u8]) -> f32 {
                dot(w, x, |b: &[[u8; $bytes]; 8]| $read(b))
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            fn rows(w: [&[u8]; 4], x: &[u8]) -> [f32; 4] {
                [row(w[0], x), row(w[1], x), row(w[2], x), row(w[3], x)]
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            fn axpy(w: &[u8], a: f32, y: &mut [f32]) {
                update(w, y, |b: &[[u8; $bytes]; 8]| $read(b), |v, y| add_scaled(y, a, v));
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            fn decode(w: &[u8], out: &mut [f32]) {
                update(w, out, |b: &[[u8; $bytes]; 8]| $read(b), |v, out| store(out, v));
            }

            super::kernel_table!(F32, row, rows, axpy, decode)
        };
    };
}

float_kernels!(F32, 4, load_bytes);
float_kernels!(F16, 2, read_f16);
float_kernels!(BF16, 2, read_bf16);

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn read_f16(b: &[[u8; 2]; 8]) -> __m256 {
    _mm256_cvtph_ps(load16(bytes(b), 0))
}

#[target_feature(enable = "avx2")]
#[inline]
fn read_bf16(b: &[[u8; 2]; 8]) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(bytes(b), 0)), 16))
}

#[inline(always)]
fn bytes(b: &[[u8; 2]; 8]) -> &[u8; 16] {
    b.as_flattened().first_chunk().expect("16 bytes")
}
