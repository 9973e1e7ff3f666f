//! A model with its matrices stored in other types.

use pi_core::{Matrix, QuantType, Result};
use rayon::prelude::*;

/// `m` decoded and encoded anew as `ty` with the reference encoder, rows in parallel.
///
/// # Errors
/// If `ty`'s blocks do not divide the rows.
pub fn requantise(m: &Matrix, ty: QuantType) -> Result<Matrix> {
    let row_bytes =
        ty.row_bytes(m.cols()).ok_or_else(|| pi_core::Error::Block { what: m.name().into(), cols: m.cols(), ty })?;
    let (view, mut bytes) = (m.view(), vec![0; m.rows() * row_bytes]);
    bytes.par_chunks_exact_mut(row_bytes).enumerate().for_each_init(
        || vec![0.0; m.cols()],
        |row, (i, out)| {
            (m.ty().info().decode)(view.row(i), row);
            (ty.info().encode)(row, out);
        },
    );
    Matrix::new(m.name(), ty, m.rows(), m.cols(), bytes)
}
