//! The exact path for any CPU: decode a part of a row to f32, then multiply.
//!
//! Nothing here is written for a particular CPU, but the loops are such that compilers turn them into vector code: a part
//! of a row is decoded to a small buffer, and products go to lanes that do not depend on each other.

use crate::{
    Activations,
    kernels::{Isa, TYPES, TypeKernels},
};
use pi_core::QuantType;

/// Numbers decoded at a time: a multiple of every block length.
const PART: usize = 256;
/// Independent sums.
const LANES: usize = 16;

/// The table for all types. The index of [`of`] is that of [`QuantType::ALL`], which is the order of the enum.
pub(crate) fn kernels() -> [TypeKernels; TYPES] {
    // a new type needs a new entry, or this does not compile
    [
        of::<0>(),
        of::<1>(),
        of::<2>(),
        of::<3>(),
        of::<4>(),
        of::<5>(),
        of::<6>(),
        of::<7>(),
        of::<8>(),
        of::<9>(),
        of::<10>(),
        of::<11>(),
        of::<12>(),
        of::<13>(),
        of::<14>(),
        of::<15>(),
        of::<16>(),
    ]
}

fn of<const T: usize>() -> TypeKernels {
    TypeKernels {
        activations: Activations::F32,
        dot: dot::<T>,
        dot4: |w, x| w.map(|w| dot::<T>(w, x)),
        tile: None,
        axpy: axpy::<T>,
        axpy4: None,
        decode: QuantType::ALL[T].info().decode,
        isa: Isa::Reference,
    }
}

/// Bytes that hold [`PART`] numbers of type `T`.
fn part_bytes<const T: usize>() -> usize {
    let info = QuantType::ALL[T].info();
    PART / info.block_len * info.block_bytes
}

/// Decodes the start of `w` into `out` and returns how many numbers came.
fn decode_part<const T: usize>(w: &[u8], out: &mut [f32; PART]) -> usize {
    let info = QuantType::ALL[T].info();
    (info.decode)(w, out);
    (w.len() / info.block_bytes * info.block_len).min(PART)
}

fn dot<const T: usize>(w: &[u8], x: &[u8]) -> f32 {
    let block = QuantType::ALL[T].info().block_len;
    let mut lanes = [0.0; LANES];
    let mut buffer = [0.0; PART];
    for (w, x) in w.chunks(part_bytes::<T>()).zip(x.chunks(PART * 4)) {
        let x = x.as_chunks::<4>().0;
        // activations that fill no block of weights do not count
        let n = decode_part::<T>(w, &mut buffer).min(x.len() / block * block);
        let (w_lanes, w_rest) = buffer[..n].as_chunks::<LANES>();
        let (x_lanes, x_rest) = x[..n].as_chunks::<LANES>();
        for (w, x) in w_lanes.iter().zip(x_lanes) {
            for i in 0..LANES {
                lanes[i] += w[i] * f32::from_le_bytes(x[i]);
            }
        }
        for (i, (w, x)) in w_rest.iter().zip(x_rest).enumerate() {
            lanes[i] += w * f32::from_le_bytes(*x);
        }
    }
    sum(lanes)
}

/// Adds the lanes pairwise, which loses less than one after another.
fn sum(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

fn axpy<const T: usize>(w: &[u8], a: f32, y: &mut [f32]) {
    let block = QuantType::ALL[T].info().block_len;
    let mut buffer = [0.0; PART];
    for (w, y) in w.chunks(part_bytes::<T>()).zip(y.chunks_mut(PART)) {
        let n = decode_part::<T>(w, &mut buffer).min(y.len() / block * block);
        for (y, w) in y[..n].iter_mut().zip(&buffer[..n]) {
            *y += a * w;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_enum_and_the_table_have_one_order() {
        for (i, ty) in QuantType::ALL.into_iter().enumerate() {
            assert_eq!(ty as usize, i, "{ty}");
            assert!(PART.is_multiple_of(ty.info().block_len), "{ty}");
        }
    }
}
