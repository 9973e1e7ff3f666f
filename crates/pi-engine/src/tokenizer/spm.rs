//! SentencePiece: neighbouring pieces merge where the result is a token, the best score first.
//!
//! Scores are compared over the whole text, but two characters that stand side by side in no token can never end up in one
//! token. Text is cut there, mostly before spaces, which gives the same tokens from many short lists instead of a long one.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

use hashbrown::HashSet;
use pi_core::text::{EncodeOptions, SpecialTokens, TextError, TokenId, TokenKind, Tokenizer};

use super::cache::WordCache;
use super::error::{VocabError, VocabWarning};
use super::gguf;
use super::pre::Pre;
use super::table::{SPACE_MARK, Table};
use super::vocab::Vocab;

/// A tokenizer of the SentencePiece kind.
#[derive(Debug)]
pub(super) struct Spm {
    table: Table,
    scores: Vec<f32>,
    /// The token of every byte, if there is one.
    bytes: Vec<Option<TokenId>>,
    /// The characters that stand side by side in a token.
    neighbours: HashSet<[u32; 2]>,
}

/// Room to work in, kept from one word to the next.
#[derive(Default)]
struct Scratch {
    merging: Merging,
    cache: WordCache,
}

/// Room for one word.
#[derive(Default)]
struct Merging {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Pair>,
}

/// A piece of text in the list of pieces; empty once it was merged into the piece before.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    len: u32,
    prev: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// Two neighbours that may merge. The greatest goes first: best score, then leftmost.
struct Pair {
    score: f32,
    left: u32,
    right: u32,
    /// Length of both when the pair was found: if it changed, the pair is no more.
    len: u32,
}

impl Pair {
    fn key(&self) -> (f32, Reverse<u32>) {
        (self.score, Reverse(self.left))
    }
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((a, at), (b, bt)) = (self.key(), other.key());
        a.total_cmp(&b).then(at.cmp(&bt))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

/// The characters of a text, which may be malformed: a character is as long as its first byte says.
fn chars(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let len = match rest.first()? {
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xff => 4,
            _ => 1,
        };
        let (char, behind) = rest.split_at(len.min(rest.len()));
        rest = behind;
        Some(char)
    })
}

/// A character as a number.
fn key(char: &[u8]) -> u32 {
    char.iter().fold(0, |key, &byte| key << 8 | u32::from(byte))
}

impl Spm {
    pub(super) fn new(mut vocab: Vocab, warnings: &mut Vec<VocabWarning>) -> Result<Self, VocabError> {
        let mut table = Table::new(&mut vocab, &Pre::sentence_piece(), warnings)?;
        let (len, got) = (table.len(), vocab.scores.len());
        if got > 0 && got < len {
            return Err(VocabError::TooShort { key: gguf::SCORES, expected: len, got });
        }
        let mut scores = vocab.scores;
        scores.resize(len, 0.0);
        // Minus zero is zero; in the order of floats it would be less.
        scores.iter_mut().for_each(|score| *score += 0.0);
        let bytes: Vec<_> = (0..=255u8)
            .map(|byte| table.find(format!("<0x{byte:02X}>").as_bytes()).or_else(|| table.find(&[byte])))
            .collect();
        let mut neighbours = HashSet::new();
        for text in table.tokens.iter() {
            let mut left = None;
            for char in chars(text) {
                let char = key(char);
                if let Some(left) = left.replace(char) {
                    neighbours.insert([left, char]);
                }
            }
        }
        table.special.newline = bytes[usize::from(b'\n')].or(table.special.pad);
        Ok(Self { table, scores, bytes, neighbours })
    }

    /// Appends the tokens of a text whose spaces are marked already.
    fn push_text(&self, text: &[u8], out: &mut Vec<TokenId>, scratch: &mut Scratch) -> Result<(), TextError> {
        let Scratch { merging, cache } = scratch;
        let (mut start, mut at) = (0, 0);
        let mut left = None;
        for char in chars(text) {
            let right = key(char);
            if left.replace(right).is_some_and(|left| !self.neighbours.contains(&[left, right])) {
                cache.push(&text[start..at], out, |word, out| self.push_word(word, out, merging))?;
                start = at;
            }
            at += char.len();
        }
        cache.push(&text[start..], out, |word, out| self.push_word(word, out, merging))
    }

    /// Appends the tokens of a text that is merged as a whole.
    fn push_word(&self, text: &[u8], out: &mut Vec<TokenId>, room: &mut Merging) -> Result<(), TextError> {
        let Merging { symbols, heap } = room;
        symbols.clear();
        let mut start = 0;
        for (char, index) in chars(text).zip(0u32..) {
            let len = char.len() as u32;
            symbols.push(Symbol { start, len, prev: index.wrapping_sub(1), next: index + 1 });
            start += len;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let bytes_of = |start: u32, len: u32| &text[start as usize..(start + len) as usize];
        let pair = |symbols: &[Symbol], left: u32, right: u32| -> Option<Pair> {
            let (a, b) = (symbols.get(left as usize)?, symbols.get(right as usize)?);
            let len = a.len + b.len;
            let id = self.table.find(bytes_of(a.start, len))?;
            Some(Pair { score: self.scores[id as usize], left, right, len })
        };
        heap.clear();
        heap.extend((1..symbols.len() as u32).filter_map(|right| pair(symbols, right - 1, right)));
        while let Some(Pair { left, right, len, .. }) = heap.pop() {
            let (a, b) = (symbols[left as usize], symbols[right as usize]);
            if a.len == 0 || b.len == 0 || a.len + b.len != len {
                continue;
            }
            symbols[left as usize] = Symbol { len, next: b.next, ..a };
            symbols[right as usize].len = 0;
            if b.next != NONE {
                symbols[b.next as usize].prev = left;
            }
            heap.extend(pair(symbols, a.prev, left));
            heap.extend(pair(symbols, left, b.next));
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            self.push_symbol(bytes_of(symbol.start, symbol.len), out)?;
        }
        Ok(())
    }

    /// Appends the token of a piece, or those of its bytes, or the unknown token.
    fn push_symbol(&self, text: &[u8], out: &mut Vec<TokenId>) -> Result<(), TextError> {
        if let Some(id) = self.table.find(text) {
            out.push(id);
            return Ok(());
        }
        let byte = |&byte: &u8| self.bytes[usize::from(byte)];
        if text.iter().all(|b| byte(b).is_some()) {
            out.extend(text.iter().filter_map(byte));
            return Ok(());
        }
        out.push(self.table.special.unk.ok_or_else(|| TextError::NoToken { bytes: text.to_vec() })?);
        Ok(())
    }
}

impl Tokenizer for Spm {
    fn len(&self) -> usize {
        self.table.len()
    }

    fn encode_quoting(
        &self,
        text: &[u8],
        quoted: &[Range<usize>],
        options: EncodeOptions,
    ) -> Result<Vec<TokenId>, TextError> {
        let (mut marked, mut scratch) = (Vec::new(), Scratch::default());
        self.table.encode(text, quoted, options, |text, begins, out| {
            marked.clear();
            if begins && self.table.special.add_space_prefix {
                marked.extend_from_slice(SPACE_MARK);
            }
            for &byte in text {
                match byte {
                    b' ' => marked.extend_from_slice(SPACE_MARK),
                    byte => marked.push(byte),
                }
            }
            self.push_text(&marked, out, &mut scratch)
        })
    }

    fn piece(&self, id: TokenId, special: bool) -> Option<&[u8]> {
        self.table.piece(id, special)
    }

    fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.table.kind(id)
    }

    fn special(&self) -> &SpecialTokens {
        &self.table.special
    }

    fn find(&self, text: &[u8]) -> Option<TokenId> {
        self.table.find(text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocab::VocabModel;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cutting_text_into_words_changes_no_token(
            longer in proptest::collection::btree_map("[abcé]{2,4}", -9i8..0, 0..12),
            text in "[abcdé]{0,30}",
        ) {
            let tokens: Vec<(&str, i8)> =
                [("a", -9), ("b", -9), ("c", -9), ("?", 0)].into_iter().chain(longer.iter().map(|(t, s)| (t.as_str(), *s))).collect();
            let mut vocab = Vocab::new(VocabModel::Spm, tokens.iter().map(|(text, _)| text));
            vocab.scores = tokens.iter().map(|(_, score)| f32::from(*score)).collect();
            vocab.special.unk = Some(3);
            let spm = Spm::new(vocab, &mut Vec::new()).unwrap();
            let (mut cut, mut whole) = (Vec::new(), Vec::new());
            spm.push_text(text.as_bytes(), &mut cut, &mut Scratch::default()).unwrap();
            spm.push_word(text.as_bytes(), &mut whole, &mut Merging::default()).unwrap();
            prop_assert_eq!(cut, whole);
        }
    }
}
