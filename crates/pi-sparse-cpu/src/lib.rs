//! Neuron-aware operators for CPUs.
//!
//! [`CpuDevice`] implements [`pi_core::Device`]: matrices, norms, attention and the sparse FFN, with weights where they lie
//! (usually in a mapped file). How a number type is computed is an entry in a table of [`Kernels`], chosen at run time for the
//! CPU at hand; any entry can be replaced. Work is shared out by an [`Executor`](pi_core::Executor), usually a [`Pool`].
//!
//! ```
//! use pi_core::{Device, LinearSpec, Matrix, QuantType, Write};
//! use pi_sparse_cpu::CpuDevice;
//!
//! let cpu = CpuDevice::with_threads(2)?;
//! let w = Matrix::encode("w", QuantType::F16, 2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let linear = cpu.linear(&LinearSpec::new(w))?;
//! let (mut x, mut y) = (cpu.hidden(1, 3)?, cpu.hidden(1, 2)?);
//! x.host_mut()?.copy_from_slice(&[1.0, 0.0, -1.0]);
//! linear.apply(&mut x, &mut y, Write::Set)?;
//! assert_eq!(y.host()?, [-2.0, -2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it does not do: read files, or decide which neurons belong to the CPU.

mod activations;
mod arch;
mod attention;
mod bandwidth;
mod crossover;
mod dense;
mod device;
mod ffn;
mod kernels;
mod kv;
mod matmul;
mod pool;
mod predictor;
mod rope;
mod shares;
mod split;
mod weights;

pub use activations::{Activations, Encode};
pub use bandwidth::ReadTest;
pub use crossover::Crossover;
pub use device::CpuDevice;
pub use kernels::{Activate, Axpy4, Dot4, Isa, Kernels, Pack, Packed, Tile, TypeKernels};
pub use pi_core::Rope;
pub use pool::Pool;
