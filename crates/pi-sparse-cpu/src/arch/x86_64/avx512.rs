//! The kernels of [`super::avx2`], compiled for the instructions that came with AVX-512.
//!
//! Vectors stay at 256 bits: products of 16-bit numbers are added up in one instruction (VNNI) instead of two, and there are
//! 32 registers. On CPUs that compute 512 bits in two halves (Zen 4) wider vectors would gain nothing; and results are the
//! same bits as AVX2's, because the source is the same.

use super::avx2::{float, iq4_nl, iq4_xs, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0};
use crate::kernels::Kernels;
use pi_core::QuantType;

/// True if this CPU can run what is here.
pub(crate) fn is_available() -> bool {
    super::avx2::is_available()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// `base` with the kernels of this module put in, or `None` if this CPU cannot run them.
pub(crate) fn kernels(base: Kernels) -> Option<Kernels> {
    if !is_available() {
        return None;
    }
    let types = [
        (QuantType::F32, float::F32_AVX512),
        (QuantType::F16, float::F16_AVX512),
        (QuantType::BF16, float::BF16_AVX512),
        (QuantType::Q4_0, q4_0::AVX512),
        (QuantType::Q4_1, q4_1::AVX512),
        (QuantType::Q5_0, q5_0::AVX512),
        (QuantType::Q5_1, q5_1::AVX512),
        (QuantType::Q8_0, q8_0::AVX512),
        (QuantType::Q2_K, q2_k::AVX512),
        (QuantType::Q3_K, q3_k::AVX512),
        (QuantType::Q4_K, q4_k::AVX512),
        (QuantType::Q5_K, q5_k::AVX512),
        (QuantType::Q6_K, q6_k::AVX512),
        (QuantType::IQ4_NL, iq4_nl::AVX512),
        (QuantType::IQ4_XS, iq4_xs::AVX512),
    ];
    let base = base.with_activate(super::avx2::ACTIVATE);
    Some(types.into_iter().fold(base, |all, (ty, kernels)| all.with(ty, kernels)))
}
