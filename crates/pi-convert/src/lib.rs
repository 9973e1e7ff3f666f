//! t
mod error;
mod layers;
pub mod pickle;
mod quantize;
mod report;
mod stream;
mod torch;
pub use error::{Error, Result};
pub use layers::{PredictorDir, activations, read_activations, write_activations};
pub use quantize::{FileType, QuantizeOptions, quantize};
pub use report::{Report, Transposed};
pub use stream::{OnProgress, Progress};
pub use torch::{TorchFile, TorchTensor, torch_dict, torch_tensor};
