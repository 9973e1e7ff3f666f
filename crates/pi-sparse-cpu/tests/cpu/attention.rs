//! Attention over contexts of many segments: the same bits however it is computed, and near to plain f64 arithmetic.

use pi_core::{
    AttentionSpec, BatchToken, Device, Executor, Hidden, KvType, KvTypes, Limits, LinearSpec, Matrix, QuantType,
    Serial, Write,
};
use pi_sparse_cpu::{CpuDevice, Isa, Kernels, Pool};
use pi_testkit::Random;
use std::sync::Arc;

const CONTEXT: usize = 700;

struct Model {
    spec: AttentionSpec,
    dim: usize,
}

impl Model {
    fn new(heads: usize, kv_heads: usize, head_dim: usize, kv: KvTypes) -> Self {
        let (dim, mut rng) = (16, Random(5));
        let mut matrix = |name: &str, rows: usize, cols: usize| {
            let data: Vec<f32> = (0..rows * cols).map(|_| rng.normal() / (cols as f32).sqrt()).collect();
            LinearSpec::new(Matrix::encode(name, QuantType::F32, rows, cols, &data).unwrap())
        };
        let spec = AttentionSpec {
            q: matrix("q", heads * head_dim, dim),
            k: matrix("k", kv_heads * head_dim, dim),
            v: matrix("v", kv_heads * head_dim, dim),
            o: matrix("o", dim, heads * head_dim),
            heads,
            kv_heads,
            head_dim,
            scale: 2.0 / (head_dim as f32).sqrt(),
            rope: None,
            kv,
        };
        Self { spec, dim }
    }

    fn inputs(&self) -> Vec<f32> {
        let mut rng = Random(6);
        (0..CONTEXT * self.dim).map(|_| rng.normal()).collect()
    }

    /// The outputs for all positions, fed in steps of the given sizes (the last one repeats), the second of two sequences.
    fn outputs(&self, device: &CpuDevice, steps: &[usize]) -> Vec<f32> {
        let limits = Limits { tokens: CONTEXT, sequences: 2, context: CONTEXT };
        let mut run = device.attention(&self.spec).unwrap().open(&limits).unwrap();
        let (x, mut out, mut pos) = (self.inputs(), Vec::new(), 0);
        let mut steps = steps.iter().copied().chain(std::iter::repeat(*steps.last().unwrap()));
        while pos < CONTEXT {
            let n = steps.next().unwrap().min(CONTEXT - pos);
            let (mut h, mut y) = (Hidden::new(n, self.dim), Hidden::new(n, self.dim));
            h.host_overwrite().copy_from_slice(&x[pos * self.dim..(pos + n) * self.dim]);
            let batch: Vec<_> = (pos..pos + n).map(|p| BatchToken { seq: 1, pos: p as u32 }).collect();
            run.apply(&mut h, &batch, &mut y, Write::Set).unwrap();
            out.extend_from_slice(y.host().unwrap());
            pos += n;
        }
        out
    }

    /// The output for position `pos`, in f64.
    fn exact(&self, pos: usize) -> Vec<f64> {
        let (s, dim, hd) = (&self.spec, self.dim, self.spec.head_dim);
        let x: Vec<f64> = self.inputs().iter().map(|&v| v.into()).collect();
        let project = |l: &LinearSpec, x: &[f64]| -> Vec<f64> {
            let w = l.weight.decode();
            w.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
        };
        let q = project(&s.q, &x[pos * dim..(pos + 1) * dim]);
        let rows = |l| (0..=pos).map(|p| project(l, &x[p * dim..(p + 1) * dim])).collect::<Vec<_>>();
        let (k, v) = (rows(&s.k), rows(&s.v));
        let mut mixed = Vec::new();
        for h in 0..s.heads {
            let at = h / (s.heads / s.kv_heads) * hd;
            let score = |k: &Vec<f64>| -> f64 { (0..hd).map(|i| q[h * hd + i] * k[at + i]).sum::<f64>() };
            let scores: Vec<f64> = k.iter().map(|k| score(k) * f64::from(s.scale)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            mixed.extend(
                (0..hd).map(|i| scores.iter().zip(&v).map(|(s, v)| (s - max).exp() / sum * v[at + i]).sum::<f64>()),
            );
        }
        project(&s.o, &mixed)
    }
}

fn device(isa: Isa, exec: Arc<dyn Executor>) -> CpuDevice {
    CpuDevice::new(Kernels::for_isa(isa).unwrap(), exec)
}

#[test]
fn segments_side_by_side_or_one_after_the_other_give_the_same_bits() {
    // One key/value head: with more than one thread, segments of a lone token are computed side by side.
    for (heads, kv_heads, head_dim) in [(3, 1, 32), (2, 2, 12), (9, 3, 64)] {
        let model = Model::new(heads, kv_heads, head_dim, KvType::F16.into());
        for isa in Isa::available() {
            let want = model.outputs(&device(isa, Arc::new(Serial)), &[CONTEXT]);
            for threads in [1, 2, 5] {
                let device = device(isa, Arc::new(Pool::new(threads).unwrap()));
                for steps in [&[CONTEXT][..], &[511, 1, 1, 1, 2, 40, 1], &[200, 56, 1, 2, 3, 250, 64]] {
                    let got = model.outputs(&device, steps);
                    let same = got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits());
                    assert!(same, "{isa}, {heads}/{kv_heads} heads of {head_dim}, {threads} threads, {steps:?}");
                }
            }
        }
    }
}

#[test]
fn long_contexts_come_near_to_plain_arithmetic_with_every_cache_type() {
    let all = KvType::ALL;
    for (keys, values) in all.into_iter().flat_map(|k| all.map(|v| (k, v))) {
        let model = Model::new(4, 2, 32, KvTypes { keys, values });
        let tolerance = [keys, values].map(|t| match t {
            KvType::F32 => 1e-5,
            KvType::F16 => 2e-3,
            _ => 2e-2,
        });
        let tolerance = f64::max(tolerance[0], tolerance[1]);
        for isa in Isa::available() {
            let got = model.outputs(&device(isa, Arc::new(Pool::new(2).unwrap())), &[650, 1]);
            for pos in [0, 1, 63, 64, 255, 256, 511, 512, 640, CONTEXT - 1] {
                for (g, w) in got[pos * model.dim..].iter().zip(model.exact(pos)) {
                    let off = (f64::from(*g) - w).abs();
                    assert!(off < tolerance, "{isa}, {keys}/{values}, position {pos}: {g} instead of {w}");
                }
            }
        }
    }
}
