//! Products of a weight matrix with encoded rows: the loop that all dense operators share.

use crate::{
    Activations, TypeKernels,
    arch::prefetch,
    split::{self, Columns},
};
use pi_core::{EncodedRows, Error, Executor, Hidden, MatrixView, Result, Write};

/// Tokens whose encoded inputs stay in the caches while a run of weight rows passes by.
const TOKEN_BLOCK: usize = 128;
/// Weight rows that a kernel gets at once.
const ROWS: usize = 64;
/// Bytes of encoded rows below which one thread encodes them all.
const MIN_ENCODED: usize = 32 << 10;
/// Bytes of weights below which a task is not worth handing to another thread.
const MIN_TASK_BYTES: usize = 32 << 10;
/// Bytes of a task's weights that are asked for at once when it starts; kernels ask for the rest in time.
const FIRST: usize = 4096;

/// The rows of `x` in the form that a kernel wants beside its weights.
///
/// # Errors
/// If the rows are on a device that fails.
pub(crate) fn encode<'a>(exec: &dyn Executor, activations: &Activations, x: &'a mut Hidden) -> Result<EncodedRows<'a>> {
    let (dim, row_bytes) = (x.dim(), activations.row_bytes(x.dim()));
    x.encode(activations.form, row_bytes, |rows, out| {
        let encode = |t: usize, row: &mut [u8]| (activations.encode)(&rows[t * dim..(t + 1) * dim], row);
        // a few rows are encoded sooner than another thread is told about them
        if out.len() < MIN_ENCODED {
            out.chunks_exact_mut(row_bytes).enumerate().for_each(|(t, row)| encode(t, row));
        } else {
            split::chunks(exec, out, row_bytes, encode);
        }
    })?;
    x.encoded(activations.form).ok_or_else(|| Error::shape("activations", "encoded rows", "none"))
}

/// One product: `y[t][r] = w.row(r) · x[t] + bias[r]`, or `+=`. `y` has rows of `rows` numbers, one per row of `x`.
pub(crate) struct Product<'a> {
    pub k: &'a TypeKernels,
    pub w: MatrixView<'a>,
    pub rows: usize,
    pub x: EncodedRows<'a>,
    pub bias: Option<&'a [f32]>,
    pub y: &'a mut [f32],
    pub how: Write,
}

/// Several products in one parallel section: short ones are over sooner than threads are told about the next.
pub(crate) fn products<const N: usize>(exec: &dyn Executor, products: [Product<'_>; N]) {
    let tokens = products.first().map_or(0, |p| p.y.len().checked_div(p.rows).unwrap_or(0));
    let widest = products.iter().map(|p| p.w.row_bytes()).max().unwrap_or(0);
    let min = MIN_TASK_BYTES.div_ceil(widest.max(1) * tokens.max(1));
    let parts = products.each_ref().map(|p| (p.k, p.w, p.x, p.bias, p.how));
    split::columns_of(exec, products.map(|p| (p.y, p.rows)), 4, min, |i, part| {
        let (k, w, x, bias, how) = parts[i];
        some_rows(k, w, x, bias, how, tokens, part);
    });
}

/// The weight rows of one task.
fn some_rows(
    k: &TypeKernels,
    w: MatrixView<'_>,
    x: EncodedRows<'_>,
    bias: Option<&[f32]>,
    how: Write,
    tokens: usize,
    mut part: Columns<'_>,
) {
    let range = part.range();
    let mut out = [0.0f32; ROWS * TOKEN_BLOCK];
    let mut rows: [&[u8]; ROWS] = [&[]; ROWS];
    let at_once = (FIRST / w.row_bytes().max(1)).max(4);
    range.clone().take(at_once).for_each(|r| prefetch(&w.row(r)[..w.row_bytes().min(FIRST)]));
    for t0 in (0..tokens).step_by(TOKEN_BLOCK) {
        let block = TOKEN_BLOCK.min(tokens - t0);
        for r in range.clone().step_by(ROWS) {
            let n = (range.end - r).min(ROWS);
            rows.iter_mut().zip(r..range.end).for_each(|(row, r)| *row = w.row(r));
            let out = &mut out[..n * block];
            k.tile(&rows[..n], x.from(t0), x.row_bytes(), out);
            let at = r - range.start;
            for (t, out) in out.chunks_exact_mut(n).enumerate() {
                if let Some(bias) = bias {
                    out.iter_mut().zip(&bias[r..r + n]).for_each(|(o, b)| *o += b);
                }
                let dst = &mut part.row(t0 + t)[at..at + n];
                match how {
                    Write::Set => dst.copy_from_slice(out),
                    Write::Add => dst.iter_mut().zip(out).for_each(|(d, o)| *d += *o),
                }
            }
        }
    }
}
