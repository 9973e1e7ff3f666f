//! What kernels read and write: hidden states of this device where they are, others by way of a copy.

use crate::{array::own, gpu::Gpu, memory::Memory, pinned::Number};
use cudarc::driver::sys::CUdeviceptr;
use pi_core::{ActiveSet, Error, Hidden, Resident, Result, Write};
use std::sync::Arc;

/// An array that a kernel reads.
pub(crate) struct Input<T> {
    /// Null if there is none.
    pub address: CUdeviceptr,
    /// Whether it was on the host.
    pub moved: bool,
    /// Freed in the order of the queue, so after the kernel.
    _copy: Option<Memory<T>>,
}

impl Input<f32> {
    /// Rows of a hidden state.
    pub(crate) fn new(gpu: &Arc<Gpu>, x: &mut Hidden) -> Result<Self> {
        if let Some(here) = Self::here(gpu, x.resident())? {
            return Ok(here);
        }
        Self::copied(gpu, x.host()?)
    }
}

impl Input<u64> {
    /// Marks of a predictor; there are none if every neuron may fire.
    pub(crate) fn marks(gpu: &Arc<Gpu>, active: &mut ActiveSet) -> Result<Self> {
        if active.is_all() {
            return Ok(Self { address: 0, moved: false, _copy: None });
        }
        if let Some(here) = Self::here(gpu, active.resident())? {
            return Ok(here);
        }
        Self::copied(gpu, active.host()?.unwrap_or(&[]))
    }
}

impl<T: Number> Input<T> {
    fn here(gpu: &Arc<Gpu>, x: &mut Resident<T>) -> Result<Option<Self>> {
        let before = x.moves().up;
        if own(gpu, x).is_some() {
            x.mirror()?;
        }
        let moved = x.moves().up > before;
        Ok(own(gpu, x).map(|array| Self { address: array.address(), moved, _copy: None }))
    }

    fn copied(gpu: &Arc<Gpu>, from: &[T]) -> Result<Self> {
        let copy = gpu.upload(from)?;
        Ok(Self { address: gpu.address(&copy), moved: true, _copy: Some(copy) })
    }
}

/// Fails unless `y` can take `tokens` rows of `dim` numbers.
pub(crate) fn check(y: &Hidden, tokens: usize, dim: usize, how: Write) -> Result<()> {
    if y.dim() != dim || tokens > y.max_tokens() || (how == Write::Add && y.tokens() != tokens) {
        let size = |tokens, dim| format!("{tokens} rows of {dim}");
        return Err(Error::shape("an output", size(tokens, dim), size(y.tokens(), y.dim())));
    }
    Ok(())
}

/// Lets a kernel write the rows of `y`: `run` gets their address and whether it is to add to what is there. With
/// [`Write::Set`], `y` gets `tokens` rows first.
pub(crate) fn write(
    gpu: &Arc<Gpu>,
    y: &mut Hidden,
    tokens: usize,
    dim: usize,
    how: Write,
    run: impl FnOnce(CUdeviceptr, bool) -> Result<()>,
) -> Result<()> {
    check(y, tokens, dim, how)?;
    if how == Write::Set {
        y.resize(tokens)?;
    }
    y.stale();
    if own(gpu, y.resident()).is_some() {
        match how {
            Write::Set => y.resident().mirror_overwrite().map(drop),
            Write::Add => y.resident().mirror_mut()?.map(drop),
        };
        let address = own(gpu, y.resident()).map(|array| array.overwrite()).transpose()?.unwrap_or_default();
        return run(address, how == Write::Add);
    }
    let part = gpu.scratch::<f32>([tokens, dim])?;
    run(gpu.address(&part), false)?;
    let mut rows = vec![0.0; tokens * dim];
    gpu.fetch(&part, &mut rows)?;
    match how {
        Write::Set => y.host_overwrite().copy_from_slice(&rows),
        Write::Add => y.host_mut()?.iter_mut().zip(rows).for_each(|(y, v)| *y += v),
    }
    Ok(())
}

impl Gpu {
    /// Waits for the first numbers of an array, for what is not on the way of tokens.
    pub(crate) fn fetch<T: Number>(&self, from: &Memory<T>, to: &mut [T]) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let stream = self.stream()?;
        let fetched = stream.memcpy_dtoh(&from.slice(..to.len()), to);
        fetched.and_then(|()| stream.synchronize()).map_err(|e| self.error(e))
    }
}
