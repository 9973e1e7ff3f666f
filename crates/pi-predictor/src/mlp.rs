//! The trained predictor in its plain form.

use crate::{oracle::mark_where, sign::fits, words::Words};
use half::f16;
use pi_core::{ActiveSet, Executor, Hidden, Limits, Matrix, MlpSpec, Predictor, PredictorRun, QuantType, Result};
use std::sync::Arc;

/// Two matrices with a ReLU between them (paper §5.1), decoded row by row and multiplied in f32: slow, and exact for every
/// number type but that inputs of F16 matrices are rounded to F16, as PowerInfer does and devices do: a neuron at the threshold
/// is on the same side everywhere. Devices have fast ones.
pub struct Mlp {
    spec: MlpSpec,
    exec: Arc<dyn Executor>,
}

impl Mlp {
    /// # Errors
    /// As [`MlpSpec::check`].
    pub fn new(spec: MlpSpec, exec: Arc<dyn Executor>) -> Result<Self> {
        spec.check()?;
        Ok(Self { spec, exec })
    }

    fn rounds(&self) -> bool {
        self.spec.fc1.ty() == QuantType::F16
    }
}

/// The nearest number of F16. What is beyond F16 stays as it is, instead of becoming infinite.
fn round(v: f32) -> f32 {
    if v.abs() > f16::MAX.to_f32() { v } else { f16::from_f32(v).to_f32() }
}

impl Predictor for Mlp {
    fn kind(&self) -> &str {
        "mlp"
    }

    fn dim(&self) -> usize {
        self.spec.fc1.cols()
    }

    fn neurons(&self) -> usize {
        self.spec.fc2.rows()
    }

    fn bytes(&self) -> u64 {
        (self.spec.fc1.size_bytes() + self.spec.fc2.size_bytes()) as u64
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn PredictorRun>> {
        Ok(Box::new(Run {
            rounded: match self.rounds() {
                true => Some(Hidden::try_new(limits.tokens, self.dim())?),
                false => None,
            },
            inner: Hidden::try_new(limits.tokens, self.spec.fc1.rows())?,
            out: Hidden::try_new(limits.tokens, self.neurons())?,
            row: vec![0.0; self.spec.fc1.cols().max(self.spec.fc1.rows())],
            marks: Words::try_new(limits.tokens, self.neurons().div_ceil(64))?,
            op: self,
        }))
    }
}

struct Run {
    op: Arc<Mlp>,
    /// `[tokens, dim]`: what fc1 reads, if that is not the residual stream as it is.
    rounded: Option<Hidden>,
    inner: Hidden,
    out: Hidden,
    /// A decoded row.
    row: Vec<f32>,
    marks: Words,
}

impl PredictorRun for Run {
    fn mark(&mut self, h: &mut Hidden, _: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let Self { op, rounded, inner, out, row, marks } = self;
        fits(&**op, h, active)?;
        let (spec, tokens) = (&op.spec, h.tokens());
        inner.resize(tokens)?;
        out.resize(tokens)?;
        let input = match rounded {
            Some(rounded) => {
                rounded.resize(tokens)?;
                rounded.host_overwrite().iter_mut().zip(h.host()?).for_each(|(r, v)| *r = round(*v));
                rounded.host()?
            }
            None => h.host()?,
        };
        product(&spec.fc1, input, row, inner.host_overwrite());
        // NaN stays, so that what is wrong is seen
        let rounded = |v: f32| if op.rounds() { round(v) } else { v };
        inner.host_mut()?.iter_mut().for_each(|v| *v = if *v < 0.0 { 0.0 } else { rounded(*v) });
        product(&spec.fc2, inner.host()?, row, out.host_overwrite());
        mark_where(&*op.exec, marks, out, active, |v| v >= spec.threshold || v.is_nan())
    }
}

/// `y[t] = w · x[t]`.
fn product(w: &Matrix, x: &[f32], row: &mut [f32], y: &mut [f32]) {
    let (view, row, rows) = (w.view(), &mut row[..w.cols()], w.rows());
    for r in 0..rows {
        (w.ty().info().decode)(view.row(r), row);
        for (x, y) in x.chunks_exact(w.cols().max(1)).zip(y.chunks_exact_mut(rows)) {
            y[r] = x.iter().zip(&*row).map(|(x, w)| x * w).sum();
        }
    }
}
