//! The emulated driver, loaded into this process or shown to another.
#![allow(unsafe_code)]

use crate::Failure;
use libloading::Library;
use std::{path::Path, sync::OnceLock};

/// The emulated driver in this process. What is set here holds for all that use it.
#[derive(Debug)]
pub struct Driver {
    library: Library,
}

/// What a driver does with a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphStep {
    /// Recording kernels.
    Capture,
    /// Making a graph of what was recorded.
    Instantiate,
    /// Launching it.
    Launch,
}

/// The library, where it was built.
const PATH: Option<&str> = option_env!("PI_CUDA_EMU_DRIVER");

fn is_real() -> bool {
    std::env::var_os("PI_CUDA_TEST").is_some_and(|v| v == "real")
}

/// Loads the emulated driver, so that whoever looks for `libcuda.so.1` in this process finds it. With `PI_CUDA_TEST=real` in the
/// environment it is left to the system's, so that the same tests run on a GPU.
///
/// The driver has a gibibyte of memory, or `CUEMU_MEM_MB`.
///
/// # Errors
/// [`Failure::Absent`] if it was not built, [`Failure::Kernel`] if it cannot be loaded.
pub fn use_driver() -> Result<(), Failure> {
    driver().map(drop)
}

/// The same, and the driver; `None` if it is the system's.
///
/// # Errors
/// As [`use_driver`].
pub fn driver() -> Result<Option<&'static Driver>, Failure> {
    // it stays for as long as the process
    static LOADED: OnceLock<Result<Driver, Failure>> = OnceLock::new();
    if is_real() {
        return Ok(None);
    }
    let load = || {
        let path = PATH.ok_or(Failure::Absent)?;
        // SAFETY: the library is ours; its initialisers fill tables and read the environment.
        let library = unsafe { Library::new(path) }.map_err(|e| Failure::Kernel(e.to_string()))?;
        Ok(Driver { library })
    };
    LOADED.get_or_init(load).as_ref().map(Some).map_err(Clone::clone)
}

/// Where another process finds the emulated driver, by `LD_LIBRARY_PATH`. `None` if it is the system's that is to be found.
///
/// # Errors
/// [`Failure::Absent`] if it was not built.
pub fn driver_folder() -> Result<Option<&'static Path>, Failure> {
    match is_real() {
        true => Ok(None),
        false => PATH.map(|path| Path::new(path).parent()).ok_or(Failure::Absent),
    }
}

/// How often a function of the emulated driver was called in this process, for functions that wait, copy, allocate, load or launch;
/// `captured` are kernels that were recorded for a graph, `replayed` those that were launched by one; `pageable` are copies for which a
/// driver makes the host wait, because its memory is not pinned; `warp sums` are sums that all lanes of a warp have a part of, as kernels
/// for few tokens have one for each row and token. `None` on a GPU.
pub fn driver_calls(function: &str) -> Option<u64> {
    let (driver, name) = (driver().ok().flatten()?, std::ffi::CString::new(function).ok()?);
    let called = driver.function::<unsafe extern "C" fn(*const std::ffi::c_char) -> u64>(b"cuemu_called")?;
    // SAFETY: the library's function takes a string that ends, and returns a number.
    Some(unsafe { called(name.as_ptr()) })
}

impl Driver {
    /// The `calls`-th call from now on that touches a queue or memory fails with `code`, and so do all after it, as when a device is lost.
    /// 0: none does, and what failed before works again.
    pub fn fail_after(&self, calls: usize, code: i32) {
        if let Some(set) = self.function::<unsafe extern "C" fn(usize, i32)>(b"cuemu_fail_after") {
            // SAFETY: the function is of this type, and may be called whenever the library is loaded.
            unsafe { set(calls, code) }
        }
    }

    /// How many such calls there were.
    pub fn calls(&self) -> u64 {
        let get = self.function::<unsafe extern "C" fn() -> u64>(b"cuemu_calls");
        // SAFETY: as above.
        get.map_or(0, |get| unsafe { get() })
    }

    /// The device has so many bytes of memory, whatever is in use.
    pub fn set_memory(&self, bytes: usize) {
        if let Some(set) = self.function::<unsafe extern "C" fn(usize)>(b"cuemu_set_memory") {
            // SAFETY: as above.
            unsafe { set(bytes) }
        }
    }

    /// A step of making and launching graphs fails from now on, as on a driver that has none. `None`: none does.
    pub fn refuse_graphs(&self, step: Option<GraphStep>) {
        if let Some(set) = self.function::<unsafe extern "C" fn(i32)>(b"cuemu_refuse_graphs") {
            let step = match step {
                None => 0,
                Some(GraphStep::Capture) => 1,
                Some(GraphStep::Instantiate) => 2,
                Some(GraphStep::Launch) => 3,
            };
            // SAFETY: as above.
            unsafe { set(step) }
        }
    }

    fn function<T: Copy>(&self, name: &[u8]) -> Option<T> {
        // SAFETY: the callers name functions of the library with their types.
        unsafe { self.library.get::<T>(name) }.ok().map(|f| *f)
    }
}
