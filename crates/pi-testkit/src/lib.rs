//! Cases and checks for the `pi` engine and for back ends of others.
//!
//! [`data`] finds golden data and [`golden`] reads it; [`TinyModel`] writes small random models, and [`naive`] computes them in
//! the most obvious way. [`synth`] writes models of any size whose neurons fire as often as asked. [`kernels::check`] and
//! [`device::check`] tell whether a back end computes what it should, [`cases`] are operators to be timed, and [`sim`] is a device that
//! simulates an accelerator. What it does not do: contain golden data itself.

pub mod cases;
pub mod data;
pub mod device;
pub mod golden;
pub mod kernels;
pub mod naive;
mod requantise;
pub mod sim;
pub mod synth;
pub mod tiny;

pub use requantise::requantise;
pub use tiny::{Random, TinyModel};
