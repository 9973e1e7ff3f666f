//! Kernels for AVX2, FMA and F16C.
//!
//! Each type's file says what the codes, scales and numbers of one block are; `small` (blocks of 32), `large` (blocks of 256)
//! and `float` make kernels of that: one for this instruction set, and one for [`super::avx512`]. Functions that use the instructions carry `#[target_feature]`, so that only code with the same
//! features, or an `unsafe` block, can call them. The only such blocks are the entries of the tables made here, which
//! [`kernels`] hands out after asking the CPU, and the loads and stores in `lanes`, whose lengths are in their types.
#![allow(unsafe_code)]

mod activation;
pub(crate) mod attention;
mod encode;
pub(super) mod float;
pub(super) mod iq4_nl;
pub(super) mod iq4_xs;
mod lanes;
mod large;
pub(super) mod q2_k;
pub(super) mod q3_k;
pub(super) mod q4_0;
pub(super) mod q4_1;
pub(super) mod q4_k;
pub(super) mod q5_0;
pub(super) mod q5_1;
pub(super) mod q5_k;
pub(super) mod q6_k;
pub(super) mod q8_0;
mod rows;
mod small;

use crate::{Activations, kernels::Kernels};
pub(super) use activation::ACTIVATE;
use encode::{PAIRS15, SPLIT15};
pub(super) use lanes::prefetch;
use pi_core::QuantType;

/// Activations beside float weights.
const F32: Activations = Activations::F32;

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
    let base = base.with_activate(ACTIVATE);
    Some(types.into_iter().fold(base, |all, (ty, kernels)| all.with(ty, kernels)))
}

/// A [`TypeKernels`](crate::kernels::TypeKernels) of functions with these target features.
macro_rules! kernel_table {
    ($activations:ident, $isa:ident, $dot:expr, $dot4:expr, $tile:expr, $axpy:expr, $axpy4:expr, $decode:expr) => {
        crate::kernels::TypeKernels {
            activations: super::$activations,
            // SAFETY: entries leave this module only through `kernels`, after the CPU was found to have the features.
            dot: |w, x| unsafe { $dot(w, x) },
            // SAFETY: as above.
            dot4: |w, x| unsafe { $dot4(w, x) },
            // SAFETY: as above.
            tile: Some(|w, x, row_bytes, y| unsafe { $tile(w, x, row_bytes, y) }),
            // SAFETY: as above.
            axpy: |w, a, y| unsafe { $axpy(w, a, y) },
            // SAFETY: as above.
            axpy4: Some(|w, a, y| unsafe { $axpy4(w, a, y) }),
            // SAFETY: as above.
            decode: |w, out| unsafe { $decode(w, out) },
            isa: crate::kernels::Isa::$isa,
        }
    };
}
use kernel_table;
