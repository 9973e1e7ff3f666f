//! Reads and writes GGUF model files, PowerInfer's variant (`PWRI`) and models in several files included.
//!
//! The main type is [`File`], an open model. Everything in it is checked once, when it is opened: no count, length, offset
//! or shape is used before it is known to fit into the bytes that are there, so that damaged and hostile files give an
//! [`Error`] that names the place, and never cost more memory than a small multiple of their own size. After that, values
//! and tensors are borrowed from the file's bytes, which are mapped or read into memory ([`Source`]).
//!
//! ```
//! use pi_core::QuantType;
//! use pi_gguf::{Builder, File, Kind, Source};
//!
//! # fn main() -> pi_gguf::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.gguf");
//! // Write a model: first what there will be, then the bytes.
//! let mut builder = Builder::new(Kind::Gguf);
//! builder.set("general.architecture", "llama")?.set("llama.block_count", 2u32)?;
//! builder.tensor("token_embd.weight", QuantType::F32, &[4, 3])?;
//! let mut writer = builder.create(&path)?;
//! writer.write("token_embd.weight", &[0; 48])?;
//! writer.finish()?.commit()?;
//!
//! // Read it.
//! let file = File::open(&path)?;
//! let layers: usize = file.metadata().require("llama.block_count")?;
//! assert_eq!(layers, 2);
//! for tensor in file.tensors() {
//!     println!("{} {} {:?}: {} bytes", tensor.name(), tensor.ty(), tensor.dims(), tensor.data().len());
//! }
//!
//! // What is not there, or not as expected, says so.
//! let error = file.metadata().require::<u32>("general.architecture").unwrap_err();
//! assert!(error.to_string().ends_with("key 'general.architecture': expected u32, got string \"llama\""));
//!
//! // As with `--no-mmap`: the file may change afterwards.
//! let file = File::open_with(&path, Source::InMemory)?;
//! # assert_eq!(file.tensors().len(), 1);
//! # Ok(()) }
//! ```
//!
//! The other parts: [`Metadata`] with [`Value`]s that [convert](FromValue) without loss; [`Tensor`], a view, and its
//! [`TensorType`]; [`Builder`] and [`Writer`], which stream; [`AtomicFile`], which a file is written through so that it
//! appears whole or not at all; [`NeuronIndex`], PowerInfer's list of hot neurons; [`identify`], which says what a file is
//! that is no GGUF.
//!
//! # What it does not do
//!
//! It does not decode weights (pi-core does), know what keys and tensors a model needs (pi-engine does), download or
//! convert anything, write models in several files, or read big endian files and GGUF version 1. Arrays of arrays are
//! refused, as are tensors that share bytes.
//!
//! A mapped file must not be changed while it is open. If it is truncated by another process, touching the part that is
//! gone kills this one (`SIGBUS`); see [`Source::Mapped`].

mod atomic;
mod error;
mod file;
mod header;
mod identify;
mod metadata;
mod mmap;
mod neuron_index;
mod split;
mod tensor;
mod value;
mod writer;

pub use atomic::AtomicFile;
pub use error::{Error, Result};
pub use file::File;
pub use header::{DEFAULT_ALIGNMENT, Kind, MAX_ALIGNMENT};
pub use identify::{Format, IDENTIFY_LEN, identify};
pub use metadata::Metadata;
pub use mmap::{FileBytes, Source};
pub use neuron_index::{LayerIndex, NeuronIndex};
pub use tensor::{MAX_DIMS, MAX_NAME_LEN, Tensor, TensorType};
pub use value::{Array, FromValue, Text, Value, ValueType};
pub use writer::{Builder, Scalar, Writer};
