//! An FFN in a session: hot neurons on the accelerator, cold ones on the CPU, or all on one of them (paper §5.2).

use crate::plan::Side;
use pi_core::{ActiveSet, Device, FfnRun, Hidden, Limits, NeuronSet, OpStats, Result, SparseFfn, Write};
use std::sync::Arc;

/// The operators that own all neurons of a layer between them, by side.
#[derive(Clone)]
pub(crate) struct Parts {
    pub hot: Option<Arc<dyn SparseFfn>>,
    pub cold: Option<Arc<dyn SparseFfn>>,
}

/// What a session keeps for them.
pub(crate) struct PartRuns {
    hot: Option<Part>,
    cold: Option<Part>,
    /// All neurons' values, once somebody asked for them and they are on both sides.
    values: Option<Hidden>,
}

struct Part {
    run: Box<dyn FfnRun>,
    op: Arc<dyn SparseFfn>,
}

impl Part {
    fn open(op: &Option<Arc<dyn SparseFfn>>, limits: &Limits) -> Result<Option<Self>> {
        op.as_ref().map(|op| Ok(Self { run: op.clone().open(limits)?, op: op.clone() })).transpose()
    }

    fn neurons(&self) -> &NeuronSet {
        self.op.neurons()
    }
}

impl PartRuns {
    pub(crate) fn open(parts: &Parts, limits: &Limits) -> Result<Self> {
        Ok(Self { hot: Part::open(&parts.hot, limits)?, cold: Part::open(&parts.cold, limits)?, values: None })
    }

    fn side(&mut self, side: Side) -> &mut Option<Part> {
        match side {
            Side::Cpu => &mut self.cold,
            Side::Accelerator => &mut self.hot,
        }
    }

    /// The accelerator begins to send what the CPU needs, before it begins with its own part. FFNs look at marks first: when these are
    /// there, what was asked for before them is there too, and the host waits once.
    pub(crate) fn fetch(x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        x.resident().prefetch()?;
        if !active.is_all() {
            active.resident().prefetch()?;
        }
        Ok(())
    }

    /// Starts what the neurons of a side contribute.
    pub(crate) fn submit(&mut self, side: Side, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        self.side(side).as_mut().map_or(Ok(()), |part| part.run.submit(x, active))
    }

    /// Adds the sum of all neurons to `h`, which is at `home`, where `device` is. What was computed on the other side comes by way of
    /// `away`, which must be there if anything was.
    pub(crate) fn merge(
        &mut self,
        home: Side,
        device: &dyn Device,
        h: &mut Hidden,
        away: Option<&mut Hidden>,
    ) -> Result<()> {
        let mut other = None;
        if let Some((part, away)) = self.side(home.other()).as_mut().zip(away) {
            away.resize(h.tokens())?;
            part.run.collect(away, Write::Set)?;
            other = Some(away);
        }
        if let Some(part) = self.side(home) {
            part.run.collect(h, Write::Add)?;
        }
        other.map_or(Ok(()), |away| device.add(away, h))
    }

    /// What each neuron of the layer contributed with, `[tokens, neurons]`.
    pub(crate) fn values(&mut self, tokens: usize) -> Result<&mut Hidden> {
        let (hot, cold) = match (&mut self.hot, &mut self.cold) {
            (Some(hot), Some(cold)) => (hot, cold),
            (Some(only), _) | (_, Some(only)) => return only.run.values(),
            (None, None) => return Ok(self.values.get_or_insert_with(|| Hidden::new(0, 0))),
        };
        let neurons = hot.neurons().total();
        if self.values.as_ref().is_none_or(|all| all.max_tokens() < tokens) {
            self.values = Some(Hidden::try_new(tokens, neurons)?);
        }
        let all = self.values.get_or_insert_with(|| Hidden::new(0, neurons));
        all.resize(tokens)?;
        let to = all.host_overwrite();
        for part in [hot, cold] {
            let set = part.op.neurons();
            let rows = part.run.values()?.host()?;
            for (to, row) in to.chunks_exact_mut(neurons.max(1)).zip(rows.chunks_exact(set.len().max(1))) {
                set.iter().zip(row).for_each(|(id, v)| to[id] = *v);
            }
        }
        Ok(all)
    }

    pub(crate) fn take_stats(&mut self) -> OpStats {
        let mut stats = OpStats::default();
        for part in [&mut self.hot, &mut self.cold].into_iter().flatten() {
            stats += part.run.take_stats();
        }
        stats
    }
}
