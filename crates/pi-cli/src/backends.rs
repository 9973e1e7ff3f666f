//! Which back ends this machine has beside the CPU.

use pi_engine::pi_core::DeviceInfo;
use pi_sparse_cuda::{Unavailable, devices};

/// The CUDA devices with their numbers, or why there are none.
///
/// # Errors
/// [`Unavailable`].
pub fn cuda() -> Result<String, Unavailable> {
    let line = |d: DeviceInfo| format!("{} {}", d.name.trim_start_matches("cuda:"), d.detail);
    Ok(devices()?.into_iter().map(line).collect::<Vec<_>>().join("; "))
}
