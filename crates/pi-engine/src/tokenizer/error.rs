//! Why a vocabulary cannot be used.

use pi_core::text::TokenId;

/// Why a tokenizer could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VocabError {
    /// The metadata could not be read: a key is missing or has another type.
    #[error(transparent)]
    Gguf(#[from] pi_gguf::Error),
    /// A needed list is not there.
    #[error("{key} is missing, a {model} vocabulary needs it")]
    Missing {
        /// The metadata key.
        key: &'static str,
        /// The kind of vocabulary.
        model: &'static str,
    },
    /// A list has fewer entries than there are tokens.
    #[error("{key} has {got} entries for {expected} tokens")]
    TooShort {
        /// The metadata key.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Entries found.
        got: usize,
    },
    /// A list has an element that cannot be what it should be.
    #[error("{key}: element {index} should be {expected}")]
    Element {
        /// The metadata key.
        key: &'static str,
        /// Which element.
        index: usize,
        /// What was expected.
        expected: &'static str,
    },
    /// A special token's id is not in the vocabulary.
    #[error("{key} = {id} is not in the vocabulary of {len} tokens")]
    IdOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The id given.
        id: i128,
        /// Number of tokens.
        len: usize,
    },
    /// A special token is to be added, but the vocabulary does not say which it is.
    #[error("{flag} is true, but {key} is not set")]
    NotSet {
        /// The key that asks for the token.
        flag: &'static str,
        /// The key that would name it.
        key: &'static str,
    },
    /// A kind of vocabulary that is not implemented.
    #[error("tokenizer.ggml.model = {model:?} is not supported (llama and gpt2 are)")]
    UnknownModel {
        /// The name in the file.
        model: String,
    },
    /// A pre-tokenizer that is not known. Splitting text in another way would silently give the model wrong tokens.
    #[error(
        "tokenizer.ggml.pre = {pre:?} is not known; set the vocabulary's `pre` to the name of one that splits alike"
    )]
    UnknownPre {
        /// The name in the file.
        pre: String,
    },
    /// More text or entries than 32-bit offsets can address.
    #[error("{what} too large: {got}, at most {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        got: usize,
        /// The limit.
        limit: usize,
    },
    /// The special tokens could not be compiled into a matcher.
    #[error("special tokens: {0}")]
    Matcher(String),
}

/// Something about a vocabulary that is odd, but does not keep it from being used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum VocabWarning {
    /// The file does not say how text is split, so the default is used. Old files; the tokens may be wrong.
    NoPre,
    /// Two tokens have the same text; the first is used for it.
    Duplicate {
        /// The token that is never produced.
        id: TokenId,
        /// The token that has the same text.
        first: TokenId,
    },
    /// A token that looks like a control token is not marked as one; it is treated as one.
    NotControl {
        /// The token.
        id: TokenId,
    },
}

impl std::fmt::Display for VocabWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoPre => {
                f.write_str("tokenizer.ggml.pre is missing, text is split by the default rules: tokens may differ")
            }
            Self::Duplicate { id, first } => {
                write!(f, "token {id} has the same text as token {first} and is never produced")
            }
            Self::NotControl { id } => write!(f, "token {id} looks like a control token but is not marked as one"),
        }
    }
}
