//! Reads and writes GGUF model files, PowerInfer's variant of them included.
//!
//! [`File`] is an open model: checked once, then borrowed from a mapping of the file.
//!
//! ```no_run
//! # fn main() -> pi_gguf::Result<()> {
//! let file = pi_gguf::File::open("model.gguf")?;
//! let architecture: &str = file.metadata().require("general.architecture")?;
//! for tensor in file.tensors() {
//!     println!("{architecture} {} {} {:?}", tensor.name(), tensor.ty(), tensor.dims());
//! }
//! # Ok(()) }
//! ```

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
