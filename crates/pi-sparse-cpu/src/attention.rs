//! Attention with grouped heads, online softmax, and keys and values in host memory.

use crate::{
    Kernels, TypeKernels,
    dense::{Linear, check},
    kv::{KvStore, zeroed},
    rope::Rope,
    split,
};
use pi_core::{
    Attention, AttentionRun, AttentionSpec, Batch, BatchToken, Dense, Error, Executor, Form, Hidden, Limits,
    LinearSpec, OpStats, Result, Write,
};
use std::sync::Arc;

/// Positions whose scores are held at once. Blocks are always cut at multiples of this, so results do not depend on the batch.
const BLOCK: usize = 64;

pub(crate) struct CpuAttention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    rope: Option<Rope>,
    spec: AttentionSpec,
    kernels: Arc<Kernels>,
    exec: Arc<dyn Executor>,
}

impl CpuAttention {
    pub(crate) fn new(spec: &AttentionSpec, kernels: Arc<Kernels>, exec: Arc<dyn Executor>) -> Self {
        let linear = |spec: &LinearSpec| Linear { spec: spec.clone(), kernels: kernels.clone(), exec: exec.clone() };
        Self {
            q: linear(&spec.q),
            k: linear(&spec.k),
            v: linear(&spec.v),
            o: linear(&spec.o),
            rope: spec.rope.as_ref().map(Rope::new),
            spec: spec.clone(),
            kernels: kernels.clone(),
            exec: exec.clone(),
        }
    }

    fn bytes(&self) -> u64 {
        [&self.q, &self.k, &self.v, &self.o].into_iter().map(Dense::bytes).sum()
    }
}

impl Attention for CpuAttention {
    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn AttentionRun>> {
        let (s, t) = (&self.spec, limits.tokens);
        let table = self.rope.as_ref().map_or(0, Rope::table_len);
        let run = Run {
            q: Hidden::try_new(t, s.heads * s.head_dim)?,
            k: Hidden::try_new(t, s.kv_heads * s.head_dim)?,
            v: Hidden::try_new(t, s.kv_heads * s.head_dim)?,
            mixed: Hidden::try_new(t, s.heads * s.head_dim)?,
            table: zeroed("rotations", t.saturating_mul(table))?,
            keys: KvStore::new(s.kv, limits, s.kv_heads, s.head_dim)?,
            values: KvStore::new(s.kv, limits, s.kv_heads, s.head_dim)?,
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
    len: Vec<usize>,
    stats: OpStats,
}

impl AttentionRun for Run {
    fn apply(&mut self, x: &mut Hidden, batch: &Batch, y: &mut Hidden, how: Write) -> Result<()> {
        let (op, dim) = (self.op.clone(), self.op.spec.q.weight.cols());
        check("attention", x, dim, y, dim, how)?;
        self.check_batch(x, batch)?;
        op.q.apply(x, &mut self.q, Write::Set)?;
        op.k.apply(x, &mut self.k, Write::Set)?;
        op.v.apply(x, &mut self.v, Write::Set)?;
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
    fn check_batch(&mut self, x: &Hidden, batch: &Batch) -> Result<()> {
        if batch.len() != x.tokens() {
            return Err(Error::shape("batch", format!("{} tokens", x.tokens()), batch.len()));
        }
        if batch.len() > self.limits.tokens {
            return Err(Error::Limit { what: "tokens per step".into(), limit: self.limits.tokens, got: batch.len() });
        }
        for (i, t) in batch.iter().enumerate() {
            let seq = t.seq as usize;
            if seq >= self.limits.sequences {
                return Err(Error::Limit { what: "sequences".into(), limit: self.limits.sequences, got: seq + 1 });
            }
            let pos = t.pos as usize;
            if pos >= self.limits.context {
                return Err(Error::Limit {
                    what: "positions of a sequence".into(),
                    limit: self.limits.context,
                    got: pos + 1,
                });
            }
            let before = batch[..i].iter().rev().find(|o| o.seq == t.seq).map_or(self.len[seq], |o| o.pos as usize + 1);
            if pos != before {
                return Err(Error::shape(format!("position in sequence {seq}"), before, pos));
            }
        }
        Ok(())
    }

    fn rotate(&mut self, batch: &Batch) -> Result<()> {
        let Some(rope) = &self.op.rope else { return Ok(()) };
        let (n, hd) = (rope.table_len(), self.op.spec.head_dim);
        if n == 0 {
            return Ok(());
        }
        let table = &mut self.table[..batch.len() * n];
        split::chunks(&*self.op.exec, table, n, |t, out| rope.table(batch[t].pos, out));
        let table = &*table;
        for h in [&mut self.q, &mut self.k] {
            let dim = h.dim();
            split::chunks(&*self.op.exec, h.host_mut()?, dim, |t, row| {
                row.chunks_exact_mut(hd).for_each(|head| rope.rotate(head, &table[t * n..(t + 1) * n]));
            });
        }
        Ok(())
    }

    fn store(&mut self, batch: &Batch) -> Result<()> {
        let dim = self.k.dim();
        let (k, v) = (self.k.host()?, self.v.host()?);
        for (i, t) in batch.iter().enumerate() {
            let (seq, pos, row) = (t.seq as usize, t.pos as usize, i * dim..(i + 1) * dim);
            self.keys.put(seq, pos, &k[row.clone()]);
            self.values.put(seq, pos, &v[row]);
            self.len[seq] = pos + 1;
        }
        Ok(())
    }

    /// Softmax(q·k)·v for every token and head.
    fn mix(&mut self, batch: &Batch) -> Result<()> {
        let (op, s) = (&self.op, &self.op.spec);
        self.mixed.resize(batch.len())?;
        let (hd, group) = (s.head_dim, s.heads / s.kv_heads);
        let q = self.q.host()?;
        let (keys, values) = (&self.keys, &self.values);
        // Whatever the table has for the store's type; keys are read beside f32 queries.
        let mut kernel = *op.kernels.get(keys.ty());
        if kernel.activations.form != Form::F32 {
            kernel = *Kernels::reference().get(keys.ty());
        }
        let out = self.mixed.host_overwrite();
        split::chunks(&*op.exec, out, hd, |i, out| {
            let (t, head) = (i / s.heads, i % s.heads);
            let BatchToken { seq, pos } = batch[t];
            let q = bytemuck::cast_slice(&q[i * hd..(i + 1) * hd]);
            let view = Head { keys, values, seq: seq as usize, head: head / group, len: pos as usize + 1 };
            view.mix(&kernel, q, s.scale, out);
        });
        let row = keys.rows(0, 0, 0, 1).len() as u64;
        let positions: u64 = batch.iter().map(|t| t.pos as u64 + 1).sum();
        self.stats.bytes += positions * 2 * row * s.kv_heads as u64;
        Ok(())
    }
}

/// What one query head sees.
struct Head<'a> {
    keys: &'a KvStore,
    values: &'a KvStore,
    seq: usize,
    head: usize,
    len: usize,
}

impl Head<'_> {
    /// Online softmax: the running maximum rescales what was summed before.
    fn mix(&self, k: &TypeKernels, q: &[u8], scale: f32, out: &mut [f32]) {
        out.fill(0.0);
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0f32);
        for from in (0..self.len).step_by(BLOCK) {
            let to = (from + BLOCK).min(self.len);
            let keys = self.keys.rows(self.seq, self.head, from, to);
            let values = self.values.rows(self.seq, self.head, from, to);
            let row = keys.len() / (to - from);
            let mut scores = [0.0f32; BLOCK];
            for (s, key) in scores.iter_mut().zip(keys.chunks_exact(row)) {
                *s = (k.dot)(key, q) * scale;
            }
            let scores = &mut scores[..to - from];
            let top = scores.iter().copied().fold(max, f32::max);
            if top > max {
                let fade = (max - top).exp();
                out.iter_mut().for_each(|o| *o *= fade);
                sum *= fade;
                max = top;
            }
            for (s, value) in scores.iter().zip(values.chunks_exact(row)) {
                let p = (s - max).exp();
                sum += p;
                (k.axpy)(value, p, out);
            }
        }
        let norm = 1.0 / sum;
        out.iter_mut().for_each(|o| *o *= norm);
    }
}
