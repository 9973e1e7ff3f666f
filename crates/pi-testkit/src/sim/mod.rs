//! A simulated accelerator: a device with its own memory, an asynchronous queue and a clock.
//!
//! [`SimDevice`] lets another device compute and shows the results as an accelerator would: in memory of its own, which is
//! bounded and full of NaN at first; after a while, because work lies in a queue in whose order a thread of its own goes through it; and at
//! a price, because launches, transfers and reading take the time that [`SimOptions`] says. So a scheduler that forgets to
//! wait gets wrong numbers, one that waits too often is found out by [`SimDevice::counts`], and overlap is seen on the clock.
//! [`SimDevice::lose_after`] makes the device fail.

mod buffer;
mod ops;
mod queue;

use buffer::Buffer;
use ops::{SimAttention, SimDense, SimFfn, SimPredictor};
use pi_core::{
    ActiveSet, Attention, AttentionSpec, Dense, Device, DeviceInfo, Error, FfnWeights, Hidden, LinearSpec, Matrix,
    MlpSpec, NeuronSet, NormSpec, Predictor, QuantType, Resident, Result, SparseFfn, Write,
    footprint::{AttentionShape, FfnShape, Footprint, PlainFootprint},
};
use queue::Queue;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// What a simulated device has, and what things cost there.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of weights and caches that it reads per second; infinite: computing takes no time.
    pub bandwidth: f64,
    /// Bytes per second between it and the host.
    pub link: f64,
    /// What a launch, or the start of a transfer, takes.
    pub latency: Duration,
    /// Types of weights that it lacks kernels for.
    pub lacking: Vec<QuantType>,
}

impl Default for SimOptions {
    /// 1 GiB, and everything done in no time.
    fn default() -> Self {
        Self {
            name: "sim:0".into(),
            memory: 1 << 30,
            bandwidth: f64::INFINITY,
            link: f64::INFINITY,
            latency: Duration::ZERO,
            lacking: Vec::new(),
        }
    }
}

/// What a simulated device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounts {
    /// Arrays copied to the device.
    pub uploads: u64,
    /// Arrays copied to the host.
    pub downloads: u64,
    /// Times that the host had to wait for something that it did not know to be done.
    pub waits: u64,
    /// Operators put in the queue.
    pub launches: u64,
    /// Operators of FFNs whose weights were copied to the device while there were hidden states on it, and not before.
    pub streamed: u64,
    /// Bytes copied either way.
    pub moved: u64,
}

/// See the [module](self).
pub struct SimDevice {
    inner: Arc<dyn Device>,
    shared: Arc<Shared>,
}

struct Shared {
    options: SimOptions,
    queue: Queue,
    used: AtomicU64,
    most: AtomicU64,
    /// There were hidden states: a session is open, and who makes an operator has it wait for its weights.
    serving: AtomicBool,
    counts: Mutex<SimCounts>,
    /// Launches until the device is lost.
    left: AtomicU64,
}

impl Shared {
    fn fail(&self, message: impl Into<String>) -> Error {
        Error::Device { device: self.options.name.clone(), message: message.into() }
    }

    fn count(&self, what: impl FnOnce(&mut SimCounts)) {
        what(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn alive(&self) -> Result<()> {
        match self.left.load(Relaxed) {
            0 => Err(self.fail("the device is lost")),
            _ => Ok(()),
        }
    }

    /// Counts the bytes of a move, and says how long it takes.
    fn transfer(&self, bytes: usize) -> Duration {
        self.count(|c| c.moved += bytes as u64);
        self.options.latency + seconds(bytes as f64 / self.options.link)
    }

    /// Counts an operator, and says how long it takes.
    fn launch(&self, bytes: u64) -> Result<Duration> {
        if self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
            return Err(self.fail("the device is lost"));
        }
        self.count(|c| c.launches += 1);
        Ok(self.options.latency + seconds(bytes as f64 / self.options.bandwidth))
    }
}

/// A time, an hour at most.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.clamp(0.0, 3600.0)).unwrap_or_default()
}

/// Memory of a device that is taken until this is dropped.
struct Taken {
    bytes: u64,
    shared: Arc<Shared>,
}

impl Taken {
    fn new(shared: &Arc<Shared>, bytes: u64) -> Result<Self> {
        shared.alive()?;
        let fits = |used: u64| used.checked_add(bytes).filter(|all| *all <= shared.options.memory);
        match shared.used.fetch_update(Relaxed, Relaxed, fits) {
            Ok(before) => {
                shared.most.fetch_max(before + bytes, Relaxed);
                Ok(Self { bytes, shared: shared.clone() })
            }
            Err(used) => {
                let all = shared.options.memory;
                Err(shared.fail(format!("no memory for {bytes} bytes: {used} of {all} are taken")))
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shared.used.fetch_sub(self.bytes, Relaxed);
    }
}

impl SimDevice {
    /// A device that computes what `inner` computes.
    ///
    /// # Errors
    /// If the system refuses to start a thread, or a bandwidth is not above 0.
    pub fn new(inner: Arc<dyn Device>, options: SimOptions) -> std::io::Result<Self> {
        if let Some(wrong) = [options.bandwidth, options.link].into_iter().find(|b| b.is_nan() || *b <= 0.0) {
            let message = format!("a bandwidth of {wrong} bytes per second: expected one above 0");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, message));
        }
        let shared = Shared {
            queue: Queue::new()?,
            options,
            used: AtomicU64::new(0),
            most: AtomicU64::new(0),
            serving: AtomicBool::new(false),
            counts: Mutex::default(),
            left: AtomicU64::new(u64::MAX),
        };
        Ok(Self { inner, shared: Arc::new(shared) })
    }

    /// What was done so far.
    pub fn counts(&self) -> SimCounts {
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of memory in use: weights, caches, hidden states.
    pub fn used(&self) -> u64 {
        self.shared.used.load(Relaxed)
    }

    /// The most bytes that were ever in use.
    pub fn most_used(&self) -> u64 {
        self.shared.most.load(Relaxed)
    }

    /// The device is lost after so many more operators: everything fails from then on.
    pub fn lose_after(&self, launches: u64) {
        self.shared.left.store(launches, Relaxed);
    }

    /// Fails if there is no kernel for a matrix.
    fn has_kernels<'a>(&self, matrices: impl IntoIterator<Item = &'a Matrix>) -> Result<()> {
        match matrices.into_iter().find(|m| !self.supports(m.ty())) {
            Some(m) => Err(Error::unsupported(format!("{} as {}", m.name(), m.ty()), "there is no kernel for it")),
            None => Ok(()),
        }
    }

    /// Takes what the device's [footprint](Device::footprint) says: the plain one.
    fn take(&self, bytes: u64) -> Result<Taken> {
        Taken::new(&self.shared, bytes)
    }

    fn dense(&self, inner: Arc<dyn Dense>, taken: Taken) -> Arc<dyn Dense> {
        Arc::new(SimDense { inner, _taken: taken, shared: self.shared.clone() })
    }
}

impl Device for SimDevice {
    fn info(&self) -> DeviceInfo {
        let detail = format!("simulated, {} MiB", self.shared.options.memory >> 20);
        DeviceInfo { name: self.shared.options.name.clone(), detail }
    }

    fn supports(&self, ty: QuantType) -> bool {
        !self.shared.options.lacking.contains(&ty) && self.inner.supports(ty)
    }

    fn hidden(&self, max_tokens: usize, dim: usize) -> Result<Hidden> {
        self.shared.serving.store(true, Relaxed);
        let len = max_tokens.saturating_mul(dim);
        let data = Resident::with_mirror(len, Box::new(Buffer::<f32>::new(&self.shared, len)?));
        Ok(Hidden::with_data(max_tokens, dim, data))
    }

    fn active(&self, max_tokens: usize, neurons: usize) -> Result<ActiveSet> {
        let len = max_tokens.saturating_mul(neurons.div_ceil(64));
        let bits = Resident::with_mirror(len, Box::new(Buffer::<u64>::new(&self.shared, len)?));
        Ok(ActiveSet::with_bits(max_tokens, neurons, bits))
    }

    fn add(&self, x: &mut Hidden, y: &mut Hidden) -> Result<()> {
        if (x.tokens(), x.dim()) != (y.tokens(), y.dim()) {
            let size = |h: &Hidden| format!("{} rows of {}", h.tokens(), h.dim());
            return Err(Error::shape("a sum", size(y), size(x)));
        }
        let values = ops::read(&self.shared, x)?;
        let cost = self.shared.launch(8 * values.len() as u64)?;
        ops::write(&self.shared, y, Write::Add, values, cost)
    }

    fn norm(&self, spec: &NormSpec) -> Result<Arc<dyn Dense>> {
        let inner = self.inner.norm(spec)?;
        Ok(self.dense(inner, self.take(PlainFootprint.norm(&spec.into()))?))
    }

    fn linear(&self, spec: &LinearSpec) -> Result<Arc<dyn Dense>> {
        self.has_kernels([&spec.weight])?;
        let inner = self.inner.linear(spec)?;
        Ok(self.dense(inner, self.take(PlainFootprint.linear(&spec.into()))?))
    }

    fn attention(&self, spec: &AttentionSpec) -> Result<Arc<dyn Attention>> {
        self.has_kernels([&spec.q, &spec.k, &spec.v, &spec.o].map(|l| &l.weight))?;
        let inner = self.inner.attention(spec)?;
        let shape = AttentionShape::from(spec);
        let taken = self.take(PlainFootprint.attention(&shape))?;
        Ok(Arc::new(SimAttention { inner, shape, _taken: taken, shared: self.shared.clone() }))
    }

    fn sparse_ffn(&self, weights: &FfnWeights, neurons: &NeuronSet) -> Result<Arc<dyn SparseFfn>> {
        self.has_kernels(weights.gate.iter().chain([&weights.up, weights.down.matrix()]))?;
        let inner = self.inner.sparse_ffn(weights, neurons)?;
        let shape = FfnShape::from(weights);
        let bytes = PlainFootprint.sparse_ffn(&shape, neurons.into());
        let taken = self.take(bytes)?;
        if self.shared.serving.load(Relaxed) {
            self.shared.count(|c| c.streamed += 1);
            self.shared.queue.push(self.shared.transfer(bytes as usize), || ());
        }
        Ok(Arc::new(SimFfn { inner, shape, _taken: taken, shared: self.shared.clone() }))
    }

    fn mlp(&self, spec: &MlpSpec) -> Result<Arc<dyn Predictor>> {
        self.has_kernels([&spec.fc1, &spec.fc2])?;
        let inner = self.inner.mlp(spec)?;
        let taken = self.take(PlainFootprint.mlp(&spec.into()))?;
        Ok(Arc::new(SimPredictor { inner, _taken: taken, shared: self.shared.clone() }))
    }
}
