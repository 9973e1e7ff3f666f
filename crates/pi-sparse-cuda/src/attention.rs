//! Attention with keys and values in the device's memory, or in the host's.
#![allow(unsafe_code)]

mod cut;

use crate::{
    KvPlace,
    attention::cut::{Heads, ROWS},
    gpu::{Arg, GRID, Gpu, grid, int, threads},
    linear::{Linear, WARP},
    memory::{Memory, room},
    operand,
    pinned::Pinned,
    shared::{Lease, part, taken},
};
use cudarc::driver::{CudaFunction, LaunchConfig, sys::CUdeviceptr};
use pi_core::{
    Attention, AttentionRun, AttentionSpec, Batch, Dense, Error, Hidden, KvType, Limits, OpStats, Result, Rope,
    RopeKind, Write, footprint::AttentionShape,
};
use std::sync::Arc;

/// Threads of all blocks here.
const THREADS: u32 = 128;

pub(crate) struct CudaAttention {
    gpu: Arc<Gpu>,
    spec: AttentionSpec,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    rope: Option<Rope>,
    rotate: CudaFunction,
    /// For keys and for values.
    keep: [CudaFunction; 2],
    /// For as many rows as [`ROWS`] says, while they have room.
    attend: Vec<CudaFunction>,
    /// Puts chunks together.
    join: CudaFunction,
}

impl CudaAttention {
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: &AttentionSpec) -> Result<Self> {
        spec.check()?;
        let Some(most) = heads(spec).rows() else {
            return Err(Error::unsupported(
                format!("heads of {} numbers", spec.head_dim),
                "a block's shared memory has no room",
            ));
        };
        let linear = |spec| Linear::new(gpu, spec);
        let (keys, values) = (spec.kv.keys.quant(), spec.kv.values.quant());
        Ok(Self {
            q: linear(&spec.q)?,
            k: linear(&spec.k)?,
            v: linear(&spec.v)?,
            o: linear(&spec.o)?,
            rope: spec.rope.as_ref().filter(|r| r.dims > 0).map(Rope::new),
            rotate: gpu.kernel("pi_rope")?,
            keep: [gpu.kernel(&format!("pi_keep_{keys}"))?, gpu.kernel(&format!("pi_keep_{values}"))?],
            attend: ROWS
                .into_iter()
                .filter(|&rows| rows <= most)
                .map(|rows| gpu.kernel(&format!("pi_attend_{rows}_{keys}_{values}")))
                .collect::<Result<_>>()?,
            join: gpu.kernel("pi_attend_join")?,
            spec: spec.clone(),
            gpu: gpu.clone(),
        })
    }
}

impl CudaAttention {
    fn heads(&self) -> Heads {
        heads(&self.spec)
    }

    fn rope(&self) -> Option<(&Rope, &pi_core::RopeSpec)> {
        self.rope.as_ref().zip(self.spec.rope.as_ref())
    }
}

impl Attention for CudaAttention {
    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn AttentionRun>> {
        let (s, gpu) = (&self.spec, &self.gpu);
        for (what, n) in [("positions", limits.context), ("sequences", limits.sequences), ("tokens", limits.tokens)] {
            int(what, n)?;
        }
        let store = |ty: KvType| {
            let row = ty
                .row_bytes(s.head_dim)
                .ok_or_else(|| Error::unsupported("the KV cache", "heads are not whole blocks"))?;
            let rows = [limits.sequences, limits.context, s.kv_heads, row].into_iter().try_fold(1, usize::checked_mul);
            Store::new(gpu, rows.ok_or_else(|| gpu.no_memory(usize::MAX))?)
        };
        let (keys, values) = (store(s.kv.keys)?, store(s.kv.values)?);
        let all = shared_room(self.heads(), limits);
        let lease = Lease::new(gpu);
        let mut shared = gpu.shared();
        shared.reserve(gpu, all)?;
        shared.expect(gpu, limits.tokens, self.rope.as_ref().map_or(0, Rope::table_len))?;
        drop(shared);
        Ok(Box::new(Run {
            keys,
            values,
            len: vec![0; limits.sequences],
            limits: *limits,
            stats: OpStats::default(),
            _lease: lease,
            op: self,
        }))
    }
}

fn heads(spec: &AttentionSpec) -> Heads {
    Heads { heads: spec.heads, kv_heads: spec.kv_heads, head_dim: spec.head_dim }
}

/// Numbers per token of what a step keeps in scratch: queries, keys, values, and what heads made of them.
fn widths(of: Heads) -> [usize; 4] {
    let [wide, narrow] = [of.heads, of.kv_heads].map(|heads| heads.saturating_mul(of.head_dim));
    [wide, narrow, narrow, wide]
}

/// Bytes of that, and of what heads made of chunks of positions.
fn shared_room(of: Heads, limits: &Limits) -> Option<usize> {
    let rows = widths(of).into_iter().map(|width| part(limits.tokens, width));
    let chunks = of.chunks(limits.tokens, limits.context)?.map(Some);
    rows.chain(chunks).try_fold(0usize, |sum, bytes| sum.checked_add(bytes?))
}

/// What `keys` and `values` of a run take.
pub(crate) fn cache_bytes(shape: &AttentionShape, limits: &Limits) -> u64 {
    let rows = limits.sequences.saturating_mul(limits.context).saturating_mul(shape.kv_heads);
    let store = |ty: KvType| room::<u8>([rows, ty.row_bytes(shape.head_dim).unwrap_or(0)]);
    store(shape.kv.keys).saturating_add(store(shape.kv.values))
}

/// What a run needs of the room that operators share.
pub(crate) fn shared_bytes(shape: &AttentionShape, limits: &Limits) -> u64 {
    let of = Heads { heads: shape.heads, kv_heads: shape.kv_heads, head_dim: shape.head_dim };
    taken(shared_room(of, limits))
}

/// Where keys or values are.
enum Store {
    Device(Memory<u8>),
    /// The kernels read and write the host's memory over the bus.
    Host {
        at: CUdeviceptr,
        _memory: Pinned<u8>,
    },
}

impl Store {
    fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        match gpu.options.kv {
            KvPlace::Device => Ok(Self::Device(gpu.scratch([bytes, 1])?)),
            KvPlace::Host => {
                let memory = Pinned::raw(&gpu.context, bytes).map_err(|e| gpu.full(e, bytes))?;
                let at = memory.device_address().map_err(|e| gpu.error(e))?;
                Ok(Self::Host { at, _memory: memory })
            }
        }
    }

    fn address(&self, gpu: &Gpu) -> CUdeviceptr {
        match self {
            Self::Device(array) => gpu.address(array),
            Self::Host { at, .. } => *at,
        }
    }
}

struct Run {
    op: Arc<CudaAttention>,
    _lease: Lease,
    limits: Limits,
    /// `[sequence][head][position]`, a row each.
    keys: Store,
    values: Store,
    len: Vec<usize>,
    stats: OpStats,
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Store::Host { .. } = self.keys {
            // kernels may still use memory that is not freed in the order of their queue
            let _ = self.op.gpu.stream().map(|stream| stream.synchronize());
        }
    }
}

impl Run {
    /// Queues everything up to what heads made of a step's tokens, and then `end`, which gets where that is.
    fn heads(&self, x: CUdeviceptr, batch: &Batch, end: impl FnOnce(CUdeviceptr) -> Result<()>) -> Result<()> {
        let (op, tokens) = (&self.op, batch.len());
        let (s, gpu) = (&op.spec, &op.gpu);
        let mut shared = gpu.shared();
        let tables = shared.tables(gpu, batch, op.rope())?;
        let mut at = shared.scratch(gpu);
        let mut room = |bytes: Option<usize>| {
            let here = at;
            at += bytes.unwrap_or_default() as u64; // which is there: `open` reserved it
            here
        };
        let [q, k, v, mixed] = widths(op.heads()).map(|width| room(part(tokens, width)));
        for (linear, out) in [(&op.q, q), (&op.k, k), (&op.v, v)] {
            linear.queue(x, tokens, out, false)?;
        }
        let head_dim = int("numbers of a head", s.head_dim)?;
        if let Some((_, spec)) = op.rope() {
            let halves = Arg::Int(i32::from(spec.kind == RopeKind::SplitHalf));
            for (array, heads) in [(q, s.heads), (k, s.kv_heads)] {
                let args = [
                    Arg::At(array),
                    Arg::At(tables.rotations),
                    int("tokens of a step", tokens)?,
                    int("heads", heads)?,
                    head_dim,
                    int("rotated numbers of a head", spec.dims)?,
                    halves,
                ];
                let size = threads("rotated numbers", tokens * heads * spec.dims / 2, THREADS)?;
                // SAFETY: the arguments of `attention.cu`; a thread per pair.
                unsafe { gpu.launch(&op.rotate, size, &args)? };
            }
        }
        let (kv_heads, context) = (int("heads", s.kv_heads)?, int("positions", self.limits.context)?);
        let stores = [&self.keys, &self.values].map(|store| Arg::At(store.address(gpu)));
        for ((kernel, from), to) in op.keep.iter().zip([k, v]).zip(stores) {
            let tokens_here = int("tokens of a step", tokens)?;
            let args = [Arg::At(from), Arg::At(tables.places), tokens_here, kv_heads, head_dim, context, to];
            let blocks = (tokens * s.kv_heads).div_ceil((THREADS / WARP) as usize);
            // SAFETY: as above; a warp per token and head, places within the store as was checked.
            unsafe { gpu.launch(kernel, grid("tokens of a step", [blocks, 1, 1], THREADS)?, &args)? };
        }
        let cut = op.heads().cut(tokens, cut::runs(batch), self.limits.context);
        let chunks = op.heads().chunks(tokens, self.limits.context).filter(|_| cut.parts > 1);
        let [sums, marks] = match chunks {
            Some(bytes) => bytes.map(|bytes| room(Some(bytes))),
            None => [0; 2],
        };
        let attend = op.attend.get(cut.kernel).zip(op.heads().shared(ROWS[cut.kernel]));
        let (attend, bytes) = attend.ok_or_else(|| Error::unsupported("attention", "a block has no room for a row"))?;
        for first in (0..tokens).step_by(GRID * cut.share) {
            let some = (tokens - first).min(GRID * cut.share);
            let size = LaunchConfig {
                shared_mem_bytes: bytes as u32,
                ..grid("heads", [cut.sets, some.div_ceil(cut.share), cut.parts], THREADS)?
            };
            let row = 4 * (first * s.heads * s.head_dim) as u64;
            let places = Arg::At(tables.places + 8 * first as u64);
            let args = [
                Arg::At(q + row),
                places,
                stores[0],
                stores[1],
                int("tokens of a step", some)?,
                int("heads", s.heads)?,
                kv_heads,
                head_dim,
                context,
                Arg::Float(s.scale),
                int("heads of a block", cut.together)?,
                int("tokens of a block", cut.share)?,
                Arg::At(sums),
                Arg::At(marks),
                Arg::At(mixed + row),
            ];
            // SAFETY: as above; a block's rows have room. Chunks have, too: steps that write them have few tokens, which are one round.
            unsafe { gpu.launch(attend, size, &args)? };
            if cut.parts > 1 {
                let args =
                    [Arg::At(sums), Arg::At(marks), places, int("heads", s.heads)?, head_dim, context, Arg::At(mixed)];
                // SAFETY: as above; the positions' chunks were written.
                unsafe { gpu.launch(&op.join, grid("heads", [s.heads, some, 1], THREADS)?, &args)? };
            }
        }
        // the scratch is ours until what reads it is queued
        end(mixed)
    }
}

impl AttentionRun for Run {
    fn apply(&mut self, x: &mut Hidden, batch: &Batch, y: &mut Hidden, how: Write) -> Result<()> {
        let (op, tokens) = (self.op.clone(), x.tokens());
        let (s, gpu, dim) = (&op.spec, &op.gpu, op.spec.q.weight.cols());
        if x.dim() != dim {
            return Err(Error::shape("input of attention", dim, x.dim()));
        }
        operand::check(y, tokens, dim, how)?;
        let len = &self.len;
        self.limits.check(batch, tokens, |seq| len[seq])?;
        let input = operand::Input::new(gpu, x)?;
        operand::write(gpu, y, tokens, dim, how, |y, add| {
            if tokens == 0 {
                return Ok(());
            }
            self.heads(input.address, batch, |mixed| op.o.queue(mixed, tokens, y, add))
        })?;
        for t in batch {
            self.len[t.seq as usize] = t.pos as usize + 1;
        }
        self.stats.bytes += [&op.q, &op.k, &op.v, &op.o].into_iter().map(Dense::bytes).sum::<u64>();
        let row = |ty: KvType| ty.row_bytes(s.head_dim).unwrap_or(0);
        // of each head once for all that share it
        let cut = op.heads().cut(tokens.max(1), cut::runs(batch), self.limits.context);
        let read = cut::positions(batch, cut.share) * cut.sets;
        self.stats.bytes += (read * (row(s.kv.keys) + row(s.kv.values))) as u64;
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
