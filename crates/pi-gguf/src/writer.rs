//! Writing a file: first its header from a [`Builder`], then the tensors' bytes as they come.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use crate::atomic::AtomicFile;
use crate::error::{Error, Result};
use crate::header::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Kind, MAX_ALIGNMENT, MAX_KEY_LEN, NEURON_INDEX_ARCHITECTURE, padding,
};
use crate::tensor::{Dims, MAX_DIMS, MAX_NAME_LEN, TensorType};
use crate::value::{Array, Text, Value, ValueType};

/// The version of the format that is written.
const VERSION: u32 = 3;

/// The header of a file to be written: keys, values, and which tensors there will be.
///
/// ```
/// # fn main() -> pi_gguf::Result<()> {
/// use pi_gguf::{Builder, File, Kind};
/// use pi_core::QuantType;
///
/// let mut builder = Builder::new(Kind::Gguf);
/// builder.set("general.architecture", "llama")?.set("llama.block_count", 1u32)?;
/// builder.set_array("scores", &[0.5f32, 1.5])?.set_strings("tokens", ["a", "b"])?;
/// builder.tensor("x", QuantType::F32, &[2, 3])?;
/// let mut writer = builder.start(Vec::new())?;
/// writer.write("x", &[0; 24])?;
/// let bytes = writer.finish()?;
///
/// let file = File::from_bytes(bytes, "example")?;
/// assert_eq!(file.require_tensor("x")?.dims(), [2, 3]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Builder {
    kind: Kind,
    alignment: usize,
    /// Keys and values as they will be in the file.
    encoded: Vec<u8>,
    keys: HashSet<Box<str>>,
    tensors: Vec<Planned>,
    names: HashSet<Box<str>>,
    is_neuron_index: bool,
}

/// A tensor that was announced.
#[derive(Debug)]
struct Planned {
    name: Box<str>,
    ty: TensorType,
    dims: Dims,
    bytes: usize,
}

impl Builder {
    /// A header without keys and tensors.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            alignment: DEFAULT_ALIGNMENT,
            encoded: Vec::new(),
            keys: HashSet::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
            is_neuron_index: false,
        }
    }

    /// Adds a key, with a value of one's own or from another file. `general.alignment` (a `u32`) takes effect.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if no reader would accept the key or value, or the key is there already.
    pub fn set<'v>(&mut self, key: &str, value: impl Into<Value<'v>>) -> Result<&mut Self> {
        let value = value.into();
        let mut alignment = self.alignment;
        if key == ALIGNMENT_KEY {
            let stated = if let Value::U32(n) = value { usize::try_from(n).ok() } else { None };
            let stated = stated.filter(|n| n.is_power_of_two() && *n <= MAX_ALIGNMENT);
            let expected = || format!("a u32 that is a power of two and at most {MAX_ALIGNMENT}");
            alignment = stated.ok_or_else(|| unwritable(format!("key '{key}'"), expected(), value.describe()))?;
        }
        self.key(key, value.ty())?;
        self.alignment = alignment;
        if key == "general.architecture" {
            self.is_neuron_index = value.to::<&str>() == Some(NEURON_INDEX_ARCHITECTURE);
        }
        match value {
            Value::Array(array) => {
                self.encoded.extend(array.element_type().id().to_le_bytes());
                self.encoded.extend((array.len() as u64).to_le_bytes());
                self.encoded.extend(array.bytes);
            }
            other => encode(other, &mut self.encoded),
        }
        Ok(self)
    }

    /// Adds a key with an array of numbers or booleans.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_array<T: Scalar>(&mut self, key: &str, values: &[T]) -> Result<&mut Self> {
        self.key(key, ValueType::Array)?;
        self.encoded.extend(T::TYPE.id().to_le_bytes());
        self.encoded.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|&value| encode(value.into(), &mut self.encoded));
        Ok(self)
    }

    /// Adds a key with an array of strings, which need not be UTF-8.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_strings<S: AsRef<[u8]>>(&mut self, key: &str, values: impl IntoIterator<Item = S>) -> Result<&mut Self> {
        self.key(key, ValueType::Array)?;
        self.encoded.extend(ValueType::String.id().to_le_bytes());
        let place = self.encoded.len();
        self.encoded.extend([0; 8]);
        let mut count = 0u64;
        for value in values {
            encode(Value::String(Text::new(value.as_ref())), &mut self.encoded);
            count += 1;
        }
        self.encoded[place..place + 8].copy_from_slice(&count.to_le_bytes());
        Ok(self)
    }

    /// Announces a tensor. Dimensions are in the format's order: the length of a row first.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if no reader would accept the name or shape, or the name is there already.
    pub fn tensor(&mut self, name: &str, ty: impl Into<TensorType>, dims: &[usize]) -> Result<&mut Self> {
        let what = || format!("tensor '{name}'");
        let ty = ty.into();
        if name.is_empty() || name.len() > MAX_NAME_LEN {
            return Err(unwritable(what(), format!("a name of 1 to {MAX_NAME_LEN} bytes"), name.len()));
        }
        let shape = || unwritable(what(), format!("1 to {MAX_DIMS} dimensions"), dims.len());
        let shape = Dims::new(dims).ok_or_else(shape)?;
        let bytes = ty.tensor_bytes(dims).map_err(|(expected, got)| unwritable(what(), expected, got))?;
        if !self.names.insert(name.into()) {
            return Err(unwritable(what(), "a name that is not there already", "it twice"));
        }
        self.tensors.push(Planned { name: name.into(), ty, dims: shape, bytes });
        Ok(self)
    }

    /// Writes the header to `out` and gives the writer of the tensors' bytes. `out` should be buffered.
    ///
    /// # Errors
    /// [`Error::Write`] if `out` does not take it, [`Error::Unwritable`] if the file would be too large to address.
    pub fn start<W: Write>(self, mut out: W) -> Result<Writer<W>> {
        let mut table = Vec::new();
        let mut offset = 0usize;
        for tensor in &self.tensors {
            encode(Value::String(Text::new(tensor.name.as_bytes())), &mut table);
            let dims = tensor.dims.as_slice();
            table.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|&dim| table.extend((dim as u64).to_le_bytes()));
            let old_ids = self.kind == Kind::PowerInfer && self.is_neuron_index;
            let id = if old_ids { tensor.ty.neuron_index_id() } else { tensor.ty.id() };
            table.extend(id.to_le_bytes());
            table.extend((offset as u64).to_le_bytes());
            let end = offset.checked_add(tensor.bytes).and_then(|end| end.checked_next_multiple_of(self.alignment));
            let what = || format!("tensor '{}'", tensor.name);
            offset = end
                .ok_or_else(|| unwritable(what(), "tensors that fit in one file", "more bytes than can be counted"))?;
        }
        out.write_all(&self.kind.magic())?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&(self.tensors.len() as u64).to_le_bytes())?;
        out.write_all(&(self.keys.len() as u64).to_le_bytes())?;
        out.write_all(&self.encoded)?;
        out.write_all(&table)?;
        let header = 4 + 4 + 8 + 8 + self.encoded.len() + table.len();
        zeros(&mut out, padding(header, self.alignment))?;
        Ok(Writer { out, alignment: self.alignment, tensors: self.tensors, started: 0, left: 0 })
    }

    /// Writes the header to a new file that will become `path`. [Finish](Writer::finish) the writer and
    /// [commit](AtomicFile::commit) what it returns.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`AtomicFile::create`].
    pub fn create(self, path: impl AsRef<Path>) -> Result<Writer<AtomicFile>> {
        self.start(AtomicFile::create(path)?)
    }

    fn key(&mut self, key: &str, ty: ValueType) -> Result<()> {
        let what = || format!("key '{}'", key.chars().take(100).collect::<String>());
        if key.is_empty() || key.len() > MAX_KEY_LEN {
            return Err(unwritable(what(), format!("1 to {MAX_KEY_LEN} bytes"), key.len()));
        }
        if !self.keys.insert(key.into()) {
            return Err(unwritable(what(), "a key that is not there already", "it twice"));
        }
        encode(Value::String(Text::new(key.as_bytes())), &mut self.encoded);
        self.encoded.extend(ty.id().to_le_bytes());
        Ok(())
    }
}

/// Writes the tensors of a [`Builder`], in the order in which they were announced.
///
/// Each is given whole ([`write`](Self::write)) or piece by piece ([`begin`](Self::begin), [`append`](Self::append)), so
/// that no more than a piece need be in memory.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    alignment: usize,
    tensors: Vec<Planned>,
    /// How many tensors have been begun.
    started: usize,
    /// Bytes that the last of them still wants.
    left: usize,
}

impl<W: Write> Writer<W> {
    /// Writes tensor `name`.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if it is not the next one or `bytes` are not as many as it has; [`Error::Write`].
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.begin(name)?;
        if bytes.len() != self.left {
            return Err(unwritable(format!("tensor '{name}'"), format!("{} bytes", self.left), bytes.len()));
        }
        self.append(bytes)
    }

    /// Begins tensor `name`.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if it is not the next one, or the one before is incomplete; [`Error::Write`].
    pub fn begin(&mut self, name: &str) -> Result<()> {
        self.complete()?;
        match self.tensors.get(self.started) {
            Some(tensor) if *tensor.name == *name => self.left = tensor.bytes,
            next => {
                let next = next.map_or("the end".to_owned(), |tensor| format!("tensor '{}'", tensor.name));
                return Err(unwritable(format!("tensor '{name}'"), next, "it"));
            }
        }
        self.started += 1;
        Ok(())
    }

    /// Writes the next bytes of the tensor that was begun.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if they are more than the tensor has left; [`Error::Write`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.left {
            return Err(unwritable(self.current(), format!("at most {} more bytes", self.left), bytes.len()));
        }
        self.out.write_all(bytes)?;
        self.left -= bytes.len();
        if self.left == 0 && !bytes.is_empty() {
            let total = self.tensors[self.started - 1].bytes;
            zeros(&mut self.out, padding(total, self.alignment))?;
        }
        Ok(())
    }

    /// Ends the file and gives back what it was written to, flushed.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if a tensor is missing or incomplete; [`Error::Write`].
    pub fn finish(mut self) -> Result<W> {
        self.complete()?;
        if let Some(tensor) = self.tensors.get(self.started) {
            return Err(unwritable("the end", format!("tensor '{}'", tensor.name), "it"));
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn complete(&self) -> Result<()> {
        match self.left {
            0 => Ok(()),
            left => Err(unwritable(self.current(), format!("{left} more bytes"), "no more")),
        }
    }

    fn current(&self) -> String {
        let tensor = self.started.checked_sub(1).and_then(|last| self.tensors.get(last));
        tensor.map_or("bytes".to_owned(), |tensor| format!("tensor '{}'", tensor.name))
    }
}

fn unwritable(what: impl Into<String>, expected: impl Into<String>, got: impl ToString) -> Error {
    Error::Unwritable { what: what.into(), expected: expected.into(), got: got.to_string() }
}

/// Appends a value that is not an array, as it is in a file.
fn encode(value: Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::U8(x) => out.extend(x.to_le_bytes()),
        Value::I8(x) => out.extend(x.to_le_bytes()),
        Value::U16(x) => out.extend(x.to_le_bytes()),
        Value::I16(x) => out.extend(x.to_le_bytes()),
        Value::U32(x) => out.extend(x.to_le_bytes()),
        Value::I32(x) => out.extend(x.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::Bool(x) => out.push(x.into()),
        Value::String(x) => {
            out.extend((x.as_bytes().len() as u64).to_le_bytes());
            out.extend(x.as_bytes());
        }
        Value::U64(x) => out.extend(x.to_le_bytes()),
        Value::I64(x) => out.extend(x.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
        Value::Array(_) => {}
    }
}

fn zeros(out: &mut impl Write, count: usize) -> std::io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut left = count;
    while left > 0 {
        let now = left.min(ZEROS.len());
        out.write_all(&ZEROS[..now])?;
        left -= now;
    }
    Ok(())
}

mod sealed {
    pub trait Sealed {}
}

/// Rust types that are elements of an array of numbers or booleans. Implemented for those of the format, and for no others.
pub trait Scalar: Copy + Into<Value<'static>> + sealed::Sealed {
    /// The type in the file.
    const TYPE: ValueType;
}

macro_rules! scalars {
    ($($ty:ident $variant:ident)*) => {$(
        impl sealed::Sealed for $ty {}

        impl Scalar for $ty {
            const TYPE: ValueType = ValueType::$variant;
        }

        impl From<$ty> for Value<'_> {
            fn from(value: $ty) -> Self {
                Value::$variant(value)
            }
        }
    )*};
}
scalars!(u8 U8 i8 I8 u16 U16 i16 I16 u32 U32 i32 I32 f32 F32 bool Bool u64 U64 i64 I64 f64 F64);

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::String(Text::new(text.as_bytes()))
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        text.as_str().into()
    }
}

impl<'a> From<Text<'a>> for Value<'a> {
    fn from(text: Text<'a>) -> Self {
        Value::String(text)
    }
}

impl<'a> From<Array<'a>> for Value<'a> {
    fn from(array: Array<'a>) -> Self {
        Value::Array(array)
    }
}
