//! Operators on NVIDIA GPUs.
//!
//! Nothing of CUDA is needed to build this crate, or to run what contains it: the driver is looked for when a device is opened,
//! and [`Unavailable`] says why there is none. Kernels (`kernels/`) come as PTX (`ptx/`, made by `scripts/ptx`), which the driver
//! compiles for the GPU at hand. On machines without one, `pi-cuda-emu` runs the kernels, and this crate over a driver of its own.
//!
//! There are norms and matrices so far, so a [`Cuda`] is no [`pi_core::Device`] yet.

mod array;
mod error;
mod gpu;
mod linear;
mod norm;
mod operand;
mod probe;

pub use error::{Code, Unavailable};
pub use probe::count;

use gpu::Gpu;
use pi_core::{Dense, DeviceInfo, Error, Hidden, LinearSpec, NormSpec, Result};
use std::sync::Arc;

/// An open CUDA device. Operators share its queue.
#[derive(Clone, Debug)]
pub struct Cuda {
    gpu: Arc<Gpu>,
}

impl Cuda {
    /// Opens device `ordinal`, from 0.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn open(ordinal: usize) -> std::result::Result<Self, Unavailable> {
        Ok(Self { gpu: Gpu::open(ordinal)? })
    }

    /// Name and make.
    pub fn info(&self) -> DeviceInfo {
        let context = &self.gpu.context;
        let name = context.name().unwrap_or_else(|_| "a GPU".into());
        let (major, minor) = context.compute_capability().unwrap_or_default();
        let gib = context.total_mem().unwrap_or_default() as f64 / (1u64 << 30) as f64;
        let detail = format!("{name}, compute capability {major}.{minor}, {gib:.1} GiB");
        DeviceInfo { name: self.gpu.name.clone(), detail }
    }

    /// Bytes of the device's memory: free now, and in all.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (free, total) = self.gpu.context.mem_get_info().map_err(|e| self.gpu.error(e))?;
        Ok((free as u64, total as u64))
    }

    /// Room for hidden states in pinned host memory and on the device.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no memory.
    pub fn hidden(&self, max_tokens: usize, dim: usize) -> Result<Hidden> {
        array::hidden(&self.gpu, max_tokens, dim)
    }

    /// A norm over rows of the weight's length.
    ///
    /// # Errors
    /// [`Error::Shape`] if weight and bias do not fit, [`Error::Device`] if there is no memory.
    pub fn norm(&self, spec: &NormSpec) -> Result<Arc<dyn Dense>> {
        Ok(Arc::new(norm::Norm::new(&self.gpu, spec)?))
    }

    /// A matrix with an optional bias, of any type.
    ///
    /// # Errors
    /// As [`norm`](Self::norm).
    pub fn linear(&self, spec: &LinearSpec) -> Result<Arc<dyn Dense>> {
        Ok(Arc::new(linear::Linear::new(&self.gpu, spec)?))
    }

    /// Waits for everything that was queued.
    ///
    /// # Errors
    /// [`Error::Device`] with the first failure of what was queued.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.stream.synchronize().map_err(|e| self.gpu.error(e))
    }
}

/// Devices that can be opened, or why there are none.
///
/// # Errors
/// [`Unavailable`].
pub fn devices() -> std::result::Result<Vec<Cuda>, Unavailable> {
    (0..count()?).map(Cuda::open).collect()
}

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<(Cuda, Error)>();
};
