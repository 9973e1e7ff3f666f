//! The CPU as a device.

use crate::{
    Crossover, Kernels, Pool,
    attention::{Common, CpuAttention},
    dense::{Linear, Norm},
    ffn::CpuFfn,
    predictor::CpuMlp,
    weights::Packer,
};
use pi_core::{
    Attention, AttentionSpec, Dense, Device, DeviceInfo, Executor, FfnWeights, Hidden, LinearSpec, MlpSpec, NeuronSet,
    NormSpec, Predictor, QuantType, Result, SignKernels, SparseFfn,
};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Operators on the CPU: a table of [`Kernels`] and an [`Executor`] to run them.
///
/// Results do not depend on the executor: the same kernels give the same bits with any number of threads.
#[derive(Clone)]
pub struct CpuDevice {
    kernels: Arc<Kernels>,
    exec: Arc<dyn Executor>,
    crossover: Crossover,
    packer: Packer,
    /// Layers with attention of one kind share what is computed for it.
    attention: Arc<Mutex<Vec<Weak<Common>>>>,
}

impl CpuDevice {
    /// A device of these kernels, run by this executor.
    pub fn new(kernels: Kernels, exec: Arc<dyn Executor>) -> Self {
        Self {
            kernels: Arc::new(kernels),
            exec,
            crossover: Crossover::default(),
            packer: Packer::default(),
            attention: Arc::default(),
        }
    }

    /// The same, but FFNs take their dense path above these shares of active neurons. Only speed depends on it.
    pub fn with_crossover(mut self, crossover: Crossover) -> Self {
        self.crossover = crossover;
        self
    }

    /// The same, but weights whose kernels have a faster layout ([`Kernels::packed`]) are kept a second time in it, as far as
    /// `limit` bytes go, in the order in which operators are made; clones made later share the room.
    pub fn with_repacking(mut self, limit: u64) -> Self {
        self.packer = Packer::new(limit);
        self
    }

    /// Bytes of weights that are kept a second time.
    pub fn repacked_bytes(&self) -> u64 {
        self.packer.used()
    }

    /// The fastest kernels of this CPU on a pool of `threads` threads.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn with_threads(threads: usize) -> std::io::Result<Self> {
        Ok(Self::new(Kernels::best(), Arc::new(Pool::new(threads)?)))
    }

    /// The kernels in use.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Above which share of active neurons FFNs take their dense path.
    pub fn crossover(&self) -> &Crossover {
        &self.crossover
    }

    /// Who runs them.
    pub fn executor(&self) -> &Arc<dyn Executor> {
        &self.exec
    }

    fn common(&self, spec: &AttentionSpec) -> Arc<Common> {
        let mut known = self.attention.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|common| common.strong_count() > 0);
        if let Some(common) = known.iter().filter_map(Weak::upgrade).find(|c| c.fits(spec)) {
            return common;
        }
        let common = Arc::new(Common::new(spec, self.exec.width()));
        known.push(Arc::downgrade(&common));
        common
    }
}

impl Device for CpuDevice {
    fn info(&self) -> DeviceInfo {
        let mut detail = format!("{} kernels, {} threads", self.kernels.isa(), self.exec.width());
        if self.repacked_bytes() > 0 {
            detail += &format!(", {} MB of weights repacked", self.repacked_bytes().div_ceil(1 << 20));
        }
        DeviceInfo { name: "cpu".into(), detail }
    }

    fn supports(&self, _: QuantType) -> bool {
        true // a type without a fast kernel is computed by the reference
    }

    fn hidden(&self, max_tokens: usize, dim: usize) -> Result<Hidden> {
        Hidden::try_new(max_tokens, dim)
    }

    fn norm(&self, spec: &NormSpec) -> Result<Arc<dyn Dense>> {
        Norm::check(spec)?;
        Ok(Arc::new(Norm { spec: spec.clone(), exec: self.exec.clone() }))
    }

    fn linear(&self, spec: &LinearSpec) -> Result<Arc<dyn Dense>> {
        spec.check()?;
        Ok(Arc::new(Linear::new(spec, &self.kernels, &self.packer, &self.exec)))
    }

    fn attention(&self, spec: &AttentionSpec) -> Result<Arc<dyn Attention>> {
        spec.check()?;
        let common = self.common(spec);
        Ok(Arc::new(CpuAttention::new(spec, common, &self.kernels, &self.packer, self.exec.clone())))
    }

    fn sparse_ffn(&self, weights: &FfnWeights, neurons: &NeuronSet) -> Result<Arc<dyn SparseFfn>> {
        let exec = self.exec.clone();
        Ok(Arc::new(CpuFfn::new(weights, neurons, &self.crossover, self.kernels.clone(), &self.packer, exec)?))
    }

    fn mlp(&self, spec: &MlpSpec) -> Result<Arc<dyn Predictor>> {
        Ok(Arc::new(CpuMlp::new(spec, &self.kernels, &self.packer, &self.exec)?))
    }

    fn signs(&self) -> SignKernels {
        self.kernels.signs()
    }
}
