//! The table of kernels: for each quant type, how it is computed on this CPU.

use crate::{Activations, arch};
use pi_core::{Activation, Error, QuantType, Result, SignKernels};
use std::fmt;
use std::str::FromStr;

/// An instruction set that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Plain code for any CPU, and exact: activations stay F32.
    Reference,
    /// x86-64 with AVX2, FMA and F16C. Activations of quantised weights are encoded to 15 bits.
    Avx2,
    /// The same with AVX-512 (F, BW, DQ, VL, VNNI): fewer instructions, the same bits.
    Avx512,
}

impl Isa {
    const ALL: [Isa; 3] = [Isa::Reference, Isa::Avx2, Isa::Avx512];

    /// The sets that this CPU has, the plainest first.
    pub fn available() -> Vec<Isa> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    fn is_available(self) -> bool {
        match self {
            Isa::Reference => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => arch::x86_64::avx2::is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => arch::x86_64::avx512::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Isa::Reference => "reference",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
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
    /// The form of activations beside which [`dot`](Self::dot) reads weights; F32 on the exact path.
    pub activations: Activations,
    /// Scalar product of one weight row with one encoded row of activations.
    pub dot: fn(w: &[u8], x: &[u8]) -> f32,
    /// Four weight rows of equal length at once. Equal to four times [`dot`](Self::dot), to the bit.
    pub dot4: Dot4,
    /// Some weight rows (64 at most) beside encoded rows that lie `row_bytes` apart in `x`: the blocked product of prompts.
    /// `y` has a row per encoded row, with a number per weight row. Equal to [`dot`](Self::dot) for each, to the bit. Without
    /// it, operators call that.
    pub tile: Option<Tile>,
    /// `y += a * decode(w)`.
    pub axpy: fn(w: &[u8], a: f32, y: &mut [f32]),
    /// Four rows of equal length, one after the other. Equal to four times [`axpy`](Self::axpy), to the bit; and who has it
    /// promises that `axpy` gives the bits of the F32 entry of the same [`isa`](Self::isa) over the decoded row. Without it,
    /// operators call `axpy`.
    pub axpy4: Option<Axpy4>,
    /// Decodes a row, exactly as [`QuantInfo::decode`](pi_core::QuantInfo::decode).
    pub decode: fn(w: &[u8], out: &mut [f32]),
    /// Where this entry comes from, so that a silent fallback is seen.
    pub isa: Isa,
}

/// See [`TypeKernels::dot4`]. `next`: the rows that will be wanted after these, for memory to be asked in time, if they do not
/// lie after them; empty where nobody knows. The result does not depend on it.
pub type Dot4 = fn(w: [&[u8]; 4], next: [&[u8]; 4], x: &[u8]) -> [f32; 4];
/// See [`TypeKernels::tile`].
pub type Tile = fn(w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32]);
/// See [`TypeKernels::axpy4`]. `next`: as of [`Dot4`].
pub type Axpy4 = fn(w: [&[u8]; 4], next: [&[u8]; 4], a: [f32; 4], y: &mut [f32]);

impl TypeKernels {
    /// [`tile`](Self::tile), or what stands in for it.
    #[inline]
    pub fn tile(&self, w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32]) {
        match self.tile {
            Some(tile) if y.len() > w.len() => tile(w, x, row_bytes, y),
            _ => {
                for (t, y) in y.chunks_exact_mut(w.len().max(1)).enumerate() {
                    self.dots(w, x.get(t * row_bytes..).unwrap_or(&[]), y);
                }
            }
        }
    }

    /// Some weight rows beside one encoded row.
    #[inline]
    pub(crate) fn dots(&self, w: &[&[u8]], x: &[u8], y: &mut [f32]) {
        let (fours, rest) = w.as_chunks::<4>();
        for (w, y) in fours.iter().zip(y.as_chunks_mut().0) {
            *y = (self.dot4)(*w, [&[]; 4], x);
        }
        for (w, y) in rest.iter().zip(&mut y[4 * fours.len()..]) {
            *y = (self.dot)(w, x);
        }
    }

    /// [`axpy4`](Self::axpy4), or what stands in for it.
    #[inline]
    pub fn axpy4(&self, w: [&[u8]; 4], next: [&[u8]; 4], a: [f32; 4], y: &mut [f32]) {
        match self.axpy4 {
            Some(axpy4) => axpy4(w, next, a, y),
            None => w.into_iter().zip(a).for_each(|(w, a)| (self.axpy)(w, a, y)),
        }
    }
}

pub(crate) const TYPES: usize = QuantType::ALL.len();

/// Kernels for every quant type.
#[derive(Debug, Clone)]
pub struct Kernels {
    isa: Isa,
    types: [TypeKernels; TYPES],
    packed: [Option<Packed>; TYPES],
    activate: Activate,
    signs: SignKernels,
}

/// A second layout of a type's rows that is faster to compute, of the same size, and the kernels for it.
///
/// The numbers are the same; sums may be added up in another order than those of the type's own layout.
#[derive(Debug, Clone, Copy)]
pub struct Packed {
    /// Writes a row in this layout.
    pub pack: Pack,
    /// As for the type itself, but of repacked rows. Parts of rows have to begin at multiples of `columns`.
    pub kernels: TypeKernels,
    /// Numbers that are packed together. Rows that are not multiples of it may be computed slowly, and operators do not repack
    /// them.
    pub columns: usize,
}

/// See [`Packed::pack`]: `pack(row, out)`, both of equal length.
pub type Pack = fn(row: &[u8], out: &mut [u8]);

/// Applies an activation to each number of a row. What becomes of a number must not depend on its place.
pub type Activate = fn(act: Activation, x: &mut [f32]);

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
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => arch::x86_64::avx512::kernels(Self::reference()),
            #[cfg(not(target_arch = "x86_64"))]
            _ => None,
        };
        kernels
            .map(|kernels| Self { isa, ..kernels })
            .ok_or_else(|| Error::unsupported(format!("instruction set `{isa}`"), "this CPU does not have it"))
    }

    /// The exact path on any CPU: for every type, activations stay F32, and rows are decoded and multiplied in f32.
    pub fn reference() -> Self {
        let activate: Activate = |act, x| x.iter_mut().for_each(|x| *x = act.apply(*x));
        Self {
            isa: Isa::Reference,
            types: arch::reference::kernels(),
            packed: [None; TYPES],
            activate,
            signs: SignKernels::PLAIN,
        }
    }

    /// The same, but with `kernels` for `ty`, whose rows then are not repacked.
    pub fn with(mut self, ty: QuantType, kernels: TypeKernels) -> Self {
        self.types[ty as usize] = kernels;
        self.packed[ty as usize] = None;
        self
    }

    /// The same, but where rows of `ty` may be repacked, with this layout.
    pub fn with_packed(mut self, ty: QuantType, packed: Packed) -> Self {
        self.packed[ty as usize] = Some(packed);
        self
    }

    /// The faster layout of a type's rows, if there is one.
    pub fn packed(&self, ty: QuantType) -> Option<&Packed> {
        self.packed[ty as usize].as_ref()
    }

    /// The same, but with `activate` for activation functions.
    pub fn with_activate(mut self, activate: Activate) -> Self {
        self.activate = activate;
        self
    }

    /// How activation functions are applied.
    pub fn activate(&self) -> Activate {
        self.activate
    }

    /// The same, but with `signs` for predictions from signs.
    pub fn with_signs(mut self, signs: SignKernels) -> Self {
        self.signs = signs;
        self
    }

    /// How signs are packed and compared.
    pub fn signs(&self) -> SignKernels {
        self.signs
    }

    /// The kernels for weights of type `ty`.
    pub fn get(&self, ty: QuantType) -> &TypeKernels {
        &self.types[ty as usize]
    }

    /// The instruction set asked for. Single types may have fallen back to [`Isa::Reference`]: see [`TypeKernels::isa`].
    pub fn isa(&self) -> Isa {
        self.isa
    }
}
