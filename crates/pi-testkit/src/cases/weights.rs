//! Large matrices, made quickly: a few encoded rows that repeat. For speed it does not matter what is in a row.

use super::blocks;
use crate::Random;
use pi_core::{Device, Error, Hidden, Matrix, QuantType, Result};

/// Different rows of a kind.
const KINDS: usize = 16;

/// Encoded rows to build matrices from.
pub(super) struct Rows {
    name: &'static str,
    ty: QuantType,
    cols: usize,
    encoded: Vec<Vec<u8>>,
}

impl Rows {
    /// Random numbers of variance `1 / cols`. Their product with [`input`], whose numbers are about 1, is about `lean · √cols`
    /// with a deviation of about 1: a lean of ±3 makes its sign sure.
    pub(super) fn new(name: &'static str, ty: QuantType, cols: usize, lean: f32, seed: u64) -> Result<Self> {
        blocks(name, ty, cols)?;
        let (mut random, scale) = (Random(seed), 1.0 / (cols.max(1) as f32).sqrt());
        let mut numbers = vec![0.0; cols];
        let row = |_| {
            numbers.iter_mut().for_each(|v| *v = (random.normal() + lean) * scale);
            let mut bytes = vec![0; ty.row_bytes(cols).unwrap_or(0)];
            (ty.info().encode)(&numbers, &mut bytes);
            bytes
        };
        Ok(Self { name, ty, cols, encoded: (0..KINDS).map(row).collect() })
    }

    /// `[rows, cols]`, in memory of its own.
    pub(super) fn matrix(&self, rows: usize) -> Result<Matrix> {
        self.or(self, rows, |_| true)
    }

    /// The same, but the rows that `mine` does not name are those of `other`.
    pub(super) fn or(&self, other: &Self, rows: usize, mine: impl Fn(usize) -> bool) -> Result<Matrix> {
        let size = rows.saturating_mul(self.encoded[0].len());
        let mut bytes: Vec<u8> = Vec::new();
        let no_room = |e| Error::Device { device: "host".into(), message: format!("{size} bytes of weights: {e}") };
        bytes.try_reserve_exact(size).map_err(no_room)?;
        (0..rows).for_each(|i| bytes.extend(&if mine(i) { self } else { other }.encoded[i % KINDS]));
        Matrix::new(self.name, self.ty, rows, self.cols, bytes)
    }
}

/// `tokens` rows of numbers around 1, near `device`.
pub(super) fn input(device: &dyn Device, tokens: usize, dim: usize) -> Result<Hidden> {
    let (mut x, mut random) = (device.hidden(tokens, dim)?, Random(7));
    x.host_overwrite().iter_mut().for_each(|v| *v = 1.0 + 0.5 * random.normal());
    Ok(x)
}
