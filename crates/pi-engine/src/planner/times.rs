//! How long a token is expected to take (paper §6.3, eq. 4 and 5).

use super::{
    statistics::Statistics,
    survey::{FfnSurvey, Survey},
};
use crate::{
    Plan, Side,
    costs::{Costs, Figure, Origin, SideCosts},
};
use pi_core::NeuronSet;

/// What a layer is expected to take of a token, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerTime {
    /// The CPU is at work.
    pub host: f64,
    /// The device is at work.
    pub device: f64,
    /// Moving between the two, and waiting for it.
    pub sync: f64,
    /// The layer, from its beginning to its end: the two work at the same time where both have neurons.
    pub total: f64,
}

/// What a token is expected to take, in seconds: a single one, at the beginning of a text (reading the KV cache is not counted).
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// The layers.
    pub layers: Vec<LayerTime>,
    /// The last norm, and the matrix that gives logits, with moving to where they are.
    pub output: f64,
    /// The figures that it was made of: what each is, and its value in bytes per second, or seconds.
    pub figures: Vec<(String, Figure)>,
}

impl Times {
    /// Seconds per token.
    pub fn total(&self) -> f64 {
        self.layers.iter().map(|l| l.total).sum::<f64>() + self.output
    }

    /// Whether every figure was measured.
    pub fn is_measured(&self) -> bool {
        self.figures.iter().all(|(_, f)| f.origin == Origin::Measured)
    }

    pub(super) fn of(survey: &Survey, statistics: &Statistics, plan: &Plan, costs: &Costs) -> Self {
        let side = |s: Side| if s == Side::Cpu { &costs.host } else { &costs.device };
        let mut at = Side::Cpu;
        let mut layers = Vec::with_capacity(survey.layers.len());
        for (i, (s, l)) in survey.layers.iter().zip(&plan.layers).enumerate() {
            let home = if s.lacking.is_none() { l.dense } else { Side::Cpu };
            let hot = if s.ffn.lacking.is_none() { l.hot.clone() } else { NeuronSet::none(s.ffn.neurons) };
            let dense = (s.norms + s.attention + s.predictor_reads) as f64 / side(home).bandwidth.value;
            let fires = Fires::new(&s.ffn, statistics, i);
            let neurons = |set: &NeuronSet, side: &SideCosts| fires.of(set) * neuron_seconds(&s.ffn, side);
            let (device, host) = (neurons(&hot, &costs.device), neurons(&hot.others(), &costs.host));
            let syncs = sync(survey, costs);
            let mut moves = if at == home { 0.0 } else { syncs };
            moves += match home {
                Side::Cpu if hot.is_empty() => 0.0,
                Side::Accelerator if hot.is_all() => 0.0,
                _ => syncs,
            };
            let total = dense + moves + device.max(host);
            let (on_host, on_device) = if home == Side::Cpu { (dense, 0.0) } else { (0.0, dense) };
            layers.push(LayerTime { host: on_host + host, device: on_device + device, sync: moves, total });
            at = home;
        }
        let home = if survey.head.lacking.is_none() { plan.head } else { Side::Cpu };
        let crossing = if at == home { 0.0 } else { sync(survey, costs) };
        let output = survey.head.bytes as f64 / side(home).bandwidth.value + crossing;
        Self { layers, output, figures: figures(survey, plan, costs) }
    }
}

/// Seconds to move a layer's input, marks and output for one token, and to wait once.
pub(super) fn sync(survey: &Survey, costs: &Costs) -> f64 {
    let c = &survey.config;
    let bytes = 2 * 4 * c.dim + c.neurons.div_ceil(8);
    costs.sync.value + bytes as f64 / costs.link.value
}

/// Seconds for all of a neuron's rows.
pub(super) fn neuron_seconds(ffn: &FfnSurvey, side: &SideCosts) -> f64 {
    ffn.rows.iter().map(|&(ty, bytes)| bytes as f64 / side.neurons(ty).value).sum()
}

/// How much of each neuron is read per token: of one that does not fire, perhaps the gate.
pub(super) struct Fires<'a> {
    pub shares: &'a [f32],
    pub always: f64,
}

impl<'a> Fires<'a> {
    pub fn new(ffn: &FfnSurvey, statistics: &'a Statistics, layer: usize) -> Self {
        Self { shares: statistics.layer(layer), always: ffn.always }
    }

    /// Of one neuron, 0 to 1.
    pub fn one(&self, i: usize) -> f64 {
        self.always + (1.0 - self.always) * f64::from(self.shares[i])
    }

    /// Of a set, in neurons.
    pub fn of(&self, set: &NeuronSet) -> f64 {
        set.iter().map(|i| self.one(i)).sum()
    }
}

/// The figures that a plan's times depend on.
fn figures(survey: &Survey, plan: &Plan, costs: &Costs) -> Vec<(String, Figure)> {
    let mut types: Vec<_> = survey.layers.iter().flat_map(|l| l.ffn.rows.iter().map(|r| r.0)).collect();
    types.sort_unstable();
    types.dedup();
    let mut all = Vec::new();
    let sides = [("CPU", &costs.host), ("device", &costs.device)];
    for (name, side) in sides.into_iter().take(if plan.uses_accelerator() { 2 } else { 1 }) {
        all.push((format!("{name}: bytes per second, in order"), side.bandwidth));
        let neurons = types.iter().map(|ty| (format!("{name}: bytes per second, {ty} neurons"), side.neurons(*ty)));
        all.extend(neurons);
    }
    if plan.uses_accelerator() {
        all.push(("link: bytes per second".into(), costs.link));
        all.push(("synchronisation: seconds".into(), costs.sync));
    }
    all
}
