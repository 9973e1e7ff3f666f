//! Number types of weights and what they mean.
//!
//! One file per type (or family) holds its byte layout and the reference `decode`, `encode` and `dot`. The table here is the
//! only list of types: a new one is a file and a line. How fast a type is computed is a backend's business; when a backend
//! has no kernel for a type, it falls back to these functions, which are never removed.

mod block;
mod float;
mod iq4_nl;
mod iq4_xs;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_1;
mod q8_k;
mod search;

use std::fmt;

/// A number type that a tensor can be stored in.
///
/// The names are GGUF's; the numbers in a file are given by [`QuantInfo::gguf_id`].
#[allow(non_camel_case_types)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[allow(missing_docs)] // the names are the field's own; their meaning is in `QuantInfo` and in each type's file
pub enum QuantType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ4_NL,
    IQ4_XS,
}

/// Everything the engine needs to know about one [`QuantType`].
pub struct QuantInfo {
    /// The type itself.
    pub ty: QuantType,
    /// Its usual name, as in `Q4_K`.
    pub name: &'static str,
    /// Its number in GGUF tensor tables.
    pub gguf_id: u32,
    /// Numbers per block. A row is a whole number of blocks.
    pub block_len: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// The type that activations are encoded to for [`dot`](Self::dot). `F32` for the float types.
    pub activation: QuantType,
    /// Decodes whole blocks: `decode(bytes, out)` with `bytes.len() / block_bytes == out.len() / block_len`.
    /// Decoding is exact: every backend must give the same bits. Surplus input or output is left alone.
    pub decode: fn(&[u8], &mut [f32]),
    /// Encodes whole blocks, rounding as this type's usual quantiser does (no importance weights).
    pub encode: fn(&[f32], &mut [u8]),
    /// Scalar product of a row of this type with a row of type [`activation`](Self::activation): `dot(weights, activations)`.
    pub dot: fn(&[u8], &[u8]) -> f32,
}

impl QuantType {
    /// All types, in the order of the table.
    pub const ALL: [QuantType; 17] = {
        use QuantType::*;
        [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ4_NL, IQ4_XS]
    };

    /// The table row of this type.
    pub fn info(self) -> &'static QuantInfo {
        match self {
            Self::F32 => &float::F32,
            Self::F16 => &float::F16,
            Self::BF16 => &float::BF16,
            Self::Q4_0 => &q4_0::Q4_0,
            Self::Q4_1 => &q4_1::Q4_1,
            Self::Q5_0 => &q5_0::Q5_0,
            Self::Q5_1 => &q5_1::Q5_1,
            Self::Q8_0 => &q8_0::Q8_0,
            Self::Q8_1 => &q8_1::Q8_1,
            Self::Q2_K => &q2_k::Q2_K,
            Self::Q3_K => &q3_k::Q3_K,
            Self::Q4_K => &q4_k::Q4_K,
            Self::Q5_K => &q5_k::Q5_K,
            Self::Q6_K => &q6_k::Q6_K,
            Self::Q8_K => &q8_k::Q8_K,
            Self::IQ4_NL => &iq4_nl::IQ4_NL,
            Self::IQ4_XS => &iq4_xs::IQ4_XS,
        }
    }

    /// The usual name, as in `Q4_K`.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// The type with this number in GGUF tensor tables, if it is one of ours.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.info().gguf_id == id)
    }

    /// The type with this name (case does not matter), as in `q4_k`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `cols` numbers, or `None` if blocks do not divide the row (or the size overflows).
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let info = self.info();
        if cols.is_multiple_of(info.block_len) { (cols / info.block_len).checked_mul(info.block_bytes) } else { None }
    }

    /// True for F32, F16 and BF16: a block is one number, so a matrix can be transposed without loss.
    pub fn is_float(self) -> bool {
        self.info().block_len == 1
    }
}

impl fmt::Display for QuantType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for QuantInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuantInfo").field("name", &self.name).field("gguf_id", &self.gguf_id).finish_non_exhaustive()
    }
}
