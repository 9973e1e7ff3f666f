//! The predictor that is always right, because it computes what it predicts.

use crate::{sign::fits, words::Words};
use pi_core::{Activation, ActiveSet, Dense, Executor, Hidden, Limits, Predictor, PredictorRun, Result, Write};
use std::sync::Arc;

/// Computes every gate and marks the neurons whose gates fire.
pub struct Oracle {
    gate: Arc<dyn Dense>,
    act: Activation,
    dim: usize,
    neurons: usize,
    exec: Arc<dyn Executor>,
}

impl Oracle {
    /// From an operator for the gate (with its bias), `[neurons, dim]`, and the activation behind it.
    pub fn new(gate: Arc<dyn Dense>, act: Activation, dim: usize, neurons: usize, exec: Arc<dyn Executor>) -> Self {
        Self { gate, act, dim, neurons, exec }
    }
}

impl Predictor for Oracle {
    fn kind(&self) -> &str {
        "oracle"
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn neurons(&self) -> usize {
        self.neurons
    }

    fn bytes(&self) -> u64 {
        self.gate.bytes()
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn PredictorRun>> {
        let gates = Hidden::try_new(limits.tokens, self.neurons)?;
        let marks = Words::try_new(limits.tokens, self.neurons.div_ceil(64))?;
        Ok(Box::new(Run { op: self, gates, marks }))
    }
}

struct Run {
    op: Arc<Oracle>,
    gates: Hidden,
    marks: Words,
}

impl PredictorRun for Run {
    fn mark(&mut self, _: &mut Hidden, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let Self { op, gates, marks } = self;
        fits(&**op, x, active)?;
        op.gate.apply(x, gates, Write::Set)?;
        mark_where(&*op.exec, marks, gates, active, |v| op.act.fires(v) || v.is_nan())
    }
}

/// Marks the neurons whose numbers are as wanted.
pub(crate) fn mark_where(
    exec: &dyn Executor,
    marks: &Words,
    numbers: &mut Hidden,
    active: &mut ActiveSet,
    wanted: impl Fn(f32) -> bool + Sync,
) -> Result<()> {
    let (tokens, neurons) = (numbers.tokens(), numbers.dim());
    let numbers = numbers.host()?;
    marks.fill(exec, active.marks(tokens)?, neurons.div_ceil(64), |t, word| {
        let row = &numbers[t * neurons..(t + 1) * neurons];
        let some = row[64 * word..].iter().take(64).enumerate();
        some.fold(0, |bits, (i, v)| bits | u64::from(wanted(*v)) << i)
    });
    Ok(())
}
