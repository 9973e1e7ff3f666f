//! A plan as JSON.

use pi_engine::{Side, costs::Origin, planner::Planned};
use serde::Serialize;
use std::path::Path;

/// A whole plan. Bytes are on the device, times in seconds per token.
#[derive(Serialize)]
pub struct Document {
    model: String,
    budget: u64,
    bytes: Bytes,
    layers: Vec<Layer>,
    output: Output,
    hot_neurons: usize,
    neurons: usize,
    hot_share: f64,
    hit_rate: f64,
    /// `counted`, `assumed` or `certain` (every neuron is computed).
    statistics: &'static str,
    counted_tokens: Option<u64>,
    seconds_per_token: f64,
    tokens_per_second: f64,
    choice: Option<Choice>,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Bytes {
    total: u64,
    runtime: u64,
    hidden: u64,
    norms: u64,
    attention: u64,
    kv: u64,
    predictors: u64,
    output: u64,
    neurons: u64,
    scratch: u64,
}

#[derive(Serialize)]
struct Layer {
    layer: usize,
    dense: &'static str,
    norms: u64,
    attention: u64,
    kv: u64,
    predictor: u64,
    hot: usize,
    neurons: u64,
    scratch: u64,
    host_seconds: f64,
    device_seconds: f64,
    sync_seconds: f64,
    seconds: f64,
}

#[derive(Serialize)]
struct Output {
    side: &'static str,
    seconds: f64,
}

#[derive(Serialize)]
struct Choice {
    policy: String,
    solver: String,
    gap: Option<f64>,
    seconds: f64,
}

#[derive(Serialize)]
struct Figure {
    figure: String,
    value: f64,
    measured: bool,
}

fn side(side: Side) -> &'static str {
    if side == Side::Cpu { "cpu" } else { "device" }
}

impl Document {
    pub fn new(model: &Path, planned: &Planned) -> Self {
        let (m, sum, plan) = (&planned.memory, planned.memory.layers(), &planned.plan);
        let layers = m.layers.iter().zip(&plan.layers).zip(&planned.times.layers).enumerate();
        let layers = layers.map(|(layer, ((b, l), t))| Layer {
            layer,
            dense: side(l.dense),
            norms: b.norms,
            attention: b.attention,
            kv: b.kv,
            predictor: b.predictor,
            hot: l.hot.len(),
            neurons: b.neurons,
            scratch: b.scratch,
            host_seconds: t.host,
            device_seconds: t.device,
            sync_seconds: t.sync,
            seconds: t.total,
        });
        let figures = planned.times.figures.iter().map(|(figure, f)| Figure {
            figure: figure.clone(),
            value: f.value,
            measured: f.origin == Origin::Measured,
        });
        let choice = planned.choice.as_ref().map(|c| Choice {
            policy: c.policy.to_string(),
            solver: c.solver.clone(),
            gap: c.gap,
            seconds: c.elapsed.as_secs_f64(),
        });
        let seconds = planned.times.total();
        let known = planned.statistics.is_known();
        Self {
            model: model.display().to_string(),
            budget: planned.budget,
            bytes: Bytes {
                total: m.total(),
                runtime: m.runtime,
                hidden: m.hidden,
                norms: sum.norms,
                attention: sum.attention,
                kv: sum.kv,
                predictors: sum.predictor,
                output: m.output,
                neurons: sum.neurons,
                scratch: sum.scratch,
            },
            layers: layers.collect(),
            output: Output { side: side(plan.head), seconds: planned.times.output },
            hot_neurons: planned.hot(),
            neurons: planned.neurons(),
            hot_share: planned.hot_share(),
            hit_rate: planned.hit_rate(),
            statistics: match planned.statistics.tokens() {
                Some(_) => "counted",
                None if known => "certain",
                None => "assumed",
            },
            counted_tokens: planned.statistics.tokens(),
            seconds_per_token: seconds,
            tokens_per_second: 1.0 / seconds,
            choice,
            figures: figures.collect(),
            notes: planned.notes.clone(),
        }
    }
}
