//! Steps of a neuron-aware FFN.
#![allow(unsafe_code)]

use super::{CudaFfn, Rows, Sum};
use crate::{
    counts::Pair,
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
    /// Neurons × tokens that fired, and that were marked, since the run was opened.
    pub(super) counts: Pair,
    /// What was reported of that.
    pub(super) counted: [u64; 2],
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
            match tokens >= MANY {
                true => self.all(&step)?,
                false => self.marked(&step)?,
            }
            self.counts.launched();
            if op.second.is_none() {
                let n = tokens * owned;
                let args = [long("neurons of a step", n)?, step.act[0], step.act[1], Arg::At(step.h)];
                // SAFETY: the arguments of `ffn.cu`; a thread per number.
                unsafe { gpu.launch(&op.activate, threads("neurons of a step", n, THREADS)?, &args)? };
            }
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
        if tokens >= MANY {
            self.stats.dense += (owned * tokens) as u64;
        }
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
            let (active, marked) = (counts[0] - self.counted[0], counts[1] - self.counted[1]);
            self.counted = counts;
            self.stats.active += active;
            self.stats.marked += marked;
            let second = self.op.second.as_ref().map_or(0, |rows| rows.row_bytes);
            let down = if let Sum::Rows(rows, _) = &self.op.down { rows.row_bytes } else { 0 };
            self.stats.bytes += marked * self.op.first.row_bytes + active * (second + down);
        }
        std::mem::take(&mut self.stats)
    }
}

impl Run {
    /// Few tokens: marked neurons, and of these only those that fire.
    fn marked(&self, step: &Step) -> Result<()> {
        let op = &self.op;
        let (gpu, owned, dim, tokens) = (&op.gpu, op.neurons.len(), op.w.dim(), step.tokens);
        let size = grid("neurons", [owned.div_ceil(WARPS), tokens.div_ceil(FEW), 1], THREADS)?;
        let sizes = [int("neurons", owned)?, int("inputs of neurons", dim)?, int("tokens of a step", tokens)?];
        let [act, threshold] = step.act;
        let (x, h) = (Arg::At(step.x), Arg::At(step.h));
        let args = [
            gpu.at(Some(&op.first.weight)),
            gpu.at(op.first.bias.as_ref()),
            gpu.at(op.ids.as_ref()),
            Arg::At(step.marks),
            int("words of marks", step.words)?,
            x,
            sizes[0],
            sizes[1],
            sizes[2],
            step.skip,
            act,
            threshold,
            h,
            Arg::At(self.counts.address()),
        ];
        // SAFETY: the arguments of `ffn.cu`; a warp per neuron, arrays of the sizes that are passed.
        unsafe { gpu.launch(&op.first.kernel, size, &args)? };
        if let Some(second) = &op.second {
            let args = [
                gpu.at(Some(&second.weight)),
                gpu.at(second.bias.as_ref()),
                x,
                sizes[0],
                sizes[1],
                sizes[2],
                step.symmetric,
                act,
                threshold,
                h,
            ];
            // SAFETY: as above.
            unsafe { gpu.launch(&second.kernel, size, &args)? };
        }
        Ok(())
    }

    /// Many tokens: all neurons, and then those that are not marked or do not fire are taken out.
    fn all(&self, step: &Step) -> Result<()> {
        let op = &self.op;
        let (gpu, owned, dim, tokens) = (&op.gpu, op.neurons.len(), op.w.dim(), step.tokens);
        let weights = |rows: &Rows| [gpu.at(Some(&rows.weight)), gpu.at(rows.bias.as_ref())];
        let [act, threshold] = step.act;
        op.many.first.queue(gpu, weights(&op.first), (owned, dim), step.x, tokens, step.h, false)?;
        let args = [
            gpu.at(op.ids.as_ref()),
            Arg::At(step.marks),
            int("words of marks", step.words)?,
            int("neurons", owned)?,
            int("tokens of a step", tokens)?,
            step.skip,
            act,
            threshold,
            Arg::At(step.h),
            Arg::At(self.counts.address()),
        ];
        // SAFETY: the arguments of `ffn.cu`; a thread per neuron and token.
        unsafe { gpu.launch(&op.many.fire, threads("neurons of a step", tokens * owned, THREADS)?, &args)? };
        let (Some(second), Some(product)) = (&op.second, &op.many.second) else { return Ok(()) };
        let shared = gpu.shared();
        let up = shared.scratch(gpu);
        for first in (0..tokens).step_by(CHUNK) {
            let some = (tokens - first).min(CHUNK);
            product.queue(gpu, weights(second), (owned, dim), step.x + 4 * (first * dim) as u64, some, up, false)?;
            let n = some * owned;
            let h = Arg::At(step.h + 4 * (first * owned) as u64);
            let args = [Arg::At(up), long("neurons of a step", n)?, step.symmetric, act, threshold, h];
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
