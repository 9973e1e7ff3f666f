//! Kernels by CPU and instruction set.

pub(crate) mod reference;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;
