//! Products of a weight matrix with encoded rows: the loop that all dense operators share.

use crate::{Kernels, TypeKernels, split};
use pi_core::{EncodedRows, Error, Executor, Hidden, MatrixView, QuantType, Result, Write};

/// Tokens whose encoded inputs are kept in the nearest cache while a run of weight rows passes by.
const TOKEN_BLOCK: usize = 16;
/// Bytes of weights below which a task is not worth handing to another thread.
const MIN_TASK_BYTES: usize = 16 << 10;

/// The rows of `x` in the form that a kernel wants beside its weights.
///
/// # Errors
/// If the rows are on a device that fails, or blocks do not divide them.
pub(crate) fn encode<'a>(
    exec: &dyn Executor,
    kernels: &Kernels,
    activation: QuantType,
    x: &'a mut Hidden,
) -> Result<EncodedRows<'a>> {
    let dim = x.dim();
    let what = || Error::Block { what: "activations".into(), cols: dim, ty: activation };
    let row_bytes = activation.row_bytes(dim).ok_or_else(what)?;
    let encode = kernels.encode(activation);
    x.encode(activation, row_bytes, |rows, out| {
        split::chunks(exec, out, row_bytes, |t, row| encode(&rows[t * dim..(t + 1) * dim], row));
    })?;
    x.encoded(activation).ok_or_else(what)
}

/// `y[t][r] = w.row(r) · x[t] + bias[r]`, or `+=`; `y` has rows of `rows` numbers, one per row of `x`.
pub(crate) fn matmul(
    exec: &dyn Executor,
    k: &TypeKernels,
    w: MatrixView<'_>,
    rows: usize,
    x: EncodedRows<'_>,
    bias: Option<&[f32]>,
    y: &mut [f32],
    how: Write,
) {
    let tokens = y.len().checked_div(rows).unwrap_or(0);
    let min = MIN_TASK_BYTES.div_ceil(w.row_bytes().max(1) * tokens.max(1));
    split::columns(exec, y, rows, 4, min, |mut part| {
        let range = part.range();
        for t0 in (0..tokens).step_by(TOKEN_BLOCK) {
            let block = t0..(t0 + TOKEN_BLOCK).min(tokens);
            for r in range.clone().step_by(4) {
                let n = (range.end - r).min(4);
                for t in block.clone() {
                    let mut out = rows_dot(k, w, r, n, x.row(t));
                    if let Some(bias) = bias {
                        out.iter_mut().zip(&bias[r..r + n]).for_each(|(o, b)| *o += b);
                    }
                    let at = r - range.start;
                    let dst = &mut part.row(t)[at..at + n];
                    match how {
                        Write::Set => dst.copy_from_slice(&out[..n]),
                        Write::Add => dst.iter_mut().zip(out).for_each(|(d, o)| *d += o),
                    }
                }
            }
        }
    });
}

/// Scalar products of the `n ≤ 4` rows from `r` on with one encoded row.
#[inline]
pub(crate) fn rows_dot(k: &TypeKernels, w: MatrixView<'_>, r: usize, n: usize, x: &[u8]) -> [f32; 4] {
    if n == 4 {
        return (k.dot4)([w.row(r), w.row(r + 1), w.row(r + 2), w.row(r + 3)], x);
    }
    let mut out = [0.0; 4];
    (0..n).for_each(|i| out[i] = (k.dot)(w.row(r + i), x));
    out
}
