//! Matrices and norms.

use crate::{
    Kernels,
    matmul::{Product, encode, products},
    split,
    weights::{Packer, Weights},
};
use pi_core::{Dense, Error, Executor, Hidden, LinearSpec, NeuronSet, NormSpec, Result, Write};
use std::sync::Arc;

/// `y = W·x + b` on the CPU.
pub(crate) struct Linear {
    w: Weights,
    bias: Option<Arc<[f32]>>,
    exec: Arc<dyn Executor>,
}

impl Linear {
    /// With the weights where they lie, or repacked.
    pub(crate) fn new(spec: &LinearSpec, kernels: &Kernels, packer: &Packer, exec: &Arc<dyn Executor>) -> Self {
        let w = packer.weights(&spec.weight, &NeuronSet::all(spec.weight.rows()), kernels, &**exec);
        Self { w, bias: spec.bias.clone(), exec: exec.clone() }
    }

    /// Checks input and output, and encodes the input.
    fn prepare(&self, x: &mut Hidden, y: &mut Hidden, how: Write) -> Result<()> {
        let Weights { m, k } = &self.w;
        check(m.name(), x, m.cols(), y, m.rows(), how)?;
        encode(&*self.exec, &k.activations, x).map(drop)
    }

    /// With what [`prepare`](Self::prepare) has prepared.
    fn product<'a>(&'a self, x: &'a Hidden, y: &'a mut Hidden, how: Write) -> Result<Product<'a>> {
        let Weights { m, k } = &self.w;
        let x = x.encoded(k.activations.form).ok_or_else(|| Error::shape("activations", "encoded rows", "none"))?;
        Ok(Product { k, w: m.view(), rows: m.rows(), x, bias: self.bias.as_deref(), y: output(y, how)?, how })
    }

    /// Sets the outputs of three matrices for the same input, in one parallel section.
    pub(crate) fn apply_three(all: [&Self; 3], x: &mut Hidden, y: [&mut Hidden; 3]) -> Result<()> {
        let ([a, b, c], [ya, yb, yc]) = (all, y);
        for (linear, y) in [(a, &mut *ya), (b, &mut *yb), (c, &mut *yc)] {
            linear.prepare(x, y, Write::Set)?;
        }
        let set = Write::Set;
        products(&*a.exec, [a.product(x, ya, set)?, b.product(x, yb, set)?, c.product(x, yc, set)?]);
        Ok(())
    }
}

impl Dense for Linear {
    fn apply(&self, x: &mut Hidden, y: &mut Hidden, how: Write) -> Result<()> {
        self.prepare(x, y, how)?;
        products(&*self.exec, [self.product(x, y, how)?]);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.w.m.size_bytes() as u64
    }
}

/// RMSNorm or LayerNorm.
pub(crate) struct Norm {
    pub spec: NormSpec,
    pub exec: Arc<dyn Executor>,
}

impl Norm {
    pub(crate) fn check(spec: &NormSpec) -> Result<()> {
        match spec {
            NormSpec::Layer { weight, bias: Some(bias), .. } if weight.len() != bias.len() => {
                Err(Error::shape("bias of a norm", weight.len(), bias.len()))
            }
            NormSpec::Rms { .. } | NormSpec::Layer { .. } => Ok(()),
            other => Err(Error::unsupported(format!("{other:?}"), "the CPU device knows RMSNorm and LayerNorm")),
        }
    }

    fn weight(&self) -> &[f32] {
        match &self.spec {
            NormSpec::Rms { weight, .. } | NormSpec::Layer { weight, .. } => weight,
            _ => &[],
        }
    }
}

impl Dense for Norm {
    fn apply(&self, x: &mut Hidden, y: &mut Hidden, how: Write) -> Result<()> {
        let dim = self.weight().len();
        check("norm", x, dim, y, dim, how)?;
        let x = x.host()?;
        let y = output(y, how)?;
        split::chunks(&*self.exec, y, dim, |t, row| norm_row(&self.spec, &x[t * dim..(t + 1) * dim], row, how));
        Ok(())
    }

    fn bytes(&self) -> u64 {
        4 * self.weight().len() as u64
    }
}

/// One row. Sums run in f64 and in order: exact enough for any width, and cheap beside the matrices.
fn norm_row(spec: &NormSpec, x: &[f32], y: &mut [f32], how: Write) {
    let n = x.len() as f64;
    let (mean, scale, weight, bias) = match spec {
        NormSpec::Rms { weight, eps } => {
            let sum: f64 = lanes(x, |v| v * v);
            (0.0, 1.0 / (sum / n + *eps as f64).sqrt(), weight, None)
        }
        NormSpec::Layer { weight, bias, eps } => {
            let mean = lanes(x, |v| v) / n;
            let var = lanes(x, |v| (v - mean) * (v - mean)) / n;
            (mean as f32, 1.0 / (var + *eps as f64).sqrt(), weight, bias.as_deref())
        }
        _ => return,
    };
    let scale = scale as f32;
    for i in 0..x.len() {
        let v = (x[i] - mean) * scale * weight[i] + bias.map_or(0.0, |b| b[i]);
        match how {
            Write::Set => y[i] = v,
            Write::Add => y[i] += v,
        }
    }
}

/// Σ f(x) in eight lanes, always in the same order.
fn lanes(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let mut acc = [0.0f64; 8];
    let (blocks, rest) = x.as_chunks::<8>();
    for b in blocks {
        for i in 0..8 {
            acc[i] += f(b[i] as f64);
        }
    }
    acc.iter().sum::<f64>() + rest.iter().map(|&v| f(v as f64)).sum::<f64>()
}

/// Checks widths and row counts, and resizes an output that is to be set.
pub(crate) fn check(what: &str, x: &Hidden, inputs: usize, y: &mut Hidden, outputs: usize, how: Write) -> Result<()> {
    if x.dim() != inputs {
        return Err(Error::shape(format!("input of {what}"), format!("rows of {inputs}"), x.dim()));
    }
    if y.dim() != outputs {
        return Err(Error::shape(format!("output of {what}"), format!("rows of {outputs}"), y.dim()));
    }
    match how {
        Write::Set => y.resize(x.tokens()),
        Write::Add if y.tokens() == x.tokens() => Ok(()),
        Write::Add => Err(Error::shape(format!("output of {what}"), format!("{} rows", x.tokens()), y.tokens())),
    }
}

/// The host's rows of an output.
pub(crate) fn output(y: &mut Hidden, how: Write) -> Result<&mut [f32]> {
    match how {
        Write::Set => Ok(y.host_overwrite()),
        Write::Add => y.host_mut(),
    }
}
