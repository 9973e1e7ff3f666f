//! An FFN on two devices at once: hot neurons on the accelerator, cold ones on the CPU, merged once (paper §5.2).

use pi_core::{ActiveSet, Device, FfnRun, Hidden, Limits, NeuronSet, OpStats, Result, SparseFfn, Write};
use std::sync::Arc;

use crate::plan::Side;

/// Two operators that own all neurons of a layer between them.
pub(crate) struct Hybrid {
    pub hot: Arc<dyn SparseFfn>,
    pub cold: Arc<dyn SparseFfn>,
    /// Where the layer's other operators are, and so where the result belongs.
    pub home: Side,
    pub accelerator: Arc<dyn Device>,
    pub cpu: Arc<dyn Device>,
    pub all: NeuronSet,
    pub dim: usize,
}

impl SparseFfn for Hybrid {
    fn neurons(&self) -> &NeuronSet {
        &self.all
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn FfnRun>> {
        Ok(Box::new(Run {
            hot: self.hot.clone().open(limits)?,
            cold: self.cold.clone().open(limits)?,
            part: self.accelerator.hidden(limits.tokens, self.dim)?,
            values: None,
            tokens: 0,
            op: self,
        }))
    }
}

struct Run {
    op: Arc<Hybrid>,
    hot: Box<dyn FfnRun>,
    cold: Box<dyn FfnRun>,
    /// The part of the side that is not the layer's home.
    part: Hidden,
    /// All neurons' values, once somebody asked for them.
    values: Option<Hidden>,
    tokens: usize,
}

impl FfnRun for Run {
    fn submit(&mut self, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        self.tokens = x.tokens();
        // The CPU is to get its input before the accelerator begins with its part, not after it.
        // FFNs look at marks first: when these are there, what was asked for before them is there too, and the host waits once.
        x.resident().prefetch()?;
        if !active.is_all() {
            active.resident().prefetch()?;
        }
        self.hot.submit(x, active)?;
        self.cold.submit(x, active)
    }

    fn collect(&mut self, y: &mut Hidden, how: Write) -> Result<()> {
        let Self { op, hot, cold, part, tokens, .. } = self;
        part.resize(*tokens)?;
        match op.home {
            Side::Accelerator => {
                cold.collect(part, Write::Set)?;
                hot.collect(y, how)?;
                op.accelerator.add(part, y)
            }
            Side::Cpu => {
                hot.collect(part, Write::Set)?;
                cold.collect(y, how)?;
                op.cpu.add(part, y)
            }
        }
    }

    fn values(&mut self) -> Result<&mut Hidden> {
        let (neurons, tokens) = (self.op.all.total(), self.tokens);
        if self.values.as_ref().is_none_or(|all| all.max_tokens() < tokens) {
            self.values = Some(Hidden::try_new(tokens, neurons)?);
        }
        let all = self.values.get_or_insert_with(|| Hidden::new(0, neurons));
        all.resize(tokens)?;
        let to = all.host_overwrite();
        for (run, set) in [(&mut self.hot, self.op.hot.neurons()), (&mut self.cold, self.op.cold.neurons())] {
            let rows = run.values()?.host()?;
            for (to, row) in to.chunks_exact_mut(neurons.max(1)).zip(rows.chunks_exact(set.len().max(1))) {
                set.iter().zip(row).for_each(|(id, v)| to[id] = *v);
            }
        }
        Ok(all)
    }

    fn take_stats(&mut self) -> OpStats {
        let mut stats = self.hot.take_stats();
        stats += self.cold.take_stats();
        stats
    }
}
