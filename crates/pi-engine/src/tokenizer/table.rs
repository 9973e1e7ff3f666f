//! What both kinds of tokenizer share: texts, kinds and pieces of the tokens, found by number or by text.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashTable};
use pi_core::text::{EncodeOptions, SpecialTokens, TextError, TokenId, TokenKind};

use super::error::{VocabError, VocabWarning};
use super::gguf;
use super::partition::{Fragment, Partition, Rule};
use super::pre::Pre;
use super::special;
use super::vocab::{Texts, Vocab, VocabModel};

/// A text in the form of SentencePiece may be three times as long, and offsets are 32 bits.
const MAX_TEXT: usize = 1 << 30;

/// Stands for a space in SentencePiece vocabularies.
pub(super) const SPACE_MARK: &[u8] = "▁".as_bytes();

/// Finds tokens by their text.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    ids: HashTable<TokenId>,
    hasher: DefaultHashBuilder,
    longest: usize,
}

impl Lookup {
    /// Of tokens with the same text the first is found; empty texts never.
    fn new(tokens: &Texts, warnings: &mut Vec<VocabWarning>) -> Self {
        let hasher = DefaultHashBuilder::default();
        let text = |id: TokenId| tokens.get(id as usize).unwrap_or_default();
        let mut ids = HashTable::with_capacity(tokens.len());
        let mut longest = 0;
        for id in 0..tokens.len() as TokenId {
            if text(id).is_empty() {
                continue;
            }
            longest = longest.max(text(id).len());
            let hash = hasher.hash_one(text(id));
            match ids.find(hash, |&other| text(other) == text(id)) {
                Some(&first) => warnings.push(VocabWarning::Duplicate { id, first }),
                None => {
                    ids.insert_unique(hash, id, |&other| hasher.hash_one(text(other)));
                }
            }
        }
        Self { ids, hasher, longest }
    }

    /// The token of `text`; `tokens` must be the list this was made of.
    pub(super) fn find(&self, tokens: &Texts, text: &[u8]) -> Option<TokenId> {
        if text.len() > self.longest {
            return None;
        }
        let hash = self.hasher.hash_one(text);
        self.ids.find(hash, |&id| tokens.get(id as usize) == Some(text)).copied()
    }
}

/// Tokens, their meaning and their text.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) tokens: Texts,
    pub(super) kinds: Vec<TokenKind>,
    pub(super) special: SpecialTokens,
    pub(super) partition: Partition,
    lookup: Lookup,
    pieces: Texts,
}

impl Table {
    /// Takes the texts and kinds out of `vocab`.
    pub(super) fn new(vocab: &mut Vocab, pre: &Pre, warnings: &mut Vec<VocabWarning>) -> Result<Self, VocabError> {
        let tokens = std::mem::take(&mut vocab.tokens);
        let len = tokens.len();
        if u32::try_from(len).is_err() {
            return Err(VocabError::TooLarge { what: "vocabulary", got: len, limit: u32::MAX as usize });
        }
        let mut kinds = std::mem::take(&mut vocab.kinds);
        if kinds.is_empty() {
            kinds = vec![TokenKind::Normal; len];
        } else if kinds.len() < len {
            return Err(VocabError::TooShort { key: gguf::KINDS, expected: len, got: kinds.len() });
        }
        let lookup = Lookup::new(&tokens, warnings);
        let find = |text: &str| lookup.find(&tokens, text.as_bytes());
        let special = special::detect(vocab, pre, len, &find, &mut kinds, warnings)?;
        let partition = Partition::new(&tokens, &kinds, &vocab.name)?;
        let mut pieces = Texts::new();
        let mut buffer = Vec::new();
        for (text, &kind) in tokens.iter().zip(&kinds) {
            buffer.clear();
            write_piece(vocab.model, text, kind, &mut buffer);
            pieces.push(&buffer);
        }
        Ok(Self { tokens, kinds, special, partition, lookup, pieces })
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn find(&self, text: &[u8]) -> Option<TokenId> {
        self.lookup.find(&self.tokens, text)
    }

    /// The tokens of a text: special tokens, and between them what `push` appends for a stretch of text. It is told whether that is the first,
    /// or stands behind a special token.
    pub(super) fn encode(
        &self,
        text: &[u8],
        quoted: &[Range<usize>],
        options: EncodeOptions,
        mut push: impl FnMut(&[u8], bool, &mut Vec<TokenId>) -> Result<(), TextError>,
    ) -> Result<Vec<TokenId>, TextError> {
        if text.len() > MAX_TEXT {
            return Err(TextError::TooLong { bytes: text.len(), limit: MAX_TEXT });
        }
        let mut out = Vec::new();
        if options.add_special && self.special.add_bos {
            out.extend(self.special.bos);
        }
        let mut begins = true;
        for fragment in self.partition.split(text, Rule { parse_special: options.parse_special, quoted }) {
            begins = match fragment {
                Fragment::Token(id) => {
                    out.push(id);
                    true
                }
                Fragment::Text(range) => {
                    push(&text[range], begins, &mut out)?;
                    false
                }
            };
        }
        if options.add_special && self.special.add_eos {
            out.extend(self.special.eos);
        }
        Ok(out)
    }

    pub(super) fn kind(&self, id: TokenId) -> Option<TokenKind> {
        (id as usize).lt(&self.len()).then(|| self.kinds[id as usize])
    }

    pub(super) fn piece(&self, id: TokenId, special: bool) -> Option<&[u8]> {
        let hidden = matches!(self.kind(id)?, TokenKind::Control | TokenKind::Unknown) && !special;
        if hidden { Some(&[]) } else { self.pieces.get(id as usize) }
    }
}

/// The bytes that a token stands for.
fn write_piece(model: VocabModel, text: &[u8], kind: TokenKind, piece: &mut Vec<u8>) {
    match kind {
        TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => piece.extend_from_slice(text),
        TokenKind::Byte => match parse_byte(text) {
            Some(byte) => piece.push(byte),
            None => piece.extend_from_slice(text),
        },
        TokenKind::Normal => match model {
            VocabModel::Spm => {
                let mut rest = text;
                while let Some(at) = memchr::memmem::find(rest, SPACE_MARK) {
                    piece.extend_from_slice(&rest[..at]);
                    piece.push(b' ');
                    rest = &rest[at + SPACE_MARK.len()..];
                }
                piece.extend_from_slice(rest);
            }
            VocabModel::Bpe => super::bytes::decode(text, piece),
        },
        // Never produced, so they have no text.
        _ => {}
    }
}

/// The byte of a text like `<0x0A>`.
fn parse_byte(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}
