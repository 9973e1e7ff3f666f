//! Operators through the driver: an emulated one, or with `PI_CUDA_TEST=real` that of a GPU.

mod attention;

use pi_core::{
    Activation, ActiveSet, Dense, Device, Down, Error, FfnWeights, Gating, Hidden, Limits, LinearSpec, Matrix,
    NeuronSet, NormSpec, OpStats, QuantType, Write,
};
use pi_cuda_emu::use_driver;
use pi_sparse_cuda::{Cuda, CudaOptions, TensorCores, Unavailable};
use pi_testkit::{Random, kernels::random_row};
use std::sync::Arc;

fn cuda() -> Option<Cuda> {
    cuda_with(&CudaOptions::default())
}

fn cuda_with(options: &CudaOptions) -> Option<Cuda> {
    match use_driver() {
        Ok(()) => Some(Cuda::open_with(0, options).unwrap()),
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "{e}");
            eprintln!("SKIPPED: {e}");
            None
        }
    }
}

fn numbers(rng: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

fn filled(mut h: Hidden, numbers: &[f32]) -> Hidden {
    h.host_overwrite().copy_from_slice(numbers);
    h
}

/// What `op` makes of `x`, from and to either side, set and added to that.
fn check(cuda: &Cuda, op: &dyn Dense, x: &[f32], tokens: usize, want: &[f64], what: &str) {
    let (cols, rows) = (x.len() / tokens, want.len() / tokens);
    let hidden = |here: bool, dim| if here { cuda.hidden(tokens, dim).unwrap() } else { Hidden::new(tokens, dim) };
    for (from, to) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut x = filled(hidden(from, cols), x);
        let mut y = filled(hidden(to, rows), &vec![0.5; want.len()]);
        for (how, times) in [(Write::Set, 1.0), (Write::Add, 2.0)] {
            op.apply(&mut x, &mut y, how).unwrap();
            for (got, want) in y.host().unwrap().iter().zip(want) {
                let (got, want) = (f64::from(*got), times * want);
                let off = (got - want).abs();
                assert!(off <= 2e-5 * (1.0 + want.abs()), "{what}, {from} {to} {how:?}: {got} instead of {want}");
            }
        }
    }
}

#[test]
fn matrices_of_every_type_are_multiplied() {
    let Some(cuda) = cuda() else { return };
    let mut rng = Random(1);
    for (i, ty) in QuantType::ALL.into_iter().enumerate() {
        let info = ty.info();
        let (rows, cols, tokens) = (3 + 5 * i, if info.block_len == 1 { 37 } else { 2 * info.block_len }, 1 + i % 6);
        let bytes: Vec<u8> = (0..rows).flat_map(|_| random_row(ty, cols / info.block_len, &mut rng)).collect();
        let mut w = vec![0.0; rows * cols];
        (info.decode)(&bytes, &mut w);
        // products of one size, so that sums do not hide errors
        let largest = w.iter().fold(1.0, |m: f32, w| m.max(w.abs()));
        let x: Vec<f32> = numbers(&mut rng, tokens * cols).into_iter().map(|v| v / largest).collect();
        let m = Matrix::new("w", ty, rows, cols, pi_core::SharedBytes::from(bytes)).unwrap();
        for bias in [None, Some(Arc::<[f32]>::from(numbers(&mut rng, rows)))] {
            let op = cuda.linear(&LinearSpec { weight: m.clone(), bias: bias.clone() }).unwrap();
            let product = |at: usize| -> f64 {
                let (t, r) = (at / rows, at % rows);
                let products = w[r * cols..][..cols].iter().zip(&x[t * cols..][..cols]);
                let bias = bias.as_ref().map_or(0.0, |b| f64::from(b[r]));
                products.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() + bias
            };
            let want: Vec<f64> = (0..tokens * rows).map(product).collect();
            check(&cuda, &*op, &x, tokens, &want, &format!("{ty} {rows} x {cols}, {tokens} tokens"));
            assert_eq!(op.bytes(), m.size_bytes() as u64 + if bias.is_some() { 4 * rows as u64 } else { 0 });
        }
    }
}

/// What tensor cores lose, beside what floats lose.
#[test]
fn tensor_cores_are_as_exact_as_floats() {
    if cuda().is_none() {
        return;
    }
    let mut rng = Random(12);
    use QuantType::{BF16, F16, F32, Q4_0, Q4_K, Q6_K, Q8_0};
    for ty in [F16, Q4_0, Q8_0, Q4_K, Q6_K, BF16, F32] {
        let (rows, cols, tokens) = (70, 1024, 33);
        let info = ty.info();
        let bytes: Vec<u8> = (0..rows).flat_map(|_| random_row(ty, cols / info.block_len, &mut rng)).collect();
        let mut w = vec![0.0; rows * cols];
        (info.decode)(&bytes, &mut w);
        let x = numbers(&mut rng, tokens * cols);
        let m = Matrix::new("w", ty, rows, cols, pi_core::SharedBytes::from(bytes)).unwrap();
        let [with, without] = [TensorCores::Auto, TensorCores::Off].map(|cores| {
            let cuda = Cuda::open_with(0, &CudaOptions::default().tensor_cores(cores)).unwrap();
            let op = cuda.linear(&LinearSpec::new(m.clone())).unwrap();
            let mut x = filled(cuda.hidden(tokens, cols).unwrap(), &x);
            let mut y = cuda.hidden(tokens, rows).unwrap();
            op.apply(&mut x, &mut y, Write::Set).unwrap();
            y.host().unwrap().to_vec()
        });
        let worst = |got: &[f32]| {
            let off = |at: usize| {
                let products = w[at % rows * cols..][..cols].iter().zip(&x[at / rows * cols..][..cols]);
                let products: Vec<f64> = products.map(|(w, x)| f64::from(*w) * f64::from(*x)).collect();
                (f64::from(got[at]) - products.iter().sum::<f64>()).abs()
                    / products.iter().map(|v| v.abs()).sum::<f64>()
            };
            (0..got.len()).map(off).fold(0.0, f64::max)
        };
        let (with_off, without_off) = (worst(&with), worst(&without));
        println!("{ty}: at most {with_off:e} of the summands' sizes off with tensor cores, {without_off:e} without");
        assert!(with_off <= 1e-6 && without_off <= 1e-6, "{ty}: {with_off:e}, {without_off:e}");
        assert!(with != without, "{ty}: they are other kernels");
    }
}

#[test]
fn norms_are_applied() {
    let Some(cuda) = cuda() else { return };
    let mut rng = Random(2);
    for (tokens, dim) in [(1, 5), (4, 300)] {
        let x = numbers(&mut rng, tokens * dim);
        let [weight, bias]: [Arc<[f32]>; 2] = [(); 2].map(|()| numbers(&mut rng, dim).into());
        for (layer, bias) in [(false, None), (true, None), (true, Some(bias))] {
            let eps = 1e-3;
            let spec = match layer {
                false => NormSpec::Rms { weight: weight.clone(), eps },
                true => NormSpec::Layer { weight: weight.clone(), bias: bias.clone(), eps },
            };
            let mut want = Vec::new();
            for row in x.chunks(dim) {
                let mean = if layer { row.iter().map(|v| f64::from(*v)).sum::<f64>() / dim as f64 } else { 0.0 };
                let square = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / dim as f64;
                want.extend((0..dim).map(|i| {
                    let v = (f64::from(row[i]) - mean) / (square + f64::from(eps)).sqrt() * f64::from(weight[i]);
                    v + bias.as_ref().map_or(0.0, |b| f64::from(b[i]))
                }));
            }
            check(&cuda, &*cuda.norm(&spec).unwrap(), &x, tokens, &want, "norm");
        }
    }
}

#[test]
fn what_stays_on_the_device_does_not_move() {
    let Some(cuda) = cuda() else { return };
    let m = Matrix::encode("w", QuantType::F16, 8, 8, &[0.25; 64]).unwrap();
    let op = cuda.linear(&LinearSpec::new(m)).unwrap();
    let mut x = filled(cuda.hidden(2, 8).unwrap(), &[1.0; 16]);
    let mut y = cuda.hidden(2, 8).unwrap();
    for _ in 0..4 {
        op.apply(&mut x, &mut y, Write::Set).unwrap();
        op.apply(&mut y, &mut x, Write::Set).unwrap();
    }
    assert_eq!((x.resident().moves().up, x.resident().moves().down), (1, 0));
    assert_eq!((y.resident().moves().up, y.resident().moves().down), (0, 0));
    // 8 · ¼ = 2 times as much each time
    assert_eq!(x.host().unwrap(), [256.0; 16]);
    // a download that was begun shows what was queued before it, and not after it
    op.apply(&mut x, &mut y, Write::Set).unwrap();
    y.resident().prefetch().unwrap();
    op.apply(&mut y, &mut x, Write::Set).unwrap();
    assert_eq!(y.host().unwrap(), [512.0; 16]);
    assert_eq!(x.host().unwrap(), [1024.0; 16]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(cuda) = cuda() else { return };
    let m = Matrix::encode("w", QuantType::F32, 4, 8, &[1.0; 32]).unwrap();
    let op = cuda.linear(&LinearSpec::new(m)).unwrap();
    let refused = |(x, y): ((usize, usize), (usize, usize)), how| {
        let (mut x, mut y) = (Hidden::new(x.0, x.1), Hidden::new(y.0, y.1));
        matches!(op.apply(&mut x, &mut y, how), Err(Error::Shape { .. }))
    };
    assert!(refused(((1, 7), (1, 4)), Write::Set));
    assert!(refused(((1, 8), (1, 5)), Write::Set));
    assert!(refused(((1, 8), (2, 4)), Write::Add));
    let (free, total) = cuda.memory().unwrap();
    assert!(free <= total);
    let error = cuda.hidden(1, total as usize / 4 + 1024).unwrap_err().to_string();
    assert!(error.contains("no memory for") && error.contains("free"), "{error}");
    assert!(cuda.hidden(usize::MAX, 2).is_err());
    let count = pi_sparse_cuda::count().unwrap();
    let infos = pi_sparse_cuda::devices().unwrap();
    assert_eq!((infos.len(), &infos[0]), (count, &cuda.info()));
    assert_eq!(Cuda::open(1_000).unwrap_err(), Unavailable::NoSuchDevice { ordinal: 1_000, count });
}

/// Every number of tokens from 1 to 130, which no tile divides, with 1 to 70 rows.
// N07
#[test]
fn prompts_of_every_length_are_computed() {
    let Some(cuda) = cuda() else { return };
    let mut rng = Random(7);
    let types = [QuantType::F32, QuantType::F16, QuantType::Q4_0, QuantType::Q8_0];
    let all: Vec<(Matrix, Vec<f32>)> = types
        .into_iter()
        .map(|ty| {
            let cols = if ty.is_float() { 37 } else { 64 };
            let bytes: Vec<u8> = (0..70).flat_map(|_| random_row(ty, cols / ty.info().block_len, &mut rng)).collect();
            let m = Matrix::new("w", ty, 70, cols, bytes).unwrap();
            let w = m.decode();
            (m, w)
        })
        .collect();
    for tokens in 1..=130 {
        let (m, w) = &all[tokens % all.len()];
        let (rows, cols) = (1 + (tokens * 27) % 70, m.cols());
        let op = cuda.linear(&LinearSpec::new(m.rows_of(0..rows).unwrap())).unwrap();
        let numbers = numbers(&mut rng, tokens * cols);
        let mut x = filled(cuda.hidden(tokens, cols).unwrap(), &numbers);
        let mut y = cuda.hidden(tokens, rows).unwrap();
        op.apply(&mut x, &mut y, Write::Set).unwrap();
        for (at, got) in y.host().unwrap().iter().enumerate() {
            let (t, r) = (at / rows, at % rows);
            let products = w[r * cols..][..cols].iter().zip(&numbers[t * cols..][..cols]);
            let products: Vec<f64> = products.map(|(w, x)| f64::from(*w) * f64::from(*x)).collect();
            let (want, size) = (products.iter().sum::<f64>(), products.iter().map(|v| v.abs()).sum::<f64>());
            let off = (f64::from(*got) - want).abs();
            assert!(off <= 4e-6 * size, "{}, {rows} rows, {tokens} tokens: {got} instead of {want}", m.ty());
        }
    }
}

fn ffn(rng: &mut Random, ty: QuantType, dim: usize, neurons: usize, size: f32) -> FfnWeights {
    let mut matrix = |name: &str| {
        let data: Vec<f32> = numbers(rng, neurons * dim).into_iter().map(|v| v * size).collect();
        Matrix::encode(name, ty, neurons, dim, &data).unwrap()
    };
    let (gate, up, down) = (matrix("gate"), matrix("up"), matrix("down"));
    let down = Down::NeuronMajor(down);
    let (gate_bias, up_bias, down_bias) = (None, None, None);
    let (gating, act) = (Gating::Gated, Activation::Relu);
    FfnWeights { gate: Some(gate), up, down, gate_bias, up_bias, down_bias, gating, act, skip: true }
}

/// The neurons that are on the device in these tests.
fn owned(neurons: usize) -> NeuronSet {
    NeuronSet::some(neurons, (0..neurons as u32).filter(|i| i % 5 != 2).collect()).unwrap()
}

/// What an FFN makes of some rows in one step, and its counts.
fn counted(cuda: &Cuda, w: &FfnWeights, x: &[f32], marks: Option<&[u64]>) -> (Vec<f32>, OpStats) {
    let (dim, n) = (w.dim(), w.neurons());
    let tokens = x.len() / dim;
    let limits = Limits { tokens, sequences: 1, context: 1 };
    let mut run = cuda.sparse_ffn(w, &owned(n)).unwrap().open(&limits).unwrap();
    let mut active = ActiveSet::new(tokens, n);
    match marks {
        None => active.set_all(tokens).unwrap(),
        Some(bits) => active.marks(tokens).unwrap().copy_from_slice(bits),
    }
    let mut x = filled(cuda.hidden(tokens, dim).unwrap(), x);
    let mut y = cuda.hidden(tokens, dim).unwrap();
    run.submit(&mut x, &mut active).unwrap();
    run.collect(&mut y, Write::Set).unwrap();
    let values = run.values().unwrap().host().unwrap().iter().filter(|v| **v != 0.0).count() as u64;
    let stats = run.take_stats();
    assert!(values <= stats.active && stats.active <= stats.marked && stats.marked <= stats.neurons);
    assert!(stats.dense == 0 || stats.dense == stats.neurons);
    (y.host().unwrap().to_vec(), stats)
}

/// The same with the number of active neurons alone.
fn outcome(cuda: &Cuda, w: &FfnWeights, x: &[f32], marks: Option<&[u64]>) -> (Vec<f32>, u64) {
    let (y, stats) = counted(cuda, w, x, marks);
    (y, stats.active)
}

/// The definition: what owned and marked neurons add up to for each row, the size of what is added up, and how many are marked.
fn defined(w: &FfnWeights, x: &[f32], marks: Option<&[u64]>) -> (Vec<f64>, f64, u64) {
    let (dim, n) = (w.dim(), w.neurons());
    let (gate, up, down) = (w.gate.as_ref().map(Matrix::decode), w.up.decode(), w.down.matrix().decode());
    let act = |v: f64| match w.act {
        Activation::Relu => v.max(0.0),
        Activation::FatRelu(t) => {
            if v < f64::from(t) {
                0.0
            } else {
                v.max(0.0)
            }
        }
        Activation::Silu => v / (1.0 + (-v).exp()),
        other => panic!("{other} is not in these tests"),
    };
    let (mut all, mut size, mut marked) = (Vec::new(), 0.0f64, 0);
    for (t, x) in x.chunks(dim).enumerate() {
        let dot = |w: &[f32], i: usize| -> f64 {
            w[i * dim..][..dim].iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
        };
        let mut y = vec![0.0; dim];
        for i in owned(n).iter().filter(|&i| marks.is_none_or(|m| m[t * n.div_ceil(64) + i / 64] >> (i % 64) & 1 == 1))
        {
            marked += 1;
            let (gate, up) = (gate.as_ref().map(|gate| dot(gate, i)), dot(&up, i));
            let h = match w.gating {
                Gating::Gated => act(gate.unwrap()) * up,
                Gating::Symmetric => act(gate.unwrap()) * act(up),
                _ => act(up),
            };
            y.iter_mut().zip(&down[i * dim..]).for_each(|(y, d)| *y += h * f64::from(*d));
            size = size.max(h.abs());
        }
        all.extend(y);
    }
    (all, size, marked)
}

/// Bits for each token, each set with some probability.
fn some_marks(rng: &mut Random, tokens: usize, neurons: usize, share: f64) -> Vec<u64> {
    let words = neurons.div_ceil(64);
    let mut marks = vec![0; tokens * words];
    for at in (0..tokens).flat_map(|t| (0..neurons).map(move |i| (t, i))) {
        if (rng.bits() >> 11) as f64 / (1u64 << 53) as f64 <= share {
            marks[at.0 * words + at.1 / 64] |= 1 << (at.1 % 64);
        }
    }
    marks
}

/// Lists of marked neurons and products of matrices, of one type and of two, with a gate and without.
#[test]
fn both_ways_to_compute_an_ffn_give_what_is_defined() {
    use QuantType::{F16, F32, Q4_0, Q4_K, Q8_0};
    if cuda().is_none() {
        return;
    }
    let devices =
        [4.0, 0.0, f32::INFINITY].map(|c| (c, Cuda::open_with(0, &CudaOptions::default().crossover(c)).unwrap()));
    let mut rng = Random(13);
    let (dim, neurons) = (256, 150); // the last block of neurons is not full
    for (i, (gate, up, act)) in [
        (Some(F32), F32, Activation::Relu),
        (Some(F16), F16, Activation::Silu),
        (Some(Q8_0), Q8_0, Activation::Relu), // dReLU
        (Some(Q4_0), Q8_0, Activation::Relu),
        (Some(Q4_K), F16, Activation::FatRelu(0.1)),
        (None, Q4_0, Activation::Relu),
    ]
    .into_iter()
    .enumerate()
    {
        let mut w = ffn(&mut rng, up, dim, neurons, 0.1);
        w.gate = gate.map(|ty| Matrix::encode("gate", ty, neurons, dim, &numbers(&mut rng, neurons * dim)).unwrap());
        (w.act, w.skip) = (act, act != Activation::Silu);
        w.gating = match gate {
            None => Gating::UpOnly,
            Some(Q8_0) => Gating::Symmetric,
            Some(_) => Gating::Gated,
        };
        for tokens in [1, 3, 4, 5, 15, 16, 17, 40] {
            for share in [Some(0.0), Some(0.02), Some(0.3), Some(1.0), None] {
                let x = numbers(&mut rng, tokens * dim);
                let marks = share.map(|share| some_marks(&mut rng, tokens, neurons, share));
                let (want, size, marked) = defined(&w, &x, marks.as_deref());
                for (crossover, cuda) in &devices[..if tokens < 16 { 1 } else { 3 }] {
                    let (got, stats) = counted(cuda, &w, &x, marks.as_deref());
                    let what = format!("case {i}, {tokens} tokens, {share:?} marked, crossover {crossover}");
                    let off = want.iter().zip(&got).map(|(a, b)| (a - f64::from(*b)).abs()).fold(0.0, f64::max);
                    assert!(off <= 2e-5 * (1.0 + size), "{what}: off by {off} of {size}");
                    assert_eq!(stats.marked, marked, "{what}");
                    let dense = match (tokens, share) {
                        (0..16, _) => false,
                        (_, None) => true,
                        (_, Some(share)) => *crossover == 0.0 || (*crossover == 4.0 && share == 1.0),
                    };
                    // between them, marks decide, which the next test is about
                    if *crossover != 4.0 || share.is_none_or(|s| s == 0.0 || s == 1.0) {
                        assert_eq!(stats.dense > 0, dense, "{what}");
                    }
                }
            }
        }
    }
}

/// A neuron counts once for every four tokens any of which marks it.
#[test]
fn many_tokens_are_dense_from_the_crossover_on() {
    let Some(cuda) = cuda() else { return };
    let mut rng = Random(14);
    let (dim, neurons, words) = (32, 130, 3);
    let w = ffn(&mut rng, QuantType::F32, dim, neurons, 0.1);
    let count = owned(neurons).len();
    for tokens in [16usize, 19, 40, 256, 257] {
        let groups = tokens.div_ceil(4);
        let x = numbers(&mut rng, tokens * dim);
        // so many pairs of a neuron and four tokens are marked, by one of the four or by all
        let mut dense = |pairs: usize| {
            let mut marks = vec![0u64; tokens * words];
            let all = (0..groups).flat_map(|g| owned(neurons).iter().map(move |i| (g, i)).collect::<Vec<_>>());
            for (n, (g, i)) in all.take(pairs).enumerate() {
                for t in 4 * g..(4 * g + 4).min(tokens) {
                    if n % 3 == 0 || t == (4 * g + n % 4).min(tokens - 1) {
                        marks[t * words + i / 64] |= 1 << (i % 64);
                    }
                }
            }
            // neurons of others do not count
            (0..neurons).filter(|i| i % 5 == 2).for_each(|i| marks[i / 64] |= 1 << (i % 64));
            let (got, stats) = counted(&cuda, &w, &x, Some(&marks));
            let (want, size, _) = defined(&w, &x, Some(&marks));
            let off = want.iter().zip(&got).map(|(a, b)| (a - f64::from(*b)).abs()).fold(0.0, f64::max);
            assert!(off <= 2e-5 * (1.0 + size), "{tokens} tokens, {pairs} pairs: off by {off} of {size}");
            stats.dense > 0
        };
        let found = [0, count, 4 * count - 1, 4 * count].map(&mut dense);
        let want = if tokens > 256 { [true; 4] } else { [false, false, false, true] };
        assert_eq!(found, want, "{tokens} tokens");
    }
}

#[test]
fn tokens_of_a_prompt_get_what_they_get_alone() {
    let Some(cuda) = cuda() else { return };
    let mut rng = Random(8);
    for ty in [QuantType::F32, QuantType::Q4_0] {
        let (dim, neurons, tokens) = (64, 70, 67);
        let w = ffn(&mut rng, ty, dim, neurons, 0.2);
        let x = numbers(&mut rng, tokens * dim);
        let marks: Vec<u64> = (0..2 * tokens).map(|i| rng.bits() & if i % 2 == 1 { 63 } else { u64::MAX }).collect();
        for marks in [None, Some(&marks[..])] {
            let (all, active) = outcome(&cuda, &w, &x, marks);
            let mut sum = 0;
            for t in 0..tokens {
                let marks = marks.map(|m| &m[2 * t..2 * t + 2]);
                let (one, count) = outcome(&cuda, &w, &x[t * dim..(t + 1) * dim], marks);
                let size = one.iter().fold(0.1f32, |m, v| m.max(v.abs()));
                let off = one.iter().zip(&all[t * dim..]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off <= 2e-5 * size, "{ty}, token {t}: off by {off} of {size}");
                sum += count;
            }
            // a gate that is 0 but for rounding may fire in one order of summation and not in the other
            assert!(active.abs_diff(sum) <= 1, "{active} and {sum} neurons");
        }
    }
}

/// Activations beyond what F16 holds, and sums of them that F16 would lose by far.
// N06
#[test]
fn large_activations_stay_exact() {
    let Some(cuda) = cuda() else { return };
    let mut rng = Random(9);
    let (dim, neurons) = (96, 40);
    for ty in [QuantType::F32, QuantType::F16, QuantType::Q8_0] {
        let w = ffn(&mut rng, ty, dim, neurons, 1.0);
        let gate = w.gate.as_ref().unwrap().decode();
        let (up, down) = (w.up.decode(), w.down.matrix().decode());
        for tokens in [1, 3, 20] {
            let x: Vec<f32> = (0..tokens * dim).map(|i| if i % dim == 5 { 7e4 } else { rng.normal() }).collect();
            let (got, _) = outcome(&cuda, &w, &x, None);
            for (x, got) in x.chunks(dim).zip(got.chunks(dim)) {
                let dot = |w: &[f32], i: usize| -> f64 {
                    w[i * dim..][..dim].iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
                };
                let mut want = vec![0.0f64; dim];
                let mut size = 0.0f64;
                for i in (0..neurons).filter(|i| i % 5 != 2) {
                    let h = dot(&gate, i).max(0.0) * dot(&up, i);
                    want.iter_mut().zip(&down[i * dim..]).for_each(|(y, d)| *y += h * f64::from(*d));
                    size = size.max(h.abs());
                }
                assert!(size > 1e9, "values are large: {size}");
                let off = want.iter().zip(got).map(|(a, b)| (a - f64::from(*b)).abs()).fold(0.0, f64::max);
                assert!(off <= 2e-5 * size, "{ty}, {tokens} tokens: off by {off} of {size}");
            }
        }
    }
}

#[test]
fn the_same_run_twice_gives_the_same_bits() {
    let Some(cuda) = cuda() else { return };
    let mut rng = Random(10);
    let w = ffn(&mut rng, QuantType::Q4_K, 256, 600, 0.1);
    for tokens in [1, 5, 18] {
        let x = numbers(&mut rng, tokens * 256);
        let bits = || outcome(&cuda, &w, &x, None).0.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(), bits(), "{tokens} tokens");
    }
}

#[test]
fn what_kernels_cannot_count_is_refused_by_name() {
    let Some(cuda) = cuda() else { return };
    let rows = 1usize << 31;
    // rows without numbers: there is nothing to allocate
    let m = Matrix::new("blk.0.w", QuantType::F32, rows, 0, Vec::new()).unwrap();
    let error = cuda.linear(&LinearSpec::new(m)).map(drop).unwrap_err().to_string();
    assert!(error.contains("rows of blk.0.w") && error.contains(&rows.to_string()), "{error}");
}

#[test]
fn the_device_passes_the_conformance_suite() {
    let Some(cuda) = cuda() else { return };
    pi_testkit::device::check(&cuda).unwrap();
}
