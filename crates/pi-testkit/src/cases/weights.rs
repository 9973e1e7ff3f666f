//! Large matrices, made quickly: a few encoded rows that repeat. For speed it does not matter what is in a row.

use crate::Random;
use pi_core::{Error, Hidden, Matrix, QuantType, Result};

/// Different rows of a kind.
const POOL: usize = 32;

/// How far the rows of gates that fire (or stay closed) lean towards (or away from) the input, whose numbers are about 1.
const LEAN: f32 = 3.0;

/// `[rows, cols]` random numbers of variance `1 / cols`.
pub(super) fn matrix(name: &str, ty: QuantType, rows: usize, cols: usize, seed: u64) -> Result<Matrix> {
    let pool = pool(name, ty, cols, 0.0, seed)?;
    assemble(name, ty, rows, cols, |i| &pool[i % POOL])
}

/// A gate: the rows that `fires` names have a clearly positive product with [`input`], the others a negative one.
pub(super) fn gate(
    ty: QuantType,
    rows: usize,
    cols: usize,
    seed: u64,
    fires: impl Fn(usize) -> bool,
) -> Result<Matrix> {
    let (open, closed) = (pool("gate", ty, cols, LEAN, seed)?, pool("gate", ty, cols, -LEAN, seed + 1)?);
    assemble("gate", ty, rows, cols, |i| if fires(i) { &open[i % POOL] } else { &closed[i % POOL] })
}

/// `tokens` rows of numbers around 1.
pub(super) fn input(tokens: usize, dim: usize) -> Result<Hidden> {
    let (mut x, mut random) = (Hidden::try_new(tokens, dim)?, Random(7));
    x.host_overwrite().iter_mut().for_each(|v| *v = 1.0 + 0.5 * random.normal());
    Ok(x)
}

fn pool(name: &str, ty: QuantType, cols: usize, lean: f32, seed: u64) -> Result<Vec<Vec<u8>>> {
    let row_bytes = ty.row_bytes(cols).ok_or_else(|| Error::Block { what: name.into(), cols, ty })?;
    let (mut random, scale) = (Random(seed), 1.0 / (cols.max(1) as f32).sqrt());
    let mut numbers = vec![0.0; cols];
    let row = |_| {
        numbers.iter_mut().for_each(|v| *v = (random.normal() + lean) * scale);
        let mut bytes = vec![0; row_bytes];
        (ty.info().encode)(&numbers, &mut bytes);
        bytes
    };
    Ok((0..POOL).map(row).collect())
}

fn assemble<'a>(
    name: &str,
    ty: QuantType,
    rows: usize,
    cols: usize,
    row: impl Fn(usize) -> &'a Vec<u8>,
) -> Result<Matrix> {
    let size = rows.saturating_mul(ty.row_bytes(cols).unwrap_or(0));
    let mut bytes: Vec<u8> = Vec::new();
    let no_room = |e| Error::Device { device: "host".into(), message: format!("{size} bytes for {name}: {e}") };
    bytes.try_reserve_exact(size).map_err(no_room)?;
    (0..rows).for_each(|i| bytes.extend(row(i)));
    Matrix::new(name, ty, rows, cols, bytes)
}
