//! What can go wrong between a file and its text.

use crate::tokenizer::VocabError;
use pi_core::text::TextError;

/// Result of the engine's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the engine. Every variant names the file, key, tensor or setting it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read as a model file.
    #[error(transparent)]
    Gguf(#[from] pi_gguf::Error),
    /// The vocabulary in the file is unusable.
    #[error("{path}: {source}")]
    Vocab {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: Box<VocabError>,
    },
    /// A text could not be turned into tokens.
    #[error(transparent)]
    Text(#[from] TextError),
    /// An operator refused its weights or input, or a device failed.
    #[error(transparent)]
    Core(#[from] pi_core::Error),
    /// Neurons could not be placed.
    #[error(transparent)]
    Placement(#[from] pi_placement::Error),
    /// The file's family is not known.
    #[error("{path}: model architecture {name:?} is not supported (supported: {known})")]
    Architecture {
        /// The file.
        path: String,
        /// What the file says.
        name: String,
        /// What would have been accepted.
        known: String,
    },
    /// A metadata value is out of its range or asks for something that is not built.
    #[error("{path}: key '{key}': expected {expected}, got {got}")]
    Config {
        /// The file.
        path: String,
        /// The metadata key.
        key: String,
        /// What would have been accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// A tensor of the file cannot be used.
    #[error("{path}: tensor '{tensor}': {message}")]
    Tensor {
        /// The file.
        path: String,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        message: String,
    },
    /// A setting of the caller is out of its range.
    #[error("{name}: expected {expected}, got {got}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What would have been accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// A prompt or conversation does not fit the context.
    #[error("{needed} tokens do not fit the context of {context} tokens")]
    Context {
        /// Tokens that would have to be held.
        needed: usize,
        /// Tokens that can be held.
        context: usize,
    },
    /// The logits contain NaN or +∞, or no finite number at all: nothing can be sampled.
    #[error("non-finite logits: {0}")]
    Logits(&'static str),
    /// An answer cannot go on in the form that it must have.
    #[error("the form of the answer: {0}")]
    Constraint(String),
    /// Check mode found the first operator with a non-finite result.
    #[error("non-finite values after {what} of layer {layer}")]
    NonFinite {
        /// The operator.
        what: &'static str,
        /// The layer, from 0.
        layer: usize,
    },
    /// A profile cannot be read, or is of another model.
    #[error("{path}: {source}")]
    Profile {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: pi_predictor::profile::ProfileError,
    },
    /// The system refused to start threads.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    /// An [`Error::Setting`].
    pub fn setting(name: &'static str, expected: impl ToString, got: impl ToString) -> Self {
        Self::Setting { name, expected: expected.to_string(), got: got.to_string() }
    }
}
