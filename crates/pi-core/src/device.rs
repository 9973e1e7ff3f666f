//! What a back end offers.

use crate::{
    ActiveSet, Attention, AttentionSpec, Dense, Error, FfnWeights, Footprint, Hidden, LinearSpec, MlpSpec, NeuronSet,
    NormSpec, Predictor, QuantType, Result, SignKernels, SparseFfn, footprint::PlainFootprint,
};
use std::sync::Arc;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// A short name, as in `cpu` or `cuda:0`.
    pub name: String,
    /// What it is made of, as in `avx2, 2 threads`.
    pub detail: String,
}

/// Makes operators from weights. One implementation per back end.
///
/// Operators of one device take and return [`Hidden`]s made by any device; data moves when it has to.
pub trait Device: Send + Sync {
    /// Name and make.
    fn info(&self) -> DeviceInfo;
    /// Whether weights of this type can be used. If not, they stay on another device.
    fn supports(&self, ty: QuantType) -> bool;
    /// What everything below takes of the device's own memory: what plans are made with. Without a device's own answers, the bytes of the
    /// numbers.
    fn footprint(&self) -> Arc<dyn Footprint> {
        Arc::new(PlainFootprint)
    }
    /// Room for hidden states near this device.
    ///
    /// # Errors
    /// If there is no memory.
    fn hidden(&self, max_tokens: usize, dim: usize) -> Result<Hidden>;
    /// Room for sets of active neurons near this device: `max_tokens` rows of `neurons` bits.
    ///
    /// # Errors
    /// If there is no memory.
    fn active(&self, max_tokens: usize, neurons: usize) -> Result<ActiveSet> {
        ActiveSet::try_new(max_tokens, neurons)
    }
    /// `y += x`: how the parts of a layer that were computed apart come together. Without a device's own, the host adds.
    ///
    /// # Errors
    /// [`Error::Shape`] if the two are not of one size; whatever the device reports.
    fn add(&self, x: &mut Hidden, y: &mut Hidden) -> Result<()> {
        if (x.tokens(), x.dim()) != (y.tokens(), y.dim()) {
            let size = |h: &Hidden| format!("{} rows of {}", h.tokens(), h.dim());
            return Err(Error::shape("a sum", size(y), size(x)));
        }
        y.host_mut()?.iter_mut().zip(x.host()?).for_each(|(y, x)| *y += *x);
        Ok(())
    }
    /// Whether operators have copies of their weights, so that the host's memory of those can be
    /// [given back](crate::Matrix::give_back). Without a device's own word, they are used where they lie.
    fn copies_weights(&self) -> bool {
        false
    }
    /// A norm over rows of the weight's length.
    ///
    /// # Errors
    /// If weights and bias do not fit, or there is no memory.
    fn norm(&self, spec: &NormSpec) -> Result<Arc<dyn Dense>>;
    /// A matrix with an optional bias.
    ///
    /// # Errors
    /// If they do not fit, the type is not supported, or there is no memory.
    fn linear(&self, spec: &LinearSpec) -> Result<Arc<dyn Dense>>;
    /// Attention with its projections.
    ///
    /// # Errors
    /// As [`linear`](Self::linear).
    fn attention(&self, spec: &AttentionSpec) -> Result<Arc<dyn Attention>>;
    /// The part of an FFN that consists of `neurons`.
    ///
    /// # Errors
    /// As [`linear`](Self::linear); also if only some neurons are given and the down matrix is output-major.
    fn sparse_ffn(&self, weights: &FfnWeights, neurons: &NeuronSet) -> Result<Arc<dyn SparseFfn>>;
    /// A predictor of two matrices.
    ///
    /// # Errors
    /// As [`linear`](Self::linear).
    fn mlp(&self, spec: &MlpSpec) -> Result<Arc<dyn Predictor>>;
    /// How predictors from signs alone, which run on the host, pack and compare them.
    fn signs(&self) -> SignKernels {
        SignKernels::PLAIN
    }
}
