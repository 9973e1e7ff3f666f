//! Arrays with a copy on the device.
//!
//! The host's side is pinned memory that the CPU reads at full speed (not write-combined), so copies run beside computations. An
//! event says when it may be read, or written again.
#![allow(unsafe_code)]

use crate::{gpu::Gpu, memory::Memory};
use cudarc::driver::{CudaEvent, DeviceRepr, PinnedHostSlice, ValidAsZeroBits, result, sys};
use pi_core::{ActiveSet, Hidden, Mirror, Resident, Result};
use std::{any::Any, sync::Arc};

/// What arrays are made of.
pub(crate) trait Number: DeviceRepr + ValidAsZeroBits + Copy + Default + Send + 'static {}
impl Number for f32 {}
impl Number for u64 {}

pub(crate) struct Array<T> {
    pub data: Memory<T>,
    staging: PinnedHostSlice<T>,
    /// After the last copy from or to `staging`.
    done: CudaEvent,
    /// Between the queue and the copies that may overtake it.
    ready: CudaEvent,
    /// Elements that are on their way to the host.
    begun: Option<usize>,
    gpu: Arc<Gpu>,
}

impl<T: Number> Array<T> {
    /// An array of `len` elements on both sides. What the device's holds is undefined.
    pub(crate) fn resident(gpu: &Arc<Gpu>, len: usize) -> Result<Resident<T>> {
        let failed = |e| gpu.error(e);
        let full = |e| gpu.full(e, len.saturating_mul(size_of::<T>()));
        if len.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(gpu.no_memory(usize::MAX));
        }
        let room = len.max(1);
        // uninitialised: `Resident` lets nobody read it before it was written, as the copy starts stale
        let data = Memory::new(&gpu.stream, &gpu.taken, room).map_err(full)?;
        // SAFETY: as above; numbers have no invalid bits.
        let staging =
            unsafe { gpu.context.alloc_pinned_with_flags::<T>(room, sys::CU_MEMHOSTALLOC_PORTABLE) }.map_err(full)?;
        let event = || gpu.context.new_event(None).map_err(failed);
        let array = Self { data, staging, done: event()?, ready: event()?, begun: None, gpu: gpu.clone() };
        Resident::<T>::try_new(len)?;
        Ok(Resident::with_mirror(len, Box::new(array)))
    }

    /// The device's address.
    pub(crate) fn address(&self) -> sys::CUdeviceptr {
        self.gpu.address(&self.data)
    }

    fn staging(&mut self) -> Result<&mut [T]> {
        // its own event is never recorded: this does not wait
        self.staging.as_mut_slice().map_err(|e| self.gpu.error(e))
    }
}

impl<T: Number> Mirror<T> for Array<T> {
    fn upload(&mut self, from: &[T]) -> Result<()> {
        let gpu = self.gpu.clone();
        let failed = |e| gpu.error(e);
        self.begun = None;
        // the last copy may still read or write there
        self.done.synchronize().map_err(failed)?;
        let n = from.len();
        self.staging()?[..n].copy_from_slice(from);
        let address = self.address();
        let staging = &self.staging.as_slice().map_err(failed)?[..n];
        // SAFETY: both are at least `n` long; the event below keeps `staging` from being written before the copy is done.
        unsafe { result::memcpy_htod_async(address, staging, gpu.stream.cu_stream()) }.map_err(failed)?;
        self.done.record(&gpu.stream).map_err(failed)
    }

    fn begin_download(&mut self, len: usize) -> Result<()> {
        let gpu = self.gpu.clone();
        let failed = |e| gpu.error(e);
        self.ready.record(&gpu.stream).map_err(failed)?;
        gpu.copies.wait(&self.ready).map_err(failed)?;
        let address = self.address();
        let staging = &mut self.staging()?[..len];
        // SAFETY: both are at least `len` long; nobody reads `staging` before the event, and kernels that write to the array
        // later are queued behind the same event (`settle`).
        unsafe { result::memcpy_dtoh_async(staging, address, gpu.copies.cu_stream()) }.map_err(failed)?;
        self.done.record(&gpu.copies).map_err(failed)?;
        gpu.stream.wait(&self.done).map_err(failed)?;
        self.begun = Some(len);
        Ok(())
    }

    fn download(&mut self, to: &mut [T]) -> Result<()> {
        if self.begun.take().is_none_or(|len| len < to.len()) {
            self.begin_download(to.len())?;
            self.begun = None;
        }
        let gpu = self.gpu.clone();
        self.done.synchronize().map_err(|e| gpu.error(e))?;
        to.copy_from_slice(&self.staging()?[..to.len()]);
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// The array of `gpu` behind `x`, if that is where it has a copy.
pub(crate) fn own<'a, T: Number>(gpu: &Arc<Gpu>, x: &'a mut Resident<T>) -> Option<&'a mut Array<T>> {
    let array = x.mirror_as_it_is()?.downcast_mut::<Array<T>>()?;
    Arc::ptr_eq(&array.gpu, gpu).then_some(array)
}

/// Where hidden states of `gpu` are; null for others.
pub(crate) fn address(gpu: &Arc<Gpu>, x: &mut Hidden) -> sys::CUdeviceptr {
    own(gpu, x.resident()).map_or(0, |array| array.address())
}

/// Room for sets of active neurons on both sides.
pub(crate) fn active(gpu: &Arc<Gpu>, max_tokens: usize, neurons: usize) -> Result<ActiveSet> {
    let words = max_tokens.checked_mul(neurons.div_ceil(64)).ok_or_else(|| gpu.no_memory(usize::MAX))?;
    Ok(ActiveSet::with_bits(max_tokens, neurons, Array::resident(gpu, words)?))
}

/// Room for hidden states on both sides.
pub(crate) fn hidden(gpu: &Arc<Gpu>, max_tokens: usize, dim: usize) -> Result<Hidden> {
    let len = max_tokens.checked_mul(dim).ok_or_else(|| gpu.no_memory(usize::MAX))?;
    Ok(Hidden::with_data(max_tokens, dim, Array::resident(gpu, len)?))
}
