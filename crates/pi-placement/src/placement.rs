//! What a solver answers.

use crate::{Error, Problem, Result};
use pi_core::NeuronSet;
use std::fmt;
use std::time::{Duration, Instant};

/// What a placement is chosen for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// The most impact on the device (eq. 2): neurons that fire per token there.
    #[default]
    Impact,
    /// The least expected time per token, in seconds.
    Time,
}

/// What is worth knowing about a placement besides its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remark {
    /// The device's limit is below every choice except "nothing".
    TooSmall {
        /// The limit.
        budget: u64,
        /// Bytes of the smallest choice.
        smallest: u64,
    },
    /// Every neuron is on the device.
    Everything,
    /// In so many layers no number of neurons makes up for the synchronisation (eq. 4): they stay on the host.
    NeverPays {
        /// How many layers.
        layers: usize,
    },
    /// Neurons would fit, but no choice that fits is faster than none.
    NothingIsFaster,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall { budget, smallest } => {
                write!(f, "the device has {budget} bytes for neurons, the smallest choice needs {smallest}")
            }
            Self::Everything => write!(f, "all neurons fit on the device"),
            Self::NeverPays { layers } => write!(
                f,
                "{layers} layers stay on the host: the device is not faster by enough to make up for synchronising"
            ),
            Self::NothingIsFaster => write!(f, "no neurons on the device is the fastest choice"),
        }
    }
}

/// The hot neurons of every layer, and what they are worth.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Placement {
    /// Per layer the neurons on the device; all others are on the host (eq. 3).
    pub layers: Vec<NeuronSet>,
    /// What `value` and `bound` measure.
    pub objective: Objective,
    /// Neurons that fire per token on the device, or seconds per token.
    pub value: f64,
    /// What no choice of whole batches, hottest first, can be better than (up to the rounding of sums). `None` if the solver does
    /// not know.
    pub bound: Option<f64>,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes on the host.
    pub host_bytes: u64,
    /// The solver's name.
    pub solver: String,
    /// How long it took.
    pub elapsed: Duration,
    /// What else is to be said.
    pub remarks: Vec<Remark>,
}

impl Placement {
    /// How much better another choice could be, as a share of the value: 0 is optimal. `None` without a bound.
    pub fn gap(&self) -> Option<f64> {
        let bound = self.bound?;
        let scale = self.value.abs().max(bound.abs());
        Some(if self.value == bound { 0.0 } else { (self.value - bound).abs() / scale })
    }

    /// Number of neurons on the device.
    pub fn hot(&self) -> usize {
        self.layers.iter().map(NeuronSet::len).sum()
    }

    /// A placement of `layers`, checked against the limits: for solvers.
    ///
    /// # Errors
    /// [`Error::Sets`] if they do not belong to `problem`, [`Error::Exceeds`] if they do not keep its limits.
    pub fn new(problem: &Problem, layers: Vec<NeuronSet>, objective: Objective, solver: &str) -> Result<Self> {
        let value = match objective {
            Objective::Impact => problem.impact(&layers)?,
            Objective::Time => problem.expected_time(&layers)?,
        };
        let (mut device_bytes, mut host_bytes) = (0, 0);
        for (layer, hot) in problem.layers().iter().zip(&layers) {
            // The bytes of all neurons can be counted (`Problem::new`).
            device_bytes += hot.len() as u64 * layer.spec().device.bytes;
            host_bytes += (layer.neurons() - hot.len()) as u64 * layer.spec().host.bytes;
        }
        let memory = problem.memory();
        for (side, used, limit) in [("device", device_bytes, memory.device), ("host", host_bytes, memory.host)] {
            if used > limit {
                return Err(Error::Exceeds { solver: solver.to_owned(), side, used, limit });
            }
        }
        let remarks = if layers.iter().all(NeuronSet::is_all) { vec![Remark::Everything] } else { Vec::new() };
        let elapsed = Duration::ZERO;
        let solver = solver.to_owned();
        Ok(Self { layers, objective, value, bound: None, device_bytes, host_bytes, solver, elapsed, remarks })
    }

    pub(crate) fn started(mut self, start: Instant) -> Self {
        self.elapsed = start.elapsed();
        self
    }
}

impl fmt::Display for Placement {
    /// One line, for reports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: usize = self.layers.iter().map(NeuronSet::total).sum();
        write!(f, "{}: {} of {total} neurons, {} bytes, ", self.solver, self.hot(), self.device_bytes)?;
        match self.objective {
            Objective::Impact => write!(f, "{:.3} fire per token", self.value)?,
            Objective::Time => write!(f, "{:.3} ms per token", self.value * 1e3)?,
        }
        match self.gap() {
            Some(gap) => write!(f, ", within {:.4} % of the best", gap * 100.0)?,
            None => write!(f, ", no bound")?,
        }
        write!(f, ", {:.3} s", self.elapsed.as_secs_f64())
    }
}
