//! The placement problem: layers with their neurons' impact, costs and limits (paper §6.3, table 1).

use crate::cost;
use crate::{Error, Result};
use pi_core::NeuronSet;

/// Neurons that are placed together unless said otherwise (§6.3.3).
pub const DEFAULT_BATCH: usize = 64;

/// What one neuron (its gate, up and down rows) costs on one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerNeuron {
    /// Bytes as they are really allocated there: rows with their padding. 0 if the neuron takes nothing.
    pub bytes: u64,
    /// Seconds to compute the neuron when it fires, with all of the side's threads.
    pub seconds: f64,
}

impl PerNeuron {
    /// A neuron whose time is that of reading it at `bandwidth` bytes per second (eq. 5).
    pub fn read_at(bytes: u64, bandwidth: f64) -> Self {
        Self { bytes, seconds: bytes as f64 / bandwidth }
    }
}

/// Seconds that a layer spends on moving its input and output and on waiting, by where its neurons are. May be infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyncTime {
    /// If no neuron is on the device.
    pub none: f64,
    /// If both sides have neurons: `T_sync` of eq. 4.
    pub split: f64,
    /// If all neurons are on the device.
    pub all: f64,
}

impl SyncTime {
    /// A layer whose attention and norms are on the host: its FFN is free of moves only if it is there too. The paper's case.
    pub fn host_layer(seconds: f64) -> Self {
        Self { none: 0.0, split: seconds, all: seconds }
    }

    /// A layer whose attention and norms are on the device: its FFN is free of moves only if it is there too.
    pub fn device_layer(seconds: f64) -> Self {
        Self { none: seconds, split: seconds, all: 0.0 }
    }
}

/// One layer, as a problem is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// How many neurons the layer has.
    pub neurons: usize,
    /// The share of tokens for which each neuron fires, in 0..=1: its impact (eq. 1).
    pub frequency: Vec<f32>,
    /// A neuron on the device.
    pub device: PerNeuron,
    /// A neuron on the host.
    pub host: PerNeuron,
    /// Moving and waiting.
    pub sync: SyncTime,
}

/// Bytes that the neurons may take on each side (eq. 6). `u64::MAX` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// On the device.
    pub device: u64,
    /// On the host.
    pub host: u64,
}

impl Memory {
    /// A limit for the device alone.
    pub fn device(bytes: u64) -> Self {
        Self { device: bytes, host: u64::MAX }
    }

    /// Whole bytes in `gib` GiB; infinity is no limit.
    ///
    /// # Errors
    /// [`Error::Value`] if it is negative or NaN.
    pub fn gib(gib: f64) -> Result<u64> {
        if gib.is_nan() || gib < 0.0 {
            return Err(Error::Value {
                what: "size in GiB",
                place: "a memory limit".into(),
                expected: "0 or more",
                got: gib,
            });
        }
        Ok((gib * (1u64 << 30) as f64) as u64) // `as` stops at u64::MAX
    }
}

/// One layer of a problem, its neurons ranked.
#[derive(Clone, Debug)]
pub struct Layer {
    spec: LayerSpec,
    order: Vec<u32>,
    mass: Vec<f64>,
    min_hot: Option<usize>,
}

/// A checked placement problem.
#[derive(Clone, Debug)]
pub struct Problem {
    layers: Vec<Layer>,
    memory: Memory,
    batch: usize,
}

impl Problem {
    /// A problem over `layers` whose neurons are placed `batch` at a time, hottest first ([`DEFAULT_BATCH`] is usual; what
    /// remains of a layer after its last whole batch goes last).
    ///
    /// # Errors
    /// [`Error::Length`] if a layer and its statistics differ in length; [`Error::Value`] for a frequency outside of 0..=1, a time
    /// that is NaN, negative or (except for synchronisation) infinite, or a batch of 0; [`Error::Overflow`] if the bytes of all
    /// neurons cannot be counted.
    pub fn new(layers: Vec<LayerSpec>, memory: Memory, batch: usize) -> Result<Self> {
        if batch == 0 {
            return Err(Error::Value { what: "batch", place: "the problem".into(), expected: "1 or more", got: 0.0 });
        }
        for (what, side) in [("bytes on the device", 0), ("bytes on the host", 1)] {
            let mut total = 0u64;
            for (i, l) in layers.iter().enumerate() {
                let bytes = if side == 0 { l.device.bytes } else { l.host.bytes };
                let sum = bytes.checked_mul(l.neurons as u64).and_then(|b| total.checked_add(b));
                total = sum.filter(|&b| b <= i64::MAX as u64).ok_or_else(|| overflow(what, i))?;
            }
        }
        let layers =
            layers.into_iter().enumerate().map(|(i, spec)| Layer::new(i, spec, batch)).collect::<Result<_>>()?;
        Ok(Self { layers, memory, batch })
    }

    /// The layers in their order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The limits.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// The same problem with other limits.
    pub fn with_memory(&self, memory: Memory) -> Self {
        Self { memory, ..self.clone() }
    }

    /// Neurons that are placed together.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Neurons of all layers.
    pub fn neurons(&self) -> usize {
        self.layers.iter().map(Layer::neurons).sum()
    }

    /// Neurons that fire per token, on average: the impact of everything.
    pub fn total_impact(&self) -> f64 {
        self.layers.iter().map(Layer::total_mass).sum()
    }

    /// The summed frequency of the hot neurons (eq. 2). Divided by [`total_impact`](Self::total_impact): the hit rate that is expected.
    ///
    /// # Errors
    /// [`Error::Sets`] unless `hot` has this problem's layers and neurons.
    pub fn impact(&self, hot: &[NeuronSet]) -> Result<f64> {
        self.check(hot)?;
        Ok(self.layers.iter().zip(hot).map(|(l, h)| l.mass_of(h)).sum())
    }

    /// Seconds per token that all FFN layers take if as many neurons fire as on average: `Σ max(host, device) + synchronisation`.
    ///
    /// # Errors
    /// [`Error::Sets`] unless `hot` has this problem's layers and neurons.
    pub fn expected_time(&self, hot: &[NeuronSet]) -> Result<f64> {
        self.check(hot)?;
        Ok(self.layers.iter().zip(hot).map(|(l, h)| cost::layer_time(l, h.len(), l.mass_of(h))).sum())
    }

    fn check(&self, hot: &[NeuronSet]) -> Result<()> {
        if hot.len() != self.layers.len() {
            return Err(Error::Sets { place: "the model".into(), expected: self.layers.len(), got: hot.len() });
        }
        let wrong = self.layers.iter().zip(hot).enumerate().find(|(_, (l, h))| l.neurons() != h.total());
        wrong.map_or(Ok(()), |(i, (l, h))| {
            Err(Error::Sets { place: format!("layer {i}"), expected: l.neurons(), got: h.total() })
        })
    }
}

impl Layer {
    fn new(index: usize, spec: LayerSpec, batch: usize) -> Result<Self> {
        let n = spec.neurons;
        if spec.frequency.len() != n {
            return Err(Error::Length { layer: index, neurons: n, got: spec.frequency.len() });
        }
        if u32::try_from(n).is_err() {
            return Err(overflow("neurons", index));
        }
        let place = || format!("layer {index}");
        for (what, seconds) in [("time on the device", spec.device.seconds), ("time on the host", spec.host.seconds)] {
            if !(seconds.is_finite() && seconds >= 0.0) {
                return Err(Error::Value { what, place: place(), expected: "seconds, 0 or more", got: seconds });
            }
        }
        for seconds in [spec.sync.none, spec.sync.split, spec.sync.all] {
            if seconds.is_nan() || seconds < 0.0 {
                let what = "synchronisation time";
                return Err(Error::Value { what, place: place(), expected: "seconds, 0 or more", got: seconds });
            }
        }
        if let Some(i) = spec.frequency.iter().position(|f| !(0.0..=1.0).contains(f)) {
            return Err(Error::Value {
                what: "activation frequency",
                place: format!("neuron {i} of layer {index}"),
                expected: "a share in 0..=1",
                got: f64::from(spec.frequency[i]),
            });
        }
        let order = rank(&spec.frequency);
        let mut mass = Vec::with_capacity(n.div_ceil(batch) + 1);
        mass.push(0.0);
        let mut sum = 0.0;
        for chunk in order.chunks(batch) {
            sum += chunk.iter().map(|&i| f64::from(spec.frequency[i as usize])).sum::<f64>();
            mass.push(sum);
        }
        let min_hot = cost::min_hot(&spec);
        Ok(Self { spec, order, mass, min_hot })
    }

    /// What the layer was made of.
    pub fn spec(&self) -> &LayerSpec {
        &self.spec
    }

    /// How many neurons it has.
    pub fn neurons(&self) -> usize {
        self.spec.neurons
    }

    /// All neurons from the one that fires most often to the one that fires least; equal ones by number.
    pub fn ranking(&self) -> &[u32] {
        &self.order
    }

    /// `C_l` of eq. 4: from how many neurons on the device on the synchronisation pays. `None` if it never does.
    pub fn min_hot(&self) -> Option<usize> {
        self.min_hot
    }

    /// Summed frequency of the first 0, 1, 2, … batches of the ranking.
    pub(crate) fn mass(&self) -> &[f64] {
        &self.mass
    }

    /// Summed frequency of all neurons.
    pub(crate) fn total_mass(&self) -> f64 {
        self.mass[self.mass.len() - 1]
    }

    fn mass_of(&self, hot: &NeuronSet) -> f64 {
        if hot.is_all() {
            return self.total_mass();
        }
        hot.iter().map(|i| f64::from(self.spec.frequency[i])).sum()
    }

    /// The `count` neurons that fire most often.
    pub(crate) fn hottest(&self, count: usize) -> Result<NeuronSet> {
        if count == self.neurons() {
            return Ok(NeuronSet::all(count));
        }
        set_of(self.neurons(), self.order[..count].iter().map(|&i| i as usize))
    }
}

/// The set of `neurons` (below `total`, each once), whatever their order.
pub(crate) fn set_of(total: usize, neurons: impl Iterator<Item = usize>) -> Result<NeuronSet> {
    let mut is_hot = vec![false; total];
    neurons.for_each(|i| is_hot[i] = true);
    let ids = is_hot.iter().enumerate().filter(|(_, hot)| **hot).map(|(i, _)| i as u32).collect();
    NeuronSet::some(total, ids).map_err(|e| Error::Undecided { why: e.to_string() })
}

fn overflow(what: &'static str, layer: usize) -> Error {
    Error::Overflow { what, place: format!("layer {layer}") }
}

/// Numbers of `frequency` (0..=1 each) in descending order of frequency, then ascending.
fn rank(frequency: &[f32]) -> Vec<u32> {
    // Bits of floats that are not negative have the order of the floats; one integer sort does both keys. `+ 0.0` makes -0 a 0.
    let mut keys: Vec<u64> =
        frequency.iter().enumerate().map(|(i, f)| u64::from(!(f + 0.0).to_bits()) << 32 | i as u64).collect();
    keys.sort_unstable();
    keys.into_iter().map(|k| k as u32).collect()
}
