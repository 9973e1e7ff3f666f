//! What can be wrong with the input.

use std::io;
use std::path::{Path, PathBuf};

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file could not be read, converted or written. Messages name the file and the key, tensor or byte.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as in "read".
        action: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// A file that must be there is not.
    #[error("{}: {what} is missing", path.display())]
    MissingFile {
        /// The file or folder.
        path: PathBuf,
        /// What it is, or which part of the folder is missing.
        what: String,
    },
    /// A JSON file that does not parse.
    #[error("{}: not JSON as expected: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A key with a value that cannot be used, or without one.
    #[error("{}: key '{key}': expected {expected}, got {got}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What was expected.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A model family that is not known.
    #[error("{}: architecture '{name}' is not known (known: {known})", path.display())]
    Architecture {
        /// The config file.
        path: PathBuf,
        /// What it says.
        name: String,
        /// What would have been understood.
        known: String,
    },
    /// A tensor that cannot be used.
    #[error("{}: tensor '{tensor}': expected {expected}, got {got}", path.display())]
    Tensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What was expected.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A safetensors file that is damaged.
    #[error("{}: not a safetensors file as expected: {what}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A PyTorch file that is damaged, of an old format, or asks for more than numbers.
    #[error("{}: not a PyTorch file as expected: {what}", path.display())]
    Torch {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A pickle that is damaged, or holds more than numbers, strings, lists, dicts and tensors.
    #[error("{}: pickle, byte {at}: {what}", path.display())]
    Pickle {
        /// The file.
        path: PathBuf,
        /// The byte at which reading stopped.
        at: usize,
        /// What is wrong.
        what: String,
    },
    /// Files of layers that are missing or too many.
    #[error("{}: {what}: expected layers 0 to {}, {}", path.display(), layers.saturating_sub(1), listed(missing, extra))]
    Layers {
        /// The folder.
        path: PathBuf,
        /// What the files are, as in "predictors (model_N.pt)".
        what: &'static str,
        /// How many layers there should be.
        layers: usize,
        /// Layers without a file.
        missing: Vec<usize>,
        /// Files without a layer.
        extra: Vec<usize>,
    },
    /// A vocabulary that cannot be used.
    #[error("{}: tokenizer: {what}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A choice that does not fit the model.
    #[error("{0}")]
    Choice(String),
    /// The caller asked to stop.
    #[error("stopped before the end: nothing was written")]
    Cancelled,
    /// From reading or writing GGUF.
    #[error(transparent)]
    Gguf(#[from] pi_gguf::Error),
}

impl Error {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }

    pub(crate) fn torch(path: &Path, what: impl Into<String>) -> Self {
        Self::Torch { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn key(path: &Path, key: impl Into<String>, expected: impl ToString, got: impl ToString) -> Self {
        let (expected, got) = (expected.to_string(), got.to_string());
        Self::Key { path: path.to_owned(), key: key.into(), expected, got }
    }

    pub(crate) fn tensor(path: &Path, tensor: impl Into<String>, expected: impl ToString, got: impl ToString) -> Self {
        let (expected, got) = (expected.to_string(), got.to_string());
        Self::Tensor { path: path.to_owned(), tensor: tensor.into(), expected, got }
    }

    pub(crate) fn tokenizer(path: &Path, what: impl Into<String>) -> Self {
        Self::Tokenizer { path: path.to_owned(), what: what.into() }
    }
}

fn listed(missing: &[usize], extra: &[usize]) -> String {
    let list = |layers: &[usize]| {
        let shown: Vec<_> = layers.iter().take(10).map(usize::to_string).collect();
        shown.join(", ") + if layers.len() > 10 { ", …" } else { "" }
    };
    let parts = [("missing", missing), ("too many", extra)];
    let parts = parts.iter().filter(|(_, layers)| !layers.is_empty());
    parts.map(|(what, layers)| format!("{what}: {}", list(layers))).collect::<Vec<_>>().join("; ")
}
