//! The key-value table of a file.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mmap::FileBytes;
use crate::value::{Array, FromValue, Text, Value, ValueType};

/// The keys and values of a file, in the file's order, and checked when it was opened.
///
/// What is kept in memory is keys, numbers and offsets; strings and arrays stay in the file's bytes, which this shares.
#[derive(Clone)]
pub struct Metadata {
    path: Arc<Path>,
    bytes: Arc<FileBytes>,
    entries: Arc<[Entry]>,
    /// Indices of `entries`, sorted by key.
    sorted: Arc<[usize]>,
}

/// A key and where its value is.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Box<str>,
    pub(crate) value: Place,
}

/// A value that was checked: a number itself, or where in the file the rest is.
#[derive(Debug)]
pub(crate) enum Place {
    Scalar(Value<'static>),
    Text(Range<usize>),
    Array { element: ValueType, len: usize, range: Range<usize>, starts: Box<[usize]> },
}

impl Place {
    fn value<'a>(&'a self, bytes: &'a [u8]) -> Value<'a> {
        let part = |range: &Range<usize>| bytes.get(range.clone()).unwrap_or_default();
        match self {
            Self::Scalar(value) => *value,
            Self::Text(range) => Value::String(Text::new(part(range))),
            Self::Array { element, len, range, starts } => {
                Value::Array(Array { element: *element, len: *len, bytes: part(range), starts })
            }
        }
    }
}

impl Metadata {
    /// Refuses a key that appears twice.
    pub(crate) fn new(path: Arc<Path>, bytes: Arc<FileBytes>, entries: Vec<Entry>) -> Result<Self> {
        let mut sorted: Vec<usize> = (0..entries.len()).collect();
        sorted.sort_unstable_by(|&a, &b| entries[a].key.cmp(&entries[b].key));
        if let Some(pair) = sorted.windows(2).find(|pair| entries[pair[0]].key == entries[pair[1]].key) {
            return Err(Error::DuplicateKey { path: path.to_path_buf(), key: entries[pair[0]].key.to_string() });
        }
        Ok(Self { path, bytes, entries: entries.into(), sorted: sorted.into() })
    }

    /// The file that the keys are in, for error messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`, whatever its type.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        let compare = |&i: &usize| -> Ordering { (*self.entries[i].key).cmp(key) };
        let found = self.sorted.binary_search_by(compare).ok()?;
        Some(self.entries[self.sorted[found]].value.value((*self.bytes).as_ref()))
    }

    /// True if `key` is there.
    pub fn contains(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The value of `key` as a `T`, or `None` if the key is not there.
    ///
    /// # Errors
    /// [`Error::KeyType`] if the value does not [convert](FromValue) to `T`.
    ///
    /// ```no_run
    /// # fn main() -> pi_gguf::Result<()> {
    /// let file = pi_gguf::File::open("model.gguf")?;
    /// let layers: u32 = file.metadata().require("llama.block_count")?;
    /// let theta: f32 = file.metadata().get("llama.rope.freq_base")?.unwrap_or(10_000.0);
    /// let scores: Vec<f32> = file.metadata().get("tokenizer.ggml.scores")?.unwrap_or_default();
    /// # Ok(()) }
    /// ```
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::KeyType {
                path: self.path_buf(),
                key: key.to_owned(),
                expected: T::expected().into_owned(),
                got: value.describe(),
            }),
        }
    }

    /// The value of `key` as a `T`.
    ///
    /// # Errors
    /// [`Error::MissingKey`] if the key is not there, and as [`get`](Self::get).
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| Error::MissingKey { path: self.path_buf(), key: key.to_owned() })
    }

    /// Keys and values in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> + DoubleEndedIterator {
        let bytes: &[u8] = (*self.bytes).as_ref();
        self.entries.iter().map(move |entry| (&*entry.key, entry.value.value(bytes)))
    }

    fn path_buf(&self) -> PathBuf {
        self.path.to_path_buf()
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
