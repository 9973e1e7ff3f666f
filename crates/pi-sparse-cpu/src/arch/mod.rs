//! Kernels by CPU and instruction set.

pub(crate) mod reference;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

/// Asks for bytes that will be read soon: no more than a hint.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    x86_64::prefetch(bytes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
