//! The problem as the structured solver sees it: per layer a table of choices.
//!
//! # Why a choice is a prefix
//!
//! A layer's whole batches hold equally many neurons, so they take equal memory on either side, and all constraints (eq. 3, 6, 7, 8)
//! see only *how many* of them are hot. If a hot batch fires less often than a cold one of the same layer, swap them: nothing
//! changes but the impact, which does not fall. After finitely many swaps the hot batches are the first of the ranking. Hence for
//! eq. 2 the best prefix is the best choice; among neurons that fire equally often any order is as good, and ours is by number.
//! The rest of a layer after its last whole batch weighs less, so the argument does not hold for it; it is *defined* to go last
//! (with batches of 1 there is no rest, and the statement is about all subsets of neurons).
//!
//! `C_l` removes the prefixes between none and `C_l` neurons; it depends on nothing but the layer. What remains is one choice per
//! layer under two limits: a multiple-choice knapsack problem.
//!
//! For the expected time a prefix is *part of the problem*: the hottest neurons are those on the device. With less than the hottest there
//! the device's side could be made shorter while memory stays used, but then so can it be with fewer neurons, up to one batch.

use crate::{Error, Layer, Objective, Problem, Result, cost};

/// The choices of one layer.
#[derive(Debug)]
pub(crate) struct Choices {
    /// Neurons on the device, ascending.
    pub count: Vec<u64>,
    /// What each choice is worth; more is better.
    pub value: Vec<f64>,
    /// Bytes per neuron on the device.
    pub device: u64,
    /// Bytes per neuron on the host; 0 where the host's limit cannot bind.
    pub host: u64,
    /// Neurons of the layer.
    pub neurons: u64,
    /// Choices on the upper concave hull of value over count.
    hull: Vec<usize>,
    /// Value per neuron from each hull choice to the next, strictly descending.
    slope: Vec<f64>,
}

/// All layers' choices and the limits.
#[derive(Debug)]
pub(crate) struct Table {
    pub layers: Vec<Choices>,
    /// Bytes on the device, rounded down to what some choice can use.
    pub device: u64,
    /// Bytes on the host.
    pub host: u64,
    /// True if the host's limit can bind.
    pub host_binds: bool,
}

impl Choices {
    fn new(index: usize, layer: &Layer, objective: Objective, problem: &Problem, host_binds: bool) -> Result<Self> {
        let (spec, memory, n) = (layer.spec(), problem.memory(), layer.neurons());
        let host = if host_binds { spec.host.bytes } else { 0 };
        let (mut count, mut value) = (Vec::new(), Vec::new());
        for (j, &mass) in layer.mass().iter().enumerate() {
            let k = (j * problem.batch()).min(n);
            let worth = match objective {
                Objective::Impact => mass,
                Objective::Time => -cost::layer_time(layer, k, mass),
            };
            let allowed = objective == Objective::Time || k == 0 || layer.min_hot().is_some_and(|c| k >= c);
            let fits = k as u64 * spec.device.bytes <= memory.device && (n - k) as u64 * host <= memory.host;
            if allowed && fits && worth.is_finite() {
                count.push(k as u64);
                value.push(worth);
            }
        }
        if count.is_empty() {
            let why = format!(
                "layer {index} of {n} neurons has no possible choice ({} bytes each on the device, {} on the host, synchronisation {} s)",
                spec.device.bytes, spec.host.bytes, spec.sync.split
            );
            return Err(Error::Infeasible { why });
        }
        let (hull, slope) = upper_hull(&count, &value);
        Ok(Self { count, value, device: spec.device.bytes, host, neurons: n as u64, hull, slope })
    }

    /// Bytes of choice `j` on the device.
    pub fn device_bytes(&self, j: usize) -> u64 {
        self.count[j] * self.device
    }

    /// Bytes of choice `j` on the host.
    pub fn host_bytes(&self, j: usize) -> u64 {
        (self.neurons - self.count[j]) * self.host
    }

    /// The choice that is worth most if a neuron on the device costs `price`; of equally good ones that with the most neurons if
    /// `most`, else with the least.
    pub fn best(&self, price: f64, most: bool) -> usize {
        self.hull[self.slope.partition_point(|&s| if most { s >= price } else { s > price })]
    }

    /// The highest value per neuron that a choice adds, and the lowest.
    pub fn slopes(&self) -> Option<(f64, f64)> {
        Some((*self.slope.first()?, *self.slope.last()?))
    }
}

impl Table {
    pub fn new(problem: &Problem, objective: Objective) -> Result<Self> {
        let specs = || problem.layers().iter().map(Layer::spec);
        let host_total: u64 = specs().map(|s| s.host.bytes * s.neurons as u64).sum();
        let memory = problem.memory();
        let host_binds = host_total > memory.host;
        let layers = problem.layers().iter().enumerate();
        let layers =
            layers.map(|(i, l)| Choices::new(i, l, objective, problem, host_binds)).collect::<Result<Vec<_>>>()?;
        let unit = layers.iter().flat_map(|l| (0..l.count.len()).map(|j| l.device_bytes(j))).fold(0, gcd);
        let most: u64 = layers.iter().map(|l| l.device_bytes(l.count.len() - 1)).sum();
        let device = memory.device.min(most);
        let table =
            Self { layers, device: if unit > 0 { device - device % unit } else { 0 }, host: memory.host, host_binds };
        let least: u64 = table.layers.iter().map(|l| l.device_bytes(0)).sum();
        if least > table.device {
            let why = format!("the device needs {least} bytes for neurons, its limit is {}", memory.device);
            return Err(Error::Infeasible { why });
        }
        let least: u64 = table.layers.iter().map(|l| l.host_bytes(l.count.len() - 1)).sum();
        if least > table.host {
            let why = format!("the host needs {least} bytes for neurons, its limit is {}", memory.host);
            return Err(Error::Infeasible { why });
        }
        Ok(table)
    }

    /// What `choice` is worth.
    pub fn value(&self, choice: &[usize]) -> f64 {
        self.layers.iter().zip(choice).map(|(l, &j)| l.value[j]).sum()
    }

    /// Bytes of `choice` on the device and on the host.
    pub fn bytes(&self, choice: &[usize]) -> (u64, u64) {
        let both = self.layers.iter().zip(choice).map(|(l, &j)| (l.device_bytes(j), l.host_bytes(j)));
        both.fold((0, 0), |sum, b| (sum.0 + b.0, sum.1 + b.1))
    }

    /// True if `choice` keeps the limits.
    pub fn fits(&self, choice: &[usize]) -> bool {
        let (device, host) = self.bytes(choice);
        device <= self.device && host <= self.host
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn upper_hull(count: &[u64], value: &[f64]) -> (Vec<usize>, Vec<f64>) {
    let rise = |a: usize, b: usize| (value[b] - value[a]) / (count[b] - count[a]) as f64;
    let mut hull: Vec<usize> = Vec::new();
    for j in 0..count.len() {
        while let [.., a, b] = hull[..] {
            if rise(a, b) > rise(b, j) {
                break;
            }
            hull.pop();
        }
        hull.push(j);
    }
    let slope = hull.windows(2).map(|w| rise(w[0], w[1])).collect();
    (hull, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hull_leaves_out_what_lies_below_or_on_a_line() {
        let (hull, slope) = upper_hull(&[0, 1, 2, 3, 5], &[0.0, 1.0, 5.0, 6.0, 8.0]);
        assert_eq!((hull, slope), (vec![0, 2, 4], vec![2.5, 1.0]));
    }

    #[test]
    fn bytes_of_zero_have_no_part_in_the_common_divisor() {
        assert_eq!((gcd(0, 0), gcd(0, 6), gcd(4, 6)), (0, 6, 2));
    }
}
