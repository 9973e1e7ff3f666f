//! A toolkit's stub in front of the driver. A folder of stubs has a `libcuda.so`, which is what cudarc opens first; a driver may have a
//! `libcuda.so.1` only. Which file the loader finds by a name cannot be changed once a process runs, so that is said instead.
#![allow(unsafe_code)]

use crate::Unavailable;
use libloading::Library;

/// The first function that a library lacks.
pub(crate) fn lacking(library: &Library, names: &[&'static str]) -> Option<&'static str> {
    names.iter().copied().find(|name| {
        // SAFETY: symbols are only looked for, not called.
        unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
    })
}

/// Whether a stub is found before a driver that is there. It has to be asked before anything else opens the driver for good.
///
/// # Errors
/// [`Unavailable::Hidden`].
#[cfg(target_os = "linux")]
pub(crate) fn check() -> Result<(), Unavailable> {
    use std::sync::OnceLock;

    // what was opened to find out stays open
    static FOUND: OnceLock<Result<(), Unavailable>> = OnceLock::new();
    FOUND.get_or_init(linux::look).clone()
}

/// Elsewhere the driver has a name that stubs do not have.
#[cfg(not(target_os = "linux"))]
pub(crate) fn check() -> Result<(), Unavailable> {
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{Library, Unavailable, lacking};
    use crate::probe::NEEDED;
    use cudarc::driver::sys::CUresult;
    use std::{collections::BTreeSet, fs, mem, path::PathBuf};

    pub(super) fn look() -> Result<(), Unavailable> {
        let before = files();
        let Some(first) = open("libcuda.so") else { return Ok(()) };
        if !is_stub(&first) {
            mem::forget(first); // a driver that was called is not unloaded
            return Ok(());
        }
        let stub = files().difference(&before).next().cloned();
        // stubs say that they are libcuda.so.1, and are what that name finds as long as they are loaded
        drop(first);
        let Some((stub, driver)) = stub.zip(open("libcuda.so.1")) else { return Ok(()) };
        let found = files().difference(&before).find(|path| **path != stub).cloned();
        match found {
            Some(path) if !is_stub(&driver) => {
                mem::forget(driver);
                Err(Unavailable::Hidden { stub, driver: path })
            }
            _ => Ok(()),
        }
    }

    fn open(name: &str) -> Option<Library> {
        // SAFETY: what runs when it is loaded is what runs whenever the driver is.
        unsafe { Library::new(name) }.ok()
    }

    /// Files of the driver's name that this process has loaded.
    fn files() -> BTreeSet<PathBuf> {
        let text = fs::read("/proc/self/maps").unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let path = |line: &str| line.find('/').map(|at| PathBuf::from(&line[at..]));
        let is_driver =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcuda.so"));
        text.lines().filter_map(path).filter(is_driver).collect()
    }

    /// Whether a library of the driver's name is none.
    fn is_stub(library: &Library) -> bool {
        if lacking(library, &NEEDED).is_some() {
            return true;
        }
        // SAFETY: the function has this type in every driver. What it returns need not be a known error.
        let init = unsafe { library.get::<unsafe extern "C" fn(u32) -> u32>(b"cuInit") };
        // SAFETY: it may be called at any time, and takes no flags.
        init.is_ok_and(|init| unsafe { init(0) } == CUresult::CUDA_ERROR_STUB_LIBRARY as u32)
    }
}
