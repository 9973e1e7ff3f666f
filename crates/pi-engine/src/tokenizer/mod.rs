//! Tokenizers built from the vocabulary of a model file.
//!
//! [`load`] reads a file's metadata, [`build`] takes a [`Vocab`] put together by hand; both choose between SentencePiece
//! (`tokenizer.ggml.model` = `llama`) and byte-level byte pair encoding (`gpt2`, with the splitting that
//! `tokenizer.ggml.pre` names). Token ids are those of llama.cpp, malformed text included. [`StreamDecoder`] turns
//! generated tokens into text.
//!
//! | file | what |
//! |---|---|
//! | `vocab`, `gguf` | the data of a vocabulary, and reading it |
//! | `table`, `bytes` | tokens by number and by text; the alphabet of byte-level vocabularies |
//! | `special`, `partition` | which tokens are special, and cutting them out of a text |
//! | `spm`, `bpe`, `cache` | the two ways of merging; words met before |
//! | `pre`, `rules`, `unicode` | how text is split before byte pair encoding |
//! | `stream` | text from tokens as they come |

mod bpe;
mod bytes;
mod cache;
mod error;
mod gguf;
mod partition;
mod pre;
#[cfg(test)]
mod pre_tests;
mod rules;
mod special;
mod spm;
mod stream;
mod table;
mod unicode;
mod vocab;

use std::sync::Arc;

use pi_core::text::Tokenizer;
use pi_gguf::Metadata;

pub use error::{VocabError, VocabWarning};
pub use stream::{StreamDecoder, Utf8Stream};
pub use vocab::{SpecialIds, Texts, Vocab, VocabModel};

/// A tokenizer, and what was odd about its vocabulary.
#[derive(Clone)]
pub struct Loaded {
    /// The tokenizer.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// What a user should perhaps be told.
    pub warnings: Vec<VocabWarning>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("tokens", &self.tokenizer.len()).field("warnings", &self.warnings).finish()
    }
}

/// The tokenizer of a model file.
///
/// # Errors
/// If the file has no vocabulary, one of a kind that is not supported, or one that contradicts itself.
pub fn load(metadata: &Metadata) -> Result<Loaded, VocabError> {
    build(Vocab::from_gguf(metadata)?)
}

/// The tokenizer of a vocabulary.
///
/// # Errors
/// If the vocabulary contradicts itself, or names a way of splitting text that is not known.
pub fn build(vocab: Vocab) -> Result<Loaded, VocabError> {
    let mut warnings = Vec::new();
    let tokenizer: Arc<dyn Tokenizer> = match vocab.model {
        VocabModel::Spm => Arc::new(spm::Spm::new(vocab, &mut warnings)?),
        VocabModel::Bpe => Arc::new(bpe::Bpe::new(vocab, &mut warnings)?),
    };
    Ok(Loaded { tokenizer, warnings })
}
