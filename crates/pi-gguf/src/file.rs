//! An open model: one file, or all parts of a split one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::header::{self, Header, Kind};
use crate::identify::Format;
use crate::metadata::Metadata;
use crate::mmap::{FileBytes, Source};
use crate::split;
use crate::tensor::{Tensor, TensorInfo};

/// An open GGUF model. Everything in it was checked when it was opened; what it gives out is borrowed from the file's bytes.
pub struct File {
    kind: Kind,
    version: u32,
    alignment: usize,
    metadata: Metadata,
    parts: Vec<Part>,
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors`, sorted by name.
    sorted: Vec<usize>,
}

/// One file of a model.
struct Part {
    path: Arc<Path>,
    bytes: Arc<FileBytes>,
}

/// One file and its header, checked by itself.
pub(crate) struct Loaded {
    pub(crate) path: Arc<Path>,
    pub(crate) bytes: Arc<FileBytes>,
    pub(crate) header: Header,
}

impl Loaded {
    pub(crate) fn open(path: &Path, source: Source) -> Result<Self> {
        Self::parse(path.into(), Arc::new(FileBytes::open(path, source)?))
    }

    fn parse(path: Arc<Path>, bytes: Arc<FileBytes>) -> Result<Self> {
        let header = header::parse(&bytes, &path)?;
        Ok(Self { path, bytes, header })
    }
}

impl File {
    /// Opens the model at `path`, mapped ([`Source::Mapped`]). Of a model in several files, any may be named.
    ///
    /// # Errors
    /// Whatever is wrong with the file; see [`Error`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Source::default())
    }

    /// Opens the model at `path`. Of a model in several files, any may be named.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Error::Memory`] if it is to be read into memory and does not fit.
    pub fn open_with(path: impl AsRef<Path>, source: Source) -> Result<Self> {
        Self::assemble(split::complete(Loaded::open(path.as_ref(), source)?, source)?)
    }

    /// Opens a model that is in memory already, all in one piece. `name` stands for its path in error messages.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>, name: impl AsRef<Path>) -> Result<Self> {
        let path: Arc<Path> = name.as_ref().into();
        let len = bytes.len() as u64;
        let bytes = FileBytes::from_vec(bytes).map_err(|_| Error::Memory { path: path.to_path_buf(), bytes: len })?;
        let loaded = Loaded::parse(path, Arc::new(bytes))?;
        split::refuse(&loaded)?;
        Self::assemble(vec![loaded])
    }

    /// Puts the parts of a model together, of which there is at least one, in their order.
    fn assemble(loaded: Vec<Loaded>) -> Result<Self> {
        let mut tensors = Vec::new();
        let mut parts = Vec::new();
        let mut first = None;
        for (index, Loaded { path, bytes, header }) in loaded.into_iter().enumerate() {
            tensors.extend(header.tensors.into_iter().map(|info| TensorInfo { part: index, ..info }));
            parts.push(Part { path, bytes });
            first.get_or_insert((header.kind, header.version, header.alignment, header.metadata));
        }
        let Some((kind, version, alignment, metadata)) = first else {
            return Err(Error::NotGguf { path: Default::default(), found: Format::Empty });
        };
        let name = |i: usize| &*tensors[i].name;
        let mut sorted: Vec<usize> = (0..tensors.len()).collect();
        sorted.sort_unstable_by(|&a, &b| name(a).cmp(name(b)));
        if let Some(pair) = sorted.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
            let path = parts[tensors[pair[1]].part].path.to_path_buf();
            return Err(Error::DuplicateTensor { path, tensor: name(pair[0]).to_owned() });
        }
        Ok(Self { kind, version, alignment, metadata, parts, tensors, sorted })
    }

    /// The file's path; of a split model, that of its first part.
    pub fn path(&self) -> &Path {
        self.metadata.path()
    }

    /// Ordinary GGUF or PowerInfer's variant.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Tensors' data start at multiples of this.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// Keys and values; of a split model, those of its first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> + DoubleEndedIterator {
        self.tensors.iter().map(|info| self.view(info))
    }

    /// The tensor of this name, if there is one.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let found = self.sorted.binary_search_by(|&i| (*self.tensors[i].name).cmp(name)).ok()?;
        Some(self.view(&self.tensors[self.sorted[found]]))
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] if there is none.
    pub fn require_tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let missing = || Error::MissingTensor { path: self.path().to_owned(), tensor: name.to_owned() };
        self.tensor(name).ok_or_else(missing)
    }

    /// How many files the model is in.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The path of a part, counted from 0.
    pub fn part_path(&self, part: usize) -> Option<&Path> {
        self.parts.get(part).map(|part| &*part.path)
    }

    /// The bytes of a part, counted from 0: a handle to keep without a lifetime. See [`Tensor::range`].
    pub fn bytes(&self, part: usize) -> Option<&Arc<FileBytes>> {
        self.parts.get(part).map(|part| &part.bytes)
    }

    fn view<'a>(&'a self, info: &'a TensorInfo) -> Tensor<'a> {
        Tensor { info, bytes: &self.parts[info.part].bytes }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path())
            .field("kind", &self.kind)
            .field("keys", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .field("parts", &self.parts.len())
            .finish_non_exhaustive()
    }
}
