//! Makes model files: GGUF and PowerInfer's variant of it, from Hugging Face checkpoints ([`convert`]) and from other model files
//! with other number types ([`quantize`]). Reads and writes the PyTorch files that belong to such models, and executes nothing
//! of them ([`TorchFile`]).
//!
//! ```no_run
//! use pi_convert::{ConvertOptions, FileType, QuantizeOptions, convert, quantize};
//!
//! # fn main() -> pi_convert::Result<()> {
//! // A folder with config.json, *.safetensors and a tokenizer, and a folder with predictors.
//! let options = ConvertOptions { predictors: Some("predictor".into()), ..ConvertOptions::default() };
//! convert("checkpoint", "model.powerinfer.gguf", &options, None)?;
//!
//! // The same in four bits.
//! let model = pi_gguf::File::open("model.powerinfer.gguf")?;
//! let report = quantize(&model, "model.Q4_0.gguf", Some(FileType::Q4_0), &QuantizeOptions::default(), None)?;
//! println!("{} bytes became {}", report.bytes_before, report.bytes_after);
//! # Ok(()) }
//! ```
//!
//! Input is mapped, never read whole, and output is written some rows at a time by all cores: memory does not grow with the
//! model. Output appears whole or not at all ([`pi_gguf::AtomicFile`]). The families are LLaMA (with Mistral, ReLULLaMA,
//! ProSparse, …), Bamboo, Falcon and OPT.
//!
//! The other parts: [`PredictorDir`] and [`read_activations`], folders with a PyTorch file for every layer; [`pickle`], the
//! reader of what is in PyTorch's files.
//!
//! # What it does not do
//!
//! It does not download, run models, use importance matrices, or write models in several files; 2-bit and 3-bit types of the
//! `IQ` family are not encoded. PyTorch files are those that `torch.save` has written since 2020.

mod error;
mod hf;
mod layers;
pub mod pickle;
mod quantize;
mod report;
mod stream;
mod torch;

pub use error::{Error, Result};
pub use hf::{ConvertOptions, convert};
pub use layers::{PredictorDir, activations, read_activations, write_activations};
pub use quantize::{FileType, QuantizeOptions, quantize};
pub use report::{Report, Transposed};
pub use stream::{OnProgress, Progress};
pub use torch::{TorchFile, TorchTensor, torch_dict, torch_tensor};
