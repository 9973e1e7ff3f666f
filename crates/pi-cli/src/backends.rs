//! Which back ends this machine has beside the CPU.

use pi_sparse_cuda::{Unavailable, devices};

/// The CUDA devices, or why there are none.
///
/// # Errors
/// [`Unavailable`].
pub fn cuda() -> Result<String, Unavailable> {
    Ok(devices()?.into_iter().map(|d| d.detail).collect::<Vec<_>>().join("; "))
}
