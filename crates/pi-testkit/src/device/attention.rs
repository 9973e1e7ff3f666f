//! Attention: grouped heads, rotation, several sequences in a step, long ones, truncation, and batches that do not fit.

use super::{Checked, close, dot, hidden, linear, matrix, random, refused, text, tolerance, wide};
use crate::Random;
use pi_core::{
    AttentionRun, AttentionSpec, BatchToken, Device, KvType, KvTypes, Limits, LinearSpec, QuantType, RopeKind,
    RopeScaling, RopeSpec, Write,
};

pub(super) fn check(device: &dyn Device) -> Checked {
    let rope = |kind, dims, scaling, factors: Option<Vec<f32>>| {
        Some(RopeSpec { kind, dims, base: 10_000.0, scaling, factors: factors.map(Into::into) })
    };
    let plain = RopeScaling::None;
    let divisors = Some((0..8).map(|i| 1.0 + i as f32).collect());
    let ropes = [
        None,
        rope(RopeKind::Interleaved, 16, plain, None),
        rope(RopeKind::SplitHalf, 16, plain, None),
        rope(RopeKind::Interleaved, 8, RopeScaling::Linear { factor: 4.0 }, None),
        rope(RopeKind::SplitHalf, 4, plain, None),
        rope(RopeKind::Interleaved, 16, plain, divisors),
    ];
    for (i, rope) in ropes.into_iter().enumerate() {
        for (heads, kv_heads) in [(4, 2), (4, 4), (3, 1)] {
            for kv in [KvType::F32, KvType::F16].map(KvTypes::from) {
                let case = Case::new(QuantType::F32, 24, heads, kv_heads, rope.clone(), kv, i % 2 == 1, HEAD);
                case.check(device)
                    .map_err(|e| format!("attention, {heads}/{kv_heads} heads, {rope:?}, {kv:?}: {e}"))?;
            }
        }
    }
    for ty in [QuantType::F16, QuantType::BF16, QuantType::Q8_0, QuantType::Q4_0] {
        if device.supports(ty) {
            let case =
                Case::new(ty, 64, 4, 2, rope(RopeKind::Interleaved, 16, plain, None), KvType::F32.into(), true, HEAD);
            case.check(device).map_err(|e| format!("attention of {ty}: {e}"))?;
        }
    }
    let half = KvType::F16;
    for (keys, values) in [(KvType::Q8_0, KvType::Q8_0), (half, KvType::Q8_0), (KvType::Q8_0, KvType::F32)] {
        let kv = KvTypes { keys, values };
        let rope = rope(RopeKind::Interleaved, 32, plain, None);
        let case = Case::new(QuantType::F32, 64, 4, 2, rope, kv, false, 32);
        case.check(device).map_err(|e| format!("attention with {kv:?}: {e}"))?;
    }
    for (heads, kv_heads, kv) in [(4, 1, KvType::F32), (7, 1, KvType::F16), (2, 2, KvType::F32)] {
        let rope = rope(RopeKind::SplitHalf, 16, plain, None);
        let case = Case::new(QuantType::F32, 24, heads, kv_heads, rope, kv.into(), false, HEAD);
        case.check_long(device).map_err(|e| format!("long attention, {heads}/{kv_heads} heads, {kv:?}: {e}"))?;
    }
    specs(device)
}

const HEAD: usize = 16;
const LIMITS: Limits = Limits { tokens: 7, sequences: 3, context: 90 };

struct Case {
    spec: AttentionSpec,
    tolerance: f64,
}

/// What was fed to a sequence so far, and what must come out: in f64, computed anew from all of it.
#[derive(Clone, Default)]
struct Sequence {
    x: Vec<f32>,
}

impl Case {
    fn new(
        ty: QuantType,
        dim: usize,
        heads: usize,
        kv_heads: usize,
        rope: Option<RopeSpec>,
        kv: KvTypes,
        bias: bool,
        head_dim: usize,
    ) -> Self {
        let mut rng = Random(21);
        let mut projection = |name: &str, rows: usize, cols: usize| LinearSpec {
            weight: matrix(&mut rng, name, ty, rows, cols),
            bias: bias.then(|| random(&mut rng, rows, 0.5).into()),
        };
        let spec = AttentionSpec {
            q: projection("q", heads * head_dim, dim),
            k: projection("k", kv_heads * head_dim, dim),
            v: projection("v", kv_heads * head_dim, dim),
            o: projection("o", dim, heads * head_dim),
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            rope,
            kv,
        };
        let kept = [kv.keys, kv.values].map(|ty| match ty {
            KvType::F32 => 0.0,
            KvType::F16 => 2e-3,
            _ => 2e-2,
        });
        let tolerance = kept.into_iter().fold(tolerance(ty), f64::max);
        Self { spec, tolerance }
    }

    fn dim(&self) -> usize {
        self.spec.q.weight.cols()
    }

    /// The output for position `pos` of a sequence.
    fn output(&self, s: &Sequence, pos: usize) -> Vec<f64> {
        let (spec, dim, n) = (&self.spec, self.dim(), self.spec.head_dim);
        let x = wide(&s.x[..(pos + 1) * dim]);
        let project = |l: &LinearSpec, from: usize| linear(&l.weight, l.bias.as_deref(), &x[from * dim..]);
        let (mut q, mut k, v) = (project(&spec.q, pos), project(&spec.k, 0), project(&spec.v, 0));
        q.chunks_exact_mut(n).for_each(|h| self.rotate(h, pos));
        let kv_dim = spec.kv_heads * n;
        k.chunks_exact_mut(n).enumerate().for_each(|(i, h)| self.rotate(h, i / spec.kv_heads));
        let mut mixed = Vec::new();
        for (h, q) in q.chunks_exact(n).enumerate() {
            let at = |p: usize| p * kv_dim + h / (spec.heads / spec.kv_heads) * n;
            let scores: Vec<f64> = (0..=pos).map(|p| dot(q, &k[at(p)..at(p) + n]) * f64::from(spec.scale)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            mixed.extend((0..n).map(|i| (0..=pos).map(|p| weights[p] / sum * v[at(p) + i]).sum::<f64>()));
        }
        linear(&spec.o.weight, spec.o.bias.as_deref(), &mixed)
    }

    fn rotate(&self, head: &mut [f64], pos: usize) {
        let Some(rope) = &self.spec.rope else { return };
        let half = rope.dims / 2;
        for i in 0..half {
            let mut f = f64::from(rope.base).powf(-2.0 * i as f64 / rope.dims as f64);
            if let Some(factors) = &rope.factors {
                f /= f64::from(factors[i]);
            }
            if let RopeScaling::Linear { factor } = rope.scaling {
                f /= f64::from(factor);
            }
            let (a, b) = match rope.kind {
                RopeKind::Interleaved => (2 * i, 2 * i + 1),
                RopeKind::SplitHalf => (i, i + half),
            };
            let (sin, cos) = (pos as f64 * f).sin_cos();
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }

    fn check(&self, device: &dyn Device) -> Checked {
        let op = device.attention(&self.spec).map_err(text)?;
        let mut run = op.open(&LIMITS).map_err(text)?;
        let mut rng = Random(22);
        let mut seqs = vec![Sequence::default(); LIMITS.sequences];
        // One at a time, a prompt, sequences in mixture, and back after a truncation.
        self.step(device, &mut *run, &mut seqs, &[0], &mut rng)?;
        self.step(device, &mut *run, &mut seqs, &[0], &mut rng)?;
        self.step(device, &mut *run, &mut seqs, &[1; 7], &mut rng)?;
        for _ in 0..3 {
            let batch: Vec<usize> = (0..1 + rng.below(LIMITS.tokens)).map(|_| rng.below(3)).collect();
            self.step(device, &mut *run, &mut seqs, &batch, &mut rng)?;
        }
        self.bad(device, &mut *run, &seqs)?;
        for (seq, len) in [(1, 3), (0, 0), (2, 1000), (9, 0)] {
            run.truncate(seq, len);
            if let Some(s) = seqs.get_mut(seq as usize) {
                s.x.truncate(len.saturating_mul(self.dim()));
            }
        }
        self.step(device, &mut *run, &mut seqs, &[1, 0, 2, 0, 1], &mut rng)?;
        // Past the first 64 positions, where blocks of scores end.
        for _ in 0..11 {
            self.step(device, &mut *run, &mut seqs, &[1; 7], &mut rng)?;
        }
        let stats = run.take_stats();
        if stats.bytes == 0 || run.take_stats().bytes != 0 {
            return Err("bytes read were not counted, or not taken".into());
        }
        Ok(())
    }

    /// Contexts that devices share out over threads, or blocks: sequences whose ends are around multiples of 128.
    fn check_long(&self, device: &dyn Device) -> Checked {
        let op = device.attention(&self.spec).map_err(text)?;
        let mut run = op.open(&Limits { tokens: 126, sequences: 3, context: 300 }).map_err(text)?;
        let mut rng = Random(24);
        let mut seqs = vec![Sequence::default(); 3];
        self.step(device, &mut *run, &mut seqs, &[0; 126], &mut rng)?;
        for _ in 0..2 {
            self.step(device, &mut *run, &mut seqs, &[1; 126], &mut rng)?;
        }
        for batch in [&[0, 1, 2][..], &[0, 1], &[1, 1, 2, 1, 0, 0, 0], &[0], &[1]] {
            self.step(device, &mut *run, &mut seqs, batch, &mut rng)?;
        }
        Ok(())
    }

    fn step(
        &self,
        device: &dyn Device,
        run: &mut dyn AttentionRun,
        seqs: &mut [Sequence],
        batch: &[usize],
        rng: &mut Random,
    ) -> Checked {
        let dim = self.dim();
        let (x, before) = (random(rng, batch.len() * dim, 1.0), random(rng, batch.len() * dim, 1.0));
        let (mut tokens, mut want) = (Vec::new(), Vec::new());
        for (row, &s) in x.chunks_exact(dim).zip(batch) {
            let pos = seqs[s].x.len() / dim;
            tokens.push(BatchToken { seq: s as u32, pos: pos as u32 });
            seqs[s].x.extend_from_slice(row);
            want.extend(self.output(&seqs[s], pos));
        }
        let (mut x, mut y) = (hidden(device, &x, dim)?, hidden(device, &before, dim)?);
        let how = if batch.len().is_multiple_of(2) { Write::Set } else { Write::Add };
        if how == Write::Add {
            want.iter_mut().zip(&before).for_each(|(w, b)| *w += f64::from(*b));
        }
        run.apply(&mut x, &tokens, &mut y, how).map_err(text)?;
        close(&format!("{tokens:?}"), y.host().map_err(text)?, &want, self.tolerance)
    }

    /// Batches that do not fit are refused and change nothing: the steps after this still give the right numbers.
    fn bad(&self, device: &dyn Device, run: &mut dyn AttentionRun, seqs: &[Sequence]) -> Checked {
        let dim = self.dim();
        let len = |s: usize| (seqs[s].x.len() / dim) as u32;
        let token = |s: usize, ahead: u32| BatchToken { seq: s as u32, pos: len(s) + ahead };
        let many: Vec<_> = (0..8).map(|i| token(0, i)).collect();
        let cases: [(&str, Vec<BatchToken>, usize); 9] = [
            ("a position left out", vec![token(0, 1)], 1),
            ("a position twice", vec![token(0, 0), token(0, 0)], 2),
            ("a position of the past", vec![BatchToken { seq: 1, pos: 0 }], 1),
            ("a good token, then a position left out", vec![token(1, 0), token(0, 0), token(0, 2)], 3),
            ("a sequence that is not there", vec![token(0, 0), BatchToken { seq: 3, pos: 0 }], 2),
            ("the last sequence there could be", vec![BatchToken { seq: u32::MAX, pos: 0 }], 1),
            ("a position beyond the context", vec![BatchToken { seq: 0, pos: u32::MAX }], 1),
            ("more tokens than the run was opened for", many, 8),
            ("fewer tokens than rows", vec![token(0, 0)], 2),
        ];
        for (what, batch, rows) in cases {
            let x = vec![1.0; rows * dim];
            let (mut x, mut y) = (hidden(device, &x, dim)?, hidden(device, &x, dim)?);
            refused(what, run.apply(&mut x, &batch, &mut y, Write::Add))?;
            close(&format!("output after {what}"), y.host().map_err(text)?, &vec![1.0; rows * dim], 0.0)?;
        }
        let (mut x, mut y) = (hidden(device, &vec![1.0; dim + 1], dim + 1)?, hidden(device, &vec![1.0; dim], dim)?);
        refused("input of another width", run.apply(&mut x, &[token(0, 0)], &mut y, Write::Add))?;
        refused("output of another width", run.apply(&mut y, &[token(0, 0)], &mut x, Write::Add))
    }
}

fn specs(device: &dyn Device) -> Checked {
    let good = Case::new(QuantType::F32, 24, 4, 2, None, KvType::F32.into(), false, HEAD).spec;
    let mut rng = Random(23);
    let other = LinearSpec::new(matrix(&mut rng, "other", QuantType::F32, 7, 24));
    let rope = |dims, factors: Option<Vec<f32>>| {
        let (kind, scaling, factors) = (RopeKind::Interleaved, RopeScaling::None, factors.map(Into::into));
        Some(RopeSpec { kind, dims, base: 1e4, scaling, factors })
    };
    let bad = [
        (
            "heads that are not whole blocks of the keys' type",
            AttentionSpec { kv: KvType::Q8_0.into(), ..good.clone() },
        ),
        ("no heads", AttentionSpec { heads: 0, ..good.clone() }),
        ("no key/value heads", AttentionSpec { kv_heads: 0, ..good.clone() }),
        ("heads that cannot be grouped", AttentionSpec { kv_heads: 3, ..good.clone() }),
        ("queries of another height", AttentionSpec { q: other.clone(), ..good.clone() }),
        ("keys of another height", AttentionSpec { k: other.clone(), ..good.clone() }),
        ("values of another height", AttentionSpec { v: other.clone(), ..good.clone() }),
        ("an output of another height", AttentionSpec { o: other, ..good.clone() }),
        ("an odd number of rotated numbers", AttentionSpec { rope: rope(3, None), ..good.clone() }),
        ("more rotated numbers than a head has", AttentionSpec { rope: rope(18, None), ..good.clone() }),
        ("too few divisors", AttentionSpec { rope: rope(16, Some(vec![1.0; 7])), ..good.clone() }),
    ];
    for (what, spec) in bad {
        refused(what, device.attention(&spec))?;
    }
    let op = device.attention(&good).map_err(text)?;
    let huge = Limits { tokens: 1, sequences: 1, context: 1 << 58 };
    refused("a context larger than any memory", op.open(&huge).map(drop))
}
