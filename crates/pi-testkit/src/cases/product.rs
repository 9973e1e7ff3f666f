//! A matrix times vectors.

use super::{
    Prepared, copies,
    weights::{Rows, input},
};
use pi_core::{Device, LinearSpec, OpStats, QuantType, Result, Write};
use std::fmt;

/// `[rows, cols]` times `tokens` vectors. One token is a GEMV, more are a GEMM.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// Type of the weights.
    pub ty: QuantType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Vectors at once.
    pub tokens: usize,
}

impl Default for Product {
    /// Q4_0, 4096 × 4096, one token.
    fn default() -> Self {
        Self { ty: QuantType::Q4_0, rows: 4096, cols: 4096, tokens: 1 }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ty, rows, cols, tokens } = self;
        match tokens {
            1 => write!(f, "gemv {ty} {rows}x{cols}"),
            _ => write!(f, "gemm {ty} {rows}x{cols} by {tokens}"),
        }
    }
}

impl Product {
    pub(super) fn prepare(&self, device: &dyn Device, cold: u64) -> Result<Prepared> {
        let rows = Rows::new("w", self.ty, self.cols, 0.0, 1)?;
        let first = rows.matrix(self.rows)?;
        let size = first.size_bytes() as u64;
        let n = copies(size, size, cold);
        let more = (1..n).map(|_| rows.matrix(self.rows));
        let ops = std::iter::once(Ok(first)).chain(more);
        let ops = ops.map(|w| device.linear(&LinearSpec::new(w?))).collect::<Result<Vec<_>>>()?;
        let mut x = input(device, self.tokens, self.cols)?;
        let y = device.hidden(self.tokens, self.rows)?;
        let mut prepared = Prepared::new(y, n, move |turn, y, _| {
            x.stale(); // encoding the input is a part of the work
            ops[turn].apply(&mut x, y, Write::Set)?;
            Ok(OpStats { bytes: ops[turn].bytes(), ..OpStats::default() })
        });
        prepared.working_set = size * n as u64;
        prepared.macs = (self.rows * self.cols * self.tokens) as u64;
        Ok(prepared)
    }
}
