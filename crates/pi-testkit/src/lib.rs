//! Cases and checks for the `pi` engine and for back ends of others.
//!
//! [`data`] finds golden data, [`golden`] reads it. What it does not do: contain golden data itself.

pub mod data;
pub mod golden;
mod requantise;

pub use requantise::requantise;
