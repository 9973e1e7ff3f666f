//! Kernels for x86-64.

pub(crate) mod avx2;
pub(crate) mod avx512;

/// Asks for the cache lines of `bytes`.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    (0..bytes.len()).step_by(64).for_each(|at| avx2::prefetch(bytes, at));
}
