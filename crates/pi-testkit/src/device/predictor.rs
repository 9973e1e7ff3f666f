//! Predictors of two matrices.

use super::{Checked, hidden, linear, matrix, random, refused, same, text, tolerance, wide};
use crate::Random;
use pi_core::{ActiveSet, Device, Hidden, Limits, MlpSpec, QuantType};

pub(super) fn check(device: &dyn Device) -> Checked {
    for ty in QuantType::ALL.into_iter().filter(|ty| device.supports(*ty)) {
        let block = ty.info().block_len;
        for (dim, rank, neurons) in [(256, 256, 200), (block, 2 * block, 64), (3 * block, block, 1)] {
            for tokens in [1, 2, 40] {
                let what = format!("predictor of {ty}, {dim} to {rank} to {neurons}, {tokens} tokens");
                // the larger ones are beyond F16
                for size in [1.0, 1e6] {
                    let what = |e| format!("{what}, inputs of size {size}: {e}");
                    marks(device, ty, (dim, rank, neurons), tokens, size).map_err(what)?;
                }
            }
        }
    }
    shapes(device)
}

fn spec(rng: &mut Random, ty: QuantType, (dim, rank, neurons): (usize, usize, usize), threshold: f32) -> MlpSpec {
    MlpSpec { fc1: matrix(rng, "fc1", ty, rank, dim), fc2: matrix(rng, "fc2", ty, neurons, rank), threshold }
}

fn limits(tokens: usize) -> Limits {
    Limits { tokens, sequences: 1, context: tokens }
}

fn marks(device: &dyn Device, ty: QuantType, shape: (usize, usize, usize), tokens: usize, size: f32) -> Checked {
    let (dim, _, neurons) = shape;
    let mut rng = Random(21);
    let x = random(&mut rng, tokens * dim, size);
    for threshold in [0.0, 0.2, -1.0, f32::NEG_INFINITY, f32::INFINITY] {
        let spec = spec(&mut Random(22), ty, shape, threshold);
        let mut inner = linear(&spec.fc1, None, &wide(&x));
        inner.iter_mut().for_each(|v| *v = v.max(0.0));
        let want = linear(&spec.fc2, None, &inner);
        // inputs of F16 matrices may be rounded to F16
        let tolerance = if ty == QuantType::F16 { 1e-3 } else { tolerance(ty) };
        let unclear = want.iter().fold(1e-3f64, |m, v| m.max(v.abs())) * tolerance;
        let predictor = device.mlp(&spec).map_err(text)?;
        same("kind", predictor.kind(), "mlp")?;
        same("width and neurons", (predictor.dim(), predictor.neurons()), (dim, neurons))?;
        let mut run = predictor.open(&limits(tokens + 1)).map_err(text)?;
        let mut active = ActiveSet::new(tokens + 1, neurons);
        // twice, with another input before: nothing may be left over
        for _ in 0..2 {
            let (mut h, mut other) = (hidden(device, &x, dim)?, device.hidden(tokens, dim).map_err(text)?);
            run.mark(&mut h, &mut other, &mut active).map_err(text)?;
        }
        same("tokens", active.tokens(), tokens)?;
        let words = active.words();
        let bits = active.host().map_err(text)?.ok_or("all neurons are marked")?;
        for (t, want) in want.chunks_exact(neurons).enumerate() {
            let row = &bits[t * words..(t + 1) * words];
            for (i, v) in want.iter().enumerate() {
                let marked = row[i / 64] >> (i % 64) & 1 == 1;
                if (v - f64::from(threshold)).abs() > unclear && marked != (*v >= f64::from(threshold)) {
                    return Err(format!("token {t}, neuron {i}: {v:.4} against {threshold}, marked: {marked}"));
                }
            }
            let beyond = (neurons..64 * words).any(|i| row[i / 64] >> (i % 64) & 1 == 1);
            same("marks beyond the last neuron", beyond, false)?;
        }
    }
    Ok(())
}

fn shapes(device: &dyn Device) -> Checked {
    let good = spec(&mut Random(23), QuantType::F32, (8, 4, 10), 0.0);
    let other = matrix(&mut Random(23), "fc2", QuantType::F32, 10, 5);
    refused("matrices that do not fit each other", device.mlp(&MlpSpec { fc2: other, ..good.clone() }))?;
    refused("a threshold of NaN", device.mlp(&MlpSpec { threshold: f32::NAN, ..good.clone() }))?;
    let open = || device.mlp(&good).and_then(|p| p.open(&limits(2))).map_err(text);
    let mut active = ActiveSet::new(3, 10);
    let room = |tokens, dim| device.hidden(tokens, dim).map_err(text);
    let wide = open()?.mark(&mut room(2, 9)?, &mut room(2, 9)?, &mut active);
    refused("a wider input", wide)?;
    refused("more tokens than there is room for", open()?.mark(&mut room(3, 8)?, &mut room(3, 8)?, &mut active))?;
    refused("another number of neurons", open()?.mark(&mut room(2, 8)?, &mut room(2, 8)?, &mut ActiveSet::new(2, 11)))?;
    // a number that is not one marks its neurons, so that what is wrong is seen
    let mut odd: Hidden = hidden(device, &[f32::NAN; 8], 8)?;
    open()?.mark(&mut odd, &mut room(1, 8)?, &mut active).map_err(text)?;
    same("marks of NaN", active.host().map_err(text)?, Some(&[0x3ff][..]))
}
