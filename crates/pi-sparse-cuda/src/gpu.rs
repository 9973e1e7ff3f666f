//! A device with its queue and its kernels.
#![allow(unsafe_code)]

use crate::{Unavailable, error::Code, probe};
use cudarc::{
    driver::{
        CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig,
        PushKernelArg,
        sys::{CUdeviceptr, CUresult},
    },
    nvrtc::Ptx,
};
use pi_core::{Error, Result};
use std::{collections::HashMap, fmt, sync::Arc, sync::Mutex};

/// The kernels, compiled by `scripts/ptx` from `kernels/`.
const PTX: [&str; 2] = [include_str!("../ptx/linear.ptx"), include_str!("../ptx/norm.ptx")];

/// An open device. Everything is queued in one order on [`stream`](Self::stream); copies to the host that may overtake what was
/// queued later go by [`copies`](Self::copies).
pub(crate) struct Gpu {
    pub name: String,
    pub context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    pub copies: Arc<CudaStream>,
    kernels: Mutex<HashMap<String, CudaFunction>>,
    modules: Vec<Arc<CudaModule>>,
}

impl Gpu {
    pub(crate) fn open(ordinal: usize) -> std::result::Result<Arc<Self>, Unavailable> {
        let failed = |e: DriverError| Unavailable::Failed(e.into());
        let context = probe::context(ordinal)?;
        // SAFETY: no array is used by two streams without an event of our own between them (see `Array`).
        unsafe { context.disable_event_tracking() };
        let (stream, copies) = (context.new_stream().map_err(failed)?, context.new_stream().map_err(failed)?);
        let modules: std::result::Result<_, _> =
            PTX.map(|ptx| context.load_module(Ptx::from_src(ptx))).into_iter().collect();
        Ok(Arc::new(Self {
            name: format!("cuda:{ordinal}"),
            modules: modules.map_err(failed)?,
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
        let kernel = self.modules.iter().find_map(|m| m.load_function(name).ok()).ok_or_else(|| Error::Device {
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
                Arg::Float(v) => builder.arg(v),
            };
        }
        // SAFETY: the caller's promise.
        unsafe { builder.launch(size) }.map(drop).map_err(|e| self.error(e))
    }

    /// Where an array of weights is; null if there is none.
    pub(crate) fn at<T>(&self, array: Option<&CudaSlice<T>>) -> Arg {
        Arg::At(array.map_or(0, |a| a.device_ptr(&self.stream).0))
    }

    /// A copy of weights in the device's memory. Bytes are there when the next kernel of the queue runs.
    pub(crate) fn upload<T: DeviceRepr>(&self, from: &[T]) -> Result<CudaSlice<T>> {
        self.stream.clone_htod(from).map_err(|e| match e.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => self.no_memory(size_of_val(from)),
            _ => self.error(e),
        })
    }

    /// The error of an array that does not fit.
    pub(crate) fn no_memory(&self, bytes: usize) -> Error {
        let free = self.context.mem_get_info().map_or_else(|_| String::new(), |(free, _)| format!(", {free} are free"));
        Error::Device { device: self.name.clone(), message: format!("no memory for {bytes} bytes{free}") }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Arg {
    /// An address in the device's memory.
    At(CUdeviceptr),
    Int(i32),
    Float(f32),
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
