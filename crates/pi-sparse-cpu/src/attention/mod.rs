//! Attention with grouped heads, online softmax, and keys and values in host memory.

pub(crate) mod kernels;
mod mix;

use crate::{
    Kernels,
    dense::{Linear, check},
    kv::{KvStore, zeroed},
    rope::Rotations,
    split,
    weights::Packer,
};
use kernels::AttentionKernels;
use mix::{Mixer, Place, SEGMENT, Scratches, tokens_per_task};
use pi_core::{
    Attention, AttentionRun, AttentionSpec, Batch, BatchToken, Dense, Executor, Hidden, Limits, LinearSpec, OpStats,
    QuantType, Result, RopeSpec, Serial, Write,
};
use std::sync::Arc;

/// Multiplications below which work is not worth handing to other threads.
const MIN_SHARED: usize = 1 << 16;

type Decode = fn(&[u8], &mut [f32]);

pub(crate) struct CpuAttention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    common: Arc<Common>,
    spec: AttentionSpec,
    /// Of the types of keys and values.
    decode: [Decode; 2],
    loops: AttentionKernels,
    exec: Arc<dyn Executor>,
}

/// What layers share: rotations of the step at hand, and memory to work in, which so stays in the caches.
pub(crate) struct Common {
    spec: Option<RopeSpec>,
    shape: (usize, usize),
    rope: Option<Rotations>,
    scratches: Scratches,
}

impl Common {
    pub(crate) fn new(spec: &AttentionSpec, threads: usize) -> Self {
        let shape = (spec.heads / spec.kv_heads, spec.head_dim);
        let (rope, scratches) = (spec.rope.as_ref().map(Rotations::new), Scratches::new(threads, shape.0, shape.1));
        Self { spec: spec.rope.clone(), shape, rope, scratches }
    }

    /// Whether it can serve attention of this kind.
    pub(crate) fn fits(&self, spec: &AttentionSpec) -> bool {
        self.shape == (spec.heads / spec.kv_heads, spec.head_dim) && self.spec == spec.rope
    }
}

impl CpuAttention {
    /// `common` [fits](Common::fits) the spec.
    pub(crate) fn new(
        spec: &AttentionSpec,
        common: Arc<Common>,
        kernels: &Kernels,
        packer: &Packer,
        exec: Arc<dyn Executor>,
    ) -> Self {
        let linear = |spec: &LinearSpec| Linear::new(spec, kernels, packer, &exec);
        Self {
            q: linear(&spec.q),
            k: linear(&spec.k),
            v: linear(&spec.v),
            o: linear(&spec.o),
            common,
            loops: AttentionKernels::of(kernels.isa()),
            spec: spec.clone(),
            decode: [spec.kv.keys, spec.kv.values].map(|ty| kernels.get(ty.quant()).decode),
            exec: exec.clone(),
        }
    }

    fn bytes(&self) -> u64 {
        [&self.q, &self.k, &self.v, &self.o].into_iter().map(Dense::bytes).sum()
    }

    fn group(&self) -> usize {
        self.spec.heads / self.spec.kv_heads
    }

    /// Most tokens whose segments are computed side by side: with more, there is enough to do as it is.
    fn few(&self) -> usize {
        (2 * self.exec.width() - 1) / self.spec.kv_heads
    }

    /// Who computes `work` multiplications.
    fn exec(&self, work: usize) -> &dyn Executor {
        if work < MIN_SHARED { &Serial } else { &*self.exec }
    }

    fn encoder(&self, ty: QuantType) -> fn(&[f32], &mut [u8]) {
        if ty == QuantType::F16 { self.loops.to_f16 } else { ty.info().encode }
    }
}

impl Attention for CpuAttention {
    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn AttentionRun>> {
        let (s, t) = (&self.spec, limits.tokens);
        let table = self.common.rope.as_ref().map_or(0, |r| r.open(t));
        let segments = limits.context.div_ceil(SEGMENT);
        let few = if self.exec.width() > 1 && segments > 1 { self.few().min(t) } else { 0 };
        let parts = [s.heads, segments, s.head_dim + 2].into_iter().fold(few, usize::saturating_mul);
        let run = Run {
            q: Hidden::try_new(t, s.heads * s.head_dim)?,
            k: Hidden::try_new(t, s.kv_heads * s.head_dim)?,
            v: Hidden::try_new(t, s.kv_heads * s.head_dim)?,
            mixed: Hidden::try_new(t, s.heads * s.head_dim)?,
            table: zeroed("rotations", t.saturating_mul(table))?,
            keys: KvStore::new(s.kv.keys, limits, s.kv_heads, s.head_dim)?,
            values: KvStore::new(s.kv.values, limits, s.kv_heads, s.head_dim)?,
            cuts: Vec::with_capacity(t.saturating_add(1)),
            parts: zeroed("parts of attention", parts)?,
            len: vec![0; limits.sequences],
            limits: *limits,
            stats: OpStats::default(),
            op: self,
        };
        Ok(Box::new(run))
    }
}

struct Run {
    op: Arc<CpuAttention>,
    limits: Limits,
    q: Hidden,
    k: Hidden,
    v: Hidden,
    mixed: Hidden,
    table: Vec<f32>,
    keys: KvStore,
    values: KvStore,
    /// Where the batch is cut into tasks.
    cuts: Vec<usize>,
    /// Sums of segments that are computed side by side.
    parts: Vec<f32>,
    len: Vec<usize>,
    stats: OpStats,
}

impl AttentionRun for Run {
    fn apply(&mut self, x: &mut Hidden, batch: &Batch, y: &mut Hidden, how: Write) -> Result<()> {
        let (op, dim) = (self.op.clone(), self.op.spec.q.weight.cols());
        check("attention", x, dim, y, dim, how)?;
        self.check_batch(x, batch)?;
        Linear::apply_three([&op.q, &op.k, &op.v], x, [&mut self.q, &mut self.k, &mut self.v])?;
        self.rotate(batch)?;
        self.store(batch)?;
        self.mix(batch)?;
        op.o.apply(&mut self.mixed, y, how)?;
        self.stats.bytes += op.bytes();
        Ok(())
    }

    fn truncate(&mut self, seq: u32, len: usize) {
        if let Some(l) = self.len.get_mut(seq as usize) {
            *l = (*l).min(len);
        }
    }

    fn take_stats(&mut self) -> OpStats {
        std::mem::take(&mut self.stats)
    }
}

impl Run {
    /// Nothing is changed if the batch is refused.
    fn check_batch(&self, x: &Hidden, batch: &Batch) -> Result<()> {
        let len = &self.len;
        self.limits.check(batch, x.tokens(), |seq| len[seq])
    }

    fn rotate(&mut self, batch: &Batch) -> Result<()> {
        let Some(rope) = &self.op.common.rope else { return Ok(()) };
        let (n, hd) = (rope.table_len(), self.op.spec.head_dim);
        if n == 0 {
            return Ok(());
        }
        let table = &mut self.table[..batch.len() * n];
        rope.table(self.op.exec(8 * table.len()), batch, table);
        let table = &*table;
        for h in [&mut self.q, &mut self.k] {
            let (dim, exec) = (h.dim(), self.op.exec(batch.len() * h.dim()));
            split::chunks(exec, h.host_mut()?, dim, |t, row| {
                row.chunks_exact_mut(hd).for_each(|head| rope.rotate(head, &table[t * n..(t + 1) * n]));
            });
        }
        Ok(())
    }

    fn store(&mut self, batch: &Batch) -> Result<()> {
        let dim = self.k.dim();
        let (k, v) = (self.k.host()?, self.v.host()?);
        let (encode_k, encode_v) = (self.op.encoder(self.keys.ty()), self.op.encoder(self.values.ty()));
        for (i, t) in batch.iter().enumerate() {
            let (seq, pos, row) = (t.seq as usize, t.pos as usize, i * dim..(i + 1) * dim);
            self.keys.put(seq, pos, &k[row.clone()], encode_k);
            self.values.put(seq, pos, &v[row], encode_v);
            self.len[seq] = pos + 1;
        }
        Ok(())
    }

    /// Softmax(q·k)·v for every token and head.
    fn mix(&mut self, batch: &Batch) -> Result<()> {
        let (op, s) = (&*self.op, &self.op.spec);
        let (hd, group) = (s.head_dim, op.group());
        self.mixed.resize(batch.len())?;
        let q = self.q.host()?;
        let mixer = Mixer {
            kernels: &op.loops,
            keys: &self.keys,
            values: &self.values,
            decode_key: op.decode[0],
            decode_value: op.decode[1],
            head_dim: hd,
        };
        let place = |t: usize, head: usize| {
            let BatchToken { seq, pos } = batch[t];
            Place { seq: seq as usize, head, pos: pos as usize, group }
        };
        // Row `r` of the task that begins with token `t`.
        let query = |t: usize, head: usize, r: usize| {
            let at = ((t + r / group) * s.heads + head * group + r % group) * hd;
            &q[at..at + hd]
        };
        let (scratches, out) = (&op.common.scratches, self.mixed.host_overwrite());
        let positions: usize = batch.iter().map(|t| t.pos as usize + 1).sum();
        let exec = op.exec(2 * positions * s.heads * hd);
        let segments = batch.iter().map(|t| t.pos as usize / SEGMENT + 1).max().unwrap_or(0);
        if exec.width() > 1 && segments > 1 && batch.len() <= op.few() {
            let row = hd + 2;
            let parts = &mut self.parts[..batch.len() * s.heads * segments * row];
            split::chunks(exec, parts, group * row, |i, part| {
                let (t, head, segment) = (i / segments / s.kv_heads, i / segments % s.kv_heads, i % segments);
                if segment * SEGMENT <= batch[t].pos as usize {
                    scratches.with(|scratch| {
                        scratch.queries(group, hd, s.scale, |r| query(t, head, r));
                        mixer.part(scratch, place(t, head), segment, part);
                    });
                }
            });
            let parts = &*parts;
            split::chunks(op.exec(parts.len()), out, hd, |i, out| {
                let (t, head) = (i / s.heads, i % s.heads);
                let first = (t * s.kv_heads + head / group) * segments;
                let part = |k: usize| &parts[((first + k) * group + head % group) * row..][..row];
                mixer.merged((0..batch[t].pos as usize / SEGMENT + 1).map(part), out);
            });
        } else {
            cut(batch, tokens_per_task(group), &mut self.cuts);
            let cuts = &self.cuts[..];
            split::blocks(exec, out, s.heads * hd, cuts, group * hd, |i, mut part| {
                let (t, head, rows) = (cuts[i], part.range().start / (group * hd), (cuts[i + 1] - cuts[i]) * group);
                scratches.with(|scratch| {
                    scratch.queries(rows, hd, s.scale, |r| query(t, head, r));
                    mixer.whole(scratch, place(t, head), rows, |r, row| {
                        part.row(r / group)[r % group * hd..][..hd].copy_from_slice(row);
                    });
                });
            });
        }
        let row = self.keys.row_bytes() + self.values.row_bytes();
        self.stats.bytes += (positions * row * s.kv_heads) as u64;
        Ok(())
    }
}

/// Cuts a batch into runs of up to `most` tokens that follow each other in one sequence.
fn cut(batch: &Batch, most: usize, cuts: &mut Vec<usize>) {
    cuts.clear();
    cuts.push(0);
    for i in 1..batch.len() {
        if batch[i].seq != batch[i - 1].seq || i - cuts[cuts.len() - 1] == most {
            cuts.push(i);
        }
    }
    cuts.push(batch.len());
}
