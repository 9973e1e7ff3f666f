//! Learned positions: a table whose rows are added to embeddings.

use crate::{Error, Result};
use pi_core::{BatchToken, Hidden, Matrix};

/// The table of a model.
#[derive(Clone)]
pub(crate) struct Positions {
    table: Matrix,
    offset: usize,
}

impl Positions {
    /// Position 0 has row `offset` of the table.
    ///
    /// # Errors
    /// If the rows are not `dim` wide, or there is none for position 0.
    pub(crate) fn new(table: Matrix, offset: usize, dim: usize, path: String) -> Result<Self> {
        table.expect_shape(table.rows(), dim)?;
        if table.rows() <= offset {
            let message = format!("expected more than {offset} rows, got {}", table.rows());
            return Err(Error::Tensor { path, tensor: table.name().into(), message });
        }
        Ok(Self { table, offset })
    }

    /// How many positions there are.
    pub(crate) fn len(&self) -> usize {
        self.table.rows() - self.offset
    }

    /// Adds each token's position to its row of `h`; `x` is scratch space of the same shape. Returns the bytes read.
    ///
    /// Positions are below [`len`](Self::len): a session holds no more.
    pub(crate) fn add(&self, batch: &[BatchToken], h: &mut Hidden, x: &mut Hidden) -> Result<u64> {
        let (view, decode, dim) = (self.table.view(), self.table.ty().info().decode, self.table.cols());
        let rows = h.host_mut()?.chunks_exact_mut(dim).zip(x.host_overwrite().chunks_exact_mut(dim));
        for (token, (h, position)) in batch.iter().zip(rows) {
            decode(view.row(token.pos as usize + self.offset), position);
            h.iter_mut().zip(position).for_each(|(h, p)| *h += *p);
        }
        Ok((batch.len() * view.row_bytes()) as u64)
    }
}
