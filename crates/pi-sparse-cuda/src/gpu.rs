//! A device with its queue and its kernels.
#![allow(unsafe_code)]

use crate::{
    Unavailable,
    error::Code,
    memory::{Counter, CudaFootprint, Memory},
    probe,
};
use cudarc::{
    driver::{
        CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig,
        PushKernelArg, ValidAsZeroBits,
        sys::{CUdeviceptr, CUresult},
    },
    nvrtc::Ptx,
};
use pi_core::{DeviceInfo, Error, Matrix, NeuronSet, Result};
use std::{collections::HashMap, fmt, sync::Arc, sync::Mutex};

/// The kernels, compiled by `scripts/ptx` from `kernels/`.
pub(crate) const PTX: [&str; 5] = [
    include_str!("../ptx/linear.ptx"),
    include_str!("../ptx/norm.ptx"),
    include_str!("../ptx/attention.ptx"),
    include_str!("../ptx/ffn.ptx"),
    include_str!("../ptx/predictor.ptx"),
];

/// Bytes of rows that are copied at a time.
const PIECE: usize = 8 << 20;

/// An open device. Everything is queued in one order on [`stream`](Self::stream); copies to the host that may overtake what was
/// queued later go by [`copies`](Self::copies).
pub(crate) struct Gpu {
    pub name: String,
    pub info: DeviceInfo,
    pub context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    pub copies: Arc<CudaStream>,
    /// What is allocated.
    pub taken: Arc<Counter>,
    pub footprint: CudaFootprint,
    kernels: Mutex<HashMap<String, CudaFunction>>,
    modules: Vec<Arc<CudaModule>>,
}

impl Gpu {
    pub(crate) fn open(ordinal: usize) -> std::result::Result<Arc<Self>, Unavailable> {
        let failed = |e: DriverError| Unavailable::Failed(e.into());
        let context = probe::context(ordinal)?;
        // SAFETY: no array is used by two streams without an event of our own between them (see `Array`).
        unsafe { context.disable_event_tracking() };
        let (free, total) = context.mem_get_info().map_err(failed)?;
        let (stream, copies) = (context.new_stream().map_err(failed)?, context.new_stream().map_err(failed)?);
        let modules: std::result::Result<_, _> =
            PTX.map(|ptx| context.load_module(Ptx::from_src(ptx))).into_iter().collect();
        Ok(Arc::new(Self {
            name: format!("cuda:{ordinal}"),
            info: probe::describe(ordinal)?,
            modules: modules.map_err(failed)?,
            taken: Arc::default(),
            footprint: CudaFootprint::new(free as u64, total as u64),
            kernels: Mutex::default(),
            context,
            stream,
            copies,
        }))
    }

    /// What the driver reported, as the engine's error.
    pub(crate) fn error(&self, e: DriverError) -> Error {
        Error::Device { device: self.name.clone(), message: format!("error {}", Code::from(e)) }
    }

    /// A kernel by its name.
    pub(crate) fn kernel(&self, name: &str) -> Result<CudaFunction> {
        let mut kernels = self.kernels.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(kernel) = kernels.get(name) {
            return Ok(kernel.clone());
        }
        // what is not in a module may be in the next; a device that failed says so for all
        let mut found = self.modules.iter().map(|m| m.load_function(name));
        let kernel = found.find(|k| !matches!(k, Err(e) if e.0 == CUresult::CUDA_ERROR_NOT_FOUND));
        let kernel = kernel.transpose().map_err(|e| self.error(e))?.ok_or_else(|| Error::Device {
            device: self.name.clone(),
            message: format!("there is no kernel {name}"),
        })?;
        kernels.insert(name.into(), kernel.clone());
        Ok(kernel)
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// Arguments must be those of the kernel, and it must stay within its arrays.
    pub(crate) unsafe fn launch(&self, kernel: &CudaFunction, size: LaunchConfig, args: &[Arg]) -> Result<()> {
        let mut builder = self.stream.launch_builder(kernel);
        for arg in args {
            match arg {
                Arg::At(address) => builder.arg(address),
                Arg::Int(v) => builder.arg(v),
                Arg::Long(v) => builder.arg(v),
                Arg::Float(v) => builder.arg(v),
            };
        }
        // SAFETY: the caller's promise.
        unsafe { builder.launch(size) }.map(drop).map_err(|e| self.error(e))
    }

    /// Room in the device's memory for `n` elements of a run, or an error that says how many bytes that is. Contents are undefined.
    pub(crate) fn scratch<T: DeviceRepr>(&self, n: [usize; 2]) -> Result<Memory<T>> {
        let n = n[0].checked_mul(n[1]).filter(|n| n.checked_mul(size_of::<T>()).is_some());
        let n = n.ok_or_else(|| self.no_memory(usize::MAX))?;
        Memory::new(&self.stream, &self.taken, n).map_err(|e| self.full(e, n * size_of::<T>()))
    }

    /// The same, full of zeros.
    pub(crate) fn zeros<T: DeviceRepr + ValidAsZeroBits>(&self, n: usize) -> Result<Memory<T>> {
        let mut zeros = self.scratch([n, 1])?;
        self.stream.memset_zeros(&mut *zeros).map_err(|e| self.error(e))?;
        Ok(zeros)
    }

    /// The error of an allocation.
    pub(crate) fn full(&self, e: DriverError, bytes: usize) -> Error {
        if e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY { self.no_memory(bytes) } else { self.error(e) }
    }

    /// Where an array is.
    pub(crate) fn address<T>(&self, array: &CudaSlice<T>) -> CUdeviceptr {
        // without tracking of events, the guard does nothing
        array.device_ptr(&self.stream).0
    }

    /// The same as an argument; null if there is no array.
    pub(crate) fn at<T>(&self, array: Option<&Memory<T>>) -> Arg {
        Arg::At(array.map_or(0, |array| self.address(array)))
    }

    /// A copy of weights in the device's memory. Bytes are there when the next kernel of the queue runs.
    pub(crate) fn upload<T: DeviceRepr>(&self, from: &[T]) -> Result<Memory<T>> {
        let mut to = self.scratch([from.len(), 1])?; // an address even if there is nothing
        if !from.is_empty() {
            self.stream.memcpy_htod(from, &mut *to).map_err(|e| self.error(e))?;
        }
        Ok(to)
    }

    /// A copy of a matrix's rows of `neurons`, one after the other.
    pub(crate) fn rows(&self, m: &Matrix, neurons: &NeuronSet) -> Result<Memory<u8>> {
        let view = m.view();
        if neurons.is_all() {
            return self.upload(view.bytes());
        }
        let mut rows = self.scratch::<u8>([neurons.len(), m.row_bytes()])?;
        // in large pieces: a copy for each row would take longer than its bytes
        let each = (PIECE / m.row_bytes().max(1)).max(1);
        let mut piece = Vec::with_capacity(each.min(neurons.len()) * m.row_bytes());
        for first in (0..neurons.len()).step_by(each) {
            piece.clear();
            (first..neurons.len().min(first + each)).for_each(|i| piece.extend_from_slice(view.row(neurons.id(i))));
            let mut to = rows.slice_mut(first * m.row_bytes()..first * m.row_bytes() + piece.len());
            self.stream.memcpy_htod(&piece, &mut to).map_err(|e| self.error(e))?;
        }
        Ok(rows)
    }

    /// The error of an array that does not fit.
    pub(crate) fn no_memory(&self, bytes: usize) -> Error {
        let free = self.context.mem_get_info().map_or_else(|_| String::new(), |(free, _)| format!(", {free} are free"));
        Error::Device { device: self.name.clone(), message: format!("no memory for {bytes} bytes{free}") }
    }
}

/// So many blocks in a row.
pub(crate) fn blocks(n: usize, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (n.max(1) as u32, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// So many threads in blocks of `block`.
pub(crate) fn threads(n: usize, block: u32) -> LaunchConfig {
    blocks(n.div_ceil(block as usize), block)
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
