//! What can be wrong with a form for answers.

/// Why a form cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The text cannot be read.
    #[error("not valid {dialect}, line {line}, column {column}: {why}")]
    Syntax {
        /// What the text should be: `GBNF`, `Lark`.
        dialect: &'static str,
        /// The line, from 1.
        line: usize,
        /// The character in it, from 1.
        column: usize,
        /// What is wrong.
        why: String,
    },
    /// It can be read, but says something that makes no sense or is not supported.
    #[error("{0}")]
    Meaning(String),
    /// It is too long, or more work than it may be.
    #[error("{0}")]
    TooMuch(String),
    /// The vocabulary cannot be used.
    #[error("the vocabulary cannot be used for grammars: {0}")]
    Vocabulary(String),
}

impl GrammarError {
    pub(crate) fn nothing() -> Self {
        Self::Meaning("no text has this form".into())
    }
}
