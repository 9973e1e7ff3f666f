//! Tensors: their types, where they lie, and checked views of their bytes.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use pi_core::QuantType;

use crate::error::{Error, Result};
use crate::mmap::FileBytes;

/// Most dimensions a tensor can have.
pub const MAX_DIMS: usize = 4;

/// Tensor names are shorter than this many bytes (a limit of the format's other readers).
pub const MAX_NAME_LEN: usize = 63;

/// How the numbers of a tensor are stored.
///
/// The engine computes with [`Quant`](Self::Quant). The others exist in files: their size is known, so that such a file can
/// be opened and listed, but their numbers are not decoded here.
#[allow(non_camel_case_types, missing_docs)] // the names are the format's own
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorType {
    Quant(QuantType),
    I8,
    I16,
    I32,
    I64,
    F64,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
}

/// The types that pi-core does not know: number in a file, name, numbers per block, bytes per block.
const OTHERS: [(TensorType, u32, &str, usize, usize); 16] = [
    (TensorType::IQ2_XXS, 16, "IQ2_XXS", 256, 66),
    (TensorType::IQ2_XS, 17, "IQ2_XS", 256, 74),
    (TensorType::IQ3_XXS, 18, "IQ3_XXS", 256, 98),
    (TensorType::IQ1_S, 19, "IQ1_S", 256, 50),
    (TensorType::IQ3_S, 21, "IQ3_S", 256, 110),
    (TensorType::IQ2_S, 22, "IQ2_S", 256, 82),
    (TensorType::I8, 24, "I8", 1, 1),
    (TensorType::I16, 25, "I16", 1, 2),
    (TensorType::I32, 26, "I32", 1, 4),
    (TensorType::I64, 27, "I64", 1, 8),
    (TensorType::F64, 28, "F64", 1, 8),
    (TensorType::IQ1_M, 29, "IQ1_M", 256, 56),
    (TensorType::TQ1_0, 34, "TQ1_0", 256, 54),
    (TensorType::TQ2_0, 35, "TQ2_0", 256, 66),
    (TensorType::MXFP4, 39, "MXFP4", 32, 17),
    (TensorType::NVFP4, 40, "NVFP4", 64, 36),
];

/// Integer types in PowerInfer's neuron index files, which use the numbers of November 2023. They mean other types today.
const NEURON_INDEX_IDS: [(TensorType, u32); 3] = [(TensorType::I8, 16), (TensorType::I16, 17), (TensorType::I32, 18)];

impl TensorType {
    /// The type with this number in a tensor table, if the format has one.
    pub fn from_id(id: u32) -> Option<Self> {
        let other = || OTHERS.iter().find(|row| row.1 == id).map(|row| row.0);
        QuantType::from_gguf_id(id).map(Self::Quant).or_else(other)
    }

    /// As [`from_id`](Self::from_id), in a neuron index file of PowerInfer.
    pub(crate) fn from_neuron_index_id(id: u32) -> Option<Self> {
        NEURON_INDEX_IDS.iter().find(|row| row.1 == id).map(|row| row.0).or_else(|| Self::from_id(id))
    }

    /// All types, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u32::from(u8::MAX)).filter_map(Self::from_id)
    }

    /// The type's number in a tensor table.
    pub fn id(self) -> u32 {
        self.row().0
    }

    /// As [`id`](Self::id), in a neuron index file of PowerInfer.
    pub(crate) fn neuron_index_id(self) -> u32 {
        NEURON_INDEX_IDS.iter().find(|row| row.0 == self).map_or(self.id(), |row| row.1)
    }

    /// The usual name, as in `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Numbers per block. A row is a whole number of blocks.
    pub fn block_len(self) -> usize {
        self.row().2
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().3
    }

    /// The type as the engine knows it, or `None` if it cannot compute with it.
    pub fn quant(self) -> Option<QuantType> {
        match self {
            Self::Quant(ty) => Some(ty),
            _ => None,
        }
    }

    fn row(self) -> (u32, &'static str, usize, usize) {
        if let Self::Quant(ty) = self {
            let info = ty.info();
            return (info.gguf_id, info.name, info.block_len, info.block_bytes);
        }
        // Every other type has a row (there is a test), so the last arm is never taken.
        let row = OTHERS.iter().find(|row| row.0 == self).unwrap_or(&OTHERS[0]);
        (row.1, row.2, row.3, row.4)
    }

    /// Bytes of a tensor of this type with these dimensions; the error is what was expected and what came.
    pub(crate) fn tensor_bytes(self, dims: &[usize]) -> std::result::Result<usize, (String, String)> {
        let cols = dims.first().copied().unwrap_or(1);
        if !cols.is_multiple_of(self.block_len()) {
            let expected = format!("rows that {} stores in whole blocks of {}", self, self.block_len());
            return Err((expected, format!("rows of {cols}")));
        }
        let row = (cols / self.block_len()).checked_mul(self.block_bytes());
        let bytes = row.and_then(|row| dims.iter().skip(1).try_fold(row, |n, &dim| n.checked_mul(dim)));
        // The count of numbers is checked too: what computes with the tensor multiplies dimensions as well.
        let count = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).filter(|&n| isize::try_from(n).is_ok());
        count.and(bytes).ok_or_else(|| ("a shape whose size can be counted".to_owned(), format!("{dims:?}")))
    }
}

impl From<QuantType> for TensorType {
    fn from(ty: QuantType) -> Self {
        Self::Quant(ty)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The dimensions of a tensor, fastest varying first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dims {
    sizes: [usize; MAX_DIMS],
    len: usize,
}

impl Dims {
    /// `None` unless there are one to four of them.
    pub(crate) fn new(dims: &[usize]) -> Option<Self> {
        let mut sizes = [1; MAX_DIMS];
        sizes.get_mut(..dims.len())?.copy_from_slice(dims);
        (!dims.is_empty()).then_some(Self { sizes, len: dims.len() })
    }

    pub(crate) fn as_slice(&self) -> &[usize] {
        &self.sizes[..self.len]
    }
}

/// A row of the tensor table, checked against the file it came from.
#[derive(Debug, Clone)]
pub(crate) struct TensorInfo {
    pub(crate) name: Box<str>,
    pub(crate) ty: TensorType,
    pub(crate) dims: Dims,
    pub(crate) part: usize,
    /// Where the data lies in the part's bytes. Within them: checked when the file was opened.
    pub(crate) range: Range<usize>,
}

/// Refuses tensors that share bytes. A small file could otherwise claim many large tensors, and cost whoever converts them
/// more memory than the file has bytes. `tensors` are those of one part.
pub(crate) fn check_overlap(path: &Path, tensors: &[TensorInfo]) -> Result<()> {
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| !t.range.is_empty()).collect();
    order.sort_unstable_by_key(|t| t.range.start);
    match order.windows(2).find(|pair| pair[0].range.end > pair[1].range.start) {
        None => Ok(()),
        Some(pair) => Err(Error::Overlap {
            path: path.to_owned(),
            first: pair[0].name.to_string(),
            second: pair[1].name.to_string(),
        }),
    }
}

/// A tensor of an open file: name, type, shape and bytes, all checked when the file was opened.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub(crate) info: &'a TensorInfo,
    pub(crate) bytes: &'a Arc<FileBytes>,
}

impl<'a> Tensor<'a> {
    /// The name, as in `blk.0.ffn_up.weight`.
    pub fn name(&self) -> &'a str {
        &self.info.name
    }

    /// How the numbers are stored.
    pub fn ty(&self) -> TensorType {
        self.info.ty
    }

    /// The type as the engine knows it, or `None` if it cannot compute with it.
    pub fn quant(&self) -> Option<QuantType> {
        self.info.ty.quant()
    }

    /// One to four dimensions in the format's order (`ne`): the first is the length of a row, which is contiguous.
    pub fn dims(&self) -> &'a [usize] {
        self.info.dims.as_slice()
    }

    /// Numbers in a row: the first dimension.
    pub fn cols(&self) -> usize {
        self.info.dims.sizes[0]
    }

    /// Rows: the product of the other dimensions. Does not overflow (checked when the file was opened), except that a
    /// tensor without numbers has no rows.
    pub fn rows(&self) -> usize {
        if self.cols() == 0 { 0 } else { self.info.dims.sizes[1..].iter().product() }
    }

    /// The bytes: `rows()` rows, each a whole number of blocks.
    pub fn data(&self) -> &'a [u8] {
        let bytes: &'a [u8] = (**self.bytes).as_ref();
        bytes.get(self.info.range.clone()).unwrap_or_default()
    }

    /// Which part of a split file the tensor is in, counted from 0.
    pub fn part(&self) -> usize {
        self.info.part
    }

    /// Where [`data`](Self::data) lies in [`owner`](Self::owner).
    pub fn range(&self) -> Range<usize> {
        self.info.range.clone()
    }

    /// The bytes of the file (or part) that the tensor is in. With [`range`](Self::range), it is a handle on the tensor's
    /// bytes that needs no lifetime and costs a counter to clone.
    pub fn owner(&self) -> &'a Arc<FileBytes> {
        self.bytes
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} {:?})", self.name(), self.ty(), self.dims())
    }
}
