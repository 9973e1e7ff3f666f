//! What kernels read and write: hidden states of this device where they are, others by way of a copy.
#![allow(unsafe_code)]

use crate::{array::Array, gpu::Gpu};
use cudarc::driver::{CudaSlice, DevicePtr, sys::CUdeviceptr};
use pi_core::{Error, Hidden, Result, Write};
use std::sync::Arc;

/// The address of an array of `gpu`, if that is where `x` has a copy.
fn own<'a>(gpu: &Arc<Gpu>, x: &'a mut Hidden) -> Option<&'a mut Array<f32>> {
    let array = x.resident().mirror_as_it_is()?.downcast_mut::<Array<f32>>()?;
    array.is_of(gpu).then_some(array)
}

/// Rows that a kernel reads.
pub(crate) struct Input {
    pub address: CUdeviceptr,
    /// Freed in the order of the queue, so after the kernel.
    _copy: Option<CudaSlice<f32>>,
}

impl Input {
    pub(crate) fn new(gpu: &Arc<Gpu>, x: &mut Hidden) -> Result<Self> {
        if own(gpu, x).is_some() {
            x.resident().mirror()?;
            let address = own(gpu, x).map(|array| array.address());
            return Ok(Self { address: address.unwrap_or_default(), _copy: None });
        }
        let copy = gpu.upload(x.host()?)?;
        let address = copy.device_ptr(&gpu.stream).0;
        Ok(Self { address, _copy: Some(copy) })
    }
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
    if y.dim() != dim || (how == Write::Add && y.tokens() != tokens) {
        let size = |tokens, dim| format!("{tokens} rows of {dim}");
        return Err(Error::shape("an output", size(tokens, dim), size(y.tokens(), y.dim())));
    }
    if how == Write::Set {
        y.resize(tokens)?;
    }
    y.stale();
    if own(gpu, y).is_some() {
        match how {
            Write::Set => y.resident().mirror_overwrite().map(drop),
            Write::Add => y.resident().mirror_mut()?.map(drop),
        };
        let address = own(gpu, y).map(|array| array.address());
        return run(address.unwrap_or_default(), how == Write::Add);
    }
    // SAFETY: every number is written by the kernel before it is copied.
    let part = unsafe { gpu.stream.alloc::<f32>((tokens * dim).max(1)) }.map_err(|e| gpu.error(e))?;
    run(part.device_ptr(&gpu.stream).0, false)?;
    let mut rows = vec![0.0; tokens * dim];
    gpu.stream.memcpy_dtoh(&part.slice(..rows.len()), &mut rows).map_err(|e| gpu.error(e))?;
    gpu.stream.synchronize().map_err(|e| gpu.error(e))?;
    match how {
        Write::Set => y.host_overwrite().copy_from_slice(&rows),
        Write::Add => y.host_mut()?.iter_mut().zip(rows).for_each(|(y, v)| *y += v),
    }
    Ok(())
}
