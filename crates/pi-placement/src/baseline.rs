//! Placements to compare with: they know neither bounds nor synchronisation.

use crate::problem::set_of;
use crate::{Objective, Placement, Problem, Result, Solver};
use pi_core::NeuronSet;
use std::time::Instant;

/// No neuron on the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

/// Whole layers from the first one on, then the first batches of the next: what fits, as offloading by layers does.
#[derive(Clone, Copy, Debug, Default)]
pub struct InOrder;

/// Batches of random neurons from all layers until nothing more fits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random {
    /// The same seed gives the same neurons.
    pub seed: u64,
}

/// The batches that fire most often, over all layers, whatever their size and whatever synchronising costs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frequency;

impl Solver for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }

    fn solve(&self, problem: &Problem) -> Result<Placement> {
        fill(problem, self.name(), Instant::now(), ranked(problem, |n, _| (0..n as u32).collect()), &[])
    }
}

impl Solver for InOrder {
    fn name(&self) -> &str {
        "in-order"
    }

    fn solve(&self, problem: &Problem) -> Result<Placement> {
        let start = Instant::now();
        let wanted: Vec<usize> = (0..problem.layers().len()).flat_map(|l| vec![l; batches(problem, l)]).collect();
        fill(problem, self.name(), start, ranked(problem, |n, _| (0..n as u32).collect()), &wanted)
    }
}

impl Solver for Random {
    fn name(&self) -> &str {
        "random"
    }

    fn solve(&self, problem: &Problem) -> Result<Placement> {
        let start = Instant::now();
        let mut random = fastrand::Rng::with_seed(self.seed);
        let orders = ranked(problem, |n, _| {
            let mut order: Vec<u32> = (0..n as u32).collect();
            random.shuffle(&mut order);
            order
        });
        let mut wanted: Vec<usize> = (0..problem.layers().len()).flat_map(|l| vec![l; batches(problem, l)]).collect();
        random.shuffle(&mut wanted);
        fill(problem, self.name(), start, orders, &wanted)
    }
}

impl Solver for Frequency {
    fn name(&self) -> &str {
        "frequency"
    }

    fn solve(&self, problem: &Problem) -> Result<Placement> {
        let start = Instant::now();
        let mut wanted = Vec::new();
        for (l, layer) in problem.layers().iter().enumerate() {
            for (chunk, mass) in layer.ranking().chunks(problem.batch()).zip(layer.mass().windows(2)) {
                wanted.push(((mass[1] - mass[0]) / chunk.len() as f64, l));
            }
        }
        wanted.sort_by(|a, b| b.0.total_cmp(&a.0));
        let wanted: Vec<usize> = wanted.into_iter().map(|(_, l)| l).collect();
        fill(problem, self.name(), start, ranked(problem, |_, ranking| ranking.to_vec()), &wanted)
    }
}

fn batches(problem: &Problem, l: usize) -> usize {
    problem.layers()[l].neurons().div_ceil(problem.batch())
}

/// An order of the neurons of each layer, given their number and their ranking.
fn ranked(problem: &Problem, mut order: impl FnMut(usize, &[u32]) -> Vec<u32>) -> Vec<Vec<u32>> {
    problem.layers().iter().map(|l| order(l.neurons(), l.ranking())).collect()
}

/// Takes the next batch of each `wanted` layer, in its order, as long as it fits. A layer whose next batch does not fit gets no more.
fn fill(problem: &Problem, name: &str, start: Instant, orders: Vec<Vec<u32>>, wanted: &[usize]) -> Result<Placement> {
    let mut count = vec![0; orders.len()];
    let mut full = vec![false; orders.len()];
    let mut room = problem.memory().device;
    for &l in wanted {
        let layer = &problem.layers()[l];
        let more = problem.batch().min(layer.neurons() - count[l]);
        let bytes = more as u64 * layer.spec().device.bytes;
        full[l] |= bytes > room;
        if !full[l] {
            count[l] += more;
            room -= bytes;
        }
    }
    let sets = orders.iter().zip(&count).map(|(order, &k)| set_of(order.len(), order[..k].iter().map(|&i| i as usize)));
    let sets = sets.collect::<Result<Vec<NeuronSet>>>()?;
    Ok(Placement::new(problem, sets, Objective::Impact, name)?.started(start))
}
