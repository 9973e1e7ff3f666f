//! Looks for a device without ever panicking: cudarc resolves functions of the driver when they are first called, and panics if
//! one is missing. So all that will be called are looked for first.
#![allow(unsafe_code)]

use crate::{
    Unavailable,
    error::{Capability, Version},
    modules::OLDEST as OLDEST_KERNELS,
    stub::{self, lacking},
};
use cudarc::{
    driver::{CudaContext, DriverError, result, sys},
    nvrtc,
};
use pi_core::DeviceInfo;
use std::sync::Arc;

/// The oldest driver that knows the version of PTX in `ptx/`.
const OLDEST: Version = Version(12_000);

/// Every function of the driver that this crate reaches.
pub(crate) const NEEDED: [&str; 43] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuLaunchKernel",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuLaunchHostFunc",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// What is needed besides to launch many kernels at a time.
const GRAPHS: [&str; 6] = [
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
];

/// How many devices there are.
///
/// # Errors
/// [`Unavailable`] if there is no driver, or it cannot be used.
pub fn count() -> Result<usize, Unavailable> {
    // SAFETY: opens the library if it is there; `culib` below is called only then.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    stub::check()?;
    if let Some(missing) = missing(&NEEDED) {
        return Err(Unavailable::Driver { missing });
    }
    result::init().map_err(|e| match e.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Unavailable::NoDevice,
        // with all functions, of which this one says so
        sys::CUresult::CUDA_ERROR_STUB_LIBRARY => Unavailable::Driver { missing: "cuInit that works" },
        _ => Unavailable::Failed(e.into()),
    })?;
    let found = version()?;
    if found < OLDEST {
        return Err(Unavailable::Old { found, needed: OLDEST });
    }
    let count = CudaContext::device_count().map_err(|e| Unavailable::Failed(e.into()))?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Unavailable::NoDevice),
    }
}

/// The first function that the driver lacks; it is there.
fn missing(names: &[&'static str]) -> Option<&'static str> {
    // SAFETY: the library is there.
    lacking(unsafe { sys::culib() }, names)
}

/// Whether the driver, which is there, launches many kernels at a time; or why not.
pub(crate) fn graphs() -> Result<(), String> {
    match missing(&GRAPHS) {
        Some(name) => Err(format!("kernels are launched one by one: the NVIDIA driver has no {name}")),
        None => Ok(()),
    }
}

/// The newest version of CUDA that the driver knows. All of it has been looked for.
pub(crate) fn version() -> Result<Version, Unavailable> {
    let mut version = 0;
    // SAFETY: writes the number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| Unavailable::Failed(e.into()))?;
    Ok(Version(version))
}

/// Device `ordinal`, from 0, as the driver describes it: its name, compute capability and memory, and the driver. That needs no context.
pub(crate) fn describe(ordinal: usize) -> Result<DeviceInfo, Unavailable> {
    let failed = |e: DriverError| Unavailable::Failed(e.into());
    let device = result::device::get(ordinal as i32).map_err(failed)?;
    let capability = capability(device)?;
    let old = if capability < OLDEST_CHIP { format!(" (too old: {OLDEST_CHIP} is needed)") } else { String::new() };
    // SAFETY: the driver gave the device.
    let memory = unsafe { result::device::total_mem(device) }.map_err(failed)?;
    let (name, gib) = (result::device::get_name(device).map_err(failed)?, memory as f64 / (1u64 << 30) as f64);
    let detail = format!("{name}, compute capability {capability}{old}, {gib:.1} GiB, driver of CUDA {}", version()?);
    Ok(DeviceInfo { name: format!("cuda:{ordinal}"), detail })
}

/// Device `ordinal`, from 0.
pub(crate) fn context(ordinal: usize) -> Result<Arc<CudaContext>, Unavailable> {
    let count = count()?;
    if ordinal >= count {
        return Err(Unavailable::NoSuchDevice { ordinal, count });
    }
    let failed = |e: DriverError| Unavailable::Failed(e.into());
    let found = capability(result::device::get(ordinal as i32).map_err(failed)?)?;
    if found < OLDEST_CHIP {
        return Err(Unavailable::OldChip { found, needed: OLDEST_CHIP });
    }
    CudaContext::new(ordinal).map_err(failed)
}

/// The oldest chip that there are kernels for.
const OLDEST_CHIP: Capability = Capability(OLDEST_KERNELS / 10, OLDEST_KERNELS % 10);

fn capability(device: sys::CUdevice) -> Result<Capability, Unavailable> {
    // SAFETY: the driver gave the device.
    let attribute = |what| unsafe { result::device::get_attribute(device, what) };
    let attribute = |what| attribute(what).map_err(|e| Unavailable::Failed(e.into()));
    Ok(Capability(
        attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// Every function of the compiler's library that is reached.
const COMPILER: [&str; 7] = [
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcDestroyProgram",
];

/// Whether NVRTC, the compiler, can be used.
pub(crate) fn compiler() -> Result<(), Unavailable> {
    // SAFETY: opens the library if it is there; `culib` below is called only then.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(Unavailable::NoCompiler);
    }
    // SAFETY: as above.
    match lacking(unsafe { nvrtc::sys::culib() }, &COMPILER) {
        Some(missing) => Err(Unavailable::Compiler { missing }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_driver_knows_the_kernels() {
        // NVIDIA's table of PTX versions: 8.0 came with CUDA 12.0
        for ptx in crate::modules::shipped() {
            let version = ptx.lines().find_map(|line| line.strip_prefix(".version ")).map(str::trim);
            assert_eq!((version, OLDEST.to_string().as_str()), (Some("8.0"), "12.0"));
        }
    }
}
