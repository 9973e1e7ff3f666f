//! The neuron-aware FFN: gate first, the rest only for neurons that fire.
//!
//! Two parallel sections per call. The first goes over neurons: gate, then up where the gate fires; it leaves one number per
//! neuron and token. The second goes over output columns: every task adds its columns of the firing neurons' down rows, in
//! the order of the neurons. So no accumulators have to be merged, and the sum does not depend on the number of threads.

use crate::{
    Activate, Crossover, Kernels, TypeKernels,
    arch::prefetch,
    crossover::{Choice, Past},
    dense::{Linear, check, output},
    matmul::encode,
    split::{self, Columns},
};
use pi_core::{
    ActiveSet, Dense, Down, EncodedRows, Error, Executor, FfnRun, FfnWeights, Gating, Hidden, Limits, LinearSpec,
    Matrix, MatrixView, NeuronSet, OpStats, QuantType, Result, SparseFfn, Write,
};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Bytes of a row that are asked for while the rows before it are computed.
const NEXT: usize = 512;
/// Tokens that share a pass over a run of neurons.
const TOKEN_BLOCK: usize = 32;

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
        let x = x.encoded(k.activations.form).ok_or_else(|| Error::shape("ffn input", "encoded rows", "none"))?;
        Ok(Self { k, w: m.view(), bias, x })
    }

    fn bias(&self, id: usize) -> f32 {
        self.bias.map_or(0.0, |b| b[id])
    }

    fn one(&self, id: usize, t: usize) -> f32 {
        (self.k.dot)(self.w.row(id), self.x.row(t)) + self.bias(id)
    }

    /// Rows anywhere, four at a time.
    fn gathered(&self, list: &List, t: usize, out: &mut [f32; CHUNK]) {
        let x = self.x.row(t);
        let ids = &list.ids[..list.len];
        let (fours, rest) = ids.as_chunks::<4>();
        for (i, (four, out)) in fours.iter().zip(out.as_chunks_mut().0).enumerate() {
            // the hardware goes on by itself once it sees that a row is read
            for id in ids.iter().skip(4 * i + 4).take(4) {
                let row = self.w.row(*id as usize);
                prefetch(&row[..row.len().min(NEXT)]);
            }
            *out = (self.k.dot4)(four.map(|id| self.w.row(id as usize)), x);
            (0..4).for_each(|j| out[j] += self.bias(four[j] as usize));
        }
        for (id, out) in rest.iter().zip(&mut out[fours.len() * 4..]) {
            *out = self.one(*id as usize, t);
        }
    }

    /// `n` owned neurons from place `i` on beside the tokens from `t` on: `out` has a row of `n` per token.
    fn tile(&self, set: &NeuronSet, i: usize, n: usize, t: usize, out: &mut [f32]) {
        let mut rows: [&[u8]; CHUNK] = [&[]; CHUNK];
        rows.iter_mut().zip(i..i + n).for_each(|(row, i)| *row = self.w.row(set.id(i)));
        self.k.tile(&rows[..n], self.x.from(t), self.x.row_bytes(), out);
        if self.bias.is_some() {
            for out in out.chunks_exact_mut(n) {
                out.iter_mut().zip(i..).for_each(|(out, i)| *out += self.bias(set.id(i)));
            }
        }
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
            encode(&*op.exec, &op.kernels.get(m.ty()).activations, x)?;
        }
        let gate = w.gate.as_ref().map(|m| Half::new(op, m, w.gate_bias.as_deref(), x)).transpose()?;
        let up = Half::new(op, &w.up, w.up_bias.as_deref(), x)?;
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
            let sum =
                Sum { op, k: op.kernels.get(m.ty()), floats: op.kernels.get(QuantType::F32), m, fired, h, tokens };
            let min = MIN_COLUMNS.max(m.ty().info().block_len);
            split::columns(&*op.exec, output(out, Write::Set)?, m.cols(), min, min, |mut part| sum.columns(&mut part));
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
    activate: Activate,
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

/// Neurons that are gone through at a time. Their marks are one word.
const CHUNK: usize = 64;

/// Some of a task's neurons: their places, and their ids.
struct List {
    len: usize,
    places: [u32; CHUNK],
    ids: [u32; CHUNK],
}

impl List {
    const EMPTY: Self = Self { len: 0, places: [0; CHUNK], ids: [0; CHUNK] };

    fn push(&mut self, place: usize, id: usize) {
        (self.places[self.len], self.ids[self.len]) = (place as u32, id as u32);
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        self.places[..self.len].iter().zip(&self.ids).map(|(place, id)| (*place as usize, *id as usize))
    }

    /// The places from `at` on as bits.
    fn bits(&self, at: usize) -> u64 {
        self.places[..self.len].iter().fold(0, |bits, place| bits | 1 << (*place as usize - at))
    }
}

impl Task<'_> {
    fn may_fire(&self, t: usize, id: usize) -> bool {
        self.bits.is_none_or(|b| b[t * self.words + id / 64] >> (id % 64) & 1 == 1)
    }

    /// Hidden values of a run of owned neurons, for all tokens.
    fn run(&self, part: &mut Columns<'_>, tokens: usize) -> Counts {
        let range = part.range();
        let mut count = Counts::default();
        if tokens == 1 && !self.dense {
            self.one_token(range.start, part.row(0), &mut count);
            return count;
        }
        for from in range.clone().step_by(CHUNK) {
            let n = (range.end - from).min(CHUNK);
            let at = from - range.start;
            let mut touched = (0, 0);
            if self.dense || self.bits.is_none() {
                self.tiles(from, n, part, tokens, &mut touched, &mut count);
            } else {
                for t in 0..tokens {
                    let h = part.row(t);
                    let mut fires = List::EMPTY;
                    let marked = self.gates(from, t, at..at + n, h, |i, id, _| fires.push(i, id));
                    touched.0 |= marked.bits(at);
                    touched.1 |= self.finish(&fires, t, h, &mut count).bits(at);
                }
            }
            count.first += u64::from(u64::count_ones(touched.0));
            count.second += u64::from(u64::count_ones(touched.1));
        }
        count
    }

    /// The same for one token: neurons that fire are collected until there are enough of them to ask for the next rows while
    /// the ones before are computed.
    fn one_token(&self, start: usize, h: &mut [f32], count: &mut Counts) {
        let mut fires = List::EMPTY;
        for at in (0..h.len()).step_by(CHUNK) {
            let n = (h.len() - at).min(CHUNK);
            let marked = self.gates(start + at, 0, at..at + n, h, |i, id, h| {
                fires.push(i, id);
                if fires.len == CHUNK {
                    count.second += self.finish(&fires, 0, h, count).len as u64;
                    fires.len = 0;
                }
            });
            count.first += marked.len as u64;
        }
        count.second += self.finish(&fires, 0, h, count).len as u64;
    }

    /// The gates of those neurons from `from` on that are marked; `h[places]` gets them where they fire, and 0 elsewhere.
    fn gates(
        &self,
        from: usize,
        t: usize,
        places: Range<usize>,
        h: &mut [f32],
        mut fires: impl FnMut(usize, usize, &mut [f32]),
    ) -> List {
        let first = self.gate.unwrap_or(self.up);
        let mut marked = List::EMPTY;
        for (i, from) in places.clone().zip(from..) {
            let id = self.neurons.id(from);
            if self.may_fire(t, id) {
                marked.push(i, id);
            }
        }
        h[places].fill(0.0);
        let mut gates = [0.0; CHUNK];
        first.gathered(&marked, t, &mut gates);
        for ((i, id), gate) in marked.iter().zip(gates) {
            if !self.w.skip || self.w.act.fires(gate) {
                h[i] = gate;
                fires(i, id, h);
            }
        }
        marked
    }

    /// Neurons that fire: `h` holds what the gate is, and gets what the neuron contributes with. Returns those whose second
    /// row was read.
    fn finish<'l>(&self, fires: &'l List, t: usize, h: &mut [f32], count: &mut Counts) -> &'l List {
        count.active += fires.len as u64;
        let mut ups = [0.0; CHUNK];
        let second = self.w.gating != Gating::UpOnly;
        if second {
            self.up.gathered(fires, t, &mut ups);
        }
        self.contribute(fires, h, &mut ups);
        if second { fires } else { &List::EMPTY }
    }

    /// What some neurons contribute with: `h` holds their gates, `ups` the rest in the order of the list.
    fn contribute(&self, list: &List, h: &mut [f32], ups: &mut [f32; CHUNK]) {
        let mut gates = [0.0; CHUNK];
        for ((i, _), gate) in list.iter().zip(&mut gates) {
            *gate = h[i];
        }
        self.multiply(&mut gates[..list.len], &mut ups[..list.len]);
        for ((i, _), v) in list.iter().zip(gates) {
            h[i] = v;
        }
    }

    /// The same for neighbours: `gates` becomes what they contribute with, `ups` is left with anything.
    fn multiply(&self, gates: &mut [f32], ups: &mut [f32]) {
        (self.activate)(self.w.act, gates);
        if self.w.gating == Gating::UpOnly {
            return;
        }
        if self.w.gating == Gating::Symmetric {
            (self.activate)(self.w.act, ups);
        }
        gates.iter_mut().zip(ups).for_each(|(gate, up)| *gate *= *up);
    }

    /// Neurons from `from` on for all tokens, four rows at a time beside many tokens: all of the gate, and, on the dense path,
    /// all of the rest.
    fn tiles(
        &self,
        from: usize,
        n: usize,
        part: &mut Columns<'_>,
        tokens: usize,
        touched: &mut (u64, u64),
        count: &mut Counts,
    ) {
        let start = part.range().start;
        let first = self.gate.unwrap_or(self.up);
        let (mut gates, mut ups) = ([0.0f32; CHUNK * TOKEN_BLOCK], [0.0f32; CHUNK * TOKEN_BLOCK]);
        touched.0 |= u64::MAX >> (CHUNK - n);
        for t0 in (0..tokens).step_by(TOKEN_BLOCK) {
            let block = TOKEN_BLOCK.min(tokens - t0);
            let (gates, ups) = (&mut gates[..n * block], &mut ups[..n * block]);
            first.tile(self.neurons, from, n, t0, gates);
            if self.dense {
                count.dense += (n * block) as u64;
                if self.gate.is_some() {
                    self.up.tile(self.neurons, from, n, t0, ups);
                    touched.1 |= u64::MAX >> (CHUNK - n);
                }
            }
            if self.dense && !self.w.skip && self.bits.is_none() {
                count.active += (n * block) as u64;
                self.multiply(gates, ups);
                for (t, gates) in gates.chunks_exact(n).enumerate() {
                    part.row(t0 + t)[from - start..][..n].copy_from_slice(gates);
                }
                continue;
            }
            for (t, (gates, ups)) in gates.chunks_exact(n).zip(ups.chunks_exact(n)).enumerate() {
                let h = &mut part.row(t0 + t)[from - start..][..n];
                let (mut fires, mut fire_ups) = (List::EMPTY, [0.0; CHUNK]);
                for j in 0..n {
                    let id = self.neurons.id(from + j);
                    h[j] = 0.0;
                    if self.may_fire(t0 + t, id) && (!self.w.skip || self.w.act.fires(gates[j])) {
                        (h[j], fire_ups[fires.len]) = (gates[j], ups[j]);
                        fires.push(j, id);
                    }
                }
                if self.dense {
                    count.active += fires.len as u64;
                    self.contribute(&fires, h, &mut fire_ups);
                } else {
                    touched.1 |= self.finish(&fires, t0 + t, h, count).bits(0);
                }
            }
        }
    }
}

/// Columns of the sum that are worth a task of their own.
const MIN_COLUMNS: usize = 64;
/// Numbers of down rows that are decoded at a time: rows times columns.
const DECODED: (usize, usize) = (16, 256);
/// Tokens from which on a down row is decoded once instead of for each.
const DECODE_FROM: usize = 3;

/// What the second section needs beside its part of the sum.
struct Sum<'a> {
    op: &'a CpuFfn,
    k: &'a TypeKernels,
    floats: &'a TypeKernels,
    m: &'a Matrix,
    fired: &'a [u32],
    h: &'a [f32],
    tokens: usize,
}

impl Sum<'_> {
    fn columns(&self, part: &mut Columns<'_>) {
        let range = part.range();
        (0..self.tokens).for_each(|t| part.row(t).fill(0.0));
        if self.tokens >= DECODE_FROM && self.m.ty() != QuantType::F32 {
            let step = DECODED.1.next_multiple_of(self.m.ty().info().block_len);
            for from in range.clone().step_by(step) {
                self.decoded(part, from..(from + step).min(range.end));
            }
        } else {
            let view = self.m.view();
            let bytes = self.bytes(&range);
            let row = |i: u32| &view.row(self.op.neurons.id(i as usize))[bytes.clone()];
            for t in 0..self.tokens {
                self.add(self.k, self.fired, t, row, part.row(t));
            }
        }
    }

    fn bytes(&self, columns: &Range<usize>) -> Range<usize> {
        let info = self.m.ty().info();
        let at = |column: usize| column / info.block_len * info.block_bytes;
        at(columns.start)..at(columns.end)
    }

    /// Adds the rows of `some` neurons to a token's sum, four at a time, in order.
    fn add<'r>(&self, k: &TypeKernels, some: &[u32], t: usize, row: impl Fn(u32) -> &'r [u8], y: &mut [f32]) {
        let h = &self.h[t * self.op.neurons.len()..][..self.op.neurons.len()];
        // four rows are computed when the next four are known and asked for
        let (mut rows, mut by, mut n) = ([&[][..]; 8], [0.0; 8], 0);
        for &i in some {
            let a = h[i as usize];
            if a != 0.0 {
                (rows[n], by[n]) = (row(i), a);
                prefetch(rows[n]);
                n += 1;
                if n == 8 {
                    k.axpy4([rows[0], rows[1], rows[2], rows[3]], [by[0], by[1], by[2], by[3]], y);
                    (rows.copy_within(4.., 0), by.copy_within(4.., 0));
                    n = 4;
                }
            }
        }
        (0..n).for_each(|j| (k.axpy)(rows[j], by[j], y));
    }

    /// The same for many tokens: some rows are decoded, then each token takes what it needs. The sums have the same order,
    /// and decoding is exact, so they have the same bits.
    fn decoded(&self, part: &mut Columns<'_>, columns: Range<usize>) {
        let start = part.range().start;
        let (view, bytes, width) = (self.m.view(), self.bytes(&columns), columns.len());
        let mut numbers = [0.0f32; DECODED.0 * DECODED.1];
        for some in self.fired.chunks(DECODED.0) {
            for (&i, out) in some.iter().zip(numbers.chunks_exact_mut(width)) {
                (self.k.decode)(&view.row(self.op.neurons.id(i as usize))[bytes.clone()], out);
            }
            let numbers: &[u8] = bytemuck::cast_slice(&numbers);
            for t in 0..self.tokens {
                let y = &mut part.row(t)[columns.start - start..columns.end - start];
                self.add(
                    self.floats,
                    some,
                    t,
                    |i| {
                        let j = some.partition_point(|&s| s < i);
                        &numbers[4 * j * width..4 * (j + 1) * width]
                    },
                    y,
                );
            }
        }
    }
}
