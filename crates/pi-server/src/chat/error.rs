//! What can be wrong with a template, or with messages for it.

use minijinja::ErrorKind;
use pi_engine::pi_core::text::TextError;
use std::time::Duration;

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template cannot be read.
    #[error("the chat template is not valid: {0}")]
    Syntax(String),
    /// The template does not take these messages: it says so itself, or uses something that they lack.
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    /// The template does not end within the work that it may do.
    #[error("the chat template takes more work than a rendering may")]
    Endless,
    /// The template did not end in time, which no limit of its work foresaw; or an earlier rendering that did not is still busy.
    #[error("the chat template takes longer than {0:?}")]
    Hangs(Duration),
    /// A message that is none.
    #[error("{field}: {why}")]
    Message {
        /// Which field of the messages.
        field: String,
        /// What is wrong.
        why: String,
    },
    /// The prompt cannot be turned into tokens.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The vocabulary's control tokens cannot be searched for.
    #[error("the vocabulary's control tokens cannot be searched for: {0}")]
    Vocabulary(String),
}

impl TemplateError {
    pub(super) fn of_rendering(error: &minijinja::Error) -> Self {
        let mut cause: &dyn std::error::Error = error;
        loop {
            match cause.downcast_ref::<minijinja::Error>().map(minijinja::Error::kind) {
                Some(ErrorKind::OutOfFuel) => return Self::Endless,
                _ => match cause.source() {
                    Some(source) => cause = source,
                    None => return Self::Refused(error.to_string()),
                },
            }
        }
    }
}
