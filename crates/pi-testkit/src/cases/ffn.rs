//! An FFN of which some neurons are active.

use super::{
    Prepared, copies,
    weights::{Rows, input},
};
use crate::Random;
use pi_core::{
    Activation, ActiveSet, Device, Down, Error, FfnWeights, Gating, Limits, NeuronSet, OpStats, QuantType, Result,
    Write,
};
use std::{fmt, str::FromStr};

/// Who says which neurons are active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Select {
    /// Marks, as from a predictor: other neurons are not read at all. All marked neurons fire.
    #[default]
    Marks,
    /// The gate (`exact` sparsity): it is read for all neurons, up and down only for those that fire.
    Gate,
    /// Nobody: every neuron is computed, whatever its gate says (sparsity off).
    Dense,
}

impl FromStr for Select {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "marks" => Ok(Self::Marks),
            "gate" => Ok(Self::Gate),
            "dense" => Ok(Self::Dense),
            _ => Err(Error::unsupported(format!("selection `{name}`"), "known: marks, gate, dense")),
        }
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Marks => "marks",
            Self::Gate => "gate",
            Self::Dense => "dense",
        })
    }
}

/// A ReGLU FFN with neuron-major down rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Ffn {
    /// Type of the weights.
    pub ty: QuantType,
    /// Width of input and output.
    pub dim: usize,
    /// Neurons.
    pub neurons: usize,
    /// Tokens at once. With marks, neighbours have different ones.
    pub tokens: usize,
    /// Share of active neurons, 0 to 1.
    pub active: f64,
    /// Who says which.
    pub select: Select,
}

impl Default for Ffn {
    /// Q4_0, 4096 × 11008 (a 7B model), one token, a tenth marked.
    fn default() -> Self {
        Self { ty: QuantType::Q4_0, dim: 4096, neurons: 11008, tokens: 1, active: 0.1, select: Select::Marks }
    }
}

impl fmt::Display for Ffn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ty, dim, neurons, tokens, active, select } = self;
        write!(f, "ffn {ty} {dim}x{neurons}")?;
        if *tokens != 1 {
            write!(f, " by {tokens}")?;
        }
        match select {
            Select::Dense => write!(f, ", dense"),
            _ => write!(f, ", {}% by {select}", (active * 1000.0).round() / 10.0),
        }
    }
}

impl Ffn {
    /// Number of active neurons per token.
    pub fn active_neurons(&self) -> usize {
        ((self.active * self.neurons as f64).round() as usize).min(self.neurons)
    }

    pub(super) fn prepare(&self, device: &dyn Device, cold: u64) -> Result<Prepared> {
        let (n, active) = (self.neurons, self.active_neurons());
        let order = shuffled(n);
        // Parts of the neurons that do not overlap take turns, or ten per cent would stay in the cache.
        let groups = match self.select {
            Select::Marks if cold > 0 => (n / active.max(1)).clamp(1, 1024),
            _ => 1,
        };
        let parts = Parts::new(self, &order)?;
        let first = parts.weights()?;
        let matrix = first.up.size_bytes() as u64;
        let (size, read) = match self.select {
            Select::Gate => (3 * matrix, matrix + 2 * (matrix as f64 * self.active) as u64),
            Select::Marks | Select::Dense => (3 * matrix, 3 * matrix),
        };
        let count = copies(size, read, cold);
        let more = (1..count).map(|_| parts.weights());
        let limits = Limits { tokens: self.tokens, sequences: 1, context: 1 };
        let mut runs = Vec::new();
        for w in std::iter::once(Ok(first)).chain(more) {
            runs.push(device.sparse_ffn(&w?, &NeuronSet::all(n))?.open(&limits)?);
        }
        let sets = (0..groups).map(|g| self.set(device, &order, g, groups)).collect::<Result<Vec<_>>>();
        let (mut sets, mut x) = (sets?, input(device, self.tokens, self.dim)?);
        let y = device.hidden(self.tokens, self.dim)?;
        let mut prepared = Prepared::new(y, count * groups, move |turn, y, counted| {
            let (run, set) = (&mut runs[turn / groups], &mut sets[turn % groups]);
            x.stale();
            if counted {
                run.take_stats();
            }
            run.submit(&mut x, set)?;
            run.collect(y, Write::Set)?;
            Ok(if counted { run.take_stats() } else { OpStats::default() })
        });
        prepared.working_set = match self.select {
            Select::Marks => 3 * (matrix as f64 * self.active) as u64 * groups as u64 * count as u64,
            Select::Gate | Select::Dense => read * count as u64,
        };
        let rows = match self.select {
            Select::Marks => 3 * active,
            Select::Gate => n + 2 * active,
            Select::Dense => 3 * n,
        };
        prepared.macs = (rows * self.dim * self.tokens) as u64;
        Ok(prepared)
    }

    /// Who may fire in turn `group`.
    fn set(&self, device: &dyn Device, order: &[u32], group: usize, groups: usize) -> Result<ActiveSet> {
        let mut set = device.active(self.tokens, self.neurons)?;
        if self.select != Select::Marks {
            set.set_all(self.tokens)?;
            return Ok(set);
        }
        let (active, words) = (self.active_neurons(), set.words());
        let bits = set.marks(self.tokens)?;
        bits.fill(0);
        for t in 0..self.tokens {
            let from = (group + t) % groups * active;
            let marked = order[from..(from + active).min(order.len())].iter();
            marked.for_each(|&i| bits[t * words + i as usize / 64] |= 1 << (i % 64));
        }
        Ok(set)
    }
}

/// What all copies of the weights are made of.
struct Parts<'a> {
    ffn: &'a Ffn,
    /// Which neurons' gates let the input through.
    fires: Vec<bool>,
    open: Rows,
    closed: Rows,
    up: Rows,
    down: Rows,
}

impl<'a> Parts<'a> {
    fn new(ffn: &'a Ffn, order: &[u32]) -> Result<Self> {
        let mut fires = vec![ffn.select != Select::Gate; ffn.neurons];
        order[..ffn.active_neurons()].iter().for_each(|&i| fires[i as usize] = true);
        let rows = |name, lean, seed| Rows::new(name, ffn.ty, ffn.dim, lean, seed);
        let (open, closed) = (rows("gate", 3.0, 1)?, rows("gate", -3.0, 2)?);
        Ok(Self { ffn, fires, open, closed, up: rows("up", 0.0, 3)?, down: rows("down", 0.0, 4)? })
    }

    fn weights(&self) -> Result<FfnWeights> {
        let n = self.ffn.neurons;
        Ok(FfnWeights {
            gate: Some(self.open.or(&self.closed, n, |i| self.fires[i])?),
            up: self.up.matrix(n)?,
            down: Down::NeuronMajor(self.down.matrix(n)?),
            gate_bias: None,
            up_bias: None,
            down_bias: None,
            gating: Gating::Gated,
            act: Activation::Relu,
            skip: self.ffn.select != Select::Dense,
        })
    }
}

/// 0 to n − 1 in some order, always the same.
fn shuffled(n: usize) -> Vec<u32> {
    let (mut order, mut random): (Vec<u32>, _) = ((0..n as u32).collect(), Random(5));
    (1..n).rev().for_each(|i| order.swap(i, random.below(i + 1)));
    order
}
