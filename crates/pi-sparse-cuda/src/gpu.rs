//! A device with its queues and its kernels.
#![allow(unsafe_code)]

use crate::{
    CudaOptions, Unavailable,
    counts::Counts,
    error::Code,
    memory::{Counter, CudaFootprint, Memory},
    modules::{Missing, Modules},
    pinned::Number,
    probe,
    shared::Shared,
    upload::Uploads,
};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtr, DriverError, LaunchConfig, result,
    sys::{CUdeviceptr, CUresult},
};
use pi_core::{DeviceInfo, Error, Result};
use std::{
    ffi::c_void,
    fmt, ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Most arguments of a kernel.
const ARGUMENTS: usize = 16;

/// An open device. Everything that computes is queued in one order on [`stream`](Self::stream); copies to the host that may overtake what
/// was queued later go by [`downloads`](Self::downloads), and weights come by a queue of their own.
pub(crate) struct Gpu {
    pub name: String,
    pub info: DeviceInfo,
    pub context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    pub downloads: Arc<CudaStream>,
    pub options: CudaOptions,
    /// What is allocated.
    pub taken: Arc<Counter>,
    pub footprint: CudaFootprint,
    pub(crate) uploads: Uploads,
    pub(crate) counts: Counts,
    shared: Mutex<Shared>,
    modules: Mutex<Modules>,
}

impl Gpu {
    pub(crate) fn open(ordinal: usize, options: &CudaOptions) -> std::result::Result<Arc<Self>, Unavailable> {
        let failed = |e: DriverError| Unavailable::Failed(e.into());
        let context = probe::context(ordinal)?;
        // SAFETY: no array is used by two queues without an event of our own between them (`array.rs`, `upload.rs`).
        unsafe { context.disable_event_tracking() };
        let (free, total) = context.mem_get_info().map_err(failed)?;
        Ok(Arc::new(Self {
            name: format!("cuda:{ordinal}"),
            info: probe::describe(ordinal)?,
            taken: Arc::default(),
            footprint: CudaFootprint::new(free as u64, total as u64, options.kv),
            stream: context.new_stream().map_err(failed)?,
            downloads: context.new_stream().map_err(failed)?,
            uploads: Uploads::new(&context).map_err(failed)?,
            counts: Counts::default(),
            shared: Mutex::default(),
            modules: Mutex::new(Modules::new(options.kernels)?),
            options: options.clone(),
            context,
        }))
    }

    /// What the driver reported, as the engine's error.
    pub(crate) fn error(&self, e: DriverError) -> Error {
        Error::Device { device: self.name.clone(), message: format!("error {}", Code::from(e)) }
    }

    pub(crate) fn modules(&self) -> MutexGuard<'_, Modules> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What operators share. What is queued while it is held is not mixed with what others queue.
    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A kernel by its name. Its file is loaded if it is the first of it.
    pub(crate) fn kernel(&self, name: &str) -> Result<CudaFunction> {
        self.modules().kernel(&self.context, name).map_err(|e| match e {
            Missing::Driver(e) => self.error(e),
            Missing::Name => Error::Device { device: self.name.clone(), message: format!("there is no kernel {name}") },
        })
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// Arguments must be those of the kernel, and it must stay within its arrays.
    pub(crate) unsafe fn launch(&self, kernel: &CudaFunction, size: LaunchConfig, args: &[Arg]) -> Result<()> {
        let mut pointers = [ptr::null_mut::<c_void>(); ARGUMENTS];
        let Some(pointers) = pointers.get_mut(..args.len()) else {
            return Err(Error::Limit { what: "arguments of a kernel".into(), limit: ARGUMENTS, got: args.len() });
        };
        for (pointer, arg) in pointers.iter_mut().zip(args) {
            *pointer = match arg {
                Arg::At(v) => ptr::from_ref(v).cast_mut().cast(),
                Arg::Int(v) => ptr::from_ref(v).cast_mut().cast(),
                Arg::Long(v) => ptr::from_ref(v).cast_mut().cast(),
                Arg::Float(v) => ptr::from_ref(v).cast_mut().cast(),
            };
        }
        let failed = |e| self.error(e);
        self.context.bind_to_thread().map_err(failed)?;
        let LaunchConfig { grid_dim, block_dim, shared_mem_bytes } = size;
        // SAFETY: the caller's promise; arguments are copied by the call.
        unsafe {
            result::launch_kernel(
                kernel.cu_function(),
                grid_dim,
                block_dim,
                shared_mem_bytes,
                self.stream.cu_stream(),
                pointers,
            )
        }
        .map_err(failed)
    }

    /// Room in the device's memory for `n` elements of a run, or an error that says how many bytes that is. Contents are undefined.
    pub(crate) fn scratch<T: Number>(&self, n: [usize; 2]) -> Result<Memory<T>> {
        let n = n[0].checked_mul(n[1]).ok_or_else(|| self.no_memory(usize::MAX))?;
        self.room(&self.stream, n)
    }

    /// Room for `n` elements that is there for what is queued on `queue` from now on, and freed in the order of kernels.
    pub(crate) fn room<T: Number>(&self, queue: &CudaStream, n: usize) -> Result<Memory<T>> {
        let bytes = n.max(1).saturating_mul(size_of::<T>());
        Memory::new(&self.stream, queue, &self.taken, n).map_err(|e| self.full(e, bytes))
    }

    /// The error of an allocation.
    pub(crate) fn full(&self, e: DriverError, bytes: usize) -> Error {
        if e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY { self.no_memory(bytes) } else { self.error(e) }
    }

    /// Where an array is.
    pub(crate) fn address<T>(&self, array: &Memory<T>) -> CUdeviceptr {
        // without tracking of events, the guard does nothing
        array.device_ptr(&self.stream).0
    }

    /// The same as an argument; null if there is no array.
    pub(crate) fn at<T>(&self, array: Option<&Memory<T>>) -> Arg {
        Arg::At(array.map_or(0, |array| self.address(array)))
    }

    /// The error of an array that does not fit.
    pub(crate) fn no_memory(&self, bytes: usize) -> Error {
        let free = self.context.mem_get_info().map_or_else(|_| String::new(), |(free, _)| format!(", {free} are free"));
        Error::Device { device: self.name.clone(), message: format!("no memory for {bytes} bytes{free}") }
    }
}

/// Blocks of `threads` in x, y and z.
///
/// # Errors
/// [`Error::Limit`] naming `what` if a grid cannot have as many.
pub(crate) fn grid(what: &str, blocks: [usize; 3], threads: u32) -> Result<LaunchConfig> {
    let mut dims = [0; 3];
    for ((to, n), limit) in dims.iter_mut().zip(blocks).zip([i32::MAX as usize, GRID, GRID]) {
        *to = u32::try_from(n).ok().filter(|_| n <= limit).ok_or_else(|| limited(what, limit, n))?;
    }
    Ok(LaunchConfig { grid_dim: dims.into(), block_dim: (threads, 1, 1), shared_mem_bytes: 0 })
}

/// Most blocks of a grid in y and z.
pub(crate) const GRID: usize = 65_535;

/// At least `n` threads in blocks of `block`.
///
/// # Errors
/// As [`grid`].
pub(crate) fn threads(what: &str, n: usize, block: u32) -> Result<LaunchConfig> {
    grid(what, [n.div_ceil(block as usize), 1, 1], block)
}

/// A size as kernels count: with 31 bits. Every size goes through here when it becomes an argument.
///
/// # Errors
/// [`Error::Limit`] naming `what`.
pub(crate) fn int(what: &str, n: usize) -> Result<Arg> {
    i32::try_from(n).map(Arg::Int).map_err(|_| limited(what, i32::MAX as usize, n))
}

/// A number of elements, with 63 bits.
pub(crate) fn long(what: &str, n: usize) -> Result<Arg> {
    i64::try_from(n).map(Arg::Long).map_err(|_| limited(what, i64::MAX as usize, n))
}

fn limited(what: &str, limit: usize, got: usize) -> Error {
    Error::Limit { what: format!("{what} on a CUDA device"), limit, got }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Arg {
    /// An address in the device's memory.
    At(CUdeviceptr),
    Int(i32),
    Long(i64),
    Float(f32),
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_kernels_cannot_count_are_refused_by_name() {
        assert!(matches!(int("rows", 7), Ok(Arg::Int(7))));
        let error = int("rows of w", 1 << 31).map(drop).unwrap_err().to_string();
        assert_eq!(error, "rows of w on a CUDA device: 2147483648 exceeds the limit of 2147483647");
        assert!(grid("tokens", [1, GRID, 1], 32).is_ok());
        for blocks in [[1 << 31, 1, 1], [1, GRID + 1, 1], [1, 1, GRID + 1]] {
            assert!(grid("tokens", blocks, 32).unwrap_err().to_string().starts_with("tokens on a CUDA device"));
        }
    }
}
