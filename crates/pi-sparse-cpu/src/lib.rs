//! (under construction)

mod arch;
pub mod kernels;

pub use kernels::{Isa, Kernels, TypeKernels};
