//! The words and the trait boundaries of the `pi` engine.
//!
//! This crate says *what things are*: quantised number types ([`quant`]), weight matrices with one row per neuron
//! ([`Matrix`]), sets of neurons ([`NeuronSet`], [`ActiveSet`]), and the operators a [`Device`] offers ([`op`]). It does no
//! I/O, starts no threads and contains no fast kernels; what it computes, it computes in the most obvious way, so that
//! everything faster can be tested against it.
//!
//! ```
//! use pi_core::{Matrix, QuantType};
//!
//! let w = Matrix::encode("w", QuantType::F16, 2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! assert_eq!(w.row_bytes(), 6);
//! assert_eq!(w.transposed()?.decode(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
//! # Ok::<(), pi_core::Error>(())
//! ```
//!
//! What it does not do: read files (`pi-gguf`), compute fast (`pi-sparse-cpu`), run models (`pi-engine`).

mod activation;
mod bytes;
mod device;
mod error;
mod exec;
pub mod footprint;
mod hidden;
mod matrix;
mod neurons;
pub mod op;
mod predict;
pub mod quant;
mod resident;
mod rope;
pub mod signs;
pub mod spec;
pub mod text;

pub use activation::Activation;
pub use bytes::{Reclaim, SharedBytes};
pub use device::{Device, DeviceInfo};
pub use error::{Error, Result};
pub use exec::{Executor, Serial};
pub use footprint::Footprint;
pub use hidden::{EncodedRows, Form, Hidden};
pub use matrix::{Matrix, MatrixView};
pub use neurons::{ActiveSet, NeuronSet};
pub use op::{Attention, AttentionRun, Batch, BatchToken, Dense, FfnRun, Limits, OpStats, SparseFfn, Write};
pub use predict::{MlpSpec, Predictor, PredictorRun};
pub use quant::{QuantInfo, QuantType};
pub use resident::{Mirror, Moves, Resident};
pub use rope::Rope;
pub use signs::SignKernels;
pub use spec::{
    AttentionSpec, Down, FfnWeights, Gating, KvType, KvTypes, LinearSpec, NormSpec, RopeKind, RopeScaling, RopeSpec,
};
