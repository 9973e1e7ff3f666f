//! Text from people is no control token, whatever a template does with it.
//!
//! A template takes messages apart and puts them together, so that its result does not say what is whose. Hence marks: a character that
//! means nothing (one of Unicode's noncharacters) is put behind the first character of whatever could become a control token. The
//! result is searched for marks; they are taken out, and the characters before them are *quoted*: no control token is recognised there.

use super::TemplateError;
use aho_corasick::AhoCorasick;
use pi_engine::pi_core::text::{TokenKind, Tokenizer};
use serde_json::{Map, Value};
use std::{collections::BTreeSet, ops::Range};

/// Which characters of messages are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Care {
    /// Where the text of a control token begins, or may begin to be completed by what follows. All other text reaches the template as it is.
    Whole,
    /// Every character that a control token begins with: whatever the template cuts out and joins, none comes of it.
    Every,
}

/// The control tokens of a vocabulary.
pub(super) struct Control {
    find: AhoCorasick,
    texts: Vec<String>,
    firsts: BTreeSet<char>,
    longest: usize,
}

impl Control {
    pub fn of(tokenizer: &dyn Tokenizer) -> Result<Self, TemplateError> {
        let ids = 0..u32::try_from(tokenizer.len()).unwrap_or(u32::MAX);
        let control = |id: &u32| matches!(tokenizer.kind(*id), Some(TokenKind::Control | TokenKind::Unknown));
        let text = |id| Some(String::from_utf8_lossy(tokenizer.piece(id, true)?).into_owned());
        let texts: Vec<String> = ids.filter(control).filter_map(text).filter(|text| !text.is_empty()).collect();
        let firsts = texts.iter().filter_map(|text| text.chars().next()).collect();
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        let find = AhoCorasick::new(&texts).map_err(|e| TemplateError::Vocabulary(e.to_string()))?;
        Ok(Self { find, texts, firsts, longest })
    }

    /// The text with marks.
    pub fn marked(&self, text: &str, mark: char, care: Care) -> String {
        let mut starts = BTreeSet::new();
        match care {
            Care::Every => starts.extend(text.char_indices().filter(|(_, c)| self.firsts.contains(c)).map(|(i, _)| i)),
            Care::Whole => {
                starts.extend(self.find.find_overlapping_iter(text).map(|found| found.start()));
                let tail = text.len().saturating_sub(self.longest);
                let tail = text.char_indices().map(|(i, _)| i).filter(|&i| i >= tail);
                starts.extend(tail.filter(|&i| self.texts.iter().any(|t| t.starts_with(&text[i..]))));
            }
        }
        let mut out = String::with_capacity(text.len() + 3 * starts.len());
        for (i, c) in text.char_indices() {
            out.push(c);
            if starts.contains(&i) {
                out.push(mark);
            }
        }
        out
    }

    /// Every text in `value` with marks.
    pub fn mark_all(&self, value: &Value, mark: char, care: Care) -> Value {
        match value {
            Value::String(text) => Value::String(self.marked(text, mark, care)),
            Value::Array(items) => items.iter().map(|item| self.mark_all(item, mark, care)).collect(),
            Value::Object(fields) => {
                // templates compare these with words, and vocabularies have control tokens that begin with letters
                let word = |key: &str| if matches!(key, "role" | "type") { Care::Whole } else { care };
                let field = |(key, value): (&String, _)| {
                    (self.marked(key, mark, Care::Whole), self.mark_all(value, mark, word(key)))
                };
                Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }
}

/// A noncharacter that occurs in none of these.
pub(super) fn unused_mark<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Option<char> {
    ('\u{FDD0}'..='\u{FDEF}').find(|&mark| !texts.clone().any(|text| text.contains(mark)))
}

/// The text without marks, and the ranges of bytes that stood before one.
pub(super) fn unmarked(text: &str, mark: char) -> (String, Vec<Range<usize>>) {
    let (mut out, mut quoted) = (String::with_capacity(text.len()), Vec::new());
    for c in text.chars() {
        match out.chars().next_back() {
            Some(before) if c == mark => quoted.push(out.len() - before.len_utf8()..out.len()),
            _ if c == mark => {}
            _ => out.push(c),
        }
    }
    quoted.dedup();
    (out, quoted)
}
