//! The FFN: neurons that fire as often as they should.

use super::{
    attention::random_bias,
    error::Result,
    math::{Packed, Source, add_scaled, dot},
    model::{BIAS, SynthModel},
    predictor::Predictor,
    shape::Family,
    stream::{Plan, Rows, Stream},
    text::{Text, transposed},
    thresholds::widened,
};
use rayon::prelude::*;
use std::io::Write;

/// The FFN of a layer in the making.
pub(super) struct Neurons<'a> {
    pub model: &'a SynthModel,
    pub text: &'a Text,
    /// Their inputs, `[token][dim]`, and what was divided by to get them.
    pub x: &'a [f32],
    pub scales: &'a [f32],
    pub predictor: &'a Predictor,
    /// Thresholds in the order of the neurons.
    pub thresholds: &'a [f64],
}

/// What decides whether a neuron fires.
pub(super) struct Gates {
    /// `inputs[neuron][token]`, biases included: a neuron fires where it is above 0.
    pub inputs: Vec<f32>,
    /// Per neuron: what a predictor must add to what it sees.
    pub offsets: Vec<f32>,
}

impl Neurons<'_> {
    /// Writes the matrix that decides which neurons fire.
    pub fn gates<W: Write>(&self, s: &mut Stream<'_, W>) -> Result<Gates> {
        let (d, n, tokens) = (self.model.shape.dim, self.model.shape.neurons, self.text.len());
        let name = format!("blk.{}.{}", s.layer, if self.model.family.has_gate() { "ffn_gate" } else { "ffn_up" });
        let noise = Source::new(self.model.seed, &name);
        let noise_std = self.model.noise as f32 / (d as f32).sqrt();
        let fill = |r: usize, row: &mut [f32]| {
            noise.row(r).fill(BIAS, &mut row[BIAS..], noise_std);
            self.predictor.add_to(r, row);
        };
        // The constant's sum for every token: a gate's bias is a multiple of it.
        let constants: Vec<f32> = self.x.chunks_exact(d).map(|x| x[..BIAS].iter().sum()).collect();
        // Per neuron: its inputs, its offset, its bias.
        let mut found = vec![0.0; n * (tokens + 2)];
        let weight = format!("{name}.weight");
        let plan = Plan { name: &weight, ty: self.model.ty, rows: n, cols: d };
        let packed = Packed::new(self.x, d);
        s.panels(plan, &mut found, fill, |rows| self.calibrate(rows, &packed, &constants), |_, _| {})?;
        let row = tokens + 2;
        if self.model.has_bias("ffn_up") {
            let bias: Vec<f32> = found.chunks_exact(row).map(|f| f[tokens + 1]).collect();
            s.vector(&format!("{name}.bias"), &bias)?;
        }
        let offsets = found.chunks_exact(row).map(|f| f[tokens]).collect();
        let inputs = found.chunks_exact(row).flat_map(|f| &f[..tokens]).copied().collect();
        Ok(Gates { inputs, offsets })
    }

    /// Gives stored rows the biases with which they fire as often as they should.
    fn calibrate(&self, rows: Rows<'_>, x: &Packed, constants: &[f32]) {
        let (d, tokens, n) = (self.model.shape.dim, self.text.len(), self.text.calibration);
        let info = self.model.ty.info();
        let mut products = vec![0.0; rows.stored.len() / d * tokens];
        x.products(rows.stored, &mut products);
        let biased = BIAS.max(info.block_len);
        let stored_bytes = biased / info.block_len * info.block_bytes;
        let row_bytes = d / info.block_len * info.block_bytes;
        for (r, out) in rows.out.chunks_exact_mut(tokens + 2).enumerate() {
            let neuron = rows.first + r;
            let (inputs, rest) = out.split_at_mut(tokens);
            inputs.copy_from_slice(&products[r * tokens..][..tokens]);
            let threshold = widened(self.thresholds[neuron], n);
            if self.model.has_bias("ffn_up") {
                let (mean, deviation) = moments(inputs[..n].iter().map(|&z| f64::from(z)));
                let bias = -(mean + threshold * deviation) as f32;
                inputs.iter_mut().for_each(|z| *z += bias);
                rest[1] = bias;
            } else {
                // In units of the constant, whose share of a token's normalised state varies a little.
                let ratios = inputs[..n].iter().zip(constants).map(|(&z, &c)| f64::from(z) / f64::from(c));
                let (mean, deviation) = moments(ratios);
                let wanted = &mut rows.wanted[r * d..][..biased];
                let stored = &mut rows.stored[r * d..][..biased];
                let bytes = &mut rows.bytes[r * row_bytes..][..stored_bytes];
                wanted[..BIAS].fill(-(mean + threshold * deviation) as f32);
                let before = stored.to_vec();
                (info.encode)(wanted, bytes);
                (info.decode)(bytes, stored);
                let change: Vec<f32> = stored.iter().zip(&before).map(|(new, old)| new - old).collect();
                for (z, x) in inputs.iter_mut().zip(self.x.chunks_exact(d)) {
                    *z += dot(&change, &x[..biased]);
                }
            }
            // A predictor sees states before the norm.
            let mut unseen: Vec<f32> = inputs.iter().zip(self.scales).map(|(z, s)| z * s).collect();
            self.predictor.add_seen(neuron, -1.0, &mut unseen);
            rest[0] = (unseen[..n].iter().map(|&v| f64::from(v)).sum::<f64>() / n as f64) as f32;
        }
    }

    /// Writes the other matrices, and returns what the FFN adds to the hidden states.
    pub fn outputs<W: Write>(&self, s: &mut Stream<'_, W>, gates: &Gates) -> Result<Vec<f32>> {
        let values = self.values(s, gates)?;
        let (model, tokens) = (self.model, self.text.len());
        let (d, n) = (model.shape.dim, model.shape.neurons);
        let of_calibration = values.chunks_exact(tokens).flat_map(|v| &v[..self.text.calibration]);
        let power = of_calibration.map(|&v| f64::from(v).powi(2)).sum::<f64>() / self.text.calibration as f64;
        let std = model.strength() / (power.max(1e-12).sqrt() as f32);
        // The same numbers in both forms.
        let source = Source::new(model.seed, &format!("blk.{}.ffn_down", s.layer));
        let name = format!("blk.{}.{}", s.layer, if model.is_sparse() { "ffn_down_t" } else { "ffn_down" });
        let weight = format!("{name}.weight");
        let mut added = vec![0.0; tokens * d];
        if model.is_sparse() {
            let fill = |r: usize, row: &mut [f32]| source.row(r).fill(BIAS, &mut row[BIAS..], std);
            let add = |first: usize, stored: &[f32]| {
                added.par_chunks_exact_mut(d).enumerate().for_each(|(t, y)| {
                    for (r, row) in stored.chunks_exact(d).enumerate() {
                        let value = values[(first + r) * tokens + t];
                        if value != 0.0 {
                            add_scaled(y, value, row);
                        }
                    }
                });
            };
            s.panels(Plan { name: &weight, ty: model.ty, rows: n, cols: d }, &mut [], fill, |_| {}, add)?;
        } else {
            let keys: Vec<_> = (0..n).map(|j| source.row(j)).collect();
            let fill = |r: usize, row: &mut [f32]| {
                if r >= BIAS {
                    row.iter_mut().zip(&keys).for_each(|(v, key)| *v = key.normal(r as u32) * std);
                }
            };
            let values = Packed::new(&transposed(&values, tokens), n);
            let mut out = vec![0.0; d * tokens];
            let plan = Plan { name: &weight, ty: model.ty, rows: d, cols: n };
            s.panels(plan, &mut out, fill, |rows| values.products(rows.stored, rows.out), |_, _| {})?;
            added = transposed(&out, tokens);
        }
        if model.has_bias("ffn_down") {
            let name = format!("{name}.bias");
            let bias = random_bias(model, &name, d, true);
            added.chunks_exact_mut(d).for_each(|y| add_scaled(y, 1.0, &bias));
            s.vector(&name, &bias)?;
        }
        Ok(added)
    }

    /// What neurons give, `[neuron][token]`; writes up where there is a gate beside it.
    fn values<W: Write>(&self, s: &mut Stream<'_, W>, gates: &Gates) -> Result<Vec<f32>> {
        let (d, n, tokens) = (self.model.shape.dim, self.model.shape.neurons, self.text.len());
        let mut values: Vec<f32> = gates.inputs.iter().map(|z| z.max(0.0)).collect();
        if !self.model.family.has_gate() {
            return Ok(values);
        }
        let name = format!("blk.{}.ffn_up", s.layer);
        let (source, std) = (Source::new(self.model.seed, &name), 1.0 / (d as f32).sqrt());
        let both = self.model.family == Family::Bamboo;
        let multiply = |rows: Rows<'_>| {
            for (row, out) in rows.stored.chunks_exact(d).zip(rows.out.chunks_exact_mut(tokens)) {
                for (value, x) in out.iter_mut().zip(self.x.chunks_exact(d)).filter(|(v, _)| **v != 0.0) {
                    let up = dot(row, x);
                    *value *= if both { up.max(0.0) } else { up };
                }
            }
        };
        let weight = format!("{name}.weight");
        let plan = Plan { name: &weight, ty: self.model.ty, rows: n, cols: d };
        s.panels(plan, &mut values, |r, row| source.row(r).fill(BIAS, &mut row[BIAS..], std), multiply, |_, _| {})?;
        Ok(values)
    }
}

/// Mean and standard deviation.
pub(super) fn moments(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (n, sum) = values.clone().fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v));
    let mean = sum / n;
    let squares: f64 = values.map(|v| (v - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0f64).max(1.0)).sqrt())
}
