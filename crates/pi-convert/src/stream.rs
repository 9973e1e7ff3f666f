//! From numbers in one type to numbers in another, some rows at a time.

use std::borrow::Cow;
use std::ops::ControlFlow;

use pi_core::QuantType;
use pi_gguf::{AtomicFile, Writer};
use rayon::prelude::*;

use crate::error::{Error, Result};

/// Numbers that are in memory at a time, decoded.
const CHUNK: usize = 1 << 20;
/// Columns of a matrix to be transposed are taken in multiples of this, which is a multiple of every block's length.
const TILE: usize = 256;
/// The largest number of F16.
const F16_MAX: f32 = 65504.0;

/// How the numbers of a source are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Quant(QuantType),
    F64,
}

impl Stored {
    pub(crate) fn row_bytes(self, cols: usize) -> Option<usize> {
        match self {
            Self::Quant(ty) => ty.row_bytes(cols),
            Self::F64 => cols.checked_mul(8),
        }
    }

    fn block_len(self) -> usize {
        if let Self::Quant(ty) = self { ty.info().block_len } else { 1 }
    }

    fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::Quant(ty) => (ty.info().decode)(bytes, out),
            Self::F64 => {
                out.iter_mut().zip(bytes.as_chunks().0).for_each(|(out, b)| *out = f64::from_le_bytes(*b) as f32)
            }
        }
    }
}

/// Which row or column of the source is a row of the result.
#[derive(Clone, Debug, Default)]
pub(crate) enum Order {
    #[default]
    AsIs,
    /// Row `i` is row `order[i]` of the source.
    Rows(Vec<usize>),
    /// Row `i` is column `i` of the source.
    Transposed,
}

/// A matrix to be written. The bytes are as many as type and shape say; its maker checked that.
pub(crate) struct Source<'a> {
    pub stored: Stored,
    pub bytes: Cow<'a, [u8]>,
    pub rows: usize,
    pub cols: usize,
    pub order: Order,
}

/// What became of the numbers of one tensor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loss {
    /// Finite numbers that F16 cannot hold.
    pub overflows: u64,
    /// Σ x², Σ (x − stored)², and the latter if it were not transposed.
    squares: f64,
    errors: f64,
    plain: f64,
}

impl Loss {
    fn plus(self, other: Self) -> Self {
        Self {
            overflows: self.overflows + other.overflows,
            squares: self.squares + other.squares,
            errors: self.errors + other.errors,
            plain: self.plain + other.plain,
        }
    }

    /// Root of Σ (x − stored)² ÷ Σ x², and the same had it not been transposed.
    pub(crate) fn relative(&self) -> (f64, f64) {
        let share = |errors: f64| if self.squares > 0.0 { (errors / self.squares).sqrt() } else { 0.0 };
        (share(self.errors), share(self.plain))
    }
}

/// How far a conversion is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The tensor that is being written.
    pub tensor: &'a str,
    /// How many tensors are complete, and how many there will be.
    pub done: usize,
    /// How many tensors there will be.
    pub tensors: usize,
    /// Bytes written of them.
    pub bytes: u64,
    /// Bytes there will be.
    pub total: u64,
}

/// Called with how far it is; [`ControlFlow::Break`] ends the conversion, and nothing is left of the new file.
pub type OnProgress<'a> = &'a mut (dyn FnMut(&Progress<'_>) -> ControlFlow<()> + Send);

/// A file that is being written, and who wants to know about it.
pub(crate) struct Output<'a> {
    pub writer: Writer<AtomicFile>,
    pub progress: Option<OnProgress<'a>>,
    pub tensors: usize,
    pub total: u64,
    pub done: usize,
    pub bytes: u64,
}

impl Output<'_> {
    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.writer.append(bytes)?;
        self.bytes += bytes.len() as u64;
        self.tell(name)
    }

    fn tell(&mut self, tensor: &str) -> Result<()> {
        let now = Progress { tensor, done: self.done, tensors: self.tensors, bytes: self.bytes, total: self.total };
        match self.progress.as_mut().map_or(ControlFlow::Continue(()), |progress| progress(&now)) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }

    /// Writes bytes as they are.
    pub(crate) fn copy(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.writer.begin(name)?;
        bytes.chunks(8 * CHUNK).try_for_each(|part| self.append(name, part))?;
        self.end(name)
    }

    /// Writes a matrix as `ty`, whose blocks divide the rows (the writer's table was made of such).
    pub(crate) fn write(&mut self, name: &str, source: &Source<'_>, ty: QuantType, measure: bool) -> Result<Loss> {
        self.writer.begin(name)?;
        let loss = match &source.order {
            Order::Transposed => self.transpose(name, source, ty, measure)?,
            Order::AsIs => self.rows(name, source, ty, |row| row)?,
            Order::Rows(order) => self.rows(name, source, ty, |row| order.get(row).copied().unwrap_or(row))?,
        };
        self.end(name)?;
        Ok(loss)
    }

    fn end(&mut self, name: &str) -> Result<()> {
        self.done += 1;
        self.tell(name)
    }

    fn rows(
        &mut self,
        name: &str,
        source: &Source<'_>,
        ty: QuantType,
        from: impl Fn(usize) -> usize + Sync,
    ) -> Result<Loss> {
        let (Some(width), Some(out_width)) = (source.stored.row_bytes(source.cols), ty.row_bytes(source.cols)) else {
            return Err(Error::Choice(format!("tensor '{name}': rows of {} do not fit their blocks", source.cols)));
        };
        let rows_at_once = (CHUNK / source.cols.max(1)).clamp(1, source.rows.max(1));
        let mut out = vec![0; rows_at_once * out_width];
        let mut loss = Loss::default();
        for first in (0..source.rows).step_by(rows_at_once) {
            let count = rows_at_once.min(source.rows - first);
            let out = &mut out[..count * out_width];
            let parts = out.par_chunks_mut(out_width.max(1)).enumerate();
            let parts = parts.map_init(
                || vec![0.0; source.cols],
                |numbers, (i, out)| {
                    let start = from(first + i) * width;
                    let row = source.bytes.get(start..start + width).unwrap_or_default();
                    if source.stored == Stored::Quant(ty) {
                        out.copy_from_slice(row);
                        return Loss::default();
                    }
                    source.stored.decode(row, numbers);
                    (ty.info().encode)(numbers, out);
                    Loss { overflows: overflows(ty, numbers), ..Loss::default() }
                },
            );
            loss = loss.plus(parts.reduce(Loss::default, Loss::plus));
            self.append(name, out)?;
        }
        Ok(loss)
    }

    fn transpose(&mut self, name: &str, source: &Source<'_>, ty: QuantType, measure: bool) -> Result<Loss> {
        let (rows, cols) = (source.rows, source.cols);
        let (Some(width), Some(out_width)) = (source.stored.row_bytes(cols), ty.row_bytes(rows)) else {
            return Err(Error::Choice(format!("tensor '{name}': rows of {rows} do not fit their blocks")));
        };
        let block = source.stored.block_len();
        let block_bytes = source.stored.row_bytes(block).unwrap_or_default();
        let at_once = (CHUNK / rows.max(1) / TILE * TILE).max(TILE);
        let plain = measure && cols.is_multiple_of(ty.info().block_len);
        let mut loss = Loss::default();
        for first in (0..cols).step_by(at_once) {
            let count = at_once.min(cols - first);
            // The columns of the source, decoded; still row by row.
            let mut tile = vec![0.0; rows * count];
            let errors = tile.par_chunks_mut(count.max(1)).enumerate().map(|(i, numbers)| {
                let row = source.bytes.get(i * width..(i + 1) * width).unwrap_or_default();
                let part = first / block * block_bytes..(first + count) / block * block_bytes;
                source.stored.decode(row.get(part).unwrap_or_default(), numbers);
                Loss { plain: if plain { squared_error(ty, numbers) } else { 0.0 }, ..Loss::default() }
            });
            loss = loss.plus(errors.reduce(Loss::default, Loss::plus));
            let mut out = vec![0; count * out_width];
            // Some columns together, so that a line of the cache that is read is used.
            const TOGETHER: usize = 16;
            let errors = out.par_chunks_mut(TOGETHER * out_width.max(1)).enumerate().map(|(i, out)| {
                let columns = i * TOGETHER..count.min((i + 1) * TOGETHER);
                let mut gathered = vec![0.0; columns.len() * rows];
                for (r, row) in tile.chunks_exact(count.max(1)).enumerate() {
                    for (k, &x) in row[columns.clone()].iter().enumerate() {
                        gathered[k * rows + r] = x;
                    }
                }
                let mut loss = Loss::default();
                for (numbers, out) in gathered.chunks_exact(rows.max(1)).zip(out.chunks_exact_mut(out_width.max(1))) {
                    (ty.info().encode)(numbers, out);
                    loss.overflows += overflows(ty, numbers);
                    if measure {
                        loss.squares += numbers.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
                        loss.errors += squared_error(ty, numbers);
                    }
                }
                loss
            });
            loss = loss.plus(errors.reduce(Loss::default, Loss::plus));
            self.append(name, &out)?;
        }
        if !plain {
            loss.plain = f64::NAN;
        }
        Ok(loss)
    }
}

fn overflows(ty: QuantType, numbers: &[f32]) -> u64 {
    if ty != QuantType::F16 {
        return 0;
    }
    numbers.iter().filter(|x| x.is_finite() && x.abs() > F16_MAX).count() as u64
}

/// Σ (x − what remains of it in `ty`)².
fn squared_error(ty: QuantType, numbers: &[f32]) -> f64 {
    let info = ty.info();
    let mut bytes = vec![0; numbers.len() / info.block_len * info.block_bytes];
    let mut back = vec![0.0; numbers.len()];
    (info.encode)(numbers, &mut bytes);
    (info.decode)(&bytes, &mut back);
    numbers.iter().zip(&back).map(|(x, y)| f64::from(x - y).powi(2)).sum()
}
