//! Kernels for AVX2, FMA and F16C.
//!
//! Each type's file says how one block meets one block of activations (`product`) and what its numbers are (`numbers`);
//! `rows` makes rows of that. Functions that use the instructions carry `#[target_feature]`, so that only code with the same
//! features, or an `unsafe` block, can call them. The only such blocks are the entries of the tables made here, which
//! [`kernels`] hands out after asking the CPU, and the loads and stores in `lanes`, whose lengths are in their types.
#![allow(unsafe_code)]

pub(crate) mod attention;
mod encode;
mod float;
mod iq4_nl;
mod iq4_xs;
mod lanes;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod rows;

use crate::kernels::Kernels;
use pi_core::QuantType;

/// True if this CPU can run what is here.
pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// `base` with the kernels of this module put in, or `None` if this CPU cannot run them.
pub(crate) fn kernels(base: Kernels) -> Option<Kernels> {
    if !is_available() {
        return None;
    }
    let types = [
        (QuantType::F32, float::F32),
        (QuantType::F16, float::F16),
        (QuantType::BF16, float::BF16),
        (QuantType::Q4_0, q4_0::KERNELS),
        (QuantType::Q4_1, q4_1::KERNELS),
        (QuantType::Q5_0, q5_0::KERNELS),
        (QuantType::Q5_1, q5_1::KERNELS),
        (QuantType::Q8_0, q8_0::KERNELS),
        (QuantType::Q2_K, q2_k::KERNELS),
        (QuantType::Q3_K, q3_k::KERNELS),
        (QuantType::Q4_K, q4_k::KERNELS),
        (QuantType::Q5_K, q5_k::KERNELS),
        (QuantType::Q6_K, q6_k::KERNELS),
        (QuantType::IQ4_NL, iq4_nl::KERNELS),
        (QuantType::IQ4_XS, iq4_xs::KERNELS),
    ];
    let kernels = types.into_iter().fold(base, |all, (ty, kernels)| all.with(ty, kernels));
    let encoders = [(QuantType::Q8_0, encode::Q8_0), (QuantType::Q8_1, encode::Q8_1), (QuantType::Q8_K, encode::Q8_K)];
    Some(encoders.into_iter().fold(kernels, |all, (ty, encode)| all.with_encode(ty, encode)))
}

/// The `KERNELS` of a type whose file has `product` and `numbers`: the type of activations, then bytes per block of
/// weights, bytes per block of activations, and numbers per block; then a last look at a product and its rows, if any.
macro_rules! block_kernels {
    ($activation:ident, $w:literal, $x:literal, $n:literal) => {
        super::block_kernels!($activation, $w, $x, $n, super::rows::as_it_is);
    };
    ($activation:ident, $w:literal, $x:literal, $n:literal, $finish:path) => {
        pub(super) const KERNELS: crate::kernels::TypeKernels = {
            use super::rows;
            use std::arch::x86_64::__m256;

            #[target_feature(enable = "avx2,fma,f16c")]
            fn dot(w: &[u8], x: &[u8]) -> f32 {
                $finish(rows::dot(w, x, |w: &[u8; $w], x: &[u8; $x], acc: __m256| product(w, x, acc)), w, x)
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            fn dot4(w: [&[u8]; 4], x: &[u8]) -> [f32; 4] {
                let mut y = rows::dot4(w, x, |w: &[u8; $w], x: &[u8; $x], acc: __m256| product(w, x, acc));
                for i in 0..4 {
                    y[i] = $finish(y[i], w[i], x);
                }
                y
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            fn axpy(w: &[u8], a: f32, y: &mut [f32]) {
                rows::update(w, y, |w: &[u8; $w], y: &mut [f32; $n]| {
                    numbers(w, |i, v| rows::add_scaled(&mut y.as_chunks_mut().0[i], a, v));
                });
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            fn decode(w: &[u8], out: &mut [f32]) {
                rows::update(w, out, |w: &[u8; $w], out: &mut [f32; $n]| {
                    numbers(w, |i, v| super::lanes::store(&mut out.as_chunks_mut().0[i], v));
                });
            }

            super::kernel_table!($activation, dot, dot4, axpy, decode)
        };
    };
}
use block_kernels;

/// A [`TypeKernels`](crate::kernels::TypeKernels) of functions with these target features.
macro_rules! kernel_table {
    ($activation:ident, $dot:expr, $dot4:expr, $axpy:expr, $decode:expr) => {
        crate::kernels::TypeKernels {
            activation: pi_core::QuantType::$activation,
            // SAFETY: entries leave this module only through `kernels`, after the CPU was found to have the features.
            dot: |w, x| unsafe { $dot(w, x) },
            // SAFETY: as above.
            dot4: |w, x| unsafe { $dot4(w, x) },
            // SAFETY: as above.
            axpy: |w, a, y| unsafe { $axpy(w, a, y) },
            // SAFETY: as above.
            decode: |w, out| unsafe { $decode(w, out) },
            isa: crate::kernels::Isa::Avx2,
        }
    };
}
use kernel_table;
