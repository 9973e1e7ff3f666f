//! PyTorch's files (`.pt`): a zip archive with a pickle that describes tensors, and their numbers as records beside it.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use pi_gguf::{FileBytes, Source};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::error::{Error, Result};
use crate::pickle::{Number, Pickle, Refusal, Storage, Tensor};

/// The pickle is a table of tensors; a larger one is taken for damage.
const MAX_PICKLE: u64 = 4 << 20;
/// Most bytes that a compressed record may become. PyTorch does not compress.
const MAX_INFLATED: u64 = 64 << 20;

/// An open PyTorch file: the tensors in it, by name. Opening reads the pickle, nothing in it is executed.
///
/// ```no_run
/// # fn main() -> pi_convert::Result<()> {
/// let file = pi_convert::TorchFile::open("model_0.pt")?;
/// for (name, tensor) in file.tensors() {
///     println!("{name} {:?} {}", tensor.shape, file.read(tensor)?.len());
/// }
/// # Ok(()) }
/// ```
pub struct TorchFile {
    path: PathBuf,
    bytes: Bytes,
    /// The folder of the archive that has everything in it, with a slash.
    prefix: String,
    tensors: Vec<(String, Tensor)>,
}

enum Bytes {
    Mapped(FileBytes),
    Owned(Vec<u8>),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes.as_ref(),
            Self::Owned(bytes) => bytes,
        }
    }
}

impl TorchFile {
    /// Opens a file. It is mapped: see [`Source::Mapped`] for what that asks of others.
    ///
    /// # Errors
    /// [`Error::Torch`] and [`Error::Pickle`] if it is not a file of tensors alone; [`Error::Io`], [`Error::MissingFile`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::parse(path.to_owned(), Bytes::Mapped(map(path)?))
    }

    /// Opens a file that is in memory. `name` stands for its path in error messages.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>, name: impl AsRef<Path>) -> Result<Self> {
        Self::parse(name.as_ref().to_owned(), Bytes::Owned(bytes))
    }

    fn parse(path: PathBuf, bytes: Bytes) -> Result<Self> {
        let raw = bytes.as_ref();
        if let Some(what) = not_zip(raw) {
            return Err(Error::torch(&path, what));
        }
        let mut archive = archive(raw, &path)?;
        let names = archive.file_names().filter_map(|name| name.ok());
        let folders: Vec<_> = names.filter_map(|name| Some(name.strip_suffix("data.pkl")?.to_owned())).collect();
        let [prefix] = <[String; 1]>::try_from(folders).map_err(|folders| {
            Error::torch(&path, format!("a zip archive with {} records data.pkl instead of one", folders.len()))
        })?;
        let order = format!("{prefix}byteorder");
        if archive.index_for_name(&order).is_some() {
            let order = record(&mut archive, raw, &path, &order, None, 16)?;
            if *order != *b"little" {
                let order = String::from_utf8_lossy(&order).into_owned();
                return Err(Error::torch(&path, format!("byte order '{order}' (only little endian files are read)")));
            }
        }
        let pickle = record(&mut archive, raw, &path, &format!("{prefix}data.pkl"), None, MAX_PICKLE)?;
        let refused = |Refusal { at, what }| Error::Pickle { path: path.clone(), at, what };
        let pickle = Pickle::parse(&pickle).map_err(refused)?;
        let tensors = pickle.tensors().map_err(|what| Error::torch(&path, what))?;
        let tensors = tensors.into_iter().map(|(name, tensor)| (name, tensor.clone())).collect();
        Ok(Self { path, bytes, prefix, tensors })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors with their names, in the file's order. A file of one tensor alone has it under the name "".
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (&**name, tensor))
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|(n, _)| n == name).map(|(_, tensor)| tensor)
    }

    /// The numbers of a tensor of this file, row by row. Integers and 64-bit floats are rounded.
    ///
    /// # Errors
    /// [`Error::Torch`] if its record is missing, damaged, or of another length than the tensor says.
    pub fn read(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        if tensor.is_empty() {
            return Ok(Vec::new());
        }
        let storage = self.storage(&tensor.storage)?;
        let width = tensor.storage.number.width();
        let decode = decoder(tensor.storage.number);
        let mut numbers = Vec::with_capacity(tensor.len());
        let mut index = vec![0; tensor.shape.len()];
        loop {
            // The last dimension in a run, the others counted like the digits of a number.
            let base = tensor.offset + index.iter().zip(&tensor.strides).map(|(i, stride)| i * stride).sum::<usize>();
            let (run, stride) =
                (tensor.shape.last().copied().unwrap_or(1), tensor.strides.last().copied().unwrap_or(1));
            for i in 0..run {
                let at = (base + i * stride) * width;
                // In range: the tensor was checked against its storage, and the storage's length above.
                numbers.push(storage.get(at..at + width).map_or(0.0, decode));
            }
            let outer = index.len().saturating_sub(1);
            let Some(digit) = (0..outer).rev().find(|&d| index[d] + 1 < tensor.shape[d]) else { return Ok(numbers) };
            index[digit] += 1;
            index[digit + 1..].fill(0);
        }
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// Where in the file a tensor's numbers are; `None` if they are compressed or do not lie in order.
    pub(crate) fn range(&self, tensor: &Tensor) -> Result<Option<std::ops::Range<usize>>> {
        let mut expected = 1;
        for (&dim, &stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
            if dim != 1 && stride != expected {
                return Ok(None);
            }
            expected *= dim;
        }
        let Cow::Borrowed(storage) = self.storage(&tensor.storage)? else { return Ok(None) };
        let width = tensor.storage.number.width();
        let start = storage.as_ptr() as usize - self.bytes().as_ptr() as usize + tensor.offset * width;
        Ok(Some(start..start + tensor.len() * width))
    }

    /// The bytes of a storage, as many as it says.
    fn storage(&self, storage: &Storage) -> Result<Cow<'_, [u8]>> {
        let raw = self.bytes.as_ref();
        let name = format!("{}data/{}", self.prefix, storage.key);
        let len = (storage.len * storage.number.width()) as u64;
        record(&mut archive(raw, &self.path)?, raw, &self.path, &name, Some(len), MAX_INFLATED)
    }
}

impl fmt::Debug for TorchFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TorchFile").field("path", &self.path).field("tensors", &self.tensors).finish_non_exhaustive()
    }
}

/// The bytes of a file, mapped.
pub(crate) fn map(path: &Path) -> Result<FileBytes> {
    let stat = fs::metadata(path).map_err(Error::io(path, "open"))?;
    if !stat.is_file() || stat.len() == 0 {
        let what = if stat.is_file() { "every byte of it" } else { "a regular file" };
        return Err(Error::MissingFile { path: path.to_owned(), what: what.into() });
    }
    Ok(FileBytes::open(path, Source::Mapped)?)
}

/// What a file is that is no zip archive, where that helps.
fn not_zip(bytes: &[u8]) -> Option<String> {
    const HOW: &str = "load it and save it again with a PyTorch of this decade (torch.save)";
    if bytes.starts_with(b"PK\x03\x04") {
        None
    } else if bytes.get(257..262) == Some(b"ustar") {
        Some(format!("the tar format of PyTorch 0.1; {HOW}"))
    } else if bytes.starts_with(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.") {
        Some(format!("the format of PyTorch before 1.6; {HOW}"))
    } else if bytes.first() == Some(&0x80) {
        Some("a bare pickle".into())
    } else {
        Some("no zip archive".into())
    }
}

fn archive<'a>(bytes: &'a [u8], path: &Path) -> Result<ZipArchive<Cursor<&'a [u8]>>> {
    ZipArchive::new(Cursor::new(bytes)).map_err(|e| Error::torch(path, e.to_string()))
}

/// A record of an archive: of exactly `len` bytes if that is given. What is stored is borrowed; what is compressed may become
/// at most `max` bytes, as may a record whose length is not known beforehand.
fn record<'a>(
    archive: &mut ZipArchive<Cursor<&'a [u8]>>,
    bytes: &'a [u8],
    path: &Path,
    name: &str,
    len: Option<u64>,
    max: u64,
) -> Result<Cow<'a, [u8]>> {
    let wrong = |what: String| Error::torch(path, format!("record '{}': {what}", name.escape_debug()));
    let mut entry = archive.by_name(name).map_err(|e| wrong(e.to_string()))?;
    let (size, stored) = (entry.size(), entry.compression() == CompressionMethod::Stored);
    if let Some(len) = len.filter(|&len| len != size) {
        return Err(wrong(format!("expected {len} bytes, got {size}")));
    }
    if size > max && !(stored && len.is_some()) {
        return Err(wrong(format!("expected at most {max} bytes, got {size}")));
    }
    if stored {
        let place = entry
            .data_start()
            .and_then(|start| Some(usize::try_from(start).ok()?..usize::try_from(start.checked_add(size)?).ok()?));
        return place.and_then(|place| bytes.get(place)).map(Cow::Borrowed).ok_or_else(|| wrong("cut off".into()));
    }
    // What an archive says about sizes need not be true: one byte more than it says is asked for.
    let mut data = Vec::new();
    let read = entry.by_ref().take(size + 1).read_to_end(&mut data).map_err(|e| wrong(e.to_string()))?;
    if read as u64 != size {
        return Err(wrong(format!(
            "expected {size} bytes, got {}",
            if read as u64 > size { "more".into() } else { read.to_string() }
        )));
    }
    Ok(Cow::Owned(data))
}

/// How a number of this type is read; the slice has as many bytes as the type is wide.
fn decoder(number: Number) -> fn(&[u8]) -> f32 {
    fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.try_into().unwrap_or([0; N])
    }
    match number {
        Number::F16 => |b| f16::from_le_bytes(fixed(b)).to_f32(),
        Number::BF16 => |b| bf16::from_le_bytes(fixed(b)).to_f32(),
        Number::F32 => |b| f32::from_le_bytes(fixed(b)),
        Number::F64 => |b| f64::from_le_bytes(fixed(b)) as f32,
        Number::I8 => |b| f32::from(i8::from_le_bytes(fixed(b))),
        Number::I16 => |b| f32::from(i16::from_le_bytes(fixed(b))),
        Number::I32 => |b| i32::from_le_bytes(fixed(b)) as f32,
        Number::I64 => |b| i64::from_le_bytes(fixed(b)) as f32,
        Number::U8 => |b| f32::from(u8::from_le_bytes(fixed(b))),
        Number::Bool => |b| if b == [0] { 0.0 } else { 1.0 },
    }
}

/// A tensor to be written: shape, slowest varying first, and numbers, row by row.
#[derive(Clone, Copy, Debug)]
pub struct TorchTensor<'a> {
    /// The shape; its product is the count of `data`.
    pub shape: &'a [usize],
    /// The numbers.
    pub data: &'a [f32],
}

/// The bytes of a PyTorch file with one float tensor, as `torch.save(tensor)` makes it. `name` is the folder in the archive.
///
/// # Errors
/// [`Error::Choice`] if the shape does not fit the numbers.
pub fn torch_tensor(name: &str, tensor: TorchTensor<'_>) -> Result<Vec<u8>> {
    let mut pickle = b"\x80\x02".to_vec();
    describe(&mut pickle, 0, &tensor)?;
    pickle.push(b'.');
    pack(name, &pickle, &[tensor])
}

/// The bytes of a PyTorch file with a dict of float tensors, as `torch.save(dict)` makes it. `name` is the folder in the archive.
///
/// # Errors
/// As [`torch_tensor`].
pub fn torch_dict(name: &str, tensors: &[(&str, TorchTensor<'_>)]) -> Result<Vec<u8>> {
    let mut pickle = b"\x80\x02}(".to_vec();
    for (i, (key, tensor)) in tensors.iter().enumerate() {
        string(&mut pickle, key);
        describe(&mut pickle, i, tensor)?;
    }
    pickle.extend(b"u.");
    let tensors: Vec<_> = tensors.iter().map(|(_, tensor)| *tensor).collect();
    pack(name, &pickle, &tensors)
}

fn describe(pickle: &mut Vec<u8>, record: usize, tensor: &TorchTensor<'_>) -> Result<()> {
    if tensor.shape.iter().product::<usize>() != tensor.data.len() || tensor.shape.len() > 8 {
        return Err(Error::Choice(format!("shape {:?} for {} numbers", tensor.shape, tensor.data.len())));
    }
    let mut strides = vec![1; tensor.shape.len()];
    for d in (1..strides.len()).rev() {
        strides[d - 1] = strides[d] * tensor.shape[d];
    }
    pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    string(pickle, "storage");
    pickle.extend(b"ctorch\nFloatStorage\n");
    string(pickle, &record.to_string());
    string(pickle, "cpu");
    integer(pickle, tensor.data.len());
    pickle.extend(b"tQK\0");
    for sizes in [tensor.shape, &strides] {
        pickle.push(b'(');
        sizes.iter().for_each(|&size| integer(pickle, size));
        pickle.push(b't');
    }
    pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    Ok(())
}

fn string(pickle: &mut Vec<u8>, text: &str) {
    pickle.push(b'X');
    pickle.extend((text.len() as u32).to_le_bytes());
    pickle.extend(text.as_bytes());
}

fn integer(pickle: &mut Vec<u8>, value: usize) {
    match i32::try_from(value) {
        Ok(value) => {
            pickle.push(b'J');
            pickle.extend(value.to_le_bytes());
        }
        Err(_) => {
            pickle.extend(b"\x8a\x08");
            pickle.extend((value as u64).to_le_bytes());
        }
    }
}

fn pack(name: &str, pickle: &[u8], tensors: &[TorchTensor<'_>]) -> Result<Vec<u8>> {
    let failed = |e: zip::result::ZipError| Error::Choice(format!("zip archive: {e}"));
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    // As PyTorch does: not compressed, and every record at a multiple of 64, so that it can be mapped.
    let large = tensors.iter().any(|t| t.data.len() >= 1 << 30);
    let options =
        SimpleFileOptions::default().compression_method(CompressionMethod::Stored).with_alignment(64).large_file(large);
    let mut put = |record: &str, bytes: &[u8]| -> Result<()> {
        zip.start_file(format!("{name}/{record}"), options).map_err(failed)?;
        zip.write_all(bytes).map_err(|e| failed(e.into()))
    };
    put("data.pkl", pickle)?;
    put("byteorder", b"little")?;
    for (i, tensor) in tensors.iter().enumerate() {
        let bytes: Vec<u8> = tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
        put(&format!("data/{i}"), &bytes)?;
    }
    put("version", b"3\n")?;
    Ok(zip.finish().map_err(failed)?.into_inner())
}
