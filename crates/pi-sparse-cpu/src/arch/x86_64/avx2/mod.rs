//! Kernels for AVX2, FMA and F16C.
#![allow(unsafe_code)]

use crate::kernels::Kernels;

/// True if this CPU can run what is here.
pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// `base` with the kernels of this module put in, or `None` if this CPU cannot run them.
pub(crate) fn kernels(base: Kernels) -> Option<Kernels> {
    is_available().then_some(base)
}
