//! Text and tokens: what a tokenizer offers to the rest of the engine.
//!
//! [`Tokenizer`] turns bytes into token ids and ids into bytes. Texts are *bytes*, not `str`: a token may end in the middle
//! of a character, and a prompt may come from a file that is not UTF-8. Nothing here knows how a vocabulary is stored.

use std::ops::Range;

/// The number of a token in a vocabulary.
pub type TokenId = u32;

/// What kind of entry of the vocabulary a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TokenKind {
    /// An ordinary piece of text.
    #[default]
    Normal,
    /// Stands for what the vocabulary cannot express.
    Unknown,
    /// Steers the model (begin of text, end of turn …); it is not text.
    Control,
    /// Text added to the vocabulary later; always matched as a whole.
    UserDefined,
    /// Reserved, never produced.
    Unused,
    /// One byte, for text without a better token.
    Byte,
    /// Kind not stated or not known.
    Undefined,
}

/// How text becomes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// Put the begin (and end) of text tokens around the result, where the vocabulary asks for them.
    pub add_special: bool,
    /// Recognise the texts of control tokens. Leave this off for text from people, or they can forge a turn.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// Text as it is: no token added, none recognised.
    pub const PLAIN: Self = Self { add_special: false, parse_special: false };
    /// A whole prompt written by a chat template: begin of text added, control tokens recognised.
    pub const PROMPT: Self = Self { add_special: true, parse_special: true };
}

/// How tokens become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecodeOptions {
    /// Write control and unknown tokens as their text; otherwise they leave nothing.
    pub special: bool,
    /// Drop a leading begin-of-text and a trailing end-of-text token, where the vocabulary adds them.
    pub trim_special: bool,
    /// Apply the vocabulary's "clean up spaces" rule (` ,` becomes `,` …) if it has one ([`SpecialTokens::clean_spaces`]).
    /// Off by default: it changes text, and a stream cannot do it.
    pub clean_spaces: bool,
}

/// The tokens of a vocabulary with a meaning of their own, and the rules for adding them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// Begin of text.
    pub bos: Option<TokenId>,
    /// End of text.
    pub eos: Option<TokenId>,
    /// End of turn.
    pub eot: Option<TokenId>,
    /// End of message.
    pub eom: Option<TokenId>,
    /// Unknown text.
    pub unk: Option<TokenId>,
    /// Separator of two texts.
    pub sep: Option<TokenId>,
    /// Padding.
    pub pad: Option<TokenId>,
    /// Masked text.
    pub mask: Option<TokenId>,
    /// The token of a line feed.
    pub newline: Option<TokenId>,
    /// Fill in the middle: prefix, suffix, middle.
    pub fim: [Option<TokenId>; 3],
    /// Whether encoding with `add_special` begins with [`bos`](Self::bos).
    pub add_bos: bool,
    /// Whether encoding with `add_special` ends with [`eos`](Self::eos).
    pub add_eos: bool,
    /// Whether text is encoded as if a space stood before it, which decoding takes away again.
    pub add_space_prefix: bool,
    /// Whether the vocabulary's definition tidies spaces before punctuation when decoding.
    pub clean_spaces: bool,
    /// Every token that ends generation, ascending: end of text, of turn, of message, and tokens known by their text.
    pub eog: Vec<TokenId>,
}

impl SpecialTokens {
    /// Whether `id` ends generation.
    pub fn is_eog(&self, id: TokenId) -> bool {
        self.eog.binary_search(&id).is_ok()
    }
}

/// Why text or tokens could not be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The vocabulary has neither a token for these bytes nor an unknown token.
    #[error("the vocabulary has no token for the bytes {bytes:02x?}, no byte tokens and no unknown token")]
    NoToken {
        /// The text without a token.
        bytes: Vec<u8>,
    },
    /// A token id beyond the vocabulary.
    #[error("token id {id} is not in the vocabulary of {len} tokens")]
    OutOfRange {
        /// The id.
        id: TokenId,
        /// Number of tokens.
        len: usize,
    },
    /// Text of more bytes than can be tokenised at once.
    #[error("text of {bytes} bytes is too long to tokenise at once, at most {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest text accepted.
        limit: usize,
    },
}

/// Turns text into tokens and back. Shared between threads; no call changes it.
pub trait Tokenizer: Send + Sync {
    /// Number of tokens; ids are `0..len`. A model may have more embedding rows than this, never fewer.
    fn len(&self) -> usize;

    /// The tokens of `text`, of which `quoted` parts (ascending ranges of bytes) are from people: control tokens are not recognised
    /// where they overlap one, whatever `options` say.
    fn encode_quoting(
        &self,
        text: &[u8],
        quoted: &[Range<usize>],
        options: EncodeOptions,
    ) -> Result<Vec<TokenId>, TextError>;

    /// The tokens of `text`.
    fn encode(&self, text: &[u8], options: EncodeOptions) -> Result<Vec<TokenId>, TextError> {
        self.encode_quoting(text, &[], options)
    }

    /// The bytes a token stands for, empty for tokens without text; with `special`, control and unknown tokens give their
    /// name. `None` beyond the vocabulary. Bytes may end inside a character.
    fn piece(&self, id: TokenId, special: bool) -> Option<&[u8]>;

    /// The kind of a token, `None` beyond the vocabulary.
    fn kind(&self, id: TokenId) -> Option<TokenKind>;

    /// The tokens with a meaning of their own.
    fn special(&self) -> &SpecialTokens;

    /// The token whose stored text is exactly `text`, e.g. `b"<|im_end|>"`.
    fn find(&self, text: &[u8]) -> Option<TokenId>;

    /// Whether there are no tokens at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a whole sequence of tokens.
    fn decode(&self, ids: &[TokenId], options: DecodeOptions) -> Result<Vec<u8>, TextError> {
        let special = self.special();
        let mut strip_space = special.add_space_prefix;
        let mut ids = ids;
        if options.trim_special {
            if let (true, Some(bos), [first, rest @ ..]) = (special.add_bos, special.bos, ids)
                && *first == bos
            {
                ids = rest;
                strip_space = false;
            }
            if let (true, Some(eos), [rest @ .., last]) = (special.add_eos, special.eos, ids)
                && *last == eos
            {
                ids = rest;
            }
        }
        let mut text = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            let piece = self.piece(id, options.special).ok_or(TextError::OutOfRange { id, len: self.len() })?;
            let piece =
                if std::mem::take(&mut strip_space) { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece };
            text.extend_from_slice(piece);
        }
        if options.clean_spaces && special.clean_spaces {
            text = clean_spaces(&text);
        }
        Ok(text)
    }
}

/// `text` without the spaces that word-wise tokenisation is said to leave: before `? ! . ,`, around a lone apostrophe and
/// before the contractions `'s 'm 're 've`. Three passes, each over the result of the one before.
pub fn clean_spaces(text: &[u8]) -> Vec<u8> {
    let mut first = Vec::with_capacity(text.len());
    for &byte in text {
        if matches!(byte, b'?' | b'!' | b'.' | b',') && first.last() == Some(&b' ') {
            first.pop();
        }
        first.push(byte);
    }
    let mut second = Vec::with_capacity(first.len());
    let mut i = 0;
    let mut after_space = false;
    while i < first.len() {
        let lone = first[i] == b'\'' && after_space && first.get(i + 1) == Some(&b' ');
        if lone {
            second.pop();
        }
        second.push(first[i]);
        after_space = first[i] == b' ';
        i += if lone { 2 } else { 1 };
    }
    let mut third = Vec::with_capacity(second.len());
    for (i, &byte) in second.iter().enumerate() {
        let contraction = matches!(&second[i..], [b'\'', b's' | b'm', ..] | [b'\'', b'r' | b'v', b'e', ..]);
        if contraction && i > 0 && second[i - 1] == b' ' {
            third.pop();
        }
        third.push(byte);
    }
    third
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning_takes_spaces_before_punctuation_and_contractions() {
        assert_eq!(clean_spaces(b"a , b . c ? d !"), b"a, b. c? d!");
        assert_eq!(
            clean_spaces(b"it 's we 're I 'm you 've he 'll she 'd don 't"),
            b"it's we're I'm you've he 'll she 'd don 't"
        );
        assert_eq!(clean_spaces(b"a ' b"), b"a'b");
        assert_eq!(clean_spaces(b" "), b" ");
        assert_eq!(clean_spaces(b""), b"");
        assert_eq!(clean_spaces(b" , ."), b",.");
    }

    #[test]
    fn membership_of_the_end_of_generation_set_is_by_id() {
        let special = SpecialTokens { eog: vec![2, 7], ..SpecialTokens::default() };
        assert!(special.is_eog(7) && !special.is_eog(3));
    }
}
