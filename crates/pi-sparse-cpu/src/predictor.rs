//! Predictors of two matrices: bits come out of the second product, so no vector as wide as the layer is written.

use crate::{
    Kernels,
    dense::{Linear, check},
    matmul::encode,
    split,
    weights::{Packer, Weights},
};
use half::f16;
use pi_core::{
    ActiveSet, Dense, Executor, Hidden, Limits, LinearSpec, MlpSpec, NeuronSet, Predictor, PredictorRun, QuantType,
    Result, Write,
};
use std::sync::Arc;

/// Neurons of a word of marks.
const WORD: usize = 64;
/// Tokens that share a pass over a run of neurons.
const TOKEN_BLOCK: usize = 32;
/// Words of marks that are worth a task of their own.
const MIN_WORDS: usize = 4;

pub(crate) struct CpuMlp {
    fc1: Linear,
    fc2: Weights,
    rank: usize,
    dim: usize,
    threshold: f32,
    /// Inputs of both matrices are rounded to F16.
    rounds: bool,
    exec: Arc<dyn Executor>,
}

impl CpuMlp {
    pub(crate) fn new(spec: &MlpSpec, kernels: &Kernels, packer: &Packer, exec: &Arc<dyn Executor>) -> Result<Self> {
        spec.check()?;
        Ok(Self {
            fc1: Linear::new(&LinearSpec::new(spec.fc1.clone()), kernels, packer, exec),
            fc2: packer.weights(&spec.fc2, &NeuronSet::all(spec.fc2.rows()), kernels, &**exec),
            rank: spec.fc1.rows(),
            dim: spec.fc1.cols(),
            threshold: spec.threshold,
            rounds: spec.fc1.ty() == QuantType::F16,
            exec: exec.clone(),
        })
    }
}

/// PowerInfer rounds the inputs of F16 matrices to F16, and a file's predictors are judged as it runs them: a neuron at the
/// threshold is on the same side here. What is beyond F16 stays as it is, instead of becoming infinite.
fn round(v: f32) -> f32 {
    if v.abs() > f16::MAX.to_f32() { v } else { f16::from_f32(v).to_f32() }
}

impl Predictor for CpuMlp {
    fn kind(&self) -> &str {
        "mlp"
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn neurons(&self) -> usize {
        self.fc2.m.rows()
    }

    fn bytes(&self) -> u64 {
        self.fc1.bytes() + self.fc2.m.size_bytes() as u64
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn PredictorRun>> {
        let rounded = match self.rounds {
            true => Some(Hidden::try_new(limits.tokens, self.dim)?),
            false => None,
        };
        Ok(Box::new(Run { rounded, inner: Hidden::try_new(limits.tokens, self.rank)?, op: self }))
    }
}

struct Run {
    op: Arc<CpuMlp>,
    /// `[tokens, dim]`: what fc1 reads, if that is not the residual stream as it is.
    rounded: Option<Hidden>,
    /// `[tokens, rank]`: relu(fc1 · h).
    inner: Hidden,
}

impl PredictorRun for Run {
    fn mark(&mut self, h: &mut Hidden, _: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let Self { op, rounded, inner } = self;
        let Weights { m, k } = &op.fc2;
        check("predictor", h, op.dim, inner, op.rank, Write::Set)?;
        let input = match rounded {
            Some(rounded) => {
                rounded.resize(h.tokens())?;
                rounded.host_overwrite().iter_mut().zip(h.host()?).for_each(|(r, v)| *r = round(*v));
                rounded
            }
            None => h,
        };
        op.fc1.apply(input, inner, Write::Set)?;
        // NaN stays, and marks its neurons: what is wrong is to be seen
        let rounded = |v: f32| if op.rounds { round(v) } else { v };
        inner.host_mut()?.iter_mut().for_each(|v| *v = if *v < 0.0 { 0.0 } else { rounded(*v) });
        let tokens = inner.tokens();
        let x = encode(&*op.exec, &k.activations, inner)?;
        let (view, neurons, words) = (m.view(), m.rows(), m.rows().div_ceil(WORD));
        if active.neurons() != neurons {
            return Err(pi_core::Error::shape("active set", format!("{neurons} neurons"), active.neurons()));
        }
        split::columns(&*op.exec, active.marks(tokens)?, words, 1, MIN_WORDS, |mut part| {
            let mut out = [0.0f32; WORD * TOKEN_BLOCK];
            let mut rows: [&[u8]; WORD] = [&[]; WORD];
            for (at, word) in part.range().enumerate() {
                let ids = word * WORD..neurons.min((word + 1) * WORD);
                let n = ids.len();
                rows.iter_mut().zip(ids).for_each(|(row, id)| *row = view.row(id));
                for t0 in (0..tokens).step_by(TOKEN_BLOCK) {
                    let block = TOKEN_BLOCK.min(tokens - t0);
                    let out = &mut out[..n * block];
                    k.tile(&rows[..n], x.from(t0), x.row_bytes(), out);
                    for (t, out) in out.chunks_exact(n).enumerate() {
                        let fires = |v: f32| v >= op.threshold || v.is_nan();
                        let bits = out.iter().enumerate().fold(0, |bits, (i, v)| bits | u64::from(fires(*v)) << i);
                        part.row(t0 + t)[at] = bits;
                    }
                }
            }
        });
        Ok(())
    }
}
