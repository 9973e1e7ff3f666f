//! Host memory at a fixed place, which the device copies from and to beside computing, or reads where it is.
#![allow(unsafe_code)]

use cudarc::driver::{CudaContext, DeviceRepr, DriverError, result, sys};
use std::{fmt, slice, sync::Arc};

/// What arrays are made of: numbers of which all bits mean something.
pub(crate) trait Number: DeviceRepr + Copy + Default + Send + 'static {}
impl Number for f32 {}
impl Number for u64 {}
impl Number for u32 {}
impl Number for u8 {}

/// An array of the host that is not write-combined: the CPU reads it at full speed. Whoever drops it has made sure that no copy is
/// under way.
pub(crate) struct Pinned<T> {
    at: *mut T,
    len: usize,
    context: Arc<CudaContext>,
}

// SAFETY: the memory belongs to this value alone, and numbers may be sent.
unsafe impl<T: Number> Send for Pinned<T> {}
// SAFETY: as above; it is changed through `&mut` alone.
unsafe impl<T: Number> Sync for Pinned<T> {}

impl<T: Number> Pinned<T> {
    /// An array full of NaN (all bits are 1), so that whoever reads too early does not find anything that looks right.
    pub(crate) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        let pinned = Self::raw(context, len)?;
        // SAFETY: there is room for `len` elements, and nobody else knows of it.
        unsafe { pinned.at.write_bytes(0xff, pinned.len) };
        Ok(pinned)
    }

    /// The same with undefined contents, for the device alone: [`slice`](Self::slice) is not to be called.
    pub(crate) fn raw(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        let bytes = len.max(1).checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: what is returned is freed once, in `drop`.
        let at = unsafe { result::malloc_host(bytes, flags) }?;
        Ok(Self { at: at.cast(), len, context: context.clone() })
    }

    pub(crate) fn slice(&self) -> &[T] {
        // SAFETY: `new` has written all of it, and all bits are numbers.
        unsafe { slice::from_raw_parts(self.at, self.len) }
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; there is no other reference.
        unsafe { slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Where kernels find it.
    pub(crate) fn device_address(&self) -> Result<sys::CUdeviceptr, DriverError> {
        self.context.bind_to_thread()?;
        let mut address = 0;
        // SAFETY: the memory is pinned and mapped.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.at.cast(), 0) }.result()?;
        Ok(address)
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // a device that failed cannot say so here
        let _ = self.context.bind_to_thread();
        // SAFETY: it came from `malloc_host`, and this is the only owner.
        let _ = unsafe { result::free_host(self.at.cast()) };
    }
}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} elements)", self.len)
    }
}
