//! Predictors of two matrices.
#![allow(unsafe_code)]

use crate::{
    array::own,
    gpu::{Arg, Gpu, blocks, threads},
    linear::Linear,
    memory::{Memory, room},
    operand,
};
use cudarc::driver::{CudaFunction, LaunchConfig};
use pi_core::{
    ActiveSet, Dense, Error, Hidden, Limits, LinearSpec, MlpSpec, Predictor, PredictorRun, QuantType, Result,
    footprint::{MatrixShape, MlpShape},
};
use std::sync::Arc;

/// Threads of all blocks here.
const THREADS: u32 = 256;
/// Tokens of a block.
const TOKENS: usize = 4;

pub(crate) struct CudaMlp {
    gpu: Arc<Gpu>,
    fc1: Linear,
    fc2: Memory<u8>,
    neurons: usize,
    rank: usize,
    dim: usize,
    threshold: f32,
    /// Inputs of both matrices are rounded to F16.
    rounds: bool,
    round: CudaFunction,
    relu: CudaFunction,
    marks: CudaFunction,
}

/// What the arrays of [`CudaMlp::new`] take.
pub(crate) fn bytes(shape: &MlpShape) -> u64 {
    let matrix = |m: &MatrixShape| room::<u8>([m.rows, m.row_bytes() as usize]);
    matrix(&shape.fc1) + matrix(&shape.fc2)
}

/// What the arrays of a run take.
pub(crate) fn scratch_bytes(shape: &MlpShape, limits: &Limits) -> u64 {
    let rounded = if rounds(shape.fc1.ty) { shape.fc1.cols } else { 0 };
    room::<f32>([limits.tokens, rounded]).saturating_add(room::<f32>([limits.tokens, shape.fc1.rows]))
}

/// Whether inputs of both matrices are rounded to F16.
fn rounds(ty: QuantType) -> bool {
    ty == QuantType::F16
}

impl CudaMlp {
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: &MlpSpec) -> Result<Self> {
        spec.check()?;
        Ok(Self {
            fc1: Linear::new(gpu, &LinearSpec::new(spec.fc1.clone()))?,
            fc2: gpu.upload(spec.fc2.view().bytes())?,
            neurons: spec.fc2.rows(),
            rank: spec.fc1.rows(),
            dim: spec.fc1.cols(),
            threshold: spec.threshold,
            rounds: rounds(spec.fc1.ty()),
            round: gpu.kernel("pi_round")?,
            relu: gpu.kernel("pi_relu")?,
            marks: gpu.kernel(&format!("pi_marks_{}", spec.fc2.ty()))?,
            gpu: gpu.clone(),
        })
    }
}

impl Predictor for CudaMlp {
    fn kind(&self) -> &str {
        "mlp"
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn neurons(&self) -> usize {
        self.neurons
    }

    fn bytes(&self) -> u64 {
        self.fc1.bytes() + self.fc2.len() as u64
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn PredictorRun>> {
        let rounded = if self.rounds { self.dim } else { 0 };
        Ok(Box::new(Run {
            rounded: self.gpu.scratch([limits.tokens, rounded])?,
            inner: self.gpu.scratch([limits.tokens, self.rank])?,
            limit: limits.tokens,
            op: self,
        }))
    }
}

struct Run {
    op: Arc<CudaMlp>,
    /// `[tokens, dim]`: what fc1 reads, if that is not the residual stream as it is.
    rounded: Memory<f32>,
    /// `[tokens, rank]`: relu(fc1 · h).
    inner: Memory<f32>,
    limit: usize,
}

impl PredictorRun for Run {
    fn mark(&mut self, h: &mut Hidden, _: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let (op, tokens) = (self.op.clone(), h.tokens());
        let (gpu, words) = (&op.gpu, op.neurons.div_ceil(64));
        if h.dim() != op.dim {
            return Err(Error::shape("input of a predictor", op.dim, h.dim()));
        }
        if active.neurons() != op.neurons {
            return Err(Error::shape("active set", format!("{} neurons", op.neurons), active.neurons()));
        }
        if tokens > self.limit {
            return Err(Error::Limit { what: "tokens per step".into(), limit: self.limit, got: tokens });
        }
        let input = operand::Input::new(gpu, h)?;
        let (mut x, inner) = (input.address, gpu.address(&self.inner));
        if op.rounds && tokens > 0 {
            let n = tokens * op.dim;
            let to = gpu.address(&self.rounded);
            // SAFETY: the arguments of `predictor.cu`; a thread per number.
            unsafe { gpu.launch(&op.round, threads(n, THREADS), &[Arg::At(x), Arg::Long(n as i64), Arg::At(to)])? };
            x = to;
        }
        op.fc1.queue(x, tokens, inner, false)?;
        let n = tokens * op.rank;
        if n > 0 {
            let args = [Arg::Long(n as i64), Arg::Int(i32::from(op.rounds)), Arg::At(inner)];
            // SAFETY: as above.
            unsafe { gpu.launch(&op.relu, threads(n, THREADS), &args)? };
        }
        let run = |marks: u64| {
            for first in (0..tokens).step_by(TOKENS * 65_535) {
                let some = (tokens - first).min(TOKENS * 65_535);
                let grid_dim = (words as u32, some.div_ceil(TOKENS) as u32, 1);
                let args = [
                    gpu.at(Some(&op.fc2)),
                    Arg::At(inner + 4 * (first * op.rank) as u64),
                    Arg::Int(op.neurons as i32),
                    Arg::Int(op.rank as i32),
                    Arg::Int(some as i32),
                    Arg::Float(op.threshold),
                    Arg::At(marks + 8 * (first * words) as u64),
                ];
                // SAFETY: as above; a block per word.
                unsafe { gpu.launch(&op.marks, LaunchConfig { grid_dim, ..blocks(1, THREADS) }, &args)? };
            }
            Ok(())
        };
        let there = active.marks_elsewhere(tokens)?;
        if own(gpu, there).is_some() {
            there.mirror_overwrite();
            return run(own(gpu, there).map_or(0, |array| array.address()));
        }
        let marks = gpu.scratch::<u64>([tokens, words])?;
        run(gpu.address(&marks))?;
        let mut bits = vec![0; tokens * words];
        if !bits.is_empty() {
            gpu.stream.memcpy_dtoh(&marks.slice(..bits.len()), &mut bits).map_err(|e| gpu.error(e))?;
            gpu.stream.synchronize().map_err(|e| gpu.error(e))?;
        }
        active.marks(tokens)?.copy_from_slice(&bits);
        Ok(())
    }
}
