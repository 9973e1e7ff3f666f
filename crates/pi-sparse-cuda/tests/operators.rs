//! Operators through the driver: an emulated one, or with `PI_CUDA_TEST=real` that of a GPU.

use pi_core::{Dense, Device, Error, Hidden, LinearSpec, Matrix, NormSpec, QuantType, Write};
use pi_cuda_emu::use_driver;
use pi_sparse_cuda::{Cuda, Unavailable};
use pi_testkit::{Random, kernels::random_row};
use std::sync::Arc;

fn cuda() -> Option<Cuda> {
    match use_driver() {
        Ok(()) => Some(Cuda::open(0).unwrap()),
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

#[test]
fn the_device_passes_the_conformance_suite() {
    let Some(cuda) = cuda() else { return };
    pi_testkit::device::check(&cuda).unwrap();
}
