//! Norms and matrices.

use super::{Checked, close, hidden, linear, matrix, random, refused, same, text, tolerance, wide};
use crate::Random;
use pi_core::{Dense, Device, LinearSpec, NormSpec, QuantType, Write};

pub(super) fn check(device: &dyn Device) -> Checked {
    norms(device)?;
    for ty in QuantType::ALL.into_iter().filter(|ty| device.supports(*ty)) {
        matrices(device, ty).map_err(|e| format!("{ty}: {e}"))?;
    }
    shapes(device)
}

fn norms(device: &dyn Device) -> Checked {
    let mut rng = Random(11);
    for dim in [1, 3, 8, 64, 77] {
        for tokens in [1, 2, 5] {
            let weight: Vec<f32> = random(&mut rng, dim, 1.0);
            let bias: Vec<f32> = random(&mut rng, dim, 1.0);
            let mut x = random(&mut rng, tokens * dim, 3.0);
            x[0] = 7e4;
            let specs = [
                NormSpec::Rms { weight: weight.clone().into(), eps: 1e-5 },
                NormSpec::Layer { weight: weight.clone().into(), bias: None, eps: 1e-5 },
                NormSpec::Layer { weight: weight.clone().into(), bias: Some(bias.clone().into()), eps: 0.1 },
            ];
            for spec in specs {
                let (eps, centred, bias) = match &spec {
                    NormSpec::Layer { bias, eps, .. } => (*eps, true, bias.clone()),
                    NormSpec::Rms { eps, .. } => (*eps, false, None),
                    _ => continue,
                };
                let mut want = Vec::new();
                for row in wide(&x).chunks_exact(dim) {
                    let mean = if centred { row.iter().sum::<f64>() / dim as f64 } else { 0.0 };
                    let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / dim as f64;
                    let scale = 1.0 / (var + f64::from(eps)).sqrt();
                    let bias = |i: usize| bias.as_ref().map_or(0.0, |b| f64::from(b[i]));
                    want.extend((0..dim).map(|i| (row[i] - mean) * scale * f64::from(weight[i]) + bias(i)));
                }
                let what = format!("norm of {tokens} rows of {dim}, {spec:?}");
                both(device, &*device.norm(&spec).map_err(text)?, &what, &x, dim, &want, dim, 2e-5)?;
            }
        }
    }
    let bad = NormSpec::Layer { weight: vec![1.0; 4].into(), bias: Some(vec![1.0; 3].into()), eps: 1e-5 };
    refused("a norm with a bias of another length", device.norm(&bad))
}

fn matrices(device: &dyn Device, ty: QuantType) -> Checked {
    let mut rng = Random(12);
    let block = ty.info().block_len.max(ty.info().activation.info().block_len);
    let widths: Vec<usize> = if block == 1 { vec![1, 7, 64, 130] } else { vec![block, 3 * block] };
    for cols in widths {
        for (rows, tokens) in [(1, 1), (2, 3), (5, 2), (37, 1), (70, 17)] {
            let weight = matrix(&mut rng, "w", ty, rows, cols);
            let x = random(&mut rng, tokens * cols, 1.0);
            let bias = (rows % 2 == 1).then(|| random(&mut rng, rows, 1.0));
            let want = linear(&weight, bias.as_deref(), &wide(&x));
            let op = device.linear(&LinearSpec { weight, bias: bias.map(Into::into) }).map_err(text)?;
            let what = format!("{tokens} rows by a matrix [{rows}, {cols}]");
            both(device, &*op, &what, &x, cols, &want, rows, tolerance(ty))?;
        }
    }
    Ok(())
}

/// All row counts from 1 to 70, which no tile divides.
fn shapes(device: &dyn Device) -> Checked {
    let mut rng = Random(13);
    for rows in 1..=70 {
        let weight = matrix(&mut rng, "w", QuantType::F32, rows, 33);
        let tokens = 1 + rows % 9;
        let x = random(&mut rng, tokens * 33, 1.0);
        let want = linear(&weight, None, &wide(&x));
        let op = device.linear(&LinearSpec::new(weight)).map_err(text)?;
        both(device, &*op, &format!("a matrix of {rows} rows"), &x, 33, &want, rows, 2e-5)?;
    }
    let weight = matrix(&mut rng, "w", QuantType::F32, 4, 8);
    let bad = LinearSpec { weight: weight.clone(), bias: Some(vec![0.0; 5].into()) };
    refused("a bias of another length", device.linear(&bad))?;
    let op = device.linear(&LinearSpec::new(weight)).map_err(text)?;
    same("bytes of a matrix of 4 x 8 F32", op.bytes(), 128)
}

/// Sets, then adds, then asks for what does not fit.
#[allow(clippy::too_many_arguments)]
fn both(
    device: &dyn Device,
    op: &dyn Dense,
    what: &str,
    x: &[f32],
    inputs: usize,
    want: &[f64],
    outputs: usize,
    tolerance: f64,
) -> Checked {
    let tokens = x.len() / inputs;
    let mut x = hidden(device, x, inputs)?;
    let mut y = device.hidden(tokens + 1, outputs).map_err(text)?;
    op.apply(&mut x, &mut y, Write::Set).map_err(text)?;
    same(&format!("{what}: rows"), y.tokens(), tokens)?;
    close(what, y.host().map_err(text)?, want, tolerance)?;
    op.apply(&mut x, &mut y, Write::Add).map_err(text)?;
    let twice: Vec<f64> = want.iter().map(|v| 2.0 * v).collect();
    close(&format!("{what}, added"), y.host().map_err(text)?, &twice, tolerance)?;

    let mut other = device.hidden(tokens + 1, inputs + 1).map_err(text)?;
    refused(&format!("{what}: input of another width"), op.apply(&mut other, &mut y, Write::Add))?;
    let mut other = device.hidden(tokens, outputs + 1).map_err(text)?;
    refused(&format!("{what}: output of another width"), op.apply(&mut x, &mut other, Write::Set))?;
    let mut more = device.hidden(tokens + 1, outputs).map_err(text)?;
    refused(&format!("{what}: added to more rows"), op.apply(&mut x, &mut more, Write::Add))?;
    if tokens > 1 {
        let mut fewer = device.hidden(tokens - 1, outputs).map_err(text)?;
        refused(&format!("{what}: more rows than the output has room for"), op.apply(&mut x, &mut fewer, Write::Set))?;
    }
    close(&format!("{what}, after refused calls"), y.host().map_err(text)?, &twice, tolerance)
}
