//! Remembers the tokens of words within one text: most words of a long text occur again and again.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use pi_core::text::TokenId;

/// Longer words hardly ever occur twice, and comparing them costs more than it saves.
const LONGEST: usize = 48;

/// Where a word is kept, and where in the output its tokens are.
struct Entry {
    word: (usize, usize),
    tokens: (usize, usize),
}

/// The words of a text that were met before.
#[derive(Default)]
pub(super) struct WordCache {
    words: Vec<u8>,
    entries: HashTable<Entry>,
    hasher: DefaultHashBuilder,
}

impl WordCache {
    /// Appends the tokens of `word`, found by `tokenize` the first time. A cache goes with one `out`.
    pub(super) fn push<E>(
        &mut self,
        word: &[u8],
        out: &mut Vec<TokenId>,
        tokenize: impl FnOnce(&[u8], &mut Vec<TokenId>) -> Result<(), E>,
    ) -> Result<(), E> {
        if word.len() > LONGEST {
            return tokenize(word, out);
        }
        let Self { words, entries, hasher } = self;
        let hash = hasher.hash_one(word);
        if let Some(entry) = entries.find(hash, |entry| &words[entry.word.0..entry.word.1] == word) {
            out.extend_from_within(entry.tokens.0..entry.tokens.1);
            return Ok(());
        }
        let start = out.len();
        tokenize(word, out)?;
        let place = (words.len(), words.len() + word.len());
        words.extend_from_slice(word);
        let entry = Entry { word: place, tokens: (start, out.len()) };
        entries.insert_unique(hash, entry, |entry| hasher.hash_one(&words[entry.word.0..entry.word.1]));
        Ok(())
    }
}
