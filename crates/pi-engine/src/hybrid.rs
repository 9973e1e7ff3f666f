//! An FFN in a session: hot neurons on the accelerator, cold ones on the CPU, or all on one of them (paper §5.2).

use crate::{plan::Side, stream::Stream};
use pi_core::{ActiveSet, Device, FfnRun, Hidden, Limits, NeuronSet, OpStats, Result, SparseFfn, Write};
use std::sync::Arc;

/// The operators that own all neurons of a layer between them, by side.
#[derive(Clone)]
pub(crate) struct Parts {
    pub hot: Option<Arc<dyn SparseFfn>>,
    pub cold: Option<Arc<dyn SparseFfn>>,
    /// How the cold neurons get to the accelerator for long steps, if they may.
    pub stream: Option<Arc<Stream>>,
}

/// What a session keeps for them.
pub(crate) struct PartRuns {
    hot: Option<Part>,
    cold: Option<Part>,
    stream: Option<Arc<Stream>>,
    /// The cold neurons, while they are on the accelerator for a step; what was done in earlier such steps.
    streamed: Option<Part>,
    stats: OpStats,
    pub(crate) sent: Sent,
    limits: Limits,
    /// All neurons' values, once somebody asked for them and they are on both sides.
    values: Option<Hidden>,
}

/// How often the neurons of the CPU were sent to the accelerator for a step, or were to be and had no room there.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sent {
    pub streamed: u64,
    pub refused: u64,
}

/// An operator, and its run.
pub(crate) struct Part {
    run: Box<dyn FfnRun>,
    op: Arc<dyn SparseFfn>,
}

impl Part {
    fn open(op: &Option<Arc<dyn SparseFfn>>, limits: &Limits) -> Result<Option<Self>> {
        op.as_ref().map(|op| Self::new(op.clone(), limits)).transpose()
    }

    pub(crate) fn new(op: Arc<dyn SparseFfn>, limits: &Limits) -> Result<Self> {
        Ok(Self { run: op.clone().open(limits)?, op })
    }

    fn neurons(&self) -> &NeuronSet {
        self.op.neurons()
    }
}

impl PartRuns {
    pub(crate) fn open(parts: &Parts, limits: &Limits) -> Result<Self> {
        Ok(Self {
            hot: Part::open(&parts.hot, limits)?,
            cold: Part::open(&parts.cold, limits)?,
            stream: parts.stream.clone(),
            streamed: None,
            stats: OpStats::default(),
            sent: Sent::default(),
            limits: *limits,
            values: None,
        })
    }

    fn side(&mut self, side: Side) -> &mut Option<Part> {
        match side {
            Side::Cpu => &mut self.cold,
            Side::Accelerator => &mut self.hot,
        }
    }

    /// What a side has computed. What was sent to the accelerator comes from there, after its own part.
    fn parts<'a>(&'a mut self, side: Side, streamed: &'a mut Option<Part>) -> impl Iterator<Item = &'a mut Part> {
        let parts = match (side, streamed.is_some()) {
            (Side::Accelerator, _) => [self.hot.as_mut(), streamed.as_mut()],
            (Side::Cpu, true) => [None, None],
            (Side::Cpu, false) => [self.cold.as_mut(), None],
        };
        parts.into_iter().flatten()
    }

    /// The accelerator begins to send what the CPU needs, before it begins with its own part. FFNs look at marks first: when these are
    /// there, what was asked for before them is there too, and the host waits once.
    pub(crate) fn fetch(&self, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        if self.stream.as_ref().is_some_and(|s| s.wants(x.tokens()) && s.fits(x.tokens())) {
            return Ok(());
        }
        x.resident().prefetch()?;
        if !active.is_all() {
            active.resident().prefetch()?;
        }
        Ok(())
    }

    /// Starts what the neurons of a side contribute.
    pub(crate) fn submit(&mut self, side: Side, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        if side == Side::Cpu
            && let Some(stream) = self.stream.as_ref().filter(|s| s.wants(x.tokens()))
        {
            let limits = Limits { tokens: x.tokens(), ..self.limits };
            if let Some(part) = if stream.fits(x.tokens()) { stream.send(&limits)? } else { None } {
                self.sent.streamed += 1;
                return self.streamed.insert(part).run.submit(x, active);
            }
            self.sent.refused += 1;
        }
        self.side(side).as_mut().map_or(Ok(()), |part| part.run.submit(x, active))
    }

    /// Frees what an FFN that was begun and not finished holds on the accelerator.
    pub(crate) fn abandon(&mut self) {
        self.streamed = None;
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
        let mut streamed = self.streamed.take();
        let (mut other, mut sum) = (false, None);
        if let Some(away) = away {
            for part in self.parts(home.other(), &mut streamed) {
                away.resize(h.tokens())?;
                part.run.collect(away, if other { Write::Add } else { Write::Set })?;
                other = true;
            }
            sum = other.then_some(away);
        }
        for part in self.parts(home, &mut streamed) {
            part.run.collect(h, Write::Add)?;
        }
        if let Some(away) = sum {
            device.add(away, h)?;
        }
        if let Some(mut part) = streamed {
            self.stats += part.run.take_stats();
        }
        Ok(())
    }

    /// What each neuron of the layer contributed with, `[tokens, neurons]`.
    pub(crate) fn values(&mut self, tokens: usize) -> Result<&mut Hidden> {
        let cold = if self.streamed.is_some() { &mut self.streamed } else { &mut self.cold };
        let (hot, cold) = match (&mut self.hot, cold) {
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
        let mut stats = std::mem::take(&mut self.stats);
        for part in [&mut self.hot, &mut self.cold].into_iter().flatten() {
            stats += part.run.take_stats();
        }
        stats
    }
}
