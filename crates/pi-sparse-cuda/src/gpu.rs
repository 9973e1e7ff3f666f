//! A device with its queues and its kernels.
#![allow(unsafe_code)]

use crate::{
    CudaOptions, GraphUse, TensorCores, Unavailable,
    counts::Counts,
    error::Code,
    memory::{CudaFootprint, Memory},
    modules::{Missing, Modules},
    pinned::Number,
    probe,
    queue::{ARGUMENTS, Queue},
    shared::Shared,
    upload::Uploads,
};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtr, DriverError, LaunchConfig,
    sys::{CUdeviceptr, CUresult},
};
use pi_core::{DeviceInfo, Error, Result};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// An open device. Everything that computes is queued in one order on [`queue`](Self::queue); copies to the host that may overtake what
/// was queued later go by [`downloads`](Self::downloads), and weights come by a queue of their own.
pub(crate) struct Gpu {
    pub name: String,
    pub info: DeviceInfo,
    pub context: Arc<CudaContext>,
    pub queue: Arc<Queue>,
    pub downloads: Arc<CudaStream>,
    pub options: CudaOptions,
    /// Whether kernels for them are used.
    pub tensor_cores: bool,
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
        let graphs = match options.graphs {
            GraphUse::Auto => probe::graphs().map(|()| true),
            GraphUse::Off => Ok(false),
        };
        let capability = context.compute_capability().map_err(failed)?;
        let (free, total) = context.mem_get_info().map_err(failed)?;
        Ok(Arc::new(Self {
            name: format!("cuda:{ordinal}"),
            info: probe::describe(ordinal)?,
            footprint: CudaFootprint::new(free as u64, total as u64, options.kv),
            queue: Queue::new(&context, graphs).map_err(failed)?,
            downloads: context.new_stream().map_err(failed)?,
            uploads: Uploads::new(&context).map_err(failed)?,
            counts: Counts::default(),
            shared: Mutex::default(),
            modules: Mutex::new(Modules::new(options.kernels)?),
            options: options.clone(),
            tensor_cores: options.tensor_cores == TensorCores::Auto && capability >= (7, 5),
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

    /// Launches a kernel.
    ///
    /// # Safety
    /// Arguments must be those of the kernel, and it must stay within its arrays.
    pub(crate) unsafe fn launch(&self, kernel: &CudaFunction, size: LaunchConfig, args: &[Arg]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_for(kernel, size, args, false) }
    }

    /// The same for many tokens: a kernel that takes longer than launching it.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    pub(crate) unsafe fn launch_long(&self, kernel: &CudaFunction, size: LaunchConfig, args: &[Arg]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_for(kernel, size, args, true) }
    }

    unsafe fn launch_for(&self, kernel: &CudaFunction, size: LaunchConfig, args: &[Arg], long: bool) -> Result<()> {
        let mut words = [0; ARGUMENTS];
        let Some(words) = words.get_mut(..args.len()) else {
            return Err(Error::Limit { what: "arguments of a kernel".into(), limit: ARGUMENTS, got: args.len() });
        };
        words.iter_mut().zip(args).for_each(|(word, arg)| *word = arg.word());
        // SAFETY: the caller's promise.
        unsafe { self.queue.launch(kernel, size, words, long) }.map_err(|e| self.error(e))
    }

    /// The driver's queue of kernels, after what was launched, for whoever queues something else or waits.
    pub(crate) fn stream(&self) -> Result<&Arc<CudaStream>> {
        self.queue.stream().map_err(|e| self.error(e))
    }

    /// Room in the device's memory for `n` elements of a run, or an error that says how many bytes that is. Contents are undefined.
    pub(crate) fn scratch<T: Number>(&self, n: [usize; 2]) -> Result<Memory<T>> {
        let n = n[0].checked_mul(n[1]).ok_or_else(|| self.no_memory(usize::MAX))?;
        self.room(self.queue.as_it_is(), n)
    }

    /// Room for `n` elements that is there for what is queued on `queue` from now on, and freed in the order of kernels.
    pub(crate) fn room<T: Number>(&self, queue: &CudaStream, n: usize) -> Result<Memory<T>> {
        let bytes = n.max(1).saturating_mul(size_of::<T>());
        let new = || Memory::new(&self.queue, queue, n);
        let made = new().or_else(|e| match e.0 {
            // graphs are worth less than what is to be computed
            CUresult::CUDA_ERROR_OUT_OF_MEMORY if self.queue.forget() => new(),
            _ => Err(e),
        });
        made.map_err(|e| self.full(e, bytes))
    }

    /// The error of an allocation.
    pub(crate) fn full(&self, e: DriverError, bytes: usize) -> Error {
        if e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY { self.no_memory(bytes) } else { self.error(e) }
    }

    /// Where an array is.
    pub(crate) fn address<T>(&self, array: &Memory<T>) -> CUdeviceptr {
        // without tracking of events, the guard does nothing
        array.device_ptr(self.queue.as_it_is()).0
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

impl Arg {
    /// Its bytes at the beginning of a word, where the driver reads them.
    fn word(self) -> u64 {
        let four = |bytes: [u8; 4]| {
            let mut word = [0; 8];
            word[..4].copy_from_slice(&bytes);
            u64::from_ne_bytes(word)
        };
        match self {
            Self::At(v) => v,
            Self::Long(v) => v as u64,
            Self::Int(v) => four(v.to_ne_bytes()),
            Self::Float(v) => four(v.to_ne_bytes()),
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // before the kernels that they are made of
        self.queue.forget();
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // G24
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
