//! The header: everything in a file before the tensors' data. It is read once, and every number in it is checked against
//! the bytes that are there before anything is done with it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::identify::{Format, IDENTIFY_LEN, identify, is_swapped_version};
use crate::metadata::{Entry, Metadata, Place};
use crate::mmap::FileBytes;
use crate::tensor::{Dims, MAX_DIMS, MAX_NAME_LEN, TensorInfo, TensorType, check_overlap};
use crate::value::{LEN_BYTES, Value, ValueType};

/// Alignment of the tensors' data in a file that does not state one.
pub const DEFAULT_ALIGNMENT: usize = 32;

/// The largest alignment that is accepted.
pub const MAX_ALIGNMENT: usize = 1 << 24;

/// The key that states another alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Keys are at most this many bytes long.
pub(crate) const MAX_KEY_LEN: usize = 65_535;

/// The architecture of PowerInfer's neuron index files.
pub(crate) const NEURON_INDEX_ARCHITECTURE: &str = "generic.gpu_index";

/// Which of the two kinds of GGUF a file is. They differ in their first four bytes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Ordinary GGUF.
    Gguf,
    /// PowerInfer's variant. The magic, `PWRI`, is the only sign that a model is to be run sparsely, or that the file is a
    /// neuron index.
    PowerInfer,
}

impl Kind {
    /// The first four bytes of such a file.
    pub fn magic(self) -> [u8; 4] {
        match self {
            Self::Gguf => *b"GGUF",
            Self::PowerInfer => *b"PWRI",
        }
    }
}

/// What the header of one file says.
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    /// Where the last tensor's data ends (or the header, where there are none).
    pub(crate) end: usize,
}

/// Fewest bytes of a key and its value: a key of one byte, and a value of one.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;
/// Fewest bytes of a row of the tensor table: a name of one byte, and one dimension.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Reads the header of `bytes`. That tensor names differ is left to [`File`](crate::File), which knows all parts.
pub(crate) fn parse(bytes: &Arc<FileBytes>, path: &Arc<Path>) -> Result<Header> {
    let data: &[u8] = (**bytes).as_ref();
    let kind = kind(data, path)?;
    let mut cursor = Cursor { data, at: 4, path };
    let version = cursor.u32("the version")?;
    if is_swapped_version(data) {
        return Err(Error::BigEndian { path: path.to_path_buf() });
    }
    if !(2..=3).contains(&version) {
        return Err(Error::Version { path: path.to_path_buf(), version });
    }
    let tensor_count = cursor.u64("the number of tensors")?;
    let key_count = cursor.u64("the number of keys")?;
    cursor.check_count("the number of keys", key_count, MIN_ENTRY)?;
    cursor.check_count("the number of tensors", tensor_count, MIN_TENSOR)?;

    let mut entries = Vec::new();
    for index in 0..key_count {
        entries.push(cursor.entry(index)?);
    }
    let metadata = Metadata::new(path.clone(), bytes.clone(), entries)?;
    let alignment = alignment(&metadata)?;
    let architecture = metadata.value("general.architecture").and_then(Value::to::<&str>);
    let old_ids = kind == Kind::PowerInfer && architecture == Some(NEURON_INDEX_ARCHITECTURE);

    let mut tensors = Vec::new();
    let mut offsets = Vec::new();
    for index in 0..tensor_count {
        let (info, offset) = cursor.tensor(index, old_ids)?;
        tensors.push(info);
        offsets.push(offset);
    }

    let mut end = cursor.at;
    let start = end + padding(end, alignment);
    for (info, offset) in tensors.iter_mut().zip(offsets) {
        info.range = place(path, info, start, offset, alignment, data.len())?;
        end = end.max(info.range.end);
    }
    check_overlap(path, &tensors)?;
    Ok(Header { kind, version, alignment, metadata, tensors, end })
}

/// Which kind of GGUF begins with these bytes, or what else they are.
fn kind(data: &[u8], path: &Path) -> Result<Kind> {
    let path = path.to_path_buf();
    for kind in [Kind::Gguf, Kind::PowerInfer] {
        let magic = kind.magic();
        if data.starts_with(&magic) {
            return Ok(kind);
        }
        if !data.is_empty() && magic.starts_with(data) {
            let (what, left) = ("the magic".to_owned(), data.len() as u64);
            return Err(Error::Truncated { path, what, offset: 0, need: 4, left });
        }
    }
    match identify(&data[..data.len().min(IDENTIFY_LEN)]) {
        Format::GgufBigEndian => Err(Error::BigEndian { path }),
        found => Err(Error::NotGguf { path, found }),
    }
}

fn alignment(metadata: &Metadata) -> Result<usize> {
    let Some(value) = metadata.value(ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let wrong = |expected: String| Error::Value {
        path: metadata.path().to_owned(),
        key: ALIGNMENT_KEY.to_owned(),
        expected,
        got: value.describe(),
    };
    let Value::U32(alignment) = value else { return Err(wrong("u32".to_owned())) };
    usize::try_from(alignment)
        .ok()
        .filter(|n| n.is_power_of_two() && *n <= MAX_ALIGNMENT)
        .ok_or_else(|| wrong(format!("an alignment that is a power of two and at most {MAX_ALIGNMENT}")))
}

/// Bytes from `len` up to the next multiple of `alignment`.
pub(crate) fn padding(len: usize, alignment: usize) -> usize {
    len.wrapping_neg() & (alignment - 1)
}

/// Where a tensor's data lies in a file of `len` bytes, whose data section begins at `start`.
fn place(
    path: &Path,
    info: &TensorInfo,
    start: usize,
    offset: u64,
    alignment: usize,
    len: usize,
) -> Result<Range<usize>> {
    let (path, tensor) = (path.to_owned(), info.name.to_string());
    let size = match info.ty.tensor_bytes(info.dims.as_slice()) {
        Ok(size) => size,
        Err((expected, got)) => return Err(Error::Shape { path, tensor, expected, got }),
    };
    if !offset.is_multiple_of(alignment as u64) {
        return Err(Error::Misaligned { path, tensor, alignment: alignment as u64, offset });
    }
    if size == 0 {
        return Ok(0..0); // no bytes, which are everywhere: a file need not be padded up to where they would be
    }
    let begin = usize::try_from(offset).ok().and_then(|offset| start.checked_add(offset));
    match begin.and_then(|begin| Some(begin..begin.checked_add(size)?)).filter(|range| range.end <= len) {
        Some(range) => Ok(range),
        None => {
            let start = offset.saturating_add(start as u64);
            Err(Error::OutOfBounds { path, tensor, start, size: size as u64, len: len as u64 })
        }
    }
}

/// A place in the file, moving forward. `what` in its methods says what is being read, if it turns out not to be there.
struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> u64 {
        (self.data.len() - self.at) as u64
    }

    fn take(&mut self, need: u64, what: impl ToString) -> Result<&'a [u8]> {
        let end = usize::try_from(need).ok().and_then(|need| self.at.checked_add(need));
        match end.and_then(|end| self.data.get(self.at..end)) {
            Some(bytes) => {
                self.at += bytes.len();
                Ok(bytes)
            }
            None => Err(Error::Truncated {
                path: self.path.to_owned(),
                what: what.to_string(),
                offset: self.at as u64,
                need,
                left: self.left(),
            }),
        }
    }

    fn array<const N: usize>(&mut self, what: impl ToString) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: impl ToString) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: impl ToString) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// The bytes of a string, after its length.
    fn string(&mut self, what: impl ToString + Copy) -> Result<&'a [u8]> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// Refuses a number of things, each of at least `each` bytes, that cannot be there.
    fn check_count(&self, what: impl ToString, count: u64, each: u64) -> Result<()> {
        let limit = self.left() / each;
        if count <= limit {
            return Ok(());
        }
        Err(Error::Count { path: self.path.to_owned(), what: what.to_string(), count, limit })
    }

    /// A name of a key or tensor, from 1 to `max` bytes long.
    fn name(&mut self, what: impl Fn() -> String, max: usize, limits: &'static str) -> Result<&'a str> {
        let what = Lazy(&what);
        let bytes = self.string(what)?;
        let wrong = |got| Error::Name { path: self.path.to_owned(), what: what.to_string(), expected: limits, got };
        if bytes.is_empty() || bytes.len() > max {
            return Err(wrong(format!("{} bytes", bytes.len())));
        }
        std::str::from_utf8(bytes).map_err(|_| wrong(format!("\"{}\"", bytes.escape_ascii())))
    }

    fn entry(&mut self, index: u64) -> Result<Entry> {
        let key = self.name(|| format!("key {index}"), MAX_KEY_LEN, "1 to 65535 bytes of UTF-8")?;
        let context = || format!("the value of '{}'", key.escape_debug());
        let ty = self.value_type(key)?;
        let value = match ty {
            ValueType::String => {
                let bytes = self.string(Lazy(&context))?;
                Place::Text(self.at - bytes.len()..self.at)
            }
            ValueType::Array => self.array_value(key)?,
            scalar => {
                let bytes = self.take(scalar.width().unwrap_or(0) as u64, Lazy(&context))?;
                self.check_bools(key, scalar, bytes)?;
                Place::Scalar(Value::scalar(scalar, bytes).unwrap_or(Value::Bool(false)))
            }
        };
        Ok(Entry { key: key.into(), value })
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType> {
        let id = self.u32(Lazy(&|| format!("the type of '{}'", key.escape_debug())))?;
        ValueType::from_id(id).ok_or_else(|| self.wrong_value(key, "a value type from 0 to 12", format!("type {id}")))
    }

    fn array_value(&mut self, key: &str) -> Result<Place> {
        let context = || format!("the array '{}'", key.escape_debug());
        let element = self.value_type(key)?;
        let count = self.u64(Lazy(&context))?;
        let length = || format!("the length of '{}'", key.escape_debug());
        let begin = self.at;
        let mut starts = Vec::new();
        match (element, element.width()) {
            (ValueType::Array, _) => {
                return Err(self.wrong_value(
                    key,
                    "an array of numbers, booleans or strings",
                    "an array of arrays".into(),
                ));
            }
            (_, Some(width)) => {
                self.check_count(Lazy(&length), count, width as u64)?;
                let bytes = self.take(count.saturating_mul(width as u64), Lazy(&context))?;
                self.check_bools(key, element, bytes)?;
            }
            (_, None) => {
                self.check_count(Lazy(&length), count, LEN_BYTES as u64)?;
                starts.push(0);
                for i in 0..count {
                    self.string(Lazy(&|| format!("string {i} of '{}'", key.escape_debug())))?;
                    starts.push(self.at - begin);
                }
            }
        }
        // `count` things are in memory, so that their number fits.
        let len = usize::try_from(count).unwrap_or(0);
        Ok(Place::Array { element, len, range: begin..self.at, starts: starts.into() })
    }

    fn check_bools(&self, key: &str, ty: ValueType, bytes: &[u8]) -> Result<()> {
        if ty != ValueType::Bool {
            return Ok(());
        }
        match bytes.iter().find(|&&byte| byte > 1) {
            Some(byte) => Err(self.wrong_value(key, "a bool of 0 or 1", byte.to_string())),
            None => Ok(()),
        }
    }

    fn wrong_value(&self, key: &str, expected: &str, got: String) -> Error {
        Error::Value { path: self.path.to_owned(), key: key.to_owned(), expected: expected.to_owned(), got }
    }

    /// A row of the tensor table, and the offset of the data. Where that is in the file is not known yet.
    fn tensor(&mut self, index: u64, old_ids: bool) -> Result<(TensorInfo, u64)> {
        let name = self.name(|| format!("tensor {index}"), MAX_NAME_LEN, "1 to 63 bytes of UTF-8")?;
        let what = || format!("the tensor table's row of '{}'", name.escape_debug());
        let wrong = |path: &Path, expected: String, got: String| Error::Shape {
            path: path.to_owned(),
            tensor: name.to_owned(),
            expected,
            got,
        };
        let count = self.u32(Lazy(&what))?;
        if count == 0 || count as usize > MAX_DIMS {
            return Err(wrong(self.path, format!("1 to {MAX_DIMS} dimensions"), count.to_string()));
        }
        let mut sizes = [0usize; MAX_DIMS];
        for size in &mut sizes[..count as usize] {
            let dim = self.u64(Lazy(&what))?;
            *size = usize::try_from(dim)
                .map_err(|_| wrong(self.path, "dimensions that can be counted".to_owned(), dim.to_string()))?;
        }
        let dims = Dims::new(&sizes[..count as usize])
            .ok_or_else(|| wrong(self.path, format!("1 to {MAX_DIMS} dimensions"), count.to_string()))?;
        let id = self.u32(Lazy(&what))?;
        let ty = if old_ids { TensorType::from_neuron_index_id(id) } else { TensorType::from_id(id) };
        let ty = ty.ok_or_else(|| Error::TensorType { path: self.path.to_owned(), tensor: name.to_owned(), id })?;
        let offset = self.u64(Lazy(&what))?;
        Ok((TensorInfo { name: name.into(), ty, dims, part: 0, range: 0..0 }, offset))
    }
}

/// Words for an error message, put together only if there is an error.
struct Lazy<'a>(&'a dyn Fn() -> String);

impl Clone for Lazy<'_> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Lazy<'_> {}

impl std::fmt::Display for Lazy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&(self.0)())
    }
}
