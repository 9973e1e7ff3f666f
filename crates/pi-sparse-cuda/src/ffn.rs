//! The neuron-aware FFN of the neurons that are on the device.
#![allow(unsafe_code)]

use crate::{
    array,
    gpu::{Arg, Gpu, blocks, threads},
    linear::{self, Linear},
    memory::{Memory, room},
    operand,
};
use cudarc::driver::{CudaFunction, LaunchConfig};
use pi_core::{
    Activation, ActiveSet, Dense, Down, Error, FfnRun, FfnWeights, Gating, Hidden, Limits, LinearSpec, Matrix,
    NeuronSet, OpStats, Result, SparseFfn, Write,
    footprint::{FfnShape, LinearShape, PartShape},
};
use std::sync::Arc;

/// Threads of all blocks here: eight warps.
const THREADS: u32 = 256;
const WARPS: usize = 8;
/// Tokens of a block of the first half.
const TOKENS: usize = 4;
/// Columns and, at most, slices of neurons of the second half.
const COLUMNS: usize = 256;
const SLICES: usize = 16;
/// Neurons that a slice should have at least.
const MIN_SLICE: usize = 256;

/// Rows of owned neurons, one after the other.
struct Rows {
    kernel: CudaFunction,
    weight: Memory<u8>,
    bias: Option<Memory<f32>>,
    row_bytes: u64,
}

enum Sum {
    /// The kernel `pi_ffn_down`, and the bytes of a row.
    Rows(Rows),
    /// Output-major: every neuron is read.
    Whole(Linear),
}

pub(crate) struct CudaFfn {
    gpu: Arc<Gpu>,
    w: FfnWeights,
    neurons: NeuronSet,
    ids: Option<Memory<i32>>,
    /// The gate, or up where there is none.
    first: Rows,
    second: Option<Rows>,
    activate: CudaFunction,
    down: Sum,
    sum: CudaFunction,
    down_bias: Option<Memory<f32>>,
}

fn rows(gpu: &Arc<Gpu>, kernel: &str, m: &Matrix, bias: Option<&[f32]>, neurons: &NeuronSet) -> Result<Rows> {
    let owned_bias: Option<Vec<f32>> = bias.map(|b| neurons.iter().map(|id| b[id]).collect());
    Ok(Rows {
        kernel: gpu.kernel(&format!("{kernel}_{}", m.ty()))?,
        weight: gpu.rows(m, neurons)?,
        bias: owned_bias.map(|b| gpu.upload(&b)).transpose()?,
        row_bytes: m.row_bytes() as u64,
    })
}

impl CudaFfn {
    pub(crate) fn new(gpu: &Arc<Gpu>, w: &FfnWeights, neurons: &NeuronSet) -> Result<Self> {
        w.check()?;
        if neurons.total() != w.neurons() {
            return Err(Error::shape("neuron set", format!("{} neurons", w.neurons()), neurons.total()));
        }
        let gate = w.gate.as_ref().map(|m| rows(gpu, "pi_ffn_gate", m, w.gate_bias.as_deref(), neurons)).transpose()?;
        let up = |kernel| rows(gpu, kernel, &w.up, w.up_bias.as_deref(), neurons);
        let (first, second) = match gate {
            Some(gate) => (gate, Some(up("pi_ffn_up")?)),
            None => (up("pi_ffn_gate")?, None),
        };
        let down = match &w.down {
            Down::NeuronMajor(m) => Sum::Rows(rows(gpu, "pi_ffn_down", m, None, neurons)?),
            Down::OutputMajor(m) if neurons.is_all() => Sum::Whole(Linear::new(gpu, &LinearSpec::new(m.clone()))?),
            Down::OutputMajor(m) => {
                let why = "its down matrix is output-major; store it neuron-major (ffn_down_t)";
                return Err(Error::unsupported(format!("a part of the neurons of {}", m.name()), why));
            }
            _ => return Err(Error::unsupported("this order of a down matrix", "CUDA knows neuron- and output-major")),
        };
        // neuron 0 belongs to exactly one operator of a layer: its owner adds the bias
        let owns_bias = !neurons.is_empty() && neurons.id(0) == 0;
        let ids: Vec<i32> = neurons.iter().map(|id| id as i32).collect();
        Ok(Self {
            ids: (!neurons.is_all()).then(|| gpu.upload(&ids)).transpose()?,
            first,
            second,
            activate: gpu.kernel("pi_ffn_activate")?,
            down,
            sum: gpu.kernel("pi_ffn_sum")?,
            down_bias: w.down_bias.as_ref().filter(|_| owns_bias).map(|b| gpu.upload(b)).transpose()?,
            neurons: neurons.clone(),
            w: w.clone(),
            gpu: gpu.clone(),
        })
    }

    fn slices(&self) -> usize {
        slices(self.neurons.len())
    }
}

/// In how many parts the second half adds up so many neurons.
fn slices(neurons: usize) -> usize {
    neurons.div_ceil(MIN_SLICE).clamp(1, SLICES)
}

/// What the arrays of [`CudaFfn::new`] take.
pub(crate) fn bytes(shape: &FfnShape, part: PartShape) -> u64 {
    let n = part.neurons;
    let rows = |l: &LinearShape| {
        let bias = if l.bias { room::<f32>([n, 1]) } else { 0 };
        room::<u8>([n, l.weight.row_bytes() as usize]) + bias
    };
    let first: u64 = shape.gate.iter().chain([&shape.up]).map(rows).sum();
    let weight = LinearShape { bias: false, ..shape.down };
    let down = if shape.neuron_major { rows(&weight) } else { linear::bytes(&weight) };
    let ids = if n == shape.neurons() { 0 } else { room::<i32>([n, 1]) };
    let bias = if shape.down.bias && part.has_first { room::<f32>([shape.dim(), 1]) } else { 0 };
    first + down + ids + bias
}

/// What the arrays of a run take.
pub(crate) fn scratch_bytes(shape: &FfnShape, neurons: usize, limits: &Limits) -> u64 {
    let part = match shape.neuron_major {
        true => room::<f32>([limits.tokens.saturating_mul(slices(neurons)), shape.dim()]),
        false => room::<f32>([1, 1]),
    };
    room::<f32>([limits.tokens, neurons]).saturating_add(part).saturating_add(room::<u64>([2, 1]))
}

impl SparseFfn for CudaFfn {
    fn neurons(&self) -> &NeuronSet {
        &self.neurons
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn FfnRun>> {
        let (gpu, owned, dim) = (&self.gpu, self.neurons.len(), self.w.dim());
        let part = match self.down {
            Sum::Rows(_) => gpu.scratch([limits.tokens.saturating_mul(self.slices()), dim])?,
            Sum::Whole(_) => gpu.scratch([1, 1])?,
        };
        Ok(Box::new(Run {
            h: array::hidden(gpu, limits.tokens, owned)?,
            part,
            counts: gpu.zeros::<u64>(2)?,
            counted: [0; 2],
            steps: 0,
            tokens: None,
            stats: OpStats::default(),
            op: self,
        }))
    }
}

struct Run {
    op: Arc<CudaFfn>,
    /// `[tokens, owned]`: what each neuron contributes with.
    h: Hidden,
    /// `[slices, tokens, dim]`.
    part: Memory<f32>,
    /// Neurons × tokens that fired, and that were marked, since the run was opened.
    counts: Memory<u64>,
    /// What was reported of that.
    counted: [u64; 2],
    /// Steps since the count was read.
    steps: u64,
    /// Tokens of a submitted step that was not collected.
    tokens: Option<usize>,
    stats: OpStats,
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
        self.h.resize(tokens)?;
        self.tokens = None;
        let (act, threshold) = activation(w.act)?;
        let words = active.words();
        let input = operand::Input::new(gpu, x)?;
        let marks = operand::Marks::new(gpu, active)?;
        self.h.stale();
        self.h.resident().mirror_overwrite();
        let h = array::address(gpu, &mut self.h);
        if tokens > 0 && owned > 0 {
            let act = [Arg::Int(act), Arg::Float(threshold)];
            for first in (0..tokens).step_by(TOKENS * 65_535) {
                let some = (tokens - first).min(TOKENS * 65_535);
                let size = LaunchConfig {
                    grid_dim: (owned.div_ceil(WARPS) as u32, some.div_ceil(TOKENS) as u32, 1),
                    ..blocks(1, THREADS)
                };
                let x = Arg::At(input.address + 4 * (first * dim) as u64);
                let h = Arg::At(h + 4 * (first * owned) as u64);
                let marks = Arg::At(if marks.address == 0 { 0 } else { marks.address + 8 * (first * words) as u64 });
                let sizes = [owned, dim, some].map(|v| Arg::Int(v as i32));
                let rows = |r: &Rows| [gpu.at(Some(&r.weight)), gpu.at(r.bias.as_ref())];
                let skip = Arg::Int(i32::from(w.skip));
                let args = [
                    &rows(&op.first)[..],
                    &[gpu.at(op.ids.as_ref()), marks, Arg::Int(words as i32), x],
                    &sizes,
                    &[skip],
                    &act,
                    &[h, gpu.at(Some(&self.counts))],
                ];
                // SAFETY: the arguments of `ffn.cu`; a warp per neuron, arrays of the sizes that are passed.
                unsafe { gpu.launch(&op.first.kernel, size, &args.concat())? };
                if let Some(second) = &op.second {
                    let symmetric = Arg::Int(i32::from(w.gating == Gating::Symmetric));
                    let args = [&rows(second)[..], &[x], &sizes, &[symmetric], &act, &[h]];
                    // SAFETY: as above.
                    unsafe { gpu.launch(&second.kernel, size, &args.concat())? };
                }
            }
            if op.second.is_none() {
                let n = tokens * owned;
                let args = [&[Arg::Long(n as i64)][..], &act, &[Arg::At(h)]].concat();
                // SAFETY: as above.
                unsafe { gpu.launch(&op.activate, threads(n, THREADS), &args)? };
            }
        }
        if let Sum::Rows(down) = &op.down {
            for first in (0..tokens).step_by(65_535) {
                let some = (tokens - first).min(65_535);
                let grid_dim = (dim.div_ceil(COLUMNS) as u32, some as u32, op.slices() as u32);
                let size = LaunchConfig { grid_dim, ..blocks(1, THREADS) };
                let part = gpu.address(&self.part) + 4 * (first * op.slices() * dim) as u64;
                let args = [
                    gpu.at(Some(&down.weight)),
                    Arg::At(h + 4 * (first * owned) as u64),
                    Arg::Int(owned as i32),
                    Arg::Int(dim as i32),
                    Arg::Int(some as i32),
                    Arg::At(part),
                ];
                // SAFETY: as above.
                unsafe { gpu.launch(&down.kernel, size, &args)? };
            }
        }
        self.stats.neurons += (owned * tokens) as u64;
        self.steps += 1;
        self.tokens = Some(tokens);
        Ok(())
    }

    fn collect(&mut self, y: &mut Hidden, how: Write) -> Result<()> {
        let op = self.op.clone();
        let (gpu, dim) = (&op.gpu, op.w.dim());
        let tokens = self.tokens.take().ok_or_else(|| Error::shape("ffn", "a submitted step", "none"))?;
        let h = array::address(gpu, &mut self.h);
        operand::write(gpu, y, tokens, dim, how, |y, add| match &op.down {
            Sum::Whole(down) => {
                self.stats.bytes += down.bytes();
                down.queue(h, tokens, y, add)?;
                match &op.down_bias {
                    None => Ok(()),
                    Some(_) => self.sum(y, 0, 0, tokens, true),
                }
            }
            Sum::Rows(_) => {
                for first in (0..tokens).step_by(65_535) {
                    let some = (tokens - first).min(65_535);
                    self.sum(y + 4 * (first * dim) as u64, op.slices(), first, some, add)?;
                }
                Ok(())
            }
        })
    }

    fn values(&mut self) -> Result<&mut Hidden> {
        Ok(&mut self.h)
    }

    fn take_stats(&mut self) -> OpStats {
        // a device that failed reports that when something is computed
        if std::mem::take(&mut self.steps) > 0
            && let Ok(counts) = self.op.gpu.stream.clone_dtoh(&*self.counts)
        {
            let (active, marked) = (counts[0] - self.counted[0], counts[1] - self.counted[1]);
            self.counted = [counts[0], counts[1]];
            self.stats.active += active;
            self.stats.marked += marked;
            let second = self.op.second.as_ref().map_or(0, |rows| rows.row_bytes);
            let down = if let Sum::Rows(rows) = &self.op.down { rows.row_bytes } else { 0 };
            self.stats.bytes += marked * self.op.first.row_bytes + active * (second + down);
        }
        std::mem::take(&mut self.stats)
    }
}

impl Run {
    /// Adds up slices for `some` tokens from `first` on, and the bias; `slices` may be 0.
    fn sum(&self, y: u64, slices: usize, first: usize, some: usize, add: bool) -> Result<()> {
        let (op, dim) = (&self.op, self.op.w.dim());
        let n = some * dim;
        if n == 0 {
            return Ok(());
        }
        let args = [
            Arg::At(op.gpu.address(&self.part) + 4 * (first * op.slices() * dim) as u64),
            Arg::Int(slices as i32),
            Arg::Long(n as i64),
            Arg::Int(dim as i32),
            op.gpu.at(op.down_bias.as_ref()),
            Arg::Int(i32::from(add)),
            Arg::At(y),
        ];
        // SAFETY: the arguments of `ffn.cu`; a thread per number.
        unsafe { op.gpu.launch(&op.sum, threads(n, THREADS), &args) }
    }
}
