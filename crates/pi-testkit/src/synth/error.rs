//! What can be wrong with a request for a model.

/// Result of making a model.
pub type Result<T, E = SynthError> = std::result::Result<T, E>;

/// Why a synthetic model was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// A number of the request cannot be used.
    #[error("{name}: expected {expected}, got {got}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// What could be used.
        expected: String,
        /// What was asked for.
        got: String,
    },
    /// The file could not be written.
    #[error(transparent)]
    Gguf(#[from] pi_gguf::Error),
    /// The system refused to start threads.
    #[error("cannot start threads: {0}")]
    Threads(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// The hidden states are not finite: the numbers do not fit the type.
    #[error("the hidden states after layer {0} are not finite")]
    NotFinite(usize),
}

impl SynthError {
    pub(super) fn setting(name: &'static str, expected: impl ToString, got: impl ToString) -> Self {
        Self::Setting { name, expected: expected.to_string(), got: got.to_string() }
    }
}
