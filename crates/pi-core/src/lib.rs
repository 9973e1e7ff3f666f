//! The words and the trait boundaries of the `pi` engine.
//!
//! This crate says *what things are*: quantised number types ([`quant`]), weight matrices with one row per neuron, sets of
//! neurons, and the operators a device offers. It does no I/O, starts no threads and contains no fast kernels; what it
//! computes, it computes in the most obvious way, so that everything faster can be tested against it.

mod error;
pub mod quant;
pub mod text;

pub use error::{Error, Result};
pub use quant::{QuantInfo, QuantType};
