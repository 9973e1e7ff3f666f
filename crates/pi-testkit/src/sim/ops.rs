//! Operators of a simulated device.

use super::{
    Shared, Taken,
    buffer::{Buffer, Poison},
};
use pi_core::{
    ActiveSet, Attention, AttentionRun, Batch, Dense, FfnRun, Hidden, Limits, Mirror, NeuronSet, OpStats, Predictor,
    PredictorRun, Resident, Result, SparseFfn, Write,
    footprint::{AttentionShape, FfnShape, Footprint, PlainFootprint},
};
use std::{sync::Arc, time::Duration};

/// Whether an array's copy on a device is on this one.
fn is_own<T: Poison>(array: &mut Resident<T>, shared: &Arc<Shared>) -> bool {
    let buffer = array.mirror_as_it_is().and_then(|any| any.downcast_ref::<Buffer<T>>());
    buffer.is_some_and(|b| Arc::ptr_eq(&b.shared, shared))
}

fn buffer<T: Poison>(mirror: Option<&mut dyn Mirror<T>>) -> Option<&mut Buffer<T>> {
    mirror?.as_any().downcast_mut()
}

/// The device's own copy of an array, made current.
fn current<'a, T: Poison>(array: &'a mut Resident<T>, shared: &Arc<Shared>) -> Result<Option<&'a mut Buffer<T>>> {
    if is_own(array, shared) { Ok(buffer(array.mirror()?)) } else { Ok(None) }
}

/// The device's own copy of an array, to be changed, or to be overwritten.
fn target<'a, T: Poison>(
    array: &'a mut Resident<T>,
    shared: &Arc<Shared>,
    how: Write,
) -> Result<Option<&'a mut Buffer<T>>> {
    if !is_own(array, shared) {
        return Ok(None);
    }
    Ok(buffer(match how {
        Write::Set => array.mirror_overwrite(),
        Write::Add => array.mirror_mut()?,
    }))
}

/// The rows of `x` as the device sees them; they are sent there if they are not there yet.
pub(super) fn read(shared: &Arc<Shared>, x: &mut Hidden) -> Result<Vec<f32>> {
    shared.alive()?;
    let n = x.tokens() * x.dim();
    if let Some(buffer) = current(x.resident(), shared)? {
        return Ok(buffer.truth()[..n].to_vec());
    }
    let rows = x.host()?.to_vec();
    shared.count(|c| c.uploads += 1);
    shared.queue.push(shared.transfer(4 * n), || ());
    Ok(rows)
}

/// Writes or adds rows, as work that takes `cost`; waits for it if they belong to the host.
pub(super) fn write(shared: &Arc<Shared>, y: &mut Hidden, how: Write, values: Vec<f32>, cost: Duration) -> Result<()> {
    y.stale();
    let n = y.tokens() * y.dim();
    let put = |to: &mut [f32]| match how {
        Write::Set => to.copy_from_slice(&values),
        Write::Add => to.iter_mut().zip(&values).for_each(|(to, v)| *to += v),
    };
    if let Some(buffer) = target(y.resident(), shared, how)? {
        buffer.change(cost, n, put);
        return Ok(());
    }
    shared.count(|c| c.downloads += 1);
    let job = shared.queue.push(cost + shared.transfer(4 * n), || ());
    if shared.queue.wait(job) {
        shared.count(|c| c.waits += 1);
    }
    match how {
        Write::Set => put(y.host_overwrite()),
        Write::Add => put(y.host_mut()?),
    }
    Ok(())
}

fn on_host(rows: usize, dim: usize, values: &[f32]) -> Result<Hidden> {
    let mut h = Hidden::try_new(rows, dim)?;
    h.host_overwrite().copy_from_slice(values);
    Ok(h)
}

/// Room for an output of `rows` rows like `y`, and the rows of `x`.
fn inputs(shared: &Arc<Shared>, x: &mut Hidden, y: &mut Hidden, how: Write) -> Result<(Hidden, Hidden)> {
    let rows = read(shared, x)?;
    if how == Write::Set {
        y.resize(x.tokens())?;
    }
    Ok((on_host(x.tokens(), x.dim(), &rows)?, Hidden::try_new(y.tokens(), y.dim())?))
}

pub(super) struct SimDense {
    pub inner: Arc<dyn Dense>,
    pub shared: Arc<Shared>,
    pub _taken: Taken,
}

impl Dense for SimDense {
    fn apply(&self, x: &mut Hidden, y: &mut Hidden, how: Write) -> Result<()> {
        let (mut input, mut output) = inputs(&self.shared, x, y, how)?;
        self.inner.apply(&mut input, &mut output, how)?;
        let cost = self.shared.launch(self.inner.bytes())?;
        write(&self.shared, y, how, output.host()?.to_vec(), cost)
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

pub(super) struct SimAttention {
    pub inner: Arc<dyn Attention>,
    pub shape: AttentionShape,
    pub shared: Arc<Shared>,
    pub _taken: Taken,
}

impl Attention for SimAttention {
    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn AttentionRun>> {
        let taken = Taken::new(&self.shared, PlainFootprint.kv_cache(&self.shape, limits))?;
        let inner = self.inner.clone().open(limits)?;
        Ok(Box::new(SimAttentionRun { inner, shared: self.shared.clone(), stats: OpStats::default(), _taken: taken }))
    }
}

struct SimAttentionRun {
    inner: Box<dyn AttentionRun>,
    shared: Arc<Shared>,
    stats: OpStats,
    _taken: Taken,
}

impl AttentionRun for SimAttentionRun {
    fn apply(&mut self, x: &mut Hidden, batch: &Batch, y: &mut Hidden, how: Write) -> Result<()> {
        let (mut input, mut output) = inputs(&self.shared, x, y, how)?;
        self.inner.apply(&mut input, batch, &mut output, how)?;
        let stats = self.inner.take_stats();
        self.stats += stats;
        let cost = self.shared.launch(stats.bytes)?;
        write(&self.shared, y, how, output.host()?.to_vec(), cost)
    }

    fn truncate(&mut self, seq: u32, len: usize) {
        self.inner.truncate(seq, len);
    }

    fn take_stats(&mut self) -> OpStats {
        std::mem::take(&mut self.stats)
    }
}

pub(super) struct SimFfn {
    pub inner: Arc<dyn SparseFfn>,
    pub shape: FfnShape,
    pub shared: Arc<Shared>,
    pub _taken: Taken,
}

impl SparseFfn for SimFfn {
    fn neurons(&self) -> &NeuronSet {
        self.inner.neurons()
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn FfnRun>> {
        let owned = self.inner.neurons().len();
        let scratch = PlainFootprint.ffn_scratch(&self.shape, owned, limits);
        Ok(Box::new(SimFfnRun {
            inner: self.inner.clone().open(limits)?,
            part: None,
            stats: OpStats::default(),
            _taken: Taken::new(&self.shared, scratch)?,
            op: self,
        }))
    }
}

struct SimFfnRun {
    inner: Box<dyn FfnRun>,
    op: Arc<SimFfn>,
    /// The result of what was submitted, until it is collected.
    part: Option<Hidden>,
    stats: OpStats,
    _taken: Taken,
}

impl FfnRun for SimFfnRun {
    fn submit(&mut self, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let shared = &self.op.shared;
        let rows = read(shared, x)?;
        let mut input = on_host(x.tokens(), x.dim(), &rows)?;
        let mut bits = ActiveSet::try_new(active.tokens(), active.neurons())?;
        if active.is_all() {
            bits.set_all(active.tokens())?;
        } else {
            let n = active.tokens() * active.words();
            let marks = match current(active.resident(), shared)? {
                Some(buffer) => buffer.truth()[..n].to_vec(),
                None => {
                    shared.count(|c| c.uploads += 1);
                    shared.queue.push(shared.transfer(8 * n), || ());
                    active.host()?.unwrap_or(&[]).to_vec()
                }
            };
            bits.marks(active.tokens())?.copy_from_slice(&marks);
        }
        self.inner.submit(&mut input, &mut bits)?;
        let mut part = Hidden::try_new(x.tokens(), self.op.shape.dim())?;
        self.inner.collect(&mut part, Write::Set)?;
        let stats = self.inner.take_stats();
        self.stats += stats;
        shared.queue.push(shared.launch(stats.bytes)?, || ());
        self.part = Some(part);
        Ok(())
    }

    fn collect(&mut self, y: &mut Hidden, how: Write) -> Result<()> {
        let shared = &self.op.shared;
        shared.alive()?;
        let Some(mut part) = self.part.take() else {
            return Err(pi_core::Error::shape("ffn", "a submitted step", "none"));
        };
        if how == Write::Set {
            y.resize(part.tokens())?;
        }
        if (y.tokens(), y.dim()) != (part.tokens(), part.dim()) {
            let size = |h: &Hidden| format!("{} rows of {}", h.tokens(), h.dim());
            return Err(pi_core::Error::shape("output of ffn", size(&part), size(y)));
        }
        // its time was taken by the submission
        write(shared, y, how, part.host()?.to_vec(), Duration::ZERO)
    }

    fn values(&mut self) -> Result<&mut Hidden> {
        self.inner.values()
    }

    fn take_stats(&mut self) -> OpStats {
        std::mem::take(&mut self.stats)
    }
}

pub(super) struct SimPredictor {
    pub inner: Arc<dyn Predictor>,
    pub shared: Arc<Shared>,
    pub _taken: Taken,
}

impl Predictor for SimPredictor {
    pi_core::answers_of!(inner);

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn PredictorRun>> {
        Ok(Box::new(SimPredictorRun { inner: self.inner.clone().open(limits)?, op: self }))
    }
}

struct SimPredictorRun {
    inner: Box<dyn PredictorRun>,
    op: Arc<SimPredictor>,
}

impl PredictorRun for SimPredictorRun {
    fn mark(&mut self, h: &mut Hidden, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let shared = &self.op.shared;
        // what a predictor does not read is not sent: those of two matrices read the residual stream
        let rows = read(shared, h)?;
        let mut input = on_host(h.tokens(), h.dim(), &rows)?;
        let mut bits = ActiveSet::try_new(h.tokens(), active.neurons())?;
        self.inner.mark(&mut input, x, &mut bits)?;
        let marks = bits.host()?.unwrap_or(&[]).to_vec();
        let cost = shared.launch(self.op.inner.bytes())?;
        let tokens = h.tokens();
        let there = active.marks_elsewhere(tokens)?;
        if let Some(buffer) = target(there, shared, Write::Set)? {
            buffer.change(cost, marks.len(), |to| to.copy_from_slice(&marks));
            return Ok(());
        }
        shared.count(|c| c.downloads += 1);
        let job = shared.queue.push(cost + shared.transfer(8 * marks.len()), || ());
        if shared.queue.wait(job) {
            shared.count(|c| c.waits += 1);
        }
        active.marks(tokens)?.copy_from_slice(&marks);
        Ok(())
    }
}
