//! Kernels for AVX2, FMA and F16C.
//!
//! Each type's file says what the codes, scales and numbers of one block are; `small` (blocks of 32), `eights` (the same repacked), `large` (blocks of 256)
//! and `float` make kernels of that: one for this instruction set, and one for [`super::avx512`]. Functions that use the instructions carry `#[target_feature]`, so that only code with the same
//! features, or an `unsafe` block, can call them. The only such blocks are the entries of the tables made here, which
//! [`kernels`] hands out after asking the CPU, and the loads and stores in `lanes`, whose lengths are in their types.
#![allow(unsafe_code)]

mod activation;
pub(crate) mod attention;
mod eights;
mod encode;
mod float;
mod iq4_nl;
mod iq4_xs;
mod lanes;
mod large;
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
mod signs;
mod small;

use crate::{
    Activations,
    kernels::{Kernels, Pack, Packed, TypeKernels},
};
pub(super) use activation::ACTIVATE;
use encode::{LANES15, PAIRS15, SPLIT15};
pub(super) use lanes::prefetch;
use pi_core::QuantType;
pub(super) use signs::{SIGNS, SIGNS_AVX512};

/// Activations beside float weights.
const F32: Activations = Activations::F32;

/// True if this CPU can run what is here.
pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// What there is for each type: kernels of this module, and the same for [`super::avx512`].
pub(super) const TYPES: [(QuantType, TypeKernels, TypeKernels); 15] = [
    (QuantType::F32, float::F32, float::F32_AVX512),
    (QuantType::F16, float::F16, float::F16_AVX512),
    (QuantType::BF16, float::BF16, float::BF16_AVX512),
    (QuantType::Q4_0, q4_0::KERNELS, q4_0::AVX512),
    (QuantType::Q4_1, q4_1::KERNELS, q4_1::AVX512),
    (QuantType::Q5_0, q5_0::KERNELS, q5_0::AVX512),
    (QuantType::Q5_1, q5_1::KERNELS, q5_1::AVX512),
    (QuantType::Q8_0, q8_0::KERNELS, q8_0::AVX512),
    (QuantType::Q2_K, q2_k::KERNELS, q2_k::AVX512),
    (QuantType::Q3_K, q3_k::KERNELS, q3_k::AVX512),
    (QuantType::Q4_K, q4_k::KERNELS, q4_k::AVX512),
    (QuantType::Q5_K, q5_k::KERNELS, q5_k::AVX512),
    (QuantType::Q6_K, q6_k::KERNELS, q6_k::AVX512),
    (QuantType::IQ4_NL, iq4_nl::KERNELS, iq4_nl::AVX512),
    (QuantType::IQ4_XS, iq4_xs::KERNELS, iq4_xs::AVX512),
];

/// Types whose rows are faster repacked: how, and the kernels for that.
pub(super) const PACKED: [(QuantType, Pack, TypeKernels, TypeKernels); 6] = [
    (QuantType::Q4_0, q4_0::PACK, q4_0::PACKED, q4_0::PACKED_AVX512),
    (QuantType::Q4_1, q4_1::PACK, q4_1::PACKED, q4_1::PACKED_AVX512),
    (QuantType::Q5_0, q5_0::PACK, q5_0::PACKED, q5_0::PACKED_AVX512),
    (QuantType::Q5_1, q5_1::PACK, q5_1::PACKED, q5_1::PACKED_AVX512),
    (QuantType::Q8_0, q8_0::PACK, q8_0::PACKED, q8_0::PACKED_AVX512),
    (QuantType::IQ4_NL, iq4_nl::PACK, iq4_nl::PACKED, iq4_nl::PACKED_AVX512),
];

/// `base` with the kernels of this module put in, or `None` if this CPU cannot run them.
pub(crate) fn kernels(base: Kernels) -> Option<Kernels> {
    is_available().then(|| {
        let base = if is_x86_feature_detected!("popcnt") { base.with_signs(SIGNS) } else { base };
        let all = TYPES.into_iter().fold(base.with_activate(ACTIVATE), |all, (ty, kernels, _)| all.with(ty, kernels));
        PACKED.into_iter().fold(all, |all, (ty, pack, kernels, _)| all.with_packed(ty, packed(pack, kernels)))
    })
}

/// The layout of [`eights`].
pub(super) fn packed(pack: Pack, kernels: TypeKernels) -> Packed {
    Packed { pack, kernels, columns: eights::COLUMNS }
}

/// A [`TypeKernels`](crate::kernels::TypeKernels) of functions with these target features.
macro_rules! kernel_table {
    ($activations:ident, $isa:ident, $dot:expr, $dot4:expr, $tile:expr, $axpy:expr, $axpy4:expr, $decode:expr) => {
        crate::kernels::TypeKernels {
            activations: crate::arch::x86_64::avx2::$activations,
            // SAFETY: entries leave this module only through `kernels`, after the CPU was found to have the features.
            dot: |w, x| unsafe { $dot(w, x) },
            // SAFETY: as above.
            dot4: |w, next, x| unsafe { $dot4(w, next, x) },
            // SAFETY: as above.
            tile: Some(|w, x, row_bytes, y| unsafe { $tile(w, x, row_bytes, y) }),
            // SAFETY: as above.
            axpy: |w, a, y| unsafe { $axpy(w, a, y) },
            // SAFETY: as above.
            axpy4: Some(|w, next, a, y| unsafe { $axpy4(w, next, a, y) }),
            // SAFETY: as above.
            decode: |w, out| unsafe { $decode(w, out) },
            isa: crate::kernels::Isa::$isa,
        }
    };
}
use kernel_table;
