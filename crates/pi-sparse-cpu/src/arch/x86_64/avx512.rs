//! The kernels of [`super::avx2`], compiled for the instructions that came with AVX-512.
//!
//! Vectors stay at 256 bits: products of 16-bit numbers are added up in one instruction (VNNI) instead of two, and there are
//! 32 registers. On CPUs that compute 512 bits in two halves (Zen 4) wider vectors would gain nothing; and results are the
//! same bits as AVX2's, because the source is the same.

use super::avx2::{ACTIVATE, PACKED, SIGNS, SIGNS_AVX512, TYPES, packed};
use crate::kernels::Kernels;

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
    is_available().then(|| {
        // counting bits in vectors came with later CPUs than the rest
        let signs = if is_x86_feature_detected!("avx512vpopcntdq") { SIGNS_AVX512 } else { SIGNS };
        let base = if is_x86_feature_detected!("popcnt") { base.with_signs(signs) } else { base };
        let all = TYPES.into_iter().fold(base.with_activate(ACTIVATE), |all, (ty, _, kernels)| all.with(ty, kernels));
        PACKED.into_iter().fold(all, |all, (ty, pack, _, kernels)| all.with_packed(ty, packed(pack, kernels)))
    })
}
