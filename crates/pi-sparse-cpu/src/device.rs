//! The CPU as a device.

use crate::{
    Crossover, Kernels, Pool,
    attention::{Common, CpuAttention},
    dense::{Linear, Norm},
    ffn::CpuFfn,
};
use pi_core::{
    Attention, AttentionSpec, Dense, Device, DeviceInfo, Executor, FfnWeights, Hidden, LinearSpec, NeuronSet, NormSpec,
    QuantType, Result, SparseFfn,
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
    /// Layers with attention of one kind share what is computed for it.
    attention: Arc<Mutex<Vec<Weak<Common>>>>,
}

impl CpuDevice {
    /// A device of these kernels, run by this executor.
    pub fn new(kernels: Kernels, exec: Arc<dyn Executor>) -> Self {
        Self { kernels: Arc::new(kernels), exec, crossover: Crossover::default(), attention: Arc::default() }
    }

    /// The same, but FFNs take their dense path above these shares of active neurons. Only speed depends on it.
    pub fn with_crossover(mut self, crossover: Crossover) -> Self {
        self.crossover = crossover;
        self
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
        DeviceInfo {
            name: "cpu".into(),
            detail: format!("{} kernels, {} threads", self.kernels.isa(), self.exec.width()),
        }
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
        Ok(Arc::new(Linear { spec: spec.clone(), kernels: self.kernels.clone(), exec: self.exec.clone() }))
    }

    fn attention(&self, spec: &AttentionSpec) -> Result<Arc<dyn Attention>> {
        spec.check()?;
        let common = self.common(spec);
        Ok(Arc::new(CpuAttention::new(spec, common, self.kernels.clone(), self.exec.clone())))
    }

    fn sparse_ffn(&self, weights: &FfnWeights, neurons: &NeuronSet) -> Result<Arc<dyn SparseFfn>> {
        Ok(Arc::new(CpuFfn::new(weights, neurons, &self.crossover, self.kernels.clone(), self.exec.clone())?))
    }
}
