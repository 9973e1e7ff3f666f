//! The neurons that fill what is left of the device's memory.

use super::{
    Policy, Request,
    statistics::Statistics,
    survey::Survey,
    times::{Fires, neuron_seconds, sync},
    topup, whole,
};
use crate::{Result, Side};
use pi_core::NeuronSet;
use pi_placement::{LayerSpec, Memory, PerNeuron, Placement, Problem, SyncTime};
use std::time::{Duration, Instant};

/// How neurons were chosen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Choice {
    /// What chose them.
    pub policy: Policy,
    /// The solver's name.
    pub solver: String,
    /// How much better another choice of neurons could be, at most, as a share of what is maximised or minimised; `None` if the solver does
    /// not know. The bound leaves out what scratch takes of the memory, so with little memory it is too careful.
    pub gap: Option<f64>,
    /// How long it took.
    pub elapsed: Duration,
    /// The sets, one per layer.
    pub(super) hot: Vec<NeuronSet>,
}

/// What neurons are chosen from.
pub(super) struct Ground<'a> {
    pub survey: &'a Survey,
    pub statistics: &'a Statistics,
    pub request: &'a Request<'a>,
    /// Where each layer's attention is.
    pub homes: Vec<Side>,
    /// Bytes that are left.
    pub room: u64,
}

impl Ground<'_> {
    /// Bytes that a layer's FFN needs on the device as soon as it has a neuron there, at most.
    fn fixed(&self, i: usize) -> u64 {
        self.survey.layers[i].ffn.line.fixed
    }

    /// Bytes for one more neuron, for whoever needs one price for all.
    fn each(&self, i: usize) -> u64 {
        self.survey.layers[i].ffn.line.each
    }

    /// Bytes that neurons take with what they need.
    pub fn taken(&self, hot: &[NeuronSet]) -> u64 {
        hot.iter().enumerate().map(|(i, set)| self.survey.taken(i, set.into())).sum()
    }

    pub fn sync(&self, i: usize) -> SyncTime {
        let seconds = sync(self.survey, &self.request.costs);
        match self.homes[i] {
            Side::Cpu => SyncTime::host_layer(seconds),
            Side::Accelerator => SyncTime::device_layer(seconds),
        }
    }

    /// What a neuron takes on the device and on the CPU, in seconds, when it fires.
    pub fn seconds(&self, i: usize) -> [f64; 2] {
        let costs = &self.request.costs;
        [&costs.device, &costs.host].map(|side| neuron_seconds(&self.survey.layers[i].ffn, side))
    }

    /// The placement problem of some layers, with `room` for their neurons.
    fn problem(&self, layers: &[usize], room: u64) -> Result<Problem> {
        let group = self.request.group.min((self.survey.config.neurons / 32).max(1)).max(1);
        let spec = |&i: &usize| {
            let (s, fires) = (&self.survey.layers[i], Fires::new(&self.survey.layers[i].ffn, self.statistics, i));
            let [device, host] = self.seconds(i);
            let frequency = match self.request.policy {
                // what is read of a neuron, which is what takes time
                Policy::Time => (0..s.ffn.neurons).map(|n| (fires.one(n) as f32).min(1.0)).collect(),
                _ => fires.shares.to_vec(),
            };
            LayerSpec {
                neurons: s.ffn.neurons,
                frequency,
                device: PerNeuron { bytes: self.each(i), seconds: device },
                host: PerNeuron { bytes: s.ffn.neuron(), seconds: host },
                sync: self.sync(i),
            }
        };
        Ok(Problem::new(layers.iter().map(spec).collect(), Memory::device(room), group)?)
    }

    /// Neurons for some layers, each of which needs its scratch; `None` if that alone does not fit.
    fn solve(&self, layers: &[usize]) -> Result<Option<Try>> {
        let fixed = layers.iter().map(|&i| self.fixed(i)).sum();
        let Some(room) = self.room.checked_sub(fixed) else { return Ok(None) };
        let problem = self.problem(layers, room)?;
        let placement = self.request.policy.solver().solve(&problem)?;
        // what the same layers would take without the device is no merit
        let worth = match self.request.policy {
            Policy::Time => {
                let none: Vec<_> = problem.layers().iter().map(|l| NeuronSet::none(l.neurons())).collect();
                problem.expected_time(&none)? - placement.value
            }
            _ => placement.value,
        };
        Ok(Some(Try { layers: layers.to_vec(), worth, placement }))
    }
}

/// A choice for some layers.
struct Try {
    layers: Vec<usize>,
    worth: f64,
    placement: Placement,
}

impl Try {
    /// The layers that have neurons on the device.
    fn used(&self) -> Vec<usize> {
        let hot = self.layers.iter().zip(&self.placement.layers);
        hot.filter(|(_, set)| !set.is_empty()).map(|(&i, _)| i).collect()
    }
}

/// Neurons for all layers.
pub(super) fn choose(ground: &Ground<'_>, notes: &mut Vec<String>) -> Result<Choice> {
    let begun = Instant::now();
    let (survey, policy) = (ground.survey, ground.request.policy);
    let of = |divided: bool| {
        let can = survey.layers.iter().enumerate();
        can.filter(move |(_, l)| l.ffn.lacking.is_none() && l.ffn.divided == divided).map(|(i, _)| i)
    };
    let mut hot: Vec<_> = survey.layers.iter().map(|l| NeuronSet::none(l.ffn.neurons)).collect();
    let mut choice = Choice { policy, solver: "nothing".into(), gap: None, elapsed: Duration::ZERO, hot: Vec::new() };
    let divided = ranked(ground, of(true).collect());
    let bound = bound(ground, &divided)?;
    if let Some(best) = best(ground, divided)? {
        choice.solver = best.placement.solver.clone();
        notes.extend(best.placement.remarks.iter().map(ToString::to_string));
        for (&i, set) in best.layers.iter().zip(best.placement.layers) {
            hot[i] = set;
        }
    }
    topup::fill(ground, &mut hot);
    if let Some((problem, bound)) = bound {
        let sets: Vec<_> = of(true).map(|i| hot[i].clone()).collect();
        let [value, better] = match policy {
            Policy::Time => problem.expected_time(&sets).map(|v| [v, v - bound])?,
            _ => problem.impact(&sets).map(|v| [v, bound - v])?,
        };
        // neurons that were added one by one are no choice of whole groups, and may be worth more
        choice.gap = Some(better.max(0.0) / value.max(bound).max(f64::MIN_POSITIVE));
    }
    let whole = whole::fill(ground, of(false).collect(), ground.room.saturating_sub(ground.taken(&hot)));
    if !whole.is_empty() {
        choice.solver =
            if choice.solver == "nothing" { "whole-layers".into() } else { choice.solver + ", whole-layers" };
        choice.gap = None;
    }
    whole.into_iter().for_each(|i| hot[i] = NeuronSet::all(survey.layers[i].ffn.neurons));
    choice.hot = hot;
    choice.elapsed = begun.elapsed();
    Ok(choice)
}

/// What no choice for these layers can be better than, and the problem that says so: scratch takes no memory in it. `None` if the
/// solver does not know.
fn bound(ground: &Ground<'_>, layers: &[usize]) -> Result<Option<(Problem, f64)>> {
    if layers.is_empty() || !matches!(ground.request.policy, Policy::Time | Policy::Impact) {
        return Ok(None);
    }
    let mut layers = layers.to_vec();
    layers.sort_unstable();
    let problem = ground.problem(&layers, ground.room)?;
    let bound = ground.request.policy.solver().solve(&problem)?.bound;
    Ok(bound.map(|bound| (problem, bound)))
}

/// Layers in the order in which they are given up when there is no room for everybody's scratch, the last first.
fn ranked(ground: &Ground<'_>, mut layers: Vec<usize>) -> Vec<usize> {
    match ground.request.policy {
        Policy::InOrder | Policy::Nothing => {}
        Policy::Random { seed } => {
            layers.sort_by_key(|&i| super::mixed(seed, i as u64));
        }
        _ => {
            let hottest = |i: usize| {
                let mut shares = ground.statistics.layer(i).to_vec();
                shares.sort_unstable_by(|a, b| b.total_cmp(a));
                shares.iter().take(shares.len().div_ceil(4)).map(|f| f64::from(*f)).sum::<f64>()
            };
            layers.sort_by_cached_key(|&i| std::cmp::Reverse((hottest(i) * 1e6) as u64));
        }
    }
    layers
}

/// The best of a few numbers of layers to have neurons on the device: each that has takes memory for scratch, so with little
/// memory fewer layers have more neurons.
fn best(ground: &Ground<'_>, ranked: Vec<usize>) -> Result<Option<Try>> {
    let mut best: Option<Try> = None;
    let better = |new: &Try, old: &Option<Try>| old.as_ref().is_none_or(|old| new.worth > old.worth);
    let (mut count, mut worse) = (ranked.len(), 0);
    while count > 0 && worse < 2 {
        let mut layers = ranked[..count].to_vec();
        layers.sort_unstable();
        let fixed: u64 = layers.iter().map(|&i| ground.fixed(i)).sum();
        match ground.solve(&layers)? {
            Some(new) if better(&new, &best) => (best, worse) = (Some(new), 0),
            Some(_) => worse += 1,
            None => {} // not even the scratch fits
        }
        if best.is_some() && (fixed <= ground.room / 32 || ground.request.policy == Policy::Nothing) {
            break;
        }
        count = if count > 4 { count * 3 / 4 } else { count - 1 };
    }
    // What layers without neurons would have needed is used by the others, and whether there is room for more layers is tried again.
    for _ in 0..2 {
        let Some(now) = &best else { break };
        let used = now.used();
        if used.is_empty() || used.len() == now.layers.len() {
            break;
        }
        match ground.solve(&used)?.filter(|new| better(new, &best)) {
            Some(new) => best = Some(new),
            None => break,
        }
    }
    Ok(best)
}
