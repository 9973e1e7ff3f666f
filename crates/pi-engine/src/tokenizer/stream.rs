//! Tokens become text while they are generated, never half a character at a time.

use std::sync::Arc;

use pi_core::text::{DecodeOptions, TextError, TokenId, Tokenizer};

/// Bytes that become text as soon as their characters are whole.
///
/// What is not UTF-8 becomes one U+FFFD per malformed sequence, as `String::from_utf8_lossy` does, so that the joined
/// stream is the same as the whole converted at once, however the bytes were cut.
#[derive(Debug, Default, Clone)]
pub struct Utf8Stream {
    /// The beginning of a character, at most three bytes.
    held: Vec<u8>,
    text: String,
}

impl Utf8Stream {
    /// A stream with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes; returns the text that became whole, perhaps none.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.text.clear();
        self.append(bytes);
        &self.text
    }

    fn append(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        let mut taken = 0;
        for chunk in self.held.utf8_chunks() {
            self.text.push_str(chunk.valid());
            taken += chunk.valid().len();
            let invalid = chunk.invalid();
            // At the very end it may only be unfinished: then the bytes have no error but their end.
            let unfinished = taken + invalid.len() == self.held.len()
                && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if !invalid.is_empty() && !unfinished {
                self.text.push(char::REPLACEMENT_CHARACTER);
                taken += invalid.len();
            }
        }
        self.held.drain(..taken);
    }

    /// Ends the stream: returns U+FFFD if a character was left unfinished, and is ready for another text.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.end();
        &self.text
    }

    fn end(&mut self) {
        if !self.held.is_empty() {
            self.held.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Turns a sequence of tokens into text, token by token.
///
/// The joined text is that of [`Tokenizer::decode`] with the same options, malformed parts replaced;
/// [`clean_spaces`](DecodeOptions::clean_spaces) is ignored, as it would change text already given away.
pub struct StreamDecoder {
    tokenizer: Arc<dyn Tokenizer>,
    options: DecodeOptions,
    utf8: Utf8Stream,
    at_start: bool,
    strip_space: bool,
    /// An end-of-text token that is only dropped if nothing follows it.
    held_eos: Option<TokenId>,
    /// Control tokens that are written as their text.
    shown: Vec<TokenId>,
}

impl StreamDecoder {
    /// For a sequence from its first token on: the space that encoding puts before a text is taken away again.
    pub fn new(tokenizer: Arc<dyn Tokenizer>, options: DecodeOptions) -> Self {
        let strip_space = tokenizer.special().add_space_prefix;
        Self {
            tokenizer,
            options,
            utf8: Utf8Stream::new(),
            at_start: true,
            strip_space,
            held_eos: None,
            shown: Vec::new(),
        }
    }

    /// For what is generated behind a prompt: a leading space belongs to the text.
    pub fn continuing(tokenizer: Arc<dyn Tokenizer>, options: DecodeOptions) -> Self {
        Self { at_start: false, strip_space: false, ..Self::new(tokenizer, options) }
    }

    /// Writes these control tokens as their text, whatever the options say of others.
    #[must_use]
    pub fn showing(mut self, tokens: Vec<TokenId>) -> Self {
        self.shown = tokens;
        self
    }

    /// Adds a token; returns the text that became whole, perhaps none.
    ///
    /// # Errors
    /// [`TextError::OutOfRange`] for an id beyond the vocabulary; the stream can go on without it.
    pub fn push(&mut self, id: TokenId) -> Result<&str, TextError> {
        let len = self.tokenizer.len();
        if id as usize >= len {
            return Err(TextError::OutOfRange { id, len });
        }
        self.utf8.text.clear();
        let special = self.tokenizer.special();
        let (begins, ends) = (special.add_bos && special.bos == Some(id), special.add_eos && special.eos == Some(id));
        if std::mem::take(&mut self.at_start) && self.options.trim_special && begins {
            self.strip_space = false;
            return Ok("");
        }
        let held = if self.options.trim_special && ends { self.held_eos.replace(id) } else { self.held_eos.take() };
        if let Some(eos) = held {
            self.append(eos);
        }
        if self.held_eos.is_none() {
            self.append(id);
        }
        Ok(&self.utf8.text)
    }

    fn append(&mut self, id: TokenId) {
        let piece = self.tokenizer.piece(id, self.options.special || self.shown.contains(&id)).unwrap_or_default();
        let strip = std::mem::take(&mut self.strip_space);
        self.utf8.append(if strip { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece });
    }

    /// Ends the sequence: returns U+FFFD if it ended inside a character.
    pub fn finish(&mut self) -> &str {
        self.held_eos = None;
        self.utf8.finish()
    }
}

impl std::fmt::Debug for StreamDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamDecoder")
            .field("options", &self.options)
            .field("utf8", &self.utf8)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_emoji_in_pieces_comes_out_whole() {
        for cuts in [vec![2], vec![1, 2, 3]] {
            let bytes = "😀".as_bytes();
            let mut stream = Utf8Stream::new();
            let mut start = 0;
            for cut in cuts {
                assert_eq!(stream.push(&bytes[start..cut]), "");
                start = cut;
            }
            assert_eq!(stream.push(&bytes[start..]), "😀");
            assert_eq!(stream.finish(), "");
        }
    }

    #[test]
    fn a_text_that_ends_inside_a_character_ends_with_one_replacement() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(b"ok \xf0\x9f\x98"), "ok ");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.push(b"again"), "again");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn what_cannot_become_a_character_is_not_held_back() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.push(b"x\xff"), "\u{fffd}x\u{fffd}");
    }

    proptest! {
        #[test]
        fn the_joined_stream_is_the_whole_text_for_every_cut(
            parts in proptest::collection::vec(
                prop_oneof![any::<char>().prop_map(|c| c.to_string().into_bytes()), proptest::collection::vec(any::<u8>(), 0..4)],
                0..20,
            ),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bytes = parts.concat();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut stream = Utf8Stream::new();
            let mut joined = String::new();
            for pair in cuts.windows(2) {
                joined.push_str(stream.push(&bytes[pair[0]..pair[1]]));
            }
            joined.push_str(stream.finish());
            prop_assert_eq!(joined, String::from_utf8_lossy(&bytes));
        }
    }
}
