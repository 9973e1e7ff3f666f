//! The neuron-aware FFN: gate first, the rest only for neurons that fire.
//!
//! Two parallel sections per call. The first ([`first`]) goes over neurons: gate, then up where the gate fires; it leaves one
//! number per neuron and token. The second ([`sum`]) goes over output columns: every task adds its columns of the firing
//! neurons' down rows, in the order of the neurons. So no accumulators have to be merged, and the sum does not depend on the
//! number of threads.

mod first;
mod sum;

use crate::{
    Crossover, Kernels,
    crossover::{Choice, Past},
    dense::{Linear, check, output},
    matmul::encode,
    split,
    weights::{Packer, Weights},
};
use first::{Half, Task};
use pi_core::{
    ActiveSet, Dense, Down, Error, Executor, FfnRun, FfnWeights, Hidden, Limits, LinearSpec, Matrix, NeuronSet,
    OpStats, QuantType, Result, SparseFfn, Write,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use sum::{MIN_COLUMNS, Sum, min_columns};

pub(crate) struct CpuFfn {
    w: FfnWeights,
    /// Its first half, in the layout of its kernels.
    gate: Option<Weights>,
    up: Weights,
    neurons: NeuronSet,
    /// The same as a row of marks; empty if they are all.
    owned: Vec<u64>,
    /// The down matrix as an operator, when it is output-major.
    dense_down: Option<Linear>,
    choice: Choice,
    kernels: Arc<Kernels>,
    exec: Arc<dyn Executor>,
}

impl CpuFfn {
    pub(crate) fn new(
        w: &FfnWeights,
        neurons: &NeuronSet,
        crossover: &Crossover,
        kernels: Arc<Kernels>,
        packer: &Packer,
        exec: Arc<dyn Executor>,
    ) -> Result<Self> {
        w.check()?;
        if neurons.total() != w.neurons() {
            return Err(Error::shape("neuron set", format!("{} neurons", w.neurons()), neurons.total()));
        }
        let dense_down = match &w.down {
            Down::OutputMajor(m) if neurons.is_all() => {
                Some(Linear::new(&LinearSpec::new(m.clone()), &kernels, packer, &exec))
            }
            Down::OutputMajor(m) => {
                return Err(Error::unsupported(
                    format!("a part of the neurons of {}", m.name()),
                    "its down matrix is output-major; store it neuron-major (ffn_down_t)",
                ));
            }
            _ => None,
        };
        let choice = Choice::new(crossover.get(w.up.ty()), neurons);
        let first = |m: &Matrix| packer.weights(m, neurons, &kernels, &*exec);
        let (gate, up) = (w.gate.as_ref().map(first), first(&w.up));
        Ok(Self {
            w: w.clone(),
            gate,
            up,
            neurons: neurons.clone(),
            owned: row_of(neurons),
            dense_down,
            choice,
            kernels,
            exec,
        })
    }
}

impl SparseFfn for CpuFfn {
    fn neurons(&self) -> &NeuronSet {
        &self.neurons
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn FfnRun>> {
        let owned = self.neurons.len();
        Ok(Box::new(Run {
            h: Hidden::try_new(limits.tokens, owned)?,
            out: Hidden::try_new(limits.tokens, self.w.dim())?,
            fired: Vec::with_capacity(owned),
            past: Past::default(),
            submitted: false,
            stats: OpStats::default(),
            op: self,
        }))
    }
}

struct Run {
    op: Arc<CpuFfn>,
    /// `[tokens, owned neurons]`: what each neuron contributes with; 0 if it does not fire.
    h: Hidden,
    out: Hidden,
    /// Owned neurons that fire for at least one token of the step.
    fired: Vec<u32>,
    past: Past,
    submitted: bool,
    stats: OpStats,
}

impl FfnRun for Run {
    fn submit(&mut self, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let op = self.op.clone();
        check("ffn", x, op.w.dim(), &mut self.out, op.w.dim(), Write::Set)?;
        if active.tokens() != x.tokens() || active.neurons() != op.neurons.total() {
            return Err(Error::shape(
                "active set",
                format!("{} tokens of {} neurons", x.tokens(), op.neurons.total()),
                format!("{} of {}", active.tokens(), active.neurons()),
            ));
        }
        self.h.resize(x.tokens())?;
        self.hidden_values(x, active)?;
        self.sum_down()?;
        self.submitted = true;
        Ok(())
    }

    fn collect(&mut self, y: &mut Hidden, how: Write) -> Result<()> {
        if !std::mem::take(&mut self.submitted) {
            return Err(Error::shape("ffn", "a submitted step", "none"));
        }
        let dim = self.op.w.dim();
        check("ffn", &self.out, dim, y, dim, how)?;
        let part = self.out.host()?;
        match how {
            Write::Set => y.host_overwrite().copy_from_slice(part),
            Write::Add => y.host_mut()?.iter_mut().zip(part).for_each(|(y, p)| *y += p),
        }
        Ok(())
    }

    fn values(&mut self) -> Result<&mut Hidden> {
        Ok(&mut self.h)
    }

    fn take_stats(&mut self) -> OpStats {
        std::mem::take(&mut self.stats)
    }
}

impl Run {
    /// First section: `h`.
    fn hidden_values(&mut self, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let Self { op, h, past, stats, .. } = self;
        let (w, tokens, words) = (&op.w, x.tokens(), active.words());
        let bits = active.host()?;
        // Both halves usually have one type, hence one encoding; if not, the second must not invalidate the first.
        for half in op.gate.iter().chain([&op.up]) {
            encode(&*op.exec, &half.k.activations, x)?;
        }
        let gate = op.gate.as_ref().map(|m| Half::new(m, w.gate_bias.as_deref(), x)).transpose()?;
        let up = Half::new(&op.up, w.up_bias.as_deref(), x)?;
        let first = w.gate.as_ref().unwrap_or(&w.up);
        let owned = op.neurons.len();
        let (active_count, rows1, rows2) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        // Where nothing may be left out, there is nothing to look at.
        let dense = (bits.is_none() && !w.skip) || op.choice.is_dense(bits, words, past);
        let dense_count = AtomicU64::new(0);
        let task = Task {
            w,
            activate: op.kernels.activate(),
            dense,
            neurons: &op.neurons,
            bits,
            words,
            gate: gate.as_ref(),
            up: &up,
        };
        split::columns(&*op.exec, h.host_overwrite(), owned, 4, 16, |mut part| {
            let count = task.run(&mut part, tokens);
            active_count.fetch_add(count.active, Relaxed);
            dense_count.fetch_add(count.dense, Relaxed);
            rows1.fetch_add(count.first, Relaxed);
            rows2.fetch_add(count.second, Relaxed);
        });
        stats.neurons += (owned * tokens) as u64;
        stats.marked += match bits {
            None => (owned * tokens) as u64,
            Some(bits) => marked(bits, &op.owned),
        };
        let active = active_count.into_inner();
        stats.active += active;
        stats.dense += dense_count.into_inner();
        if bits.is_none() && owned * tokens > 0 {
            past.saw(active as f32 / (owned * tokens) as f32, tokens);
        }
        stats.bytes += rows1.into_inner() * first.row_bytes() as u64;
        if w.gate.is_some() {
            stats.bytes += rows2.into_inner() * w.up.row_bytes() as u64;
        }
        Ok(())
    }

    /// Second section: `out = Σ h · down`.
    fn sum_down(&mut self) -> Result<()> {
        let Self { op, h, out, fired, stats, .. } = self;
        let owned = op.neurons.len();
        if let Some(down) = &op.dense_down {
            down.apply(h, out, Write::Set)?;
            stats.bytes += down.bytes();
        } else {
            let (tokens, h) = (h.tokens(), h.host()?);
            fired.clear();
            let fires = |i: &u32| h.iter().skip(*i as usize).step_by(owned).any(|&v| v != 0.0);
            match tokens {
                1 => fired.extend((0u32..).zip(h).filter(|(_, v)| **v != 0.0).map(|(i, _)| i)),
                _ => fired.extend((0..owned as u32).filter(fires)),
            }
            let m = op.w.down.matrix();
            let uses = h.iter().filter(|v| **v != 0.0).count();
            let (k, floats) = (op.kernels.get(m.ty()), op.kernels.get(QuantType::F32));
            let sum = Sum { op, k, floats, m, fired, uses, h, tokens };
            let (step, min) = (MIN_COLUMNS.max(m.ty().info().block_len), min_columns(m, op.exec.width()));
            split::columns(&*op.exec, output(out, Write::Set)?, m.cols(), step, min, |mut part| sum.columns(&mut part));
            stats.bytes += (fired.len() * m.row_bytes()) as u64;
        }
        // Neuron 0 belongs to exactly one operator of a layer: its owner adds the bias.
        if let Some(bias) = op.w.down_bias.as_ref().filter(|_| !op.neurons.is_empty() && op.neurons.id(0) == 0) {
            for row in out.host_mut()?.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias.iter()).for_each(|(o, b)| *o += b);
            }
        }
        Ok(())
    }
}

/// A set as a row of marks; empty if it is all of a layer.
fn row_of(neurons: &NeuronSet) -> Vec<u64> {
    if neurons.is_all() {
        return Vec::new();
    }
    let mut row = vec![0; neurons.total().div_ceil(64)];
    neurons.iter().for_each(|id| row[id / 64] |= 1 << (id % 64));
    row
}

/// Marks of owned neurons.
fn marked(bits: &[u64], owned: &[u64]) -> u64 {
    let count = |word: u64| u64::from(word.count_ones());
    match owned.len() {
        0 => bits.iter().map(|word| count(*word)).sum(),
        words => bits.chunks_exact(words).flat_map(|row| row.iter().zip(owned)).map(|(a, b)| count(a & b)).sum(),
    }
}
