//! Attention whose positions are shared out over blocks, beside the CPU's reference.

use pi_core::{
    AttentionRun, AttentionSpec, BatchToken, Device, Hidden, KvType, KvTypes, Limits, LinearSpec, Matrix, OpStats,
    QuantType, Write,
};
use pi_sparse_cpu::{CpuDevice, Kernels, Pool};
use pi_sparse_cuda::{Cuda, CudaOptions, KvPlace, TensorCores};
use pi_testkit::Random;
use std::sync::Arc;

const DIM: usize = 96;
const LIMITS: Limits = Limits { tokens: 260, sequences: 3, context: 300 };

/// Without tensor cores: what they multiply differs from what floats do in its last bits, and rounding of keys and values may make more of that.
fn cuda(kv: KvPlace) -> Option<Cuda> {
    super::cuda_with(&CudaOptions::default().kv(kv).tensor_cores(TensorCores::Off))
}

/// Each output is one of the inputs: exact, whatever multiplies, so that all devices have the same queries, keys and values.
fn picks(rng: &mut Random, rows: usize, cols: usize) -> LinearSpec {
    let mut w = vec![0.0; rows * cols];
    w.chunks_mut(cols).for_each(|row| row[rng.below(cols)] = if rng.below(2) == 0 { 1.0 } else { -0.5 });
    LinearSpec::new(Matrix::encode("w", QuantType::F32, rows, cols, &w).unwrap())
}

fn spec([heads, kv_heads, head_dim]: [usize; 3], kv: KvTypes) -> AttentionSpec {
    let mut rng = Random(3);
    let [wide, narrow] = [heads, kv_heads].map(|n| n * head_dim);
    AttentionSpec {
        q: picks(&mut rng, wide, DIM),
        k: picks(&mut rng, narrow, DIM),
        v: picks(&mut rng, narrow, DIM),
        o: picks(&mut rng, DIM, wide),
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        rope: None,
        kv,
    }
}

/// A run that is fed.
struct Fed<'a> {
    device: &'a dyn Device,
    run: Box<dyn AttentionRun>,
    len: [usize; 3],
}

impl<'a> Fed<'a> {
    fn new(device: &'a dyn Device, spec: &AttentionSpec, limits: &Limits) -> Self {
        Self { device, run: device.attention(spec).unwrap().open(limits).unwrap(), len: [0; 3] }
    }

    /// A step of a token for each of these sequences. Inputs depend on sequence and position alone.
    fn step(&mut self, seqs: &[usize]) -> Vec<f32> {
        let (mut batch, mut x) = (Vec::new(), Vec::new());
        for &seq in seqs {
            let pos = self.len[seq];
            self.len[seq] += 1;
            batch.push(BatchToken { seq: seq as u32, pos: pos as u32 });
            let mut rng = Random((1000 * seq + pos) as u64);
            x.extend((0..DIM).map(|_| rng.normal()));
        }
        let hidden = || self.device.hidden(seqs.len(), DIM).unwrap();
        let (mut input, mut output): (Hidden, Hidden) = (hidden(), hidden());
        input.host_overwrite().copy_from_slice(&x);
        self.run.apply(&mut input, &batch, &mut output, Write::Set).unwrap();
        output.host().unwrap().to_vec()
    }

    fn stats(&mut self) -> OpStats {
        self.run.take_stats()
    }
}

/// Sequences of several lengths, decoded over the borders of chunks, alone and together, and a prompt after that.
fn talk(fed: &mut Fed<'_>) -> Vec<Vec<f32>> {
    let mut all = vec![fed.step(&[0; 126]), fed.step(&[1; 254])];
    all.extend((0..4).map(|i| fed.step(&[0, 1, 2][..2 + i % 2])));
    all.extend([fed.step(&[0]), fed.step(&[1]), fed.step(&[2; 129])]);
    all.push(fed.step(&[2, 2, 0, 1, 1, 2, 0]));
    all
}

#[test]
fn long_contexts_give_what_the_cpu_gives() {
    let (Some(device), Some(host)) = (cuda(KvPlace::Device), cuda(KvPlace::Host)) else { return };
    let cpu = CpuDevice::new(Kernels::reference(), Arc::new(Pool::new(1).unwrap()));
    // with eight heads of keys and values, tokens of the prompts share blocks
    let shapes =
        [[2, 2, 64], [4, 1, 128], [7, 1, 64], [8, 8, 32], [8, 2, 64], [7, 1, 32], [3, 1, 32], [12, 1, 64], [2, 1, 256]];
    let pairs = KvType::ALL.into_iter().flat_map(|keys| KvType::ALL.map(|values| KvTypes { keys, values }));
    let odd = [([4, 1, 80], KvTypes::from(KvType::F16)), ([2, 2, 90], KvTypes::from(KvType::F32))];
    let mut worst = 0.0f32;
    for (shape, kv) in shapes.into_iter().zip(pairs).chain(odd) {
        let spec = spec(shape, kv);
        let [want, got, there] = [&cpu as &dyn Device, &device, &host].map(|d| talk(&mut Fed::new(d, &spec, &LIMITS)));
        for (i, (want, got)) in want.iter().zip(&got).enumerate() {
            let size = want.iter().fold(1.0f32, |m, v| m.max(v.abs()));
            let off = want.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / size;
            assert!(off <= 5e-6, "{shape:?}, {kv:?}, step {i}: {off:e}");
            worst = worst.max(off);
        }
        assert!(got == there, "{shape:?}, {kv:?}: the same kernels read the same numbers");
        assert!(got == talk(&mut Fed::new(&device, &spec, &LIMITS)), "{shape:?}, {kv:?}: twice");
    }
    println!("at most {worst:e} off");
}

/// How long steps are, what else is in them, and how long sequences may become.
#[test]
fn a_tokens_bits_depend_on_its_position_alone() {
    let Some(device) = cuda(KvPlace::Device) else { return };
    for shape in [[4, 1, 32], [7, 1, 32], [8, 4, 32], [8, 8, 32]] {
        let spec = spec(shape, KvTypes { keys: KvType::F16, values: KvType::Q8_0 });
        let fed = |limits: &Limits| Fed::new(&device, &spec, limits);
        let (mut at_once, mut alone) = (fed(&LIMITS), fed(&Limits { tokens: 1, context: 4000, ..LIMITS }));
        let mut want = at_once.step(&[0; 260]);
        want.extend(at_once.step(&[0; 12]));
        let got: Vec<f32> = (0..272).flat_map(|_| alone.step(&[0])).collect();
        assert!(want == got, "{shape:?}: alone");
        let mut mixed = fed(&LIMITS);
        let mut got = Vec::new();
        for i in 0.. {
            let left = (1 + 17 * i % 61).min(272 - mixed.len[0]);
            if left == 0 {
                break;
            }
            // other sequences before, between and after
            let seqs: Vec<usize> = (0..2 * left).map(|k| if k % 2 == 0 { 0 } else { 1 + i % 2 }).collect();
            let seqs = if i % 3 == 0 { &vec![0; left] } else { &seqs };
            let out = mixed.step(seqs);
            got.extend(
                seqs.iter().zip(out.chunks(DIM)).filter(|(seq, _)| **seq == 0).flat_map(|(_, out)| out.to_vec()),
            );
        }
        assert!(want == got, "{shape:?}: beside others");
        let mut short = fed(&Limits { tokens: 9, sequences: 1, context: 128 });
        let got: Vec<f32> = (0..16).flat_map(|i| short.step(&vec![0; [9, 7][i % 2]])).collect();
        assert!(want[..128 * DIM] == got, "{shape:?}: in a short context");
    }
}

#[test]
fn only_contexts_of_several_chunks_have_a_second_kernel() {
    let Some(device) = cuda(KvPlace::Device) else { return };
    let spec = spec([4, 2, 32], KvType::F32.into());
    let kernels = |context, seqs: &[usize]| {
        let mut fed = Fed::new(&device, &spec, &Limits { context, ..LIMITS });
        let before = device.launches().kernels;
        fed.step(seqs);
        device.launches().kernels - before
    };
    // four products, two that keep, one that attends
    assert_eq!([kernels(128, &[0]), kernels(128, &[0, 1, 2]), kernels(128, &[0; 100])], [7; 3]);
    assert_eq!([kernels(129, &[0]), kernels(129, &[0, 1, 2])], [8; 2]);
    assert_eq!(kernels(129, &[0; 100]), 7, "there are enough blocks");
}

/// Blocks are the same for every position: a chunk more needs no other graph.
#[test]
fn graphs_last_over_the_borders_of_chunks() {
    let Some(device) = cuda(KvPlace::Device) else { return };
    let mut fed = Fed::new(&device, &spec([4, 2, 32], KvType::F16.into()), &LIMITS);
    fed.step(&[0; 120]);
    let batch = |pos| [BatchToken { seq: 0, pos }];
    let (mut x, mut y) = (device.hidden(1, DIM).unwrap(), device.hidden(1, DIM).unwrap());
    let mut steps = |from: u32, to: u32| {
        (from..to).for_each(|pos| fed.run.apply(&mut x, &batch(pos), &mut y, Write::Set).unwrap());
        y.host().unwrap();
        device.launches()
    };
    let before = steps(120, 123);
    let after = steps(123, 143);
    assert!(before.graphs > 0);
    assert_eq!((after.graphs, after.replays - before.replays), (before.graphs, 20));
}

/// Keys and values are counted as often as they are read: once for heads of a group, and for tokens of a prompt that share a block.
#[test]
fn what_is_read_is_counted() {
    let Some(device) = cuda(KvPlace::Device) else { return };
    let row = 2 * 2 * 32;
    for (shape, blocks, prompt) in [
        // a block for each key/value head
        ([4, 1, 32], 1, (0..260).map(|i| i + 1).sum::<usize>()),
        // of which two tokens of a prompt share one, or four
        ([8, 4, 32], 4, (0..130).map(|i| 2 * i + 2).sum()),
        ([8, 8, 32], 8, (0..65).map(|i| 4 * i + 4).sum()),
        // twelve heads are two sets of eight at most
        ([12, 1, 32], 2, (0..260).map(|i| i + 1).sum()),
    ] {
        let spec = spec(shape, KvType::F16.into());
        let weights: usize = [&spec.q, &spec.k, &spec.v, &spec.o].map(|l| l.weight.size_bytes()).iter().sum();
        let mut fed = Fed::new(&device, &spec, &LIMITS);
        let mut read = |seqs: &[usize]| {
            fed.step(seqs);
            fed.stats().bytes as usize - weights
        };
        assert_eq!(read(&[0; 260]), prompt * blocks * row, "{shape:?}");
        assert_eq!(read(&[0]), 261 * blocks * row, "{shape:?}");
        assert_eq!(read(&[0, 2, 2]), (262 + 1 + 2) * blocks * row, "{shape:?}");
    }
}
