//! Why there is no CUDA device, and what one reported.

use cudarc::driver::DriverError;
use std::path::PathBuf;

/// Why there is no CUDA device to be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// There is no driver library (`libcuda.so`, `nvcuda.dll`).
    #[error("no NVIDIA driver was found")]
    NoDriver,
    /// The driver lacks something this crate calls: it is too old, or only the stub of a toolkit.
    #[error("the NVIDIA driver has no {missing}: it is too old, or a toolkit's stub")]
    Driver {
        /// The first function that is missing.
        missing: &'static str,
    },
    /// A toolkit's stub is found before the driver: it has the name that is looked for first.
    #[error("a toolkit's stub, {}, hides the NVIDIA driver, {}", stub.display(), driver.display())]
    Hidden {
        /// The stub.
        stub: PathBuf,
        /// The driver, which would be found without it.
        driver: PathBuf,
    },
    /// The driver has all functions, but does not know the version of PTX that the kernels are in.
    #[error("the NVIDIA driver is of CUDA {found}: CUDA {needed} is the oldest that knows these kernels")]
    Old {
        /// What the driver says of itself.
        found: Version,
        /// What it would have to say, or more.
        needed: Version,
    },
    /// The driver is there, and no device.
    #[error("the NVIDIA driver finds no device")]
    NoDevice,
    /// There are devices, but not this one.
    #[error("there is no device {ordinal}: the NVIDIA driver finds {count}")]
    NoSuchDevice {
        /// The device asked for, from 0.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The device is older than any the kernels are for.
    #[error("the GPU has compute capability {found}: {needed} is the oldest that has these kernels")]
    OldChip {
        /// What it has.
        found: Capability,
        /// What it would have to have, or more.
        needed: Capability,
    },
    /// Kernels are to be compiled for the chip, and there is no library of the compiler (`libnvrtc.so`, `nvrtc64_*.dll`).
    #[error("no NVRTC library was found, which is to compile the kernels")]
    NoCompiler,
    /// That library lacks something this crate calls.
    #[error("the NVRTC library has no {missing}: it is too old")]
    Compiler {
        /// The first function that is missing.
        missing: &'static str,
    },
    /// The driver refused.
    #[error("the NVIDIA driver reports error {0}")]
    Failed(Code),
}

impl Unavailable {
    /// What the user can do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::NoDriver => "install the driver of the GPU, or tell the system's loader where it is",
            Self::Driver { .. } => {
                "update the driver, and look whether a toolkit's folder of stubs is where the system looks for libraries"
            }
            Self::Hidden { .. } => {
                "take the stub's folder out of LD_LIBRARY_PATH (or of the system's list of folders), or put one before it in which libcuda.so is a link to the driver"
            }
            Self::Old { .. } => "update the driver",
            Self::OldChip { .. } => "use another GPU, or the CPU alone",
            Self::NoDevice => "look whether nvidia-smi lists the GPU, and what CUDA_VISIBLE_DEVICES hides",
            Self::NoSuchDevice { .. } => "devices are numbered from 0, as nvidia-smi lists them",
            Self::NoCompiler | Self::Compiler { .. } => {
                "install NVRTC of a CUDA toolkit, or use the kernels that are part of this program"
            }
            Self::Failed(_) => "look whether nvidia-smi lists the GPU, and who uses its memory",
        }
    }
}

/// A version of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub(crate) i32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// What a chip can do, in NVIDIA's numbers, as 7.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability(pub(crate) i32, pub(crate) i32);

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// An error of the driver. Its text is made without calling the driver, which may be what failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(DriverError);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = format!("{:?}", self.0.0);
        write!(f, "{} ({})", self.0.0 as u32, name.trim_start_matches("CUDA_ERROR_").to_lowercase().replace('_', " "))
    }
}

impl From<DriverError> for Code {
    fn from(e: DriverError) -> Self {
        Self(e)
    }
}
