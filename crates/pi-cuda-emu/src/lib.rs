//! Runs the kernels of `pi-sparse-cuda` on the CPU, for tests.
//!
//! Every CUDA thread is a fiber; barriers and warp operations are real meeting points, and divergence, lanes that left, writes
//! past shared memory and reads of what nobody wrote are reported. Lanes run forward, in reverse or in random order, so that a
//! missing barrier shows. Tensor cores multiply matrices of F16 with sums of floats, whose roundings are not those of any chip. There is no weak
//! memory order, and no speed.
//!
//! It needs Linux and a C++20 compiler; without them [`launch`] reports [`Absent`](Failure::Absent).
#![cfg_attr(emulated, allow(unsafe_code))]

mod driver;

pub use driver::{Driver, GraphStep, driver, driver_calls, driver_folder, use_driver};

use std::fmt;

/// In which order the lanes of a block run between meeting points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Thread 0 first.
    Forward,
    /// Thread 0 last.
    Reverse,
    /// Another order each time, from this seed.
    Random(u64),
}

impl Order {
    /// The orders that a kernel is to be tested in.
    pub const ALL: [Self; 4] = [Self::Forward, Self::Reverse, Self::Random(1), Self::Random(2)];
}

/// The size of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// See [`Order`].
    pub order: Order,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// Bytes that are read; null if they are `None`.
    Read(Option<&'a [u8]>),
    /// Numbers that are read; null if they are `None`.
    Numbers(Option<&'a [f32]>),
    /// The place of an array among those that are written.
    Out(usize),
    /// A 32-bit number.
    Int(i32),
    /// A 64-bit number.
    Long(i64),
    /// A floating-point number.
    Float(f32),
}

/// Why a kernel did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The emulator was not built: another system than Linux, or no C++ compiler.
    Absent,
    /// There is no such kernel, its arguments are others, or it did something wrong.
    Kernel(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("CUDA kernels are not emulated here: that needs Linux and a C++20 compiler"),
            Self::Kernel(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Failure {}

/// True if the emulator was built.
pub const fn is_there() -> bool {
    cfg!(emulated)
}

/// Runs a kernel that writes to `outs`.
///
/// # Errors
/// [`Failure`].
///
/// # Safety
/// The kernel must stay within the arrays it is given: it is machine code that checks nothing there.
#[allow(unsafe_code)]
pub unsafe fn launch(kernel: &str, launch: Launch, args: &[Arg<'_>], outs: &mut [&mut [f32]]) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { emulated::launch(kernel, launch, args, outs) }
}

#[cfg(not(emulated))]
mod emulated {
    use super::*;

    #[allow(unsafe_code)]
    pub(super) unsafe fn launch(_: &str, _: Launch, _: &[Arg<'_>], _: &mut [&mut [f32]]) -> Result<(), Failure> {
        Err(Failure::Absent)
    }
}

#[cfg(emulated)]
mod emulated {
    use super::*;
    use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

    unsafe extern "C" {
        fn pi_cuda_emu_launch(
            name: *const c_char,
            size: *const c_uint,
            shared: c_uint,
            args: *mut *mut c_void,
            threads: c_int,
            order: c_int,
            seed: u64,
            error: *mut c_char,
            room: usize,
        ) -> c_int;
        fn pi_cuda_emu_arguments(name: *const c_char, bytes: *mut usize, room: c_int) -> c_int;
    }

    pub(super) unsafe fn launch(
        kernel: &str,
        launch: Launch,
        args: &[Arg<'_>],
        outs: &mut [&mut [f32]],
    ) -> Result<(), Failure> {
        let name = CString::new(kernel).map_err(|_| Failure::Kernel(format!("no such kernel: {kernel:?}")))?;
        // Every argument as eight bytes; little endian, so that the first are those of a smaller one.
        let mut values: Vec<u64> = args.iter().map(|arg| bits(arg, outs)).collect();
        let mut want = [0; 32];
        // SAFETY: a string that ends, and room for as many sizes as is said.
        let count = unsafe { pi_cuda_emu_arguments(name.as_ptr(), want.as_mut_ptr(), want.len() as c_int) };
        let fits = args.iter().zip(want).all(|(arg, want)| bytes(arg) == want);
        if count >= 0 && (count as usize != args.len() || !fits) {
            let want = &want[..(count as usize).min(want.len())];
            return Err(Failure::Kernel(format!("{kernel} takes arguments of {want:?} bytes, not {args:?}")));
        }
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        let [gx, gy, gz] = launch.grid;
        let [bx, by, bz] = launch.block;
        let (order, seed) = match launch.order {
            Order::Forward => (0, 1),
            Order::Reverse => (1, 1),
            Order::Random(seed) => (2, seed),
        };
        let mut text = [0 as c_char; 512];
        // SAFETY: as many pointers as the kernel has arguments, to values of their sizes; that arrays are large enough is the
        // caller's promise. The text is cut to its room, and ends.
        let failed = unsafe {
            pi_cuda_emu_launch(
                name.as_ptr(),
                [gx, gy, gz, bx, by, bz].as_ptr(),
                launch.shared,
                pointers.as_mut_ptr(),
                1,
                order,
                seed,
                text.as_mut_ptr(),
                text.len(),
            )
        };
        if failed == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Err(Failure::Kernel(text.to_string_lossy().into_owned()))
    }

    fn bytes(arg: &Arg<'_>) -> usize {
        match arg {
            Arg::Int(_) | Arg::Float(_) => 4,
            _ => 8,
        }
    }

    fn bits(arg: &Arg<'_>, outs: &mut [&mut [f32]]) -> u64 {
        match arg {
            Arg::Read(bytes) => bytes.map_or(0, |b| b.as_ptr() as u64),
            Arg::Numbers(numbers) => numbers.map_or(0, |n| n.as_ptr() as u64),
            // null is what a kernel crashes on at once
            Arg::Out(i) => outs.get_mut(*i).map_or(0, |numbers| numbers.as_mut_ptr() as u64),
            Arg::Int(v) => u64::from(*v as u32),
            Arg::Long(v) => *v as u64,
            Arg::Float(v) => u64::from(v.to_bits()),
        }
    }
}
