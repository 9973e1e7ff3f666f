//! Kernels beside the CPU's reference: all types, ragged sizes, several tokens, every order of lanes.
#![allow(unsafe_code)]

use pi_core::QuantType;
use pi_cuda_emu::{Arg, Failure, Launch, Order, is_there, launch};
use pi_testkit::{Random, kernels::random_row};

/// Runs a kernel that writes to `y` in every order of lanes, and hands over what it wrote each time.
fn run(kernel: &str, grid: [u32; 3], threads: u32, y: &[f32], args: &[Arg<'_>]) -> Vec<Vec<f32>> {
    if !is_there() {
        assert!(std::env::var_os("CI").is_none(), "the emulator has to be there in CI");
        eprintln!("SKIPPED: {}", Failure::Absent);
        return Vec::new();
    }
    let run = |order| {
        let mut y = y.to_vec();
        let size = Launch { grid, block: [threads, 1, 1], shared: 0, order };
        // SAFETY: arrays are as large as the other arguments say.
        unsafe { launch(kernel, size, args, &mut [&mut y]) }.unwrap();
        y
    };
    Order::ALL.map(run).to_vec()
}

fn numbers(rng: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

/// Rows of a type, and what they are.
fn matrix(ty: QuantType, rows: usize, cols: usize, rng: &mut Random) -> (Vec<u8>, Vec<f32>) {
    let info = ty.info();
    let bytes: Vec<u8> = (0..rows).flat_map(|_| random_row(ty, cols / info.block_len, rng)).collect();
    let mut decoded = vec![0.0; rows * cols];
    (info.decode)(&bytes, &mut decoded);
    (bytes, decoded)
}

fn widths(ty: QuantType) -> Vec<usize> {
    match ty.info().block_len {
        1 => vec![1, 7, 8, 33, 100, 264],
        n => vec![n, 3 * n, 8 * n],
    }
}

fn int(n: usize) -> Arg<'static> {
    Arg::Int(n as i32)
}

#[test]
fn every_type_is_decoded_to_the_bit() {
    let mut rng = Random(1);
    for ty in QuantType::ALL {
        for cols in widths(ty) {
            let rows = 3;
            let (bytes, want) = matrix(ty, rows, cols, &mut rng);
            let blocks = (rows * cols.div_ceil(8)).div_ceil(32) as u32;
            let args = [Arg::Read(Some(&bytes)), Arg::Long(rows as i64), int(cols), Arg::Out(0)];
            for got in run(&format!("pi_decode_{ty}"), [blocks, 1, 1], 32, &vec![7.0; want.len()], &args) {
                let differs = got.iter().zip(&want).position(|(a, b)| a.to_bits() != b.to_bits());
                assert_eq!(differs.map(|i| (i, got[i], want[i])), None, "{ty}, {cols} wide");
            }
        }
    }
}

#[test]
fn matrices_of_every_type_meet_tokens() {
    let mut rng = Random(2);
    for ty in QuantType::ALL {
        for (cols, (rows, tokens)) in widths(ty).into_iter().zip([(5, 1), (1, 6), (9, 3), (4, 9), (3, 2), (2, 1)]) {
            let (bytes, w) = matrix(ty, rows, cols, &mut rng);
            let (x, bias) = (numbers(&mut rng, tokens * cols), numbers(&mut rng, rows));
            let before = numbers(&mut rng, tokens * rows);
            for (bias, add) in [(None, 0), (Some(&bias), 0), (None, 1), (Some(&bias), 1)] {
                let weights = [Arg::Read(Some(&bytes)), Arg::Numbers(Some(&x)), Arg::Numbers(bias.map(|b| &b[..]))];
                let sizes = [int(rows), int(cols), int(tokens), Arg::Int(add), Arg::Out(0)];
                let args = [&weights[..], &sizes].concat();
                let grid = [rows.div_ceil(2) as u32, tokens.div_ceil(4) as u32, 1];
                for got in run(&format!("pi_linear_{ty}"), grid, 64, &before, &args) {
                    for t in 0..tokens {
                        for r in 0..rows {
                            let products = w[r * cols..][..cols].iter().zip(&x[t * cols..][..cols]);
                            let products: Vec<f64> = products.map(|(w, x)| f64::from(*w) * f64::from(*x)).collect();
                            let others = [
                                f64::from(bias.map_or(0.0, |b| b[r])),
                                f64::from(add) * f64::from(before[t * rows + r]),
                            ];
                            let want = products.iter().chain(&others).sum::<f64>();
                            let size = products.iter().chain(&others).map(|v| v.abs()).sum::<f64>();
                            let off = (f64::from(got[t * rows + r]) - want).abs();
                            assert!(off <= 2e-6 * size, "{ty}, {rows} x {cols}, {tokens} tokens: {off} of {size}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn norms_are_those_of_their_formulas() {
    let mut rng = Random(3);
    for (rows, dim, threads) in [(1, 1, 32), (3, 33, 64), (2, 256, 256), (5, 777, 128)] {
        let (x, weight, bias) = (numbers(&mut rng, rows * dim), numbers(&mut rng, dim), numbers(&mut rng, dim));
        let eps = 1e-5f32;
        let want = |layer: bool, bias: Option<&[f32]>| -> Vec<f64> {
            x.chunks(dim)
                .flat_map(|row| {
                    let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
                    let mean = if layer { row.iter().sum::<f64>() / dim as f64 } else { 0.0 };
                    let square = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / dim as f64;
                    let scale = 1.0 / (square + f64::from(eps)).sqrt();
                    (0..dim)
                        .map(|i| (row[i] - mean) * scale * f64::from(weight[i]) + bias.map_or(0.0, |b| f64::from(b[i])))
                        .collect::<Vec<_>>()
                })
                .collect()
        };
        let near = |got: Vec<Vec<f32>>, want: Vec<f64>, what: &str| {
            for got in got {
                let off =
                    got.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs() / (1.0 + b.abs())).fold(0.0, f64::max);
                assert!(off < 1e-5, "{what} of {rows} x {dim}: off by {off}");
            }
        };
        let (grid, y) = ([rows as u32, 1, 1], vec![0.0; rows * dim]);
        let end = [int(dim), Arg::Float(eps), int(0), Arg::Out(0)];
        let rms = [&[Some(&x[..]), Some(&weight)].map(Arg::Numbers)[..], &end].concat();
        near(run("pi_rms_norm", grid, threads, &y, &rms), want(false, None), "RMSNorm");
        for bias in [None, Some(&bias[..])] {
            let layer = [&[Some(&x[..]), Some(&weight), bias].map(Arg::Numbers)[..], &end].concat();
            near(run("pi_layer_norm", grid, threads, &y, &layer), want(true, bias), "LayerNorm");
        }
    }
}

#[test]
fn tiles_of_matrices_of_every_type_meet_many_tokens() {
    let mut rng = Random(4);
    for ty in QuantType::ALL {
        let widths = match ty.info().block_len {
            1 => vec![33, 100],
            n => vec![n, 3 * n],
        };
        for (cols, (rows, tokens)) in widths.into_iter().zip([(70, 17), (5, 130)]) {
            let (bytes, w) = matrix(ty, rows, cols, &mut rng);
            let (x, bias) = (numbers(&mut rng, tokens * cols), numbers(&mut rng, rows));
            let before = numbers(&mut rng, tokens * rows);
            for (bias, add) in [(None, 0), (Some(&bias), 1)] {
                let weights = [Arg::Read(Some(&bytes)), Arg::Numbers(Some(&x)), Arg::Numbers(bias.map(|b| &b[..]))];
                let sizes = [int(rows), int(cols), int(tokens), Arg::Int(add), Arg::Read(None), Arg::Out(0)];
                let grid = [rows.div_ceil(64) as u32, tokens.div_ceil(64) as u32, 1];
                let args = [&weights[..], &sizes].concat();
                for got in run(&format!("pi_tile_linear_{ty}"), grid, 256, &before, &args) {
                    let product = |t: usize, r: usize| {
                        let products = w[r * cols..][..cols].iter().zip(&x[t * cols..][..cols]);
                        let products = products.map(|(w, x)| f64::from(*w) * f64::from(*x));
                        products
                            .chain([
                                f64::from(bias.map_or(0.0, |b| b[r])),
                                f64::from(add) * f64::from(before[t * rows + r]),
                            ])
                            .collect()
                    };
                    near(&got, tokens, rows, &product, &format!("{ty}, {rows} x {cols}, {tokens} tokens"));
                }
            }
        }
    }
}

#[test]
fn tiles_of_down_rows_of_every_type_are_summed() {
    let mut rng = Random(5);
    for ty in QuantType::ALL {
        let dim = if ty.info().block_len == 1 { 77 } else { ty.info().block_len };
        for (owned, tokens) in [(33, 20), (1, 70)] {
            let (bytes, w) = matrix(ty, owned, dim, &mut rng);
            // most neurons do not fire
            let mut h: Vec<f32> = numbers(&mut rng, tokens * owned).into_iter().map(|v| v.max(0.5) - 0.5).collect();
            // sizes that F16 has no numbers for
            h.iter_mut().enumerate().for_each(|(i, v)| *v *= [1.0, 1e-3, 3e7, 1e-30][i / owned % 4]);
            let (bias, before) = (numbers(&mut rng, dim), numbers(&mut rng, tokens * dim));
            for (bias, add) in [(None, 1), (Some(&bias), 0)] {
                let weights = [Arg::Read(Some(&bytes)), Arg::Numbers(Some(&h)), Arg::Numbers(bias.map(|b| &b[..]))];
                let sizes = [int(owned), int(dim), int(tokens), Arg::Int(add), Arg::Out(0)];
                let grid = [dim.div_ceil(64) as u32, tokens.div_ceil(64) as u32, 1];
                let args = [&weights[..], &sizes].concat();
                let kernels = ["tile", "tensor"].map(|way| format!("pi_{way}_down_{ty}"));
                for got in kernels.iter().flat_map(|kernel| run(kernel, grid, 256, &before, &args)) {
                    let product = |t: usize, c: usize| {
                        let products = (0..owned).map(|i| f64::from(w[i * dim + c]) * f64::from(h[t * owned + i]));
                        products
                            .chain([
                                f64::from(bias.map_or(0.0, |b| b[c])),
                                f64::from(add) * f64::from(before[t * dim + c]),
                            ])
                            .collect()
                    };
                    near(&got, tokens, dim, &product, &format!("{ty}, {owned} x {dim}, {tokens} tokens"));
                }
            }
        }
    }
}

/// Fails unless every number is the sum of its summands, up to what roundings of sums of their size may be.
fn near(got: &[f32], tokens: usize, rows: usize, summands: &dyn Fn(usize, usize) -> Vec<f64>, what: &str) {
    for (t, r) in (0..tokens).flat_map(|t| (0..rows).map(move |r| (t, r))) {
        let all = summands(t, r);
        let (want, size) = (all.iter().sum::<f64>(), all.iter().map(|v| v.abs()).sum::<f64>());
        let off = (f64::from(got[t * rows + r]) - want).abs();
        assert!(off <= 4e-6 * size, "{what}, token {t}, output {r}: off by {off} of {size}");
    }
}

#[test]
fn a_sum_in_one_meeting_has_the_bits_of_five_shuffles() {
    let mut rng = Random(6);
    for size in [1.0, 1e30] {
        let x: Vec<f32> = numbers(&mut rng, 64).into_iter().map(|v| v * size).collect();
        for got in run("emulated_sums", [1; 3], 64, &[0.0; 128], &[Arg::Numbers(Some(&x)), Arg::Out(0)]) {
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&got[..64]), bits(&got[64..]));
            assert!(got[0] != 0.0 && got[0] != got[32]);
        }
    }
}

#[test]
fn the_emulated_tensor_core_multiplies_matrices() {
    let mut rng = Random(7);
    // exact in F16, and so are all sums
    let mut whole = |n| -> Vec<f32> { (0..n).map(|_| rng.below(33) as f32 - 16.0).collect() };
    let (a, b) = (whole(16 * 16), whole(8 * 16));
    let args = [Arg::Numbers(Some(&a)), Arg::Numbers(Some(&b)), Arg::Out(0)];
    for got in run("emulated_mma", [1; 3], 32, &[0.0; 16 * 8], &args) {
        for (at, got) in got.iter().enumerate() {
            let products = a[16 * (at / 8)..][..16].iter().zip(&b[16 * (at % 8)..][..16]);
            assert_eq!(*got, 1.0 + products.map(|(a, b)| a * b).sum::<f32>(), "row {}, column {}", at / 8, at % 8);
        }
    }
}

/// Sizes of inputs that F16 has no numbers for, and rows of tokens that differ in size.
#[test]
fn tensor_cores_multiply_every_type_as_floats_do() {
    let mut rng = Random(8);
    let mut worst = 0.0f64;
    for ty in QuantType::ALL {
        let widths = match ty.info().block_len {
            1 => vec![33, 100],
            n => vec![n, 3 * n],
        };
        for (cols, (rows, tokens)) in widths.into_iter().zip([(70, 17), (5, 80)]) {
            let (bytes, w) = matrix(ty, rows, cols, &mut rng);
            let sizes = [1.0, 1e-3, 3e7, 1e-30];
            let mut x = numbers(&mut rng, tokens * cols);
            x.iter_mut().enumerate().for_each(|(i, v)| *v *= sizes[i / cols % 4] * if i % 7 == 0 { 1e-4 } else { 1.0 });
            let (bias, before) = (numbers(&mut rng, rows), numbers(&mut rng, tokens * rows));
            for (bias, add) in [(None, 0), (Some(&bias), 1)] {
                let weights = [Arg::Read(Some(&bytes)), Arg::Numbers(Some(&x)), Arg::Numbers(bias.map(|b| &b[..]))];
                let sizes = [int(rows), int(cols), int(tokens), Arg::Int(add), Arg::Read(None), Arg::Out(0)];
                let grid = [rows.div_ceil(64) as u32, tokens.div_ceil(64) as u32, 1];
                let args = [&weights[..], &sizes].concat();
                for got in run(&format!("pi_tensor_linear_{ty}"), grid, 256, &before, &args) {
                    for (t, r) in (0..tokens).flat_map(|t| (0..rows).map(move |r| (t, r))) {
                        let products = w[r * cols..][..cols].iter().zip(&x[t * cols..][..cols]);
                        let products = products.map(|(w, x)| f64::from(*w) * f64::from(*x));
                        let others =
                            [f64::from(bias.map_or(0.0, |b| b[r])), f64::from(add) * f64::from(before[t * rows + r])];
                        let all: Vec<f64> = products.chain(others).collect();
                        let (want, size) = (all.iter().sum::<f64>(), all.iter().map(|v| v.abs()).sum::<f64>());
                        let off = (f64::from(got[t * rows + r]) - want).abs() / size;
                        worst = worst.max(off);
                        // as much as of floats
                        assert!(
                            off <= 2e-6,
                            "{ty}, {rows} x {cols}, token {t} of {tokens}, row {r}: {off} of its size"
                        );
                    }
                }
            }
        }
    }
    println!("at most {worst:e} of the sizes of all summands off");
}

#[test]
fn what_is_not_finite_is_not_hidden_by_tensor_cores() {
    let mut rng = Random(9);
    let (rows, cols, tokens) = (3, 64, 16);
    for ty in [QuantType::Q8_0, QuantType::BF16, QuantType::F32] {
        let (bytes, _) = matrix(ty, rows, cols, &mut rng);
        let mut x = numbers(&mut rng, tokens * cols);
        (x[5 * cols + 7], x[9 * cols + 40]) = (f32::NAN, f32::INFINITY);
        let args = [Arg::Read(Some(&bytes)), Arg::Numbers(Some(&x)), Arg::Numbers(None)];
        let sizes = [int(rows), int(cols), int(tokens), Arg::Int(0), Arg::Read(None), Arg::Out(0)];
        let args = [&args[..], &sizes].concat();
        for got in run(&format!("pi_tensor_linear_{ty}"), [1; 3], 256, &vec![0.0; rows * tokens], &args) {
            for (t, row) in got.chunks(rows).enumerate() {
                assert_eq!(row.iter().all(|v| v.is_finite()), t != 5 && t != 9, "{ty}, token {t}: {row:?}");
            }
        }
        // rows of neurons, of which one token has what is not finite
        let (owned, dim) = (rows, cols);
        let mut h = numbers(&mut rng, tokens * owned);
        h[5 * owned + 1] = f32::NAN;
        h[9 * owned] = f32::NEG_INFINITY;
        let args = [Arg::Read(Some(&bytes)), Arg::Numbers(Some(&h)), Arg::Numbers(None)];
        let args = [&args[..], &[int(owned), int(dim), int(tokens), Arg::Int(0), Arg::Out(0)]].concat();
        for got in run(&format!("pi_tensor_down_{ty}"), [1; 3], 256, &vec![0.0; dim * tokens], &args) {
            for (t, row) in got.chunks(dim).enumerate() {
                assert_eq!(row.iter().all(|v| v.is_finite()), t != 5 && t != 9, "{ty}, token {t}: {row:?}");
            }
        }
    }
    // a weight, in both
    let mut w = numbers(&mut rng, rows * cols);
    w[cols + 9] = f32::INFINITY;
    let bytes: Vec<u8> = w.iter().flat_map(|v| v.to_le_bytes()).collect();
    let x = numbers(&mut rng, tokens * cols);
    let weights = [Arg::Read(Some(&bytes)), Arg::Numbers(Some(&x)), Arg::Numbers(None)];
    let sizes = [int(rows), int(cols), int(tokens), Arg::Int(0), Arg::Read(None), Arg::Out(0)];
    for got in run("pi_tensor_linear_F32", [1; 3], 256, &vec![0.0; rows * tokens], &[&weights[..], &sizes].concat()) {
        assert!(got.iter().enumerate().all(|(i, v)| v.is_finite() == (i % rows != 1)), "{got:?}");
    }
    let sizes = [int(rows), int(cols), int(tokens), Arg::Int(0), Arg::Out(0)];
    for got in run("pi_tensor_down_F32", [1; 3], 256, &vec![0.0; cols * tokens], &[&weights[..], &sizes].concat()) {
        assert!(got.iter().skip(9).step_by(cols).all(|v| !v.is_finite()), "{got:?}");
    }
}
