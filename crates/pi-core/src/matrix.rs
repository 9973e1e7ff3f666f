//! Weight matrices as checked rows of quant blocks.

use crate::{Error, QuantType, Result, SharedBytes};
use std::{ops::Range, sync::Arc};

/// A weight matrix `[rows, cols]`: row `i` holds the `cols` numbers of output (or neuron) `i`, whole blocks of one type.
///
/// Everything is checked once in [`Matrix::new`]; afterwards rows are plain slices. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Matrix {
    name: Arc<str>,
    ty: QuantType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: SharedBytes,
}

impl Matrix {
    /// A matrix over existing bytes.
    ///
    /// # Errors
    /// [`Error::Block`] if `cols` is not a whole number of blocks, [`Error::Shape`] if the byte count differs from
    /// `rows × row bytes` or if that product overflows.
    pub fn new(
        name: impl Into<Arc<str>>,
        ty: QuantType,
        rows: usize,
        cols: usize,
        bytes: impl Into<SharedBytes>,
    ) -> Result<Self> {
        let (name, bytes) = (name.into(), bytes.into());
        let row_bytes = ty.row_bytes(cols).ok_or_else(|| Error::Block { what: name.to_string(), cols, ty })?;
        match rows.checked_mul(row_bytes) {
            Some(n) if n == bytes.len() => Ok(Self { name, ty, rows, cols, row_bytes, bytes }),
            n => Err(Error::shape(
                name.to_string(),
                format!("{} bytes for {rows} rows of {cols} {ty}", n.map_or("countless".into(), |n| n.to_string())),
                format!("{} bytes", bytes.len()),
            )),
        }
    }

    /// A matrix encoded from row-major numbers with the type's reference encoder.
    ///
    /// # Errors
    /// As [`Matrix::new`]; `data.len()` must be `rows × cols`.
    pub fn encode(name: impl Into<Arc<str>>, ty: QuantType, rows: usize, cols: usize, data: &[f32]) -> Result<Self> {
        let name = name.into();
        if rows.checked_mul(cols) != Some(data.len()) {
            return Err(Error::shape(name.to_string(), format!("{rows} x {cols} numbers"), data.len()));
        }
        let row_bytes = ty.row_bytes(cols).ok_or_else(|| Error::Block { what: name.to_string(), cols, ty })?;
        let mut bytes = vec![0; rows * row_bytes];
        if row_bytes > 0 {
            for (src, dst) in data.chunks_exact(cols).zip(bytes.chunks_exact_mut(row_bytes)) {
                (ty.info().encode)(src, dst);
            }
        }
        Self::new(name, ty, rows, cols, bytes)
    }

    /// The tensor's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How numbers are stored.
    pub fn ty(&self) -> QuantType {
        self.ty
    }

    /// Number of rows (outputs or neurons).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers per row (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of the whole matrix.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The rows, borrowed.
    pub fn view(&self) -> MatrixView<'_> {
        MatrixView { ty: self.ty, cols: self.cols, row_bytes: self.row_bytes, bytes: self.bytes.as_slice() }
    }

    /// All numbers, row-major, decoded exactly.
    pub fn decode(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        (self.ty.info().decode)(self.bytes.as_slice(), &mut out);
        out
    }

    /// Says that nobody on the host is going to read these rows soon; see [`SharedBytes::give_back`]. Rows beyond the end are left out.
    pub fn give_back(&self, rows: Range<usize>) {
        let at = |row: usize| row.min(self.rows) * self.row_bytes;
        self.bytes.give_back(at(rows.start)..at(rows.end));
    }

    /// Some of the rows as a matrix of their own, which shares the bytes.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the tensor if there are fewer rows.
    pub fn rows_of(&self, rows: Range<usize>) -> Result<Self> {
        let scaled = |row: usize| row.checked_mul(self.row_bytes);
        let bytes = match (scaled(rows.start), scaled(rows.end)) {
            (Some(from), Some(to)) if rows.end <= self.rows => self.bytes.part(from..to),
            _ => None,
        };
        let bytes = bytes
            .ok_or_else(|| Error::shape(self.name.to_string(), format!("rows {rows:?}"), format!("{}", self.rows)))?;
        Self::new(self.name.clone(), self.ty, rows.len(), self.cols, bytes)
    }

    /// The transposed matrix `[cols, rows]` of the same type: same numbers, bit for bit.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for block types: their blocks run along a row, so transposing would quantise anew.
    pub fn transposed(&self) -> Result<Self> {
        if !self.ty.is_float() {
            return Err(Error::unsupported(
                format!("lossless transposition of {}", self.name),
                format!("{} stores blocks along the rows", self.ty),
            ));
        }
        let mut out = vec![0; self.bytes.len()];
        let src = self.bytes.as_slice();
        match self.ty.info().block_bytes {
            4 => transpose::<4>(src, &mut out, self.rows, self.cols),
            _ => transpose::<2>(src, &mut out, self.rows, self.cols),
        }
        Self::new(self.name.clone(), self.ty, self.cols, self.rows, out)
    }

    /// Fails unless the matrix is `[rows, cols]`.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the tensor.
    pub fn expect_shape(&self, rows: usize, cols: usize) -> Result<()> {
        if (self.rows, self.cols) == (rows, cols) {
            return Ok(());
        }
        Err(Error::shape(
            self.name.to_string(),
            format!("{rows} rows of {cols}"),
            format!("{} rows of {}", self.rows, self.cols),
        ))
    }
}

/// Tiles keep both the reads and the writes within a few cache lines.
fn transpose<const N: usize>(src: &[u8], dst: &mut [u8], rows: usize, cols: usize) {
    const TILE: usize = 32;
    let (src, dst) = (src.as_chunks::<N>().0, dst.as_chunks_mut::<N>().0);
    for r0 in (0..rows).step_by(TILE) {
        for c0 in (0..cols).step_by(TILE) {
            for c in c0..(c0 + TILE).min(cols) {
                for r in r0..(r0 + TILE).min(rows) {
                    dst[c * rows + r] = src[r * cols + c];
                }
            }
        }
    }
}

/// The rows of a [`Matrix`], borrowed for the length of a computation.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    ty: QuantType,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> MatrixView<'a> {
    /// How numbers are stored.
    pub fn ty(&self) -> QuantType {
        self.ty
    }

    /// Numbers per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Row `i` as whole blocks.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&self, i: usize) -> &'a [u8] {
        &self.bytes[i * self.row_bytes..(i + 1) * self.row_bytes]
    }

    /// All rows as one slice.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_checked_once() {
        assert!(matches!(Matrix::new("w", QuantType::Q4_0, 2, 33, vec![0; 36]), Err(Error::Block { cols: 33, .. })));
        assert!(matches!(Matrix::new("w", QuantType::Q4_0, 2, 32, vec![0; 35]), Err(Error::Shape { .. })));
        assert!(matches!(Matrix::new("w", QuantType::F32, usize::MAX, 32, vec![]), Err(Error::Shape { .. })));
        assert!(Matrix::new("w", QuantType::Q4_0, 2, 32, vec![0; 36]).is_ok());
    }

    #[test]
    fn rows_of_a_matrix_are_a_matrix_over_the_same_bytes() {
        let data: Vec<f32> = (0..4 * 32).map(|i| (i / 32) as f32).collect();
        for ty in [QuantType::F32, QuantType::Q8_0] {
            let m = Matrix::encode("w", ty, 4, 32, &data).unwrap();
            let part = m.rows_of(1..3).unwrap();
            assert_eq!((part.rows(), part.cols()), (2, 32));
            assert_eq!(part.view().row(1).as_ptr(), m.view().row(2).as_ptr(), "{ty}: nothing is copied");
            assert_eq!(m.rows_of(0..4).unwrap().decode(), m.decode());
            for outside in [3..5, 5..6, usize::MAX - 1..usize::MAX] {
                assert!(matches!(m.rows_of(outside), Err(Error::Shape { .. })));
            }
        }
    }

    #[test]
    fn transposing_moves_every_number_and_changes_none() {
        let (rows, cols) = (37, 70);
        let data: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
        for ty in [QuantType::F32, QuantType::F16] {
            let m = Matrix::encode("w", ty, rows, cols, &data).unwrap();
            let t = m.transposed().unwrap();
            let (a, b) = (m.decode(), t.decode());
            for r in 0..rows {
                for c in 0..cols {
                    assert_eq!(a[r * cols + c], b[c * rows + r]);
                }
            }
        }
        let q = Matrix::new("w", QuantType::Q4_0, 2, 32, vec![0; 36]).unwrap();
        assert!(matches!(q.transposed(), Err(Error::Unsupported { .. })));
    }
}
