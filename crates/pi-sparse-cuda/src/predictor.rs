//! Predictors of two matrices.
#![allow(unsafe_code)]

use crate::{
    array::own,
    gpu::{Arg, GRID, Gpu, grid, int, long, threads},
    linear::{FEW, Linear, countable},
    memory::{Memory, room},
    operand,
    shared::{Lease, part, taken},
};
use cudarc::driver::CudaFunction;
use pi_core::{
    ActiveSet, Dense, Error, Hidden, Limits, LinearSpec, MlpSpec, Predictor, PredictorRun, QuantType, Result,
    footprint::{MatrixShape, MlpShape},
};
use std::sync::Arc;

/// Threads of all blocks here.
const THREADS: u32 = 256;

pub(crate) struct CudaMlp {
    gpu: Arc<Gpu>,
    fc1: Linear,
    fc2: Memory<u8>,
    fc2_bytes: u64,
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

/// What a run needs of the room that operators share.
pub(crate) fn shared_bytes(shape: &MlpShape, limits: &Limits) -> u64 {
    let width = if rounds(shape.fc1.ty) { shape.fc1.cols } else { 0 };
    taken(shared_room(limits.tokens, shape.fc1.rows, width))
}

/// Bytes of the values between the matrices, and of rounded inputs, if inputs are rounded.
fn shared_room(tokens: usize, rank: usize, rounded: usize) -> Option<usize> {
    part(tokens, rank)?.checked_add(part(tokens, rounded)?)
}

/// Whether inputs of both matrices are rounded to F16.
fn rounds(ty: QuantType) -> bool {
    ty == QuantType::F16
}

impl CudaMlp {
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: &MlpSpec) -> Result<Self> {
        spec.check()?;
        countable(&spec.fc2)?;
        Ok(Self {
            fc1: Linear::new(gpu, &LinearSpec::new(spec.fc1.clone()))?,
            fc2: gpu.upload(spec.fc2.view().bytes())?,
            fc2_bytes: spec.fc2.size_bytes() as u64,
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
        self.fc1.bytes() + self.fc2_bytes
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn PredictorRun>> {
        let rounded = if self.rounds { self.dim } else { 0 };
        let lease = Lease::new(&self.gpu);
        self.gpu.shared().reserve(&self.gpu, shared_room(limits.tokens, self.rank, rounded))?;
        Ok(Box::new(Run { limit: limits.tokens, _lease: lease, op: self }))
    }
}

struct Run {
    op: Arc<CudaMlp>,
    _lease: Lease,
    limit: usize,
}

impl Run {
    /// Queues everything; `marks` is where the rows of bits go.
    fn queue(&self, x: u64, tokens: usize, marks: u64) -> Result<()> {
        let (op, words) = (&self.op, self.op.neurons.div_ceil(64));
        let gpu = &op.gpu;
        if tokens == 0 {
            return Ok(());
        }
        let shared = gpu.shared();
        // `[tokens, rank]`: relu(fc1 · h), then `[tokens, dim]`: what fc1 reads, if that is not the residual stream as it is
        let inner = shared.scratch(gpu);
        let rounded = inner + part(tokens, op.rank).unwrap_or_default() as u64; // which is there: `open` reserved it
        if op.rounds {
            let n = tokens * op.dim;
            let args = [Arg::At(x), long("numbers of a step", n)?, Arg::At(rounded)];
            // SAFETY: the arguments of `predictor.cu`; a thread per number.
            unsafe { gpu.launch(&op.round, threads("numbers of a step", n, THREADS)?, &args)? };
        }
        op.fc1.queue(if op.rounds { rounded } else { x }, tokens, inner, false)?;
        let n = tokens * op.rank;
        if n > 0 {
            let args = [long("numbers of a step", n)?, Arg::Int(i32::from(op.rounds)), Arg::At(inner)];
            // SAFETY: as above.
            unsafe { gpu.launch(&op.relu, threads("numbers of a step", n, THREADS)?, &args)? };
        }
        for first in (0..tokens).step_by(FEW * GRID) {
            let some = (tokens - first).min(FEW * GRID);
            let args = [
                gpu.at(Some(&op.fc2)),
                Arg::At(inner + 4 * (first * op.rank) as u64),
                int("neurons of a predictor", op.neurons)?,
                int("rank of a predictor", op.rank)?,
                int("tokens of a step", some)?,
                Arg::Float(op.threshold),
                Arg::At(marks + 8 * (first * words) as u64),
            ];
            let size = grid("neurons of a predictor", [2 * words, some.div_ceil(FEW), 1], THREADS)?;
            // SAFETY: as above; a block per half of a word.
            unsafe { gpu.launch(&op.marks, size, &args)? };
        }
        Ok(())
    }
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
        let there = active.marks_elsewhere(tokens)?;
        if own(gpu, there).is_some() {
            there.mirror_overwrite();
            let marks = own(gpu, there).map(|array| array.overwrite()).transpose()?.unwrap_or_default();
            return self.queue(input.address, tokens, marks);
        }
        let marks = gpu.scratch::<u64>([tokens, words])?;
        self.queue(input.address, tokens, gpu.address(&marks))?;
        let mut bits = vec![0; tokens * words];
        gpu.fetch(&marks, &mut bits)?;
        active.marks(tokens)?.copy_from_slice(&bits);
        Ok(())
    }
}
