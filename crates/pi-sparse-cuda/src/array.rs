//! Arrays with a copy on the device.
//!
//! The host's side is pinned memory, so copies run beside computations. An event says when it may be read, or written again; the
//! queue of kernels waits for a copy to the host only if a kernel is to overwrite what is copied.
#![allow(unsafe_code)]

pub(crate) use crate::pinned::Number;
use crate::{event::Done, gpu::Gpu, memory::Memory, pinned::Pinned};
use cudarc::driver::{CudaEvent, result, sys};
use pi_core::{ActiveSet, Hidden, Mirror, Resident, Result};
use std::{any::Any, sync::Arc};

pub(crate) struct Array<T: Number> {
    data: Memory<T>,
    staging: Pinned<T>,
    /// The last copy from or to `staging`.
    done: Done,
    /// Between the queue of kernels and the copies that may overtake it.
    ready: CudaEvent,
    /// Elements that are on their way to the host.
    begun: Option<usize>,
    /// Whether that copy still reads `data` as far as the queue of kernels knows.
    read: bool,
    gpu: Arc<Gpu>,
}

impl<T: Number> Array<T> {
    /// An array of `len` elements on both sides. What the device's holds is undefined.
    pub(crate) fn resident(gpu: &Arc<Gpu>, len: usize) -> Result<Resident<T>> {
        Resident::<T>::try_new(len)?; // the host's side
        Ok(Resident::with_mirror(len, Box::new(Self::new(gpu, len)?)))
    }

    fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let failed = |e| gpu.error(e);
        Ok(Self {
            // `Resident` lets nobody read it before it was written, as the copy starts stale
            data: gpu.scratch::<T>([len, 1])?,
            staging: Pinned::new(&gpu.context, len).map_err(|e| gpu.full(e, len * size_of::<T>()))?,
            done: Done::new(&gpu.context).map_err(failed)?,
            ready: gpu.context.new_event(None).map_err(failed)?,
            begun: None,
            read: false,
            gpu: gpu.clone(),
        })
    }

    /// The device's address, for kernels that read there.
    pub(crate) fn address(&self) -> sys::CUdeviceptr {
        self.gpu.address(&self.data)
    }

    /// The device's address, for kernels that are queued from now on and write there: after a copy to the host that was begun, which is
    /// then of no use to anybody who asks later.
    pub(crate) fn overwrite(&mut self) -> Result<sys::CUdeviceptr> {
        self.begun = None;
        if std::mem::take(&mut self.read) {
            self.done.before(self.gpu.stream()?).map_err(|e| self.gpu.error(e))?;
        }
        Ok(self.address())
    }

    /// The host waits for the last copy.
    fn settle(&mut self) -> Result<()> {
        // the device computes what there is to compute while the host waits
        self.gpu.queue.flush().map_err(|e| self.gpu.error(e))?;
        self.done.wait().map_err(|e| self.gpu.error(e))?;
        self.read = false;
        Ok(())
    }
}

impl<T: Number> Drop for Array<T> {
    fn drop(&mut self) {
        let _ = self.settle(); // the copy still uses `staging`; a device that failed copies nothing
    }
}

impl<T: Number> Mirror<T> for Array<T> {
    fn upload(&mut self, from: &[T]) -> Result<()> {
        let gpu = self.gpu.clone();
        let failed = |e| gpu.error(e);
        self.begun = None;
        self.settle()?;
        gpu.context.bind_to_thread().map_err(failed)?;
        let staging = &mut self.staging.slice_mut()[..from.len()];
        staging.copy_from_slice(from);
        let stream = gpu.stream()?;
        // SAFETY: both are as long as `from` at least; `settle` keeps `staging` from being written before the copy is done.
        unsafe { result::memcpy_htod_async(gpu.address(&self.data), staging, stream.cu_stream()) }.map_err(failed)?;
        self.done.record(stream).map_err(failed)
    }

    fn begin_download(&mut self, len: usize) -> Result<()> {
        let gpu = self.gpu.clone();
        let failed = |e| gpu.error(e);
        self.ready.record(gpu.stream()?).map_err(failed)?;
        gpu.downloads.wait(&self.ready).map_err(failed)?;
        let staging = &mut self.staging.slice_mut()[..len];
        // SAFETY: both are `len` long at least. Nobody reads `staging` before `settle`, copies to it are queued in order, an upload
        // from it came before `ready`, and kernels that write to `data` are queued behind `done` (`overwrite`).
        unsafe { result::memcpy_dtoh_async(staging, gpu.address(&self.data), gpu.downloads.cu_stream()) }
            .map_err(failed)?;
        self.done.record(&gpu.downloads).map_err(failed)?;
        (self.begun, self.read) = (Some(len), true);
        Ok(())
    }

    fn download(&mut self, to: &mut [T]) -> Result<()> {
        if self.begun.take().is_none_or(|len| len < to.len()) {
            self.begin_download(to.len())?;
            self.begun = None;
        }
        self.settle()?;
        to.copy_from_slice(&self.staging.slice()[..to.len()]);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> Option<Arc<Gpu>> {
        if let Err(e) = pi_cuda_emu::use_driver() {
            assert!(std::env::var_os("CI").is_none(), "{e}");
            eprintln!("SKIPPED: {e}");
            return None;
        }
        Some(Gpu::open(0, &crate::CudaOptions::default()).unwrap())
    }

    #[test]
    fn a_missing_wait_is_seen_every_time() {
        let Some(gpu) = gpu() else { return };
        if pi_cuda_emu::driver_calls("cuLaunchKernel").is_none() {
            return eprintln!("SKIPPED: a GPU may be faster than whoever forgets to wait for it");
        }
        let mut array = Array::<f32>::new(&gpu, 2).unwrap();
        let numbers = gpu.upload(&[1.0f32, 2.0]).unwrap();
        let to = array.overwrite().unwrap();
        // SAFETY: both have two numbers.
        unsafe { result::memcpy_dtod_async(to, gpu.address(&numbers), 8, gpu.stream().unwrap().cu_stream()) }.unwrap();
        array.begin_download(2).unwrap();
        // the mistake: reading where it will arrive
        assert!(array.staging.slice().iter().all(|v| v.is_nan()), "nobody waited, and yet the numbers are there");
        let mut got = [0.0; 2];
        array.download(&mut got).unwrap();
        assert_eq!(got, [1.0, 2.0]);
    }

    #[test]
    fn a_copy_that_was_begun_is_forgotten_when_the_array_is_overwritten() {
        let Some(gpu) = gpu() else { return };
        let mut array = Array::<f32>::new(&gpu, 2).unwrap();
        array.upload(&[1.0, 2.0]).unwrap();
        array.begin_download(2).unwrap();
        let to = array.overwrite().unwrap();
        let one = gpu.upload(&[7.0f32, 8.0]).unwrap();
        // SAFETY: both have two numbers.
        unsafe { result::memcpy_dtod_async(to, gpu.address(&one), 8, gpu.stream().unwrap().cu_stream()) }.unwrap();
        let mut got = [0.0; 2];
        array.download(&mut got).unwrap();
        assert_eq!(got, [7.0, 8.0]);
    }
}
