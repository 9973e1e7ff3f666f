//! Operators of the CPU device: a matrix times a vector for every type and instruction set, and the FFN at several shares of
//! active neurons. Each case is compared with the reference before it is timed; criterion prints bytes read per second.

use criterion::{BenchmarkId, Criterion, Throughput};
use pi_core::{
    Activation, ActiveSet, Device, Down, FfnWeights, Gating, Hidden, Limits, LinearSpec, Matrix, NeuronSet, QuantType,
    Write,
};
use pi_sparse_cpu::{CpuDevice, Isa, Kernels, Pool};
use pi_testkit::Random;
use std::sync::Arc;

const ROWS: usize = 1024;
const COLS: usize = 4096;

fn device(isa: Isa) -> CpuDevice {
    CpuDevice::new(
        Kernels::for_isa(isa).expect("available"),
        Arc::new(Pool::new(Pool::default_width()).expect("threads")),
    )
}

fn matrix(name: &str, ty: QuantType, rows: usize, cols: usize, shift: f32, seed: u64) -> Matrix {
    let mut random = Random(seed);
    let data: Vec<f32> = (0..rows * cols).map(|_| random.normal() + shift).collect();
    Matrix::encode(name, ty, rows, cols, &data).expect("whole blocks")
}

fn input(dim: usize) -> Hidden {
    let (mut x, mut random) = (Hidden::new(1, dim), Random(7));
    x.host_overwrite().iter_mut().for_each(|v| *v = random.normal());
    x
}

/// Relative to the length of `want`; 8-bit activations are within a few per cent.
fn assert_close(got: &[f32], want: &[f32], what: &str) {
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| x * x).sum::<f32>().sqrt();
    let error = norm(&mut got.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied());
    assert!(error < 0.02, "{what}: relative error {error}");
}

fn gemv(c: &mut Criterion) {
    let mut group = c.benchmark_group(format!("gemv {ROWS}x{COLS}"));
    for ty in QuantType::ALL {
        let w = matrix("w", ty, ROWS, COLS, 0.0, 1);
        group.throughput(Throughput::Bytes(w.size_bytes() as u64));
        let mut want = Vec::new();
        for isa in Isa::available() {
            let linear = device(isa).linear(&LinearSpec::new(w.clone())).expect("a matrix");
            let (mut x, mut y) = (input(COLS), Hidden::new(1, ROWS));
            linear.apply(&mut x, &mut y, Write::Set).expect("a product");
            let got = y.host().expect("on the host").to_vec();
            if isa == Isa::Reference {
                want = got;
            } else {
                assert_close(&got, &want, &format!("{ty} {isa}"));
            }
            group.bench_function(BenchmarkId::new(ty.name(), isa), |b| {
                b.iter(|| {
                    x.stale();
                    linear.apply(&mut x, &mut y, Write::Set).expect("a product");
                });
            });
        }
    }
    group.finish();
}

fn ffn(c: &mut Criterion) {
    let (neurons, dim) = (4096, 1024);
    for ty in [QuantType::F16, QuantType::Q4_0] {
        let mut group = c.benchmark_group(format!("ffn {neurons}x{dim} {ty}"));
        for percent in [5, 10, 20, 50, 100] {
            let weights = FfnWeights {
                gate: Some(matrix("gate", ty, neurons, dim, 0.0, 1)),
                up: matrix("up", ty, neurons, dim, 0.0, 2),
                down: Down::NeuronMajor(matrix("down", ty, neurons, dim, 0.0, 3)),
                gate_bias: None,
                up_bias: None,
                down_bias: None,
                gating: Gating::Gated,
                act: Activation::Relu,
                skip: true,
            };
            let limits = Limits { tokens: 1, sequences: 1, context: 1 };
            let mut random = Random(5);
            let marks: Vec<bool> = (0..neurons).map(|_| random.below(100) < percent).collect();
            let mut results = Vec::new();
            for isa in Isa::available() {
                let op = device(isa).sparse_ffn(&weights, &NeuronSet::all(neurons)).expect("an ffn");
                let mut run = op.open(&limits).expect("a run");
                let (mut x, mut y, mut active) = (input(dim), Hidden::new(1, dim), ActiveSet::new(1, neurons));
                let bits = active.marks(1).expect("room");
                bits.fill(0);
                marks.iter().enumerate().filter(|(_, m)| **m).for_each(|(i, _)| bits[i / 64] |= 1 << (i % 64));
                run.submit(&mut x, &mut active).expect("a step");
                run.collect(&mut y, Write::Set).expect("a step");
                results.push(y.host().expect("on the host").to_vec());
                assert_close(&results[results.len() - 1], &results[0], &format!("{ty} {isa}"));
                group.throughput(Throughput::Bytes(run.take_stats().bytes));
                group.bench_function(BenchmarkId::new(format!("{percent} % marked"), isa), |b| {
                    b.iter(|| {
                        x.stale();
                        run.submit(&mut x, &mut active).expect("a step");
                        run.collect(&mut y, Write::Set).expect("a step");
                    });
                });
            }
        }
        group.finish();
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    gemv(&mut criterion);
    ffn(&mut criterion);
    criterion.final_summary();
}
