//! One layer: written and computed.

use super::{
    attention,
    error::{Result, SynthError},
    math::{Source, cdf},
    model::SynthModel,
    neurons::{Gates, Neurons, moments},
    predictor::Predictor,
    shape::Family,
    stream::Stream,
    text::{Text, norm},
    thresholds::hot_share,
    write::LayerReport,
};
use std::io::Write;

/// Writes layer `s.layer` and carries the hidden states through it. `thresholds` are those of a layer's neurons in any order.
pub(super) fn write<W: Write>(
    model: &SynthModel,
    text: &Text,
    s: &mut Stream<'_, W>,
    thresholds: &[f64],
    h: &mut [f32],
) -> Result<LayerReport> {
    for name in model.norms() {
        write_norm(model, s, &format!("blk.{}.{name}", s.layer), &vec![1.0; model.shape.dim])?;
    }
    let (mut x, mut scales) = norm(model, h);
    let attended = attention::write(model, text, s, &x)?;
    let add = |h: &mut [f32], y: &[f32]| h.iter_mut().zip(y).for_each(|(h, y)| *h += y);
    // Falcon's FFN, and its predictor, see what the layer begins with.
    let is_parallel = model.family == Family::Falcon;
    if !is_parallel {
        add(h, &attended);
        (x, scales) = norm(model, h);
    }
    let predictor = Predictor::new(model, s.layer, h);
    let thresholds = shuffled(thresholds, Source::new(model.seed, &format!("blk.{}.thresholds", s.layer)));
    let neurons = Neurons { model, text, x: &x, scales: &scales, predictor: &predictor, thresholds: &thresholds };
    let gates = neurons.gates(s)?;
    let added = neurons.outputs(s, &gates)?;
    let mut report = measured(&gates, text);
    if model.is_sparse() {
        let counts = predictor.write(model, text, s, h, &gates.offsets, &gates.inputs)?;
        let share = |of: u64| counts.both as f64 / of.max(1) as f64;
        (report.recall, report.precision) = (Some(share(counts.fired)), Some(share(counts.predicted)));
    }
    if is_parallel {
        add(h, &attended);
    }
    add(h, &added);
    if h.iter().all(|v| v.is_finite()) { Ok(report) } else { Err(SynthError::NotFinite(s.layer)) }
}

/// Writes a norm's weight, and its bias of zeros if it has one.
pub(super) fn write_norm<W: Write>(
    model: &SynthModel,
    s: &mut Stream<'_, W>,
    name: &str,
    weight: &[f32],
) -> Result<()> {
    s.vector(&format!("{name}.weight"), weight)?;
    if model.has_norm_bias() { s.vector(&format!("{name}.bias"), &vec![0.0; weight.len()]) } else { Ok(()) }
}

/// The values in random order.
fn shuffled(values: &[f64], source: Source) -> Vec<f64> {
    let mut order: Vec<_> = (0..values.len()).map(|i| (source.row(0).bits(i as u32), i)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, i)| values[i]).collect()
}

fn measured(gates: &Gates, text: &Text) -> LayerReport {
    let (n, tokens) = (gates.offsets.len(), text.len());
    let held_out = gates.inputs.chunks_exact(tokens).flat_map(|z| &z[text.calibration..]);
    let fired = held_out.filter(|&&z| z > 0.0).count();
    // Counts over so few tokens would make neurons look more different than they are.
    let rates = gates.inputs.chunks_exact(tokens).map(|z| {
        let (mean, deviation) = moments(z.iter().map(|&z| f64::from(z)));
        cdf(mean / deviation.max(1e-12))
    });
    LayerReport {
        active: fired as f64 / (n * (tokens - text.calibration)) as f64,
        hot: hot_share(rates.collect()),
        recall: None,
        precision: None,
    }
}
