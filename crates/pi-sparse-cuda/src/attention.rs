//! Attention with keys and values in the device's memory.
#![allow(unsafe_code)]

use crate::{
    gpu::{Arg, Gpu, blocks, threads},
    linear::Linear,
    memory::{Memory, room},
    operand,
};
use cudarc::driver::{CudaFunction, LaunchConfig};
use pi_core::{
    Attention, AttentionRun, AttentionSpec, Batch, Dense, Error, Hidden, Limits, OpStats, Result, Rope, RopeKind,
    Write, footprint::AttentionShape,
};
use std::sync::Arc;

/// Threads of all blocks here.
const THREADS: u32 = 128;
const WARP: u32 = 32;
/// Positions of a tile, as in `attention.cu`.
const TILE: usize = 128;
/// Shared memory that every device gives a block.
const SHARED: usize = 40 << 10;

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
    attend: CudaFunction,
}

impl CudaAttention {
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: &AttentionSpec) -> Result<Self> {
        spec.check()?;
        if 4 * (2 * spec.head_dim + TILE) > SHARED {
            return Err(Error::unsupported(
                format!("heads of {} numbers", spec.head_dim),
                "a block's shared memory has no room",
            ));
        }
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
            attend: gpu.kernel(&format!("pi_attend_{keys}_{values}"))?,
            spec: spec.clone(),
            gpu: gpu.clone(),
        })
    }
}

impl Attention for CudaAttention {
    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn AttentionRun>> {
        let (s, gpu) = (&self.spec, &self.gpu);
        let (wide, narrow) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        let store = |ty: pi_core::KvType| {
            let row = ty
                .row_bytes(s.head_dim)
                .ok_or_else(|| Error::unsupported("the KV cache", "heads are not whole blocks"))?;
            let rows = [limits.sequences, limits.context, s.kv_heads].into_iter().try_fold(1, usize::checked_mul);
            gpu.scratch::<u8>([rows.ok_or_else(|| gpu.no_memory(usize::MAX))?, row])
        };
        Ok(Box::new(Run {
            q: gpu.scratch([limits.tokens, wide])?,
            k: gpu.scratch([limits.tokens, narrow])?,
            v: gpu.scratch([limits.tokens, narrow])?,
            mixed: gpu.scratch([limits.tokens, wide])?,
            keys: store(s.kv.keys)?,
            values: store(s.kv.values)?,
            places: gpu.scratch([limits.tokens, 2])?,
            table: gpu.scratch([limits.tokens, self.rope.as_ref().map_or(0, Rope::table_len)])?,
            len: vec![0; limits.sequences],
            limits: *limits,
            stats: OpStats::default(),
            op: self,
        }))
    }
}

/// What `keys` and `values` of a run take.
pub(crate) fn cache_bytes(shape: &AttentionShape, limits: &Limits) -> u64 {
    let rows = limits.sequences.saturating_mul(limits.context).saturating_mul(shape.kv_heads);
    let store = |ty: pi_core::KvType| room::<u8>([rows, ty.row_bytes(shape.head_dim).unwrap_or(0)]);
    store(shape.kv.keys).saturating_add(store(shape.kv.values))
}

/// What the other arrays of a run take.
pub(crate) fn scratch_bytes(shape: &AttentionShape, limits: &Limits) -> u64 {
    let tokens = limits.tokens;
    let [wide, narrow] = [shape.heads, shape.kv_heads].map(|heads| room::<f32>([tokens, heads * shape.head_dim]));
    2 * wide + 2 * narrow + room::<i32>([tokens, 2]) + room::<f32>([tokens, shape.rope_dims])
}

struct Run {
    op: Arc<CudaAttention>,
    limits: Limits,
    q: Memory<f32>,
    k: Memory<f32>,
    v: Memory<f32>,
    mixed: Memory<f32>,
    /// `[sequence][head][position]`, a row each.
    keys: Memory<u8>,
    values: Memory<u8>,
    /// Sequence and position of each token.
    places: Memory<i32>,
    /// Cosines and sines of each token's position.
    table: Memory<f32>,
    len: Vec<usize>,
    stats: OpStats,
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
        let at = |array| gpu.address(array);
        if tokens > 0 {
            let input = operand::Input::new(gpu, x)?;
            let places: Vec<i32> = batch.iter().flat_map(|t| [t.seq as i32, t.pos as i32]).collect();
            let failed = |e| gpu.error(e);
            gpu.stream.memcpy_htod(&places, &mut *self.places).map_err(failed)?;
            for (linear, out) in [(&op.q, &self.q), (&op.k, &self.k), (&op.v, &self.v)] {
                linear.queue(input.address, tokens, at(out), false)?;
            }
            if let (Some(rope), Some(spec)) = (&op.rope, &s.rope) {
                let mut table = vec![0.0; tokens * rope.table_len()];
                table.chunks_mut(rope.table_len()).zip(batch).for_each(|(out, t)| rope.table(t.pos, out));
                gpu.stream.memcpy_htod(&table, &mut *self.table).map_err(failed)?;
                for (array, heads) in [(&self.q, s.heads), (&self.k, s.kv_heads)] {
                    let halves = i32::from(spec.kind == RopeKind::SplitHalf);
                    let ints = [tokens, heads, s.head_dim, spec.dims].map(|v| Arg::Int(v as i32));
                    let args =
                        [&[gpu.at(Some(array)), gpu.at(Some(&self.table))], &ints[..], &[Arg::Int(halves)]].concat();
                    // SAFETY: the arguments of `attention.cu`; a thread per pair.
                    unsafe { gpu.launch(&op.rotate, threads(tokens * heads * spec.dims / 2, THREADS), &args)? };
                }
            }
            let per_block = (THREADS / WARP) as usize;
            for ((kernel, from), to) in op.keep.iter().zip([&self.k, &self.v]).zip([&self.keys, &self.values]) {
                let ints = [tokens, s.kv_heads, s.head_dim, self.limits.context].map(|v| Arg::Int(v as i32));
                let args = [&[gpu.at(Some(from)), gpu.at(Some(&self.places))], &ints[..], &[gpu.at(Some(to))]].concat();
                // SAFETY: as above; a warp per token and head, places within the store as was checked.
                unsafe { gpu.launch(kernel, blocks((tokens * s.kv_heads).div_ceil(per_block), THREADS), &args)? };
            }
            let arrays = [
                gpu.at(Some(&self.q)),
                gpu.at(Some(&self.places)),
                gpu.at(Some(&self.keys)),
                gpu.at(Some(&self.values)),
            ];
            let ints = [s.heads, s.kv_heads, s.head_dim, self.limits.context].map(|v| Arg::Int(v as i32));
            for first in (0..tokens).step_by(65_535) {
                let some = (tokens - first).min(65_535);
                let size = LaunchConfig {
                    grid_dim: (s.heads as u32, some as u32, 1),
                    block_dim: (THREADS, 1, 1),
                    shared_mem_bytes: 4 * (2 * s.head_dim + TILE) as u32,
                };
                let row = 4 * (first * s.heads * s.head_dim) as u64;
                let mut args = [&arrays[..], &ints, &[Arg::Float(s.scale), Arg::At(at(&self.mixed) + row)]].concat();
                args[0] = Arg::At(at(&self.q) + row);
                if let Arg::At(places) = &mut args[1] {
                    *places += 8 * first as u64;
                }
                // SAFETY: as above.
                unsafe { gpu.launch(&op.attend, size, &args)? };
            }
        }
        let mixed = at(&self.mixed);
        operand::write(gpu, y, tokens, dim, how, |y, add| op.o.queue(mixed, tokens, y, add))?;
        for t in batch {
            self.len[t.seq as usize] = t.pos as usize + 1;
        }
        self.stats.bytes += [&op.q, &op.k, &op.v, &op.o].into_iter().map(Dense::bytes).sum::<u64>();
        let row = |ty: pi_core::KvType| ty.row_bytes(s.head_dim).unwrap_or(0) * s.kv_heads;
        let read: usize = batch.iter().map(|t| t.pos as usize + 1).sum();
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
