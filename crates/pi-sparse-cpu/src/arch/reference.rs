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
/// Rows of activations that pass by a decoded part before the next is decoded.
const TOKENS: usize = 32;
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
        dot4: |w, _, x| w.map(|w| dot::<T>(w, x)),
        tile: Some(tile::<T>),
        axpy: axpy::<T>,
        axpy4: Some(axpy4::<T>),
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
    let mut y = [0.0];
    rows::<T, 1>(w, x, 0, &mut y);
    y[0]
}

/// One row beside several rows of activations: each part is decoded once for `N` of them.
fn rows<const T: usize, const N: usize>(w: &[u8], x: &[u8], row_bytes: usize, y: &mut [f32]) {
    let block = QuantType::ALL[T].info().block_len;
    let mut buffer = [0.0; PART];
    for (c, y) in y.chunks_mut(N).enumerate() {
        let mut lanes = [[0.0; LANES]; N];
        for (p, w) in w.chunks(part_bytes::<T>()).enumerate() {
            let n = decode_part::<T>(w, &mut buffer);
            for (t, lanes) in lanes.iter_mut().enumerate().take(y.len()) {
                let x = x.get((c * N + t) * row_bytes + p * PART * 4..).unwrap_or(&[]).as_chunks::<4>().0;
                // activations that fill no block of weights do not count
                add_products(&buffer[..n.min(x.len() / block * block)], x, lanes);
            }
        }
        for (y, lanes) in y.iter_mut().zip(lanes) {
            *y = sum(lanes);
        }
    }
}

fn add_products(w: &[f32], x: &[[u8; 4]], lanes: &mut [f32; LANES]) {
    let (w_lanes, w_rest) = w.as_chunks::<LANES>();
    let (x_lanes, x_rest) = x[..w.len()].as_chunks::<LANES>();
    for (w, x) in w_lanes.iter().zip(x_lanes) {
        for i in 0..LANES {
            lanes[i] += w[i] * f32::from_le_bytes(x[i]);
        }
    }
    for (i, (w, x)) in w_rest.iter().zip(x_rest).enumerate() {
        lanes[i] += w * f32::from_le_bytes(*x);
    }
}

fn tile<const T: usize>(w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32]) {
    if w.is_empty() {
        return;
    }
    let mut column = [0.0; TOKENS];
    for (c, y) in y.chunks_mut(TOKENS * w.len()).enumerate() {
        let x = x.get(c * TOKENS * row_bytes..).unwrap_or(&[]);
        let column = &mut column[..y.len() / w.len()];
        for (r, row) in w.iter().enumerate() {
            rows::<T, TOKENS>(row, x, row_bytes, column);
            y.chunks_exact_mut(w.len()).zip(&*column).for_each(|(y, v)| y[r] = *v);
        }
    }
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

fn axpy4<const T: usize>(w: [&[u8]; 4], _: [&[u8]; 4], a: [f32; 4], y: &mut [f32]) {
    w.into_iter().zip(a).for_each(|(w, a)| axpy::<T>(w, a, y));
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
