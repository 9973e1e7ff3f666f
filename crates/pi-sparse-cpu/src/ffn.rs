//! The neuron-aware FFN: gate first, the rest only for neurons that fire.
//!
//! Two parallel sections per call. The first goes over neurons: gate, then up where the gate fires; it leaves one number per
//! neuron and token. The second goes over output columns: every task adds its columns of the firing neurons' down rows, in
//! the order of the neurons. So no accumulators have to be merged, and the sum does not depend on the number of threads.

use crate::{
    Crossover, Kernels, TypeKernels,
    crossover::{Choice, Past},
    dense::{Linear, check, output},
    matmul::{encode, rows_dot},
    split,
};
use pi_core::{
    ActiveSet, Dense, Down, EncodedRows, Error, Executor, FfnRun, FfnWeights, Gating, Hidden, Limits, LinearSpec,
    Matrix, MatrixView, NeuronSet, OpStats, Result, SparseFfn, Write,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Tokens that share a pass over a run of neurons.
const TOKEN_BLOCK: usize = 16;

pub(crate) struct CpuFfn {
    w: FfnWeights,
    neurons: NeuronSet,
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
        exec: Arc<dyn Executor>,
    ) -> Result<Self> {
        w.check()?;
        if neurons.total() != w.neurons() {
            return Err(Error::shape("neuron set", format!("{} neurons", w.neurons()), neurons.total()));
        }
        let dense_down = match &w.down {
            Down::OutputMajor(m) if neurons.is_all() => {
                Some(Linear { spec: LinearSpec::new(m.clone()), kernels: kernels.clone(), exec: exec.clone() })
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
        Ok(Self { w: w.clone(), neurons: neurons.clone(), dense_down, choice, kernels, exec })
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

    fn take_stats(&mut self) -> OpStats {
        std::mem::take(&mut self.stats)
    }
}

/// A matrix of an FFN's first half, its kernel, and its encoded input.
struct Half<'a> {
    k: &'a TypeKernels,
    w: MatrixView<'a>,
    bias: Option<&'a [f32]>,
    x: EncodedRows<'a>,
}

impl<'a> Half<'a> {
    fn new(op: &'a CpuFfn, m: &'a Matrix, bias: Option<&'a [f32]>, x: &'a Hidden) -> Result<Self> {
        let k = op.kernels.get(m.ty());
        let x = x.encoded(k.activation).ok_or_else(|| Error::shape("ffn input", "encoded rows", "none"))?;
        Ok(Self { k, w: m.view(), bias, x })
    }

    fn bias(&self, id: usize) -> f32 {
        self.bias.map_or(0.0, |b| b[id])
    }

    fn one(&self, id: usize, t: usize) -> f32 {
        (self.k.dot)(self.w.row(id), self.x.row(t)) + self.bias(id)
    }

    /// Up to four neurons with consecutive ids at once.
    fn some(&self, id: usize, n: usize, t: usize) -> [f32; 4] {
        let mut v = rows_dot(self.k, self.w, id, n, self.x.row(t));
        if self.bias.is_some() {
            (0..n).for_each(|i| v[i] += self.bias(id + i));
        }
        v
    }
}

impl Run {
    /// First section: `h`.
    fn hidden_values(&mut self, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let Self { op, h, past, stats, .. } = self;
        let (w, tokens, words) = (&op.w, x.tokens(), active.words());
        let bits = active.host()?;
        // Both halves usually have one type, hence one encoding; if not, the second must not invalidate the first.
        for m in w.gate.iter().chain([&w.up]) {
            encode(&*op.exec, &op.kernels, op.kernels.get(m.ty()).activation, x)?;
        }
        let gate = w.gate.as_ref().map(|m| Half::new(op, m, w.gate_bias.as_deref(), x)).transpose()?;
        let up = Half::new(op, &w.up, w.up_bias.as_deref(), x)?;
        let first = w.gate.as_ref().unwrap_or(&w.up);
        let owned = op.neurons.len();
        let (active_count, rows1, rows2) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        // Where nothing may be left out, there is nothing to look at.
        let dense = (bits.is_none() && !w.skip) || op.choice.is_dense(bits, words, past);
        let dense_count = AtomicU64::new(0);
        let task = Task { w, dense, neurons: &op.neurons, bits, words, gate: gate.as_ref(), up: &up };
        split::columns(&*op.exec, h.host_overwrite(), owned, 4, 16, |mut part| {
            let range = part.range();
            let mut count = Counts::default();
            for t0 in (0..tokens).step_by(TOKEN_BLOCK) {
                let block = t0..(t0 + TOKEN_BLOCK).min(tokens);
                for i in range.clone().step_by(4) {
                    let n = (range.end - i).min(4);
                    let at = i - range.start;
                    let mut touched = [0u8; 4];
                    for t in block.clone() {
                        task.quad(i, n, t, &mut part.row(t)[at..at + n], &mut touched, &mut count);
                    }
                    count.rows(touched);
                }
            }
            active_count.fetch_add(count.active, Relaxed);
            dense_count.fetch_add(count.dense, Relaxed);
            rows1.fetch_add(count.first, Relaxed);
            rows2.fetch_add(count.second, Relaxed);
        });
        stats.neurons += (owned * tokens) as u64;
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
            let fires = |i: usize| h.iter().skip(i).step_by(owned).any(|&v| v != 0.0);
            fired.extend((0..owned).filter(|&i| fires(i)).map(|i| i as u32));
            let m = op.w.down.matrix();
            let (k, v, info, dim) = (op.kernels.get(m.ty()), m.view(), m.ty().info(), m.cols());
            let fired = &fired[..];
            split::columns(&*op.exec, output(out, Write::Set)?, dim, info.block_len.max(16), 64, |mut part| {
                let range = part.range();
                let bytes =
                    range.start / info.block_len * info.block_bytes..range.end / info.block_len * info.block_bytes;
                (0..tokens).for_each(|t| part.row(t).fill(0.0));
                for &i in fired {
                    let row = &v.row(op.neurons.id(i as usize))[bytes.clone()];
                    for t in 0..tokens {
                        let a = h[t * owned + i as usize];
                        if a != 0.0 {
                            (k.axpy)(row, a, part.row(t));
                        }
                    }
                }
            });
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

/// What the first section needs beside its part of `h`.
struct Task<'a> {
    w: &'a FfnWeights,
    /// Every neuron is computed; those that are not marked or do not fire become 0 afterwards.
    dense: bool,
    neurons: &'a NeuronSet,
    bits: Option<&'a [u64]>,
    words: usize,
    gate: Option<&'a Half<'a>>,
    up: &'a Half<'a>,
}

#[derive(Default)]
struct Counts {
    active: u64,
    dense: u64,
    first: u64,
    second: u64,
}

/// Marks that a neuron's first (gate) or second (up) row was read.
const FIRST: u8 = 1;
const SECOND: u8 = 2;

impl Counts {
    fn rows(&mut self, touched: [u8; 4]) {
        for t in touched {
            self.first += u64::from(t & FIRST != 0);
            self.second += u64::from(t & SECOND != 0);
        }
    }
}

impl Task<'_> {
    fn may_fire(&self, t: usize, id: usize) -> bool {
        self.bits.is_none_or(|b| b[t * self.words + id / 64] >> (id % 64) & 1 == 1)
    }

    /// Hidden values of the owned neurons `i..i + n` for token `t`.
    fn quad(&self, i: usize, n: usize, t: usize, h: &mut [f32], touched: &mut [u8; 4], count: &mut Counts) {
        let id = self.neurons.id(i);
        let run = (self.dense || self.bits.is_none()) && self.neurons.id(i + n - 1) == id + n - 1;
        let first = self.gate.unwrap_or(self.up);
        let mut g = [0.0; 4];
        if run {
            g = first.some(id, n, t);
            touched[..n].iter_mut().for_each(|m| *m |= FIRST);
        }
        let dense = run && self.dense;
        let mut u = [0.0; 4];
        if dense {
            count.dense += n as u64;
            if self.gate.is_some() {
                u = self.up.some(id, n, t);
                touched[..n].iter_mut().for_each(|m| *m |= SECOND);
            }
        }
        for j in 0..n {
            let id = self.neurons.id(i + j);
            if !self.may_fire(t, id) {
                h[j] = 0.0;
                continue;
            }
            if !run {
                g[j] = first.one(id, t);
                touched[j] |= FIRST;
            }
            if self.w.skip && !self.w.act.fires(g[j]) {
                h[j] = 0.0;
                continue;
            }
            count.active += 1;
            let a = self.w.act.apply(g[j]);
            h[j] = match self.w.gating {
                Gating::UpOnly => a,
                gating => {
                    let u = if dense { u[j] } else { self.up.one(id, t) };
                    touched[j] |= SECOND;
                    if gating == Gating::Symmetric { a * self.w.act.apply(u) } else { a * u }
                }
            };
        }
    }
}
