//! Operators on NVIDIA GPUs.
//!
//! Nothing of CUDA is needed to build this crate, or to run what contains it: the driver is looked for when a device is opened,
//! and [`Unavailable`] says why there is none. Kernels (`kernels/`) come as PTX (`ptx/`, made by `scripts/ptx`), which the driver
//! compiles for the GPU at hand. On machines without one, `pi-cuda-emu` runs the kernels, and this crate over a driver of its own.

mod array;
mod attention;
mod counts;
mod error;
mod event;
mod ffn;
mod gpu;
mod graphs;
mod linear;
mod memory;
mod modules;
mod norm;
mod operand;
mod options;
mod pinned;
mod predictor;
mod probe;
mod queue;
mod shared;
mod speed;
mod stub;
mod upload;

pub use error::{Capability, Code, Unavailable, Version};
pub use options::{CudaOptions, GraphUse, KernelSource, KvPlace, TensorCores};
pub use probe::count;
pub use queue::Launches;

use gpu::Gpu;
use pi_core::{
    ActiveSet, Attention, AttentionSpec, Dense, Device, DeviceInfo, Error, FfnWeights, Footprint, Hidden, LinearSpec,
    MlpSpec, NeuronSet, NormSpec, Predictor, QuantType, Result, SparseFfn,
};
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
        Self::open_with(ordinal, &CudaOptions::default())
    }

    /// The same with other than the usual settings.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn open_with(ordinal: usize, options: &CudaOptions) -> std::result::Result<Self, Unavailable> {
        Ok(Self { gpu: Gpu::open(ordinal, options)? })
    }

    /// Why shipped kernels are used although [others](KernelSource::Nvrtc) were asked for, or no graphs although they
    /// [were](GraphUse::Auto); `None` if there is nothing to say.
    pub fn note(&self) -> Option<String> {
        let notes = [self.gpu.modules().note().map(Into::into), self.gpu.queue.note()];
        notes.into_iter().flatten().reduce(|a, b| format!("{a}; {b}"))
    }

    /// Whether matrices of many tokens are multiplied by [tensor cores](TensorCores).
    pub fn has_tensor_cores(&self) -> bool {
        self.gpu.tensor_cores
    }

    /// What was launched since the device was opened.
    pub fn launches(&self) -> Launches {
        self.gpu.queue.launches()
    }

    /// Files of kernels that were loaded so far. They are loaded when the first of their kernels is needed.
    pub fn files_loaded(&self) -> usize {
        self.gpu.modules().count()
    }

    /// Bytes of the device's memory: free now, and in all.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (free, total) = self.gpu.context.mem_get_info().map_err(|e| self.gpu.error(e))?;
        Ok((free as u64, total as u64))
    }

    /// The largest budget that a plan can have: what is free now, and what the runtime took of it already.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn reach(&self) -> Result<u64> {
        Ok(self.memory()?.0 + self.gpu.footprint.context)
    }

    /// Bytes of it that what was made here takes now: whole pieces, as the driver gives them. The [runtime](Footprint::runtime) is not in it.
    pub fn allocated(&self) -> u64 {
        self.gpu.queue.taken.now()
    }

    /// The most bytes that ever were.
    pub fn most_allocated(&self) -> u64 {
        self.gpu.queue.taken.most()
    }

    /// Bytes per second that the device's memory reads and writes while an array of `bytes` is copied within it; two such arrays are
    /// allocated for that.
    ///
    /// # Errors
    /// If there is no memory for them, or the driver fails.
    pub fn copy_speed(&self, bytes: usize) -> Result<f64> {
        speed::copy(&self.gpu, bytes)
    }

    /// Waits for everything that was queued.
    ///
    /// # Errors
    /// [`Error::Device`] with the first failure of what was queued.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.stream()?.synchronize().map_err(|e| self.gpu.error(e))
    }
}

impl Device for Cuda {
    fn info(&self) -> DeviceInfo {
        self.gpu.info.clone()
    }

    fn supports(&self, _: QuantType) -> bool {
        true // there are kernels for all
    }

    fn footprint(&self) -> Arc<dyn Footprint> {
        Arc::new(self.gpu.footprint)
    }

    fn hidden(&self, max_tokens: usize, dim: usize) -> Result<Hidden> {
        array::hidden(&self.gpu, max_tokens, dim)
    }

    fn active(&self, max_tokens: usize, neurons: usize) -> Result<ActiveSet> {
        array::active(&self.gpu, max_tokens, neurons)
    }

    fn add(&self, x: &mut Hidden, y: &mut Hidden) -> Result<()> {
        if (x.tokens(), x.dim()) != (y.tokens(), y.dim()) {
            let size = |h: &Hidden| format!("{} rows of {}", h.tokens(), h.dim());
            return Err(Error::shape("a sum", size(y), size(x)));
        }
        if !norm::add(&self.gpu, x, y)? {
            y.host_mut()?.iter_mut().zip(x.host()?).for_each(|(y, x)| *y += *x);
        }
        Ok(())
    }

    fn copies_weights(&self) -> bool {
        true
    }

    fn norm(&self, spec: &NormSpec) -> Result<Arc<dyn Dense>> {
        Ok(Arc::new(norm::Norm::new(&self.gpu, spec)?))
    }

    fn linear(&self, spec: &LinearSpec) -> Result<Arc<dyn Dense>> {
        Ok(Arc::new(linear::Linear::new(&self.gpu, spec)?))
    }

    fn attention(&self, spec: &AttentionSpec) -> Result<Arc<dyn Attention>> {
        Ok(Arc::new(attention::CudaAttention::new(&self.gpu, spec)?))
    }

    fn sparse_ffn(&self, weights: &FfnWeights, neurons: &NeuronSet) -> Result<Arc<dyn SparseFfn>> {
        Ok(Arc::new(ffn::CudaFfn::new(&self.gpu, weights, neurons)?))
    }

    fn mlp(&self, spec: &MlpSpec) -> Result<Arc<dyn Predictor>> {
        Ok(Arc::new(predictor::CudaMlp::new(&self.gpu, spec)?))
    }
}

/// The devices there are, or why there are none. Nothing is loaded onto them.
///
/// # Errors
/// [`Unavailable`].
pub fn devices() -> std::result::Result<Vec<DeviceInfo>, Unavailable> {
    (0..count()?).map(probe::describe).collect()
}

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<(Cuda, Error)>();
};
