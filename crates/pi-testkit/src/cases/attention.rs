//! Attention of new tokens to a context.

use super::{
    Prepared, blocks, copies,
    weights::{Rows, input},
};
use pi_core::{
    AttentionRun, AttentionSpec, BatchToken, Device, Error, KvType, Limits, LinearSpec, OpStats, QuantType, Result,
    RopeKind, RopeScaling, RopeSpec, Write,
};
use std::{fmt, sync::Arc};

/// Tokens per step while a context is filled.
const FILL: usize = 512;
/// Multiplications that filling the contexts of all copies may take.
const FILL_MACS: u64 = 10_000_000_000;

/// Attention with its four projections, which a small `dim` makes cheap beside the keys and values.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Type of the projections.
    pub ty: QuantType,
    /// Width of input and output.
    pub dim: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// Positions that are there already.
    pub context: usize,
    /// Tokens at once.
    pub tokens: usize,
    /// How keys and values are kept.
    pub kv: KvType,
}

impl Default for Attention {
    /// 32 heads of 128 numbers, 8 of them with keys and values of their own, as in many models; one token at 512 positions.
    /// The projections are Q8_0 from and to 32 numbers: nearly nothing.
    fn default() -> Self {
        Self {
            ty: QuantType::Q8_0,
            dim: 32,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            context: 512,
            tokens: 1,
            kv: KvType::F16,
        }
    }
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ty, dim, heads, kv_heads, head_dim, context, tokens, kv } = self;
        let kv = format!("{kv:?}").to_lowercase();
        write!(f, "attention {ty} {dim}, {heads}/{kv_heads} heads of {head_dim}, {tokens} at {context}, kv {kv}")
    }
}

impl Attention {
    pub(super) fn fit(&self) -> Result<()> {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(Error::shape("heads", format!("a multiple of {kv_heads} key/value heads"), heads));
        }
        blocks("q", self.ty, self.dim)?;
        blocks("o", self.ty, heads * self.head_dim)
    }

    pub(super) fn prepare(&self, device: &dyn Device, cold: u64) -> Result<Prepared> {
        let (heads, kv_heads) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let linear =
            |name, rows, cols, seed| Ok(LinearSpec::new(Rows::new(name, self.ty, cols, 0.0, seed)?.matrix(rows)?));
        let rope = RopeSpec {
            kind: RopeKind::Interleaved,
            dims: self.head_dim / 2 * 2,
            base: 10_000.0,
            scaling: RopeScaling::None,
            factors: None,
        };
        let op = device.attention(&AttentionSpec {
            q: linear("q", heads, self.dim, 11)?,
            k: linear("k", kv_heads, self.dim, 12)?,
            v: linear("v", kv_heads, self.dim, 13)?,
            o: linear("o", self.dim, heads, 14)?,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            rope: Some(rope),
            kv: self.kv.into(),
        })?;
        let fill = FILL.min(self.context.max(1));
        let context = self.context + self.tokens;
        let limits = Limits { tokens: fill.max(self.tokens), sequences: 1, context };
        let batch: Vec<_> = (self.context..context).map(|pos| BatchToken { seq: 0, pos: pos as u32 }).collect();
        let (mut x, mut y) = (input(device, self.tokens, self.dim)?, device.hidden(limits.tokens, self.dim)?);
        let mut runs = vec![self.open(device, &op, &limits)?];
        let bytes = {
            runs[0].apply(&mut x, &batch, &mut y, Write::Set)?;
            runs[0].truncate(0, self.context);
            runs[0].take_stats().bytes
        };
        let macs = 2 * (self.context * self.context / 2 * heads) as u64;
        let affordable = (FILL_MACS / macs.max(1)).max(1) as usize;
        let count = copies(bytes, bytes, cold).min(affordable);
        for _ in 1..count {
            runs.push(self.open(device, &op, &limits)?);
        }
        let y = device.hidden(self.tokens, self.dim)?;
        let kept = self.context;
        let mut prepared = Prepared::new(y, count, move |turn, y, counted| {
            x.stale();
            if counted {
                runs[turn].take_stats();
            }
            runs[turn].apply(&mut x, &batch, y, Write::Set)?;
            runs[turn].truncate(0, kept);
            Ok(if counted { runs[turn].take_stats() } else { OpStats::default() })
        });
        prepared.working_set = bytes * count as u64;
        let projections = 2 * self.dim * (heads + kv_heads);
        // The i-th new token sees the context, those before it and itself.
        let seen = self.tokens * self.context + self.tokens * (self.tokens + 1) / 2;
        prepared.macs = (projections * self.tokens + 2 * seen * heads) as u64;
        Ok(prepared)
    }

    /// A run whose sequence has `context` positions.
    fn open(
        &self,
        device: &dyn Device,
        op: &Arc<dyn pi_core::Attention>,
        limits: &Limits,
    ) -> Result<Box<dyn AttentionRun>> {
        let mut run = op.clone().open(limits)?;
        let mut from = 0;
        while from < self.context {
            let n = limits.tokens.min(self.context - from);
            let (mut x, mut y) = (input(device, n, self.dim)?, device.hidden(n, self.dim)?);
            let batch: Vec<_> = (from..from + n).map(|pos| BatchToken { seq: 0, pos: pos as u32 }).collect();
            run.apply(&mut x, &batch, &mut y, Write::Set)?;
            from += n;
        }
        run.take_stats();
        Ok(run)
    }
}
