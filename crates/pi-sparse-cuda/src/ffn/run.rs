//! Steps of a neuron-aware FFN.
#![allow(unsafe_code)]

use super::{CudaFfn, Rows, Sum};
use crate::{
    counts::{NUMBERS, Tally},
    gpu::{Arg, GRID, grid, int, long, threads},
    linear::{FEW, MANY, TILE, TILE_THREADS},
    memory::Memory,
    operand,
    shared::Lease,
};
use cudarc::driver::{CudaFunction, sys::CUdeviceptr};
use pi_core::{Activation, ActiveSet, Dense, Error, FfnRun, Gating, Hidden, OpStats, Result, Write};
use std::sync::Arc;

/// Threads of all blocks here but those of tiles: eight warps.
const THREADS: u32 = 256;
const WARPS: usize = 8;
/// Neurons of a block that makes a list of those that are marked, EACH in `ffn.cu`. If all are, a warp has one.
const EACH: usize = 32;
/// Tokens of a step that may be sparse although they are many. With more, hardly a neuron has four tokens in a row that leave it out.
const MOST: usize = 256;
/// Threads of the one block that looks at all marks.
const CHOOSING: u32 = 1024;
/// Columns of a block of the second half.
const COLUMNS: usize = 256;
/// Tokens whose up values are in scratch at the same time.
pub(super) const CHUNK: usize = 256;

pub(super) struct Run {
    pub(super) op: Arc<CudaFfn>,
    pub(super) _lease: Lease,
    /// `[tokens, owned]`: what each neuron contributes with.
    pub(super) h: Memory<f32>,
    /// `[slices, tokens, dim]`.
    pub(super) part: Memory<f32>,
    /// Whether the step is dense, where the device decides.
    pub(super) choice: Memory<u32>,
    /// What was counted since the run was opened.
    pub(super) counts: Tally,
    /// What was reported of that.
    pub(super) counted: [u64; NUMBERS],
    /// Steps since the count was read.
    pub(super) steps: u64,
    pub(super) limit: usize,
    /// Tokens of the last step.
    pub(super) step: usize,
    /// Tokens of a submitted step that was not collected.
    pub(super) tokens: Option<usize>,
    /// `h` on the host, once somebody asked for it.
    pub(super) values: Option<Hidden>,
    pub(super) stats: OpStats,
}

/// What a step's kernels have in common.
struct Step {
    tokens: usize,
    x: CUdeviceptr,
    h: CUdeviceptr,
    marks: CUdeviceptr,
    words: usize,
    act: [Arg; 2],
    skip: Arg,
    symmetric: Arg,
}

/// The kernels' number of an activation, and its threshold.
fn activation(act: Activation) -> Result<(i32, f32)> {
    Ok(match act {
        Activation::Silu => (0, 0.0),
        Activation::Gelu => (1, 0.0),
        Activation::GeluTanh => (2, 0.0),
        Activation::Relu => (3, 0.0),
        Activation::ReluSquared => (4, 0.0),
        Activation::FatRelu(threshold) => (5, threshold),
        other => return Err(Error::unsupported(other.to_string(), "CUDA has no kernel for it")),
    })
}

impl FfnRun for Run {
    fn submit(&mut self, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let op = self.op.clone();
        let (gpu, w, owned, dim, tokens) = (&op.gpu, &op.w, op.neurons.len(), op.w.dim(), x.tokens());
        if x.dim() != dim {
            return Err(Error::shape("input of ffn", dim, x.dim()));
        }
        if active.tokens() != tokens || active.neurons() != op.neurons.total() {
            let size = |tokens, neurons| format!("{tokens} tokens of {neurons} neurons");
            let got = size(active.tokens(), active.neurons());
            return Err(Error::shape("active set", size(tokens, op.neurons.total()), got));
        }
        if tokens > self.limit {
            return Err(Error::Limit { what: "tokens per step".into(), limit: self.limit, got: tokens });
        }
        (self.tokens, self.step) = (None, 0);
        let (act, threshold) = activation(w.act)?;
        let words = active.words();
        let input = operand::Input::new(gpu, x)?;
        let marks = operand::Input::marks(gpu, active)?;
        let step = Step {
            tokens,
            x: input.address,
            h: gpu.address(&self.h),
            marks: marks.address,
            words,
            act: [Arg::Int(act), Arg::Float(threshold)],
            skip: Arg::Int(i32::from(w.skip)),
            symmetric: Arg::Int(i32::from(w.gating == Gating::Symmetric)),
        };
        if tokens > 0 && owned > 0 {
            if tokens < MANY {
                self.marked(&step, 0)?;
            } else if step.marks == 0 || tokens > MOST {
                self.all(&step, 0)?;
            } else {
                let dense = self.choose(&step)?;
                self.marked(&step, dense)?;
                self.all(&step, dense)?;
            }
            self.counts.launched();
        }
        if let (Sum::Rows(down, _), 1..MANY, 1..) = (&op.down, tokens, owned) {
            let blocks = [dim.div_ceil(COLUMNS), tokens, op.slices(tokens)];
            let args = [
                gpu.at(Some(&down.weight)),
                Arg::At(step.h),
                int("neurons", owned)?,
                int("columns of a down matrix", dim)?,
                int("tokens of a step", tokens)?,
                gpu.at(Some(&self.part)),
            ];
            // SAFETY: as above; a block for each slice of the columns of a token.
            unsafe { gpu.launch(&down.kernel, grid("columns of a down matrix", blocks, THREADS)?, &args)? };
        }
        self.stats.neurons += (owned * tokens) as u64;
        self.steps += 1;
        (self.tokens, self.step) = (Some(tokens), tokens);
        if input.moved || !op.neurons.is_all() {
            // somebody else computes meanwhile, and may not call the driver before it is done
            gpu.queue.flush().map_err(|e| gpu.error(e))?;
        }
        Ok(())
    }

    fn collect(&mut self, y: &mut Hidden, how: Write) -> Result<()> {
        let op = self.op.clone();
        let (gpu, dim) = (&op.gpu, op.w.dim());
        let tokens = self.tokens.take().ok_or_else(|| Error::shape("ffn", "a submitted step", "none"))?;
        let h = gpu.address(&self.h);
        operand::write(gpu, y, tokens, dim, how, |y, add| match &op.down {
            Sum::Whole(down) => {
                self.stats.bytes += down.bytes();
                down.queue(h, tokens, y, add)?;
                match &op.down_bias {
                    None => Ok(()),
                    Some(_) => self.sum(y, 0, tokens, true),
                }
            }
            Sum::Rows(down, tile) if tokens >= MANY && !op.neurons.is_empty() => self.tiles(down, tile, tokens, y, add),
            Sum::Rows(..) if op.neurons.is_empty() => self.sum(y, 0, tokens, add),
            Sum::Rows(..) => self.sum(y, op.slices(tokens), tokens, add),
        })
    }

    fn values(&mut self) -> Result<&mut Hidden> {
        let (owned, tokens) = (self.op.neurons.len(), self.step);
        if self.values.as_ref().is_none_or(|values| values.max_tokens() < tokens) {
            self.values = Some(Hidden::try_new(tokens, owned)?);
        }
        let values = self.values.get_or_insert_with(|| Hidden::new(0, owned));
        values.resize(tokens)?;
        self.op.gpu.fetch(&self.h, values.host_overwrite())?;
        Ok(values)
    }

    fn take_stats(&mut self) -> OpStats {
        // a device that failed reports that when something is computed
        if std::mem::take(&mut self.steps) > 0
            && let Ok(counts) = self.counts.read()
        {
            let [active, marked, dense] = std::array::from_fn(|i| counts[i] - self.counted[i]);
            self.counted = counts;
            self.stats.active += active;
            self.stats.marked += marked;
            self.stats.dense += dense;
            let second = self.op.second.as_ref().map_or(0, |rows| rows.row_bytes);
            let down = if let Sum::Rows(rows, _) = &self.op.down { rows.row_bytes } else { 0 };
            self.stats.bytes += marked * self.op.first.row_bytes + active * (second + down);
        }
        std::mem::take(&mut self.stats)
    }
}

impl Run {
    /// Queues the decision whether the step is to be dense, and says where it will be.
    fn choose(&self, step: &Step) -> Result<CUdeviceptr> {
        let op = &self.op;
        let (gpu, owned) = (&op.gpu, op.neurons.len());
        // what is no number is 0, and what is beyond all numbers is the largest
        let limit = (f64::from(gpu.options.crossover) * owned as f64).ceil() as i64;
        let at = gpu.address(&self.choice);
        let args = [
            gpu.at(op.ids.as_ref()),
            Arg::At(step.marks),
            int("words of marks", step.words)?,
            int("neurons", owned)?,
            int("tokens of a step", step.tokens)?,
            Arg::Long(limit),
            Arg::At(at),
        ];
        // SAFETY: the arguments of `ffn.cu`; one block.
        unsafe { gpu.launch(&op.many.choose, grid("neurons", [1, 1, 1], CHOOSING)?, &args)? };
        Ok(at)
    }

    /// Marked neurons, and of these only those that fire. Nothing if a number other than 0 will be at `dense`.
    fn marked(&self, step: &Step, dense: CUdeviceptr) -> Result<()> {
        match &self.op.second {
            Some(second) if second.kernel.cu_function() != self.op.first.kernel.cu_function() => {
                // a kernel knows one type
                self.hidden(step, Some(&self.op.first), None, true, dense)?;
                self.hidden(step, None, Some(second), false, dense)
            }
            second => self.hidden(step, Some(&self.op.first), second.as_ref(), false, dense),
        }
    }

    fn hidden(
        &self,
        step: &Step,
        first: Option<&Rows>,
        second: Option<&Rows>,
        raw: bool,
        dense: CUdeviceptr,
    ) -> Result<()> {
        let op = &self.op;
        let (gpu, owned, tokens) = (&op.gpu, op.neurons.len(), step.tokens);
        let Some(rows) = first.or(second) else { return Ok(()) };
        // neurons that fire are a list, too, where there are no marks
        let each = if step.marks == 0 && first.is_some() { WARPS } else { EACH };
        let size = grid("neurons", [owned.div_ceil(each), tokens.div_ceil(FEW), 1], THREADS)?;
        let [act, threshold] = step.act;
        let args = [
            gpu.at(first.map(|rows| &rows.weight)),
            gpu.at(first.and_then(|rows| rows.bias.as_ref())),
            gpu.at(second.map(|rows| &rows.weight)),
            gpu.at(second.and_then(|rows| rows.bias.as_ref())),
            gpu.at(op.ids.as_ref()),
            Arg::At(step.marks),
            int("words of marks", step.words)?,
            Arg::At(step.x),
            int("neurons", owned)?,
            int("inputs of neurons", op.w.dim())?,
            int("tokens of a step", tokens)?,
            int("neurons of a block", each)?,
            Arg::Int(i32::from(raw)),
            step.skip,
            step.symmetric,
            act,
            threshold,
            Arg::At(dense),
            Arg::At(step.h),
            Arg::At(self.counts.address()),
        ];
        // SAFETY: the arguments of `ffn.cu`; a thread for each of a block's neurons, arrays of the sizes that are passed.
        unsafe { gpu.launch(&rows.kernel, size, &args) }
    }

    /// All neurons, and then those that are not marked or do not fire are taken out. Nothing if 0 will be at `dense`.
    fn all(&self, step: &Step, dense: CUdeviceptr) -> Result<()> {
        let op = &self.op;
        let (gpu, owned, dim, tokens) = (&op.gpu, op.neurons.len(), op.w.dim(), step.tokens);
        let weights = |rows: &Rows| [gpu.at(Some(&rows.weight)), gpu.at(rows.bias.as_ref())];
        let [act, threshold] = step.act;
        op.many.first.queue(gpu, weights(&op.first), (owned, dim), step.x, tokens, dense, step.h, false)?;
        let args = [
            gpu.at(op.ids.as_ref()),
            Arg::At(step.marks),
            int("words of marks", step.words)?,
            int("neurons", owned)?,
            int("tokens of a step", tokens)?,
            step.skip,
            act,
            threshold,
            Arg::At(dense),
            Arg::At(step.h),
            Arg::At(self.counts.address()),
        ];
        // SAFETY: the arguments of `ffn.cu`; a thread per neuron and token.
        unsafe { gpu.launch(&op.many.fire, threads("neurons of a step", tokens * owned, THREADS)?, &args)? };
        let shared = gpu.shared();
        let up = op.many.second.as_ref().map(|_| shared.scratch(gpu));
        for first in (0..tokens).step_by(CHUNK) {
            let some = (tokens - first).min(CHUNK);
            if let (Some(second), Some(product), Some(up)) = (&op.second, &op.many.second, up) {
                let x = step.x + 4 * (first * dim) as u64;
                product.queue(gpu, weights(second), (owned, dim), x, some, dense, up, false)?;
            }
            let n = some * owned;
            let args = [
                Arg::At(up.unwrap_or(0)),
                long("neurons of a step", n)?,
                step.symmetric,
                act,
                threshold,
                Arg::At(dense),
                Arg::At(step.h + 4 * (first * owned) as u64),
            ];
            // SAFETY: as above; the scratch has room for CHUNK tokens, and is ours.
            unsafe { gpu.launch(&op.many.join, threads("neurons of a step", n, THREADS)?, &args)? };
        }
        Ok(())
    }

    /// The second half for many tokens.
    fn tiles(&self, down: &Rows, kernel: &CudaFunction, tokens: usize, y: CUdeviceptr, add: bool) -> Result<()> {
        let op = &self.op;
        let (gpu, owned, dim) = (&op.gpu, op.neurons.len(), op.w.dim());
        for first in (0..tokens).step_by(TILE * GRID) {
            let some = (tokens - first).min(TILE * GRID);
            let args = [
                gpu.at(Some(&down.weight)),
                Arg::At(gpu.address(&self.h) + 4 * (first * owned) as u64),
                gpu.at(op.down_bias.as_ref()),
                int("neurons", owned)?,
                int("columns of a down matrix", dim)?,
                int("tokens of a step", some)?,
                Arg::Int(i32::from(add)),
                Arg::At(y + 4 * (first * dim) as u64),
            ];
            let blocks = [dim.div_ceil(TILE), some.div_ceil(TILE), 1];
            // SAFETY: the arguments of `ffn.cu`; arrays of the sizes that are passed.
            unsafe { gpu.launch_long(kernel, grid("columns of a down matrix", blocks, TILE_THREADS)?, &args)? };
        }
        Ok(())
    }

    /// Adds up slices of a step's tokens, and the bias; `slices` may be 0.
    fn sum(&self, y: CUdeviceptr, slices: usize, tokens: usize, add: bool) -> Result<()> {
        let (op, dim) = (&self.op, self.op.w.dim());
        let n = tokens * dim;
        if n == 0 {
            return Ok(());
        }
        let args = [
            op.gpu.at(Some(&self.part)),
            int("slices", slices)?,
            long("columns of a step", n)?,
            int("columns of a down matrix", dim)?,
            op.gpu.at(op.down_bias.as_ref()),
            Arg::Int(i32::from(add)),
            Arg::At(y),
        ];
        // SAFETY: the arguments of `ffn.cu`; a thread per number.
        unsafe { op.gpu.launch(&op.sum, threads("columns of a step", n, THREADS)?, &args) }
    }
}
