//! The table of kernels: for each quant type, how it is computed on this CPU.

use crate::arch;
use pi_core::{Error, QuantType, Result};
use std::fmt;
use std::str::FromStr;

/// An instruction set that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Plain code for any CPU, and exact: activations stay F32.
    Reference,
    /// x86-64 with AVX2, FMA and F16C. Activations of quantised weights are encoded to 8 bits.
    Avx2,
}

impl Isa {
    const ALL: [Isa; 2] = [Isa::Reference, Isa::Avx2];

    /// The sets that this CPU has, the plainest first.
    pub fn available() -> Vec<Isa> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    fn is_available(self) -> bool {
        match self {
            Isa::Reference => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => arch::x86_64::avx2::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Isa::Reference => "reference",
            Isa::Avx2 => "avx2",
        })
    }
}

impl FromStr for Isa {
    type Err = Error;

    /// Reads the lower-case name that [`Display`](fmt::Display) writes.
    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|isa| isa.to_string() == name).ok_or_else(|| {
            let known = Self::ALL.map(|isa| isa.to_string()).join(", ");
            Error::unsupported(format!("instruction set `{name}`"), format!("known ones are {known}"))
        })
    }
}

/// How one quant type is computed on a CPU.
///
/// All functions take rows as bytes at any alignment, stop at the shortest of their arguments in whole blocks, and leave
/// the rest alone.
#[derive(Debug, Clone, Copy)]
pub struct TypeKernels {
    /// The type that activations must be encoded to before [`dot`](Self::dot); F32 on the exact path.
    pub activation: QuantType,
    /// Scalar product of one weight row with one encoded row of activations.
    pub dot: fn(w: &[u8], x: &[u8]) -> f32,
    /// Four weight rows of equal length at once. Equal to four times [`dot`](Self::dot), to the bit.
    pub dot4: fn(w: [&[u8]; 4], x: &[u8]) -> [f32; 4],
    /// `y += a * decode(w)`.
    pub axpy: fn(w: &[u8], a: f32, y: &mut [f32]),
    /// Decodes a row, exactly as [`QuantInfo::decode`](pi_core::QuantInfo::decode).
    pub decode: fn(w: &[u8], out: &mut [f32]),
    /// Where this entry comes from, so that a silent fallback is seen.
    pub isa: Isa,
}

/// An encoder of activations.
pub type Encode = fn(x: &[f32], out: &mut [u8]);

pub(crate) const TYPES: usize = QuantType::ALL.len();

/// Kernels for every quant type, and encoders of activations.
#[derive(Debug, Clone)]
pub struct Kernels {
    isa: Isa,
    types: [TypeKernels; TYPES],
    encode: [Encode; TYPES],
}

impl Kernels {
    /// The fastest kernels that this CPU can run.
    pub fn best() -> Self {
        let isa = Isa::available().pop().unwrap_or(Isa::Reference);
        Self::for_isa(isa).unwrap_or_else(|_| Self::reference())
    }

    /// The kernels of one instruction set.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if this CPU lacks it.
    pub fn for_isa(isa: Isa) -> Result<Self> {
        let kernels = match isa {
            Isa::Reference => Some(Self::reference()),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => arch::x86_64::avx2::kernels(Self::reference()),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 => None,
        };
        kernels
            .map(|kernels| Self { isa, ..kernels })
            .ok_or_else(|| Error::unsupported(format!("instruction set `{isa}`"), "this CPU does not have it"))
    }

    /// The exact path on any CPU: for every type, activations stay F32, and rows are decoded and multiplied in f32.
    pub fn reference() -> Self {
        Self {
            isa: Isa::Reference,
            types: arch::reference::kernels(),
            encode: QuantType::ALL.map(|ty| ty.info().encode),
        }
    }

    /// The same, but with `kernels` for `ty`.
    pub fn with(mut self, ty: QuantType, kernels: TypeKernels) -> Self {
        self.types[ty as usize] = kernels;
        self
    }

    /// The same, but with `encode` for activations of type `ty`. It must write what [`QuantInfo::encode`] writes.
    ///
    /// [`QuantInfo::encode`]: pi_core::QuantInfo::encode
    pub fn with_encode(mut self, ty: QuantType, encode: Encode) -> Self {
        self.encode[ty as usize] = encode;
        self
    }

    /// The kernels for weights of type `ty`.
    pub fn get(&self, ty: QuantType) -> &TypeKernels {
        &self.types[ty as usize]
    }

    /// The encoder of activations to type `ty`.
    pub fn encode(&self, ty: QuantType) -> Encode {
        self.encode[ty as usize]
    }

    /// The instruction set asked for. Single types may have fallen back to [`Isa::Reference`]: see [`TypeKernels::isa`].
    pub fn isa(&self) -> Isa {
        self.isa
    }
}
