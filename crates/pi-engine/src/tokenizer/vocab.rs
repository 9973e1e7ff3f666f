//! The data of a vocabulary, as a file states it.

use pi_core::text::{TokenId, TokenKind};

/// A list of byte strings in one allocation: a vocabulary has hundreds of thousands of them, and they are not always UTF-8.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All strings together, in bytes.
    pub fn total_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a string.
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    /// String `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Texts {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut list = Self::new();
        for text in texts {
            list.push(text.as_ref());
        }
        list
    }
}

/// How a vocabulary builds tokens from text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum VocabModel {
    /// SentencePiece: neighbours merge in the order of their scores; `▁` is a space (`tokenizer.ggml.model` = `llama`).
    Spm,
    /// Byte-level byte pair encoding: text is split by rules, then neighbours merge in the order of a list (`gpt2`).
    Bpe,
}

/// Ids of special tokens a file states; unset ones get the default of the model, or are found by their text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names are their meaning, see `SpecialTokens`
pub struct SpecialIds {
    pub bos: Option<TokenId>,
    pub eos: Option<TokenId>,
    pub eot: Option<TokenId>,
    pub eom: Option<TokenId>,
    pub unk: Option<TokenId>,
    pub sep: Option<TokenId>,
    pub pad: Option<TokenId>,
    pub mask: Option<TokenId>,
    pub fim_prefix: Option<TokenId>,
    pub fim_suffix: Option<TokenId>,
    pub fim_middle: Option<TokenId>,
    pub fim_pad: Option<TokenId>,
    pub fim_repo: Option<TokenId>,
    pub fim_file: Option<TokenId>,
}

/// A vocabulary: everything a tokenizer is built from. Read from a file with [`Vocab::from_gguf`], or put together by hand:
///
/// ```
/// use pi_engine::tokenizer::{Vocab, VocabModel, build};
/// use pi_core::text::{EncodeOptions, Tokenizer};
///
/// let mut vocab = Vocab::new(VocabModel::Bpe, ["a", "b", "c", "ab"]);
/// vocab.merges = ["a b"].into_iter().collect();
/// vocab.pre = Some("gpt-2".into());
/// let tokenizer = build(vocab)?.tokenizer;
/// assert_eq!(tokenizer.encode(b"cab", EncodeOptions::PLAIN)?, [2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Vocab {
    /// How tokens are built.
    pub model: VocabModel,
    /// How text is split before byte pair encoding (`tokenizer.ggml.pre`).
    pub pre: Option<String>,
    /// The model's name (`general.name`): one family's special tokens swallow the spaces behind them, and only the name
    /// tells.
    pub name: String,
    /// Text of every token as stored.
    pub tokens: Texts,
    /// Kind of every token; empty: all [`TokenKind::Normal`].
    pub kinds: Vec<TokenKind>,
    /// Score of every token, higher merges first; empty: all zero.
    pub scores: Vec<f32>,
    /// Pairs that merge, as `left right`, best first.
    pub merges: Texts,
    /// Special tokens stated.
    pub special: SpecialIds,
    /// Whether a text begins with the begin-of-text token; unset: as the model is used to.
    pub add_bos: Option<bool>,
    /// Whether a text ends with the end-of-text token; unset: no.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text; unset: as the model is used to.
    pub add_space_prefix: Option<bool>,
}

impl Vocab {
    /// A vocabulary of these tokens, with nothing else stated.
    pub fn new<T: AsRef<[u8]>>(model: VocabModel, tokens: impl IntoIterator<Item = T>) -> Self {
        Self {
            model,
            pre: None,
            name: String::new(),
            tokens: tokens.into_iter().collect(),
            kinds: Vec::new(),
            scores: Vec::new(),
            merges: Texts::new(),
            special: SpecialIds::default(),
            add_bos: None,
            add_eos: None,
            add_space_prefix: None,
        }
    }
}
