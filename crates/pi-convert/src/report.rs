//! What was done.

use std::path::Path;

use pi_core::QuantType;
use pi_gguf::{AtomicFile, Builder, TensorType};

use crate::error::{Error, Result};
use crate::stream::{OnProgress, Output};

/// What a conversion made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Bytes of tensors that were read.
    pub bytes_before: u64,
    /// Bytes of tensors that were written.
    pub bytes_after: u64,
    /// For each type that was written, in the order of first use: how many tensors, and their bytes.
    pub types: Vec<(TensorType, usize, u64)>,
    /// Matrices that were transposed.
    pub transposed: Vec<Transposed>,
    /// What the user should know, a sentence each: types that do not fit a shape, numbers that do not fit a type.
    pub notes: Vec<String>,
}

/// What transposing a matrix cost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Transposed {
    /// The new tensor's name.
    pub tensor: String,
    /// The new tensor's type.
    pub ty: QuantType,
    /// Root of the sum of squared errors by the sum of squares.
    pub error: f64,
    /// The same had the matrix been stored in this type without transposing it; `None` if the type's blocks do not divide its rows.
    pub plain: Option<f64>,
}

impl Report {
    pub(crate) fn count(&mut self, ty: TensorType, bytes: u64) {
        self.bytes_after += bytes;
        match self.types.iter_mut().find(|(there, ..)| *there == ty) {
            Some((_, tensors, sum)) => (*tensors, *sum) = (*tensors + 1, *sum + bytes),
            None => self.types.push((ty, 1, bytes)),
        }
    }
}

/// Begins the file, lets `body` write the tensors, and gives the file its name.
pub(crate) fn write<'p>(
    builder: Builder,
    path: &Path,
    total: u64,
    tensors: usize,
    progress: Option<OnProgress<'p>>,
    threads: Option<usize>,
    body: impl FnOnce(&mut Output<'p>) -> Result<()> + Send,
) -> Result<()> {
    let writer = builder.start(AtomicFile::create(path)?)?;
    let mut out = Output { writer, progress, tensors, total, done: 0, bytes: 0 };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
    let pool = pool.map_err(|e| Error::Choice(format!("cannot start threads: {e}")))?;
    pool.install(|| body(&mut out))?;
    Ok(out.writer.finish()?.commit()?)
}
