//! What kernels read and write: hidden states of this device where they are, others by way of a copy.

use crate::{
    array::{self, own},
    gpu::Gpu,
    memory::Memory,
};
use cudarc::driver::sys::CUdeviceptr;
use pi_core::{ActiveSet, Error, Hidden, Result, Write};
use std::sync::Arc;

/// Rows that a kernel reads.
pub(crate) struct Input {
    pub address: CUdeviceptr,
    /// Freed in the order of the queue, so after the kernel.
    _copy: Option<Memory<f32>>,
}

impl Input {
    pub(crate) fn new(gpu: &Arc<Gpu>, x: &mut Hidden) -> Result<Self> {
        if own(gpu, x.resident()).is_some() {
            x.resident().mirror()?;
            return Ok(Self { address: array::address(gpu, x), _copy: None });
        }
        let copy = gpu.upload(x.host()?)?;
        Ok(Self { address: gpu.address(&copy), _copy: Some(copy) })
    }
}

/// Marks of a predictor that a kernel reads.
pub(crate) struct Marks {
    /// Null if every neuron may fire.
    pub address: CUdeviceptr,
    _copy: Option<Memory<u64>>,
}

impl Marks {
    pub(crate) fn new(gpu: &Arc<Gpu>, active: &mut ActiveSet) -> Result<Self> {
        if active.is_all() {
            return Ok(Self { address: 0, _copy: None });
        }
        if own(gpu, active.resident()).is_some() {
            active.resident().mirror()?;
            let address = own(gpu, active.resident()).map_or(0, |array| array.address());
            return Ok(Self { address, _copy: None });
        }
        let copy = gpu.upload(active.host()?.unwrap_or(&[]))?;
        Ok(Self { address: gpu.address(&copy), _copy: Some(copy) })
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
        return run(array::address(gpu, y), how == Write::Add);
    }
    let part = gpu.scratch::<f32>([tokens, dim])?;
    run(gpu.address(&part), false)?;
    let mut rows = vec![0.0; tokens * dim];
    gpu.stream.memcpy_dtoh(&part.slice(..rows.len()), &mut rows).map_err(|e| gpu.error(e))?;
    gpu.stream.synchronize().map_err(|e| gpu.error(e))?;
    match how {
        Write::Set => y.host_overwrite().copy_from_slice(&rows),
        Write::Add => y.host_mut()?.iter_mut().zip(rows).for_each(|(y, v)| *y += v),
    }
    Ok(())
}
