//! What a back end offers.

use crate::{
    Attention, AttentionSpec, Dense, FfnWeights, Hidden, LinearSpec, MlpSpec, NeuronSet, NormSpec, Predictor,
    QuantType, Result, SignKernels, SparseFfn,
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
    /// Room for hidden states near this device.
    ///
    /// # Errors
    /// If there is no memory.
    fn hidden(&self, max_tokens: usize, dim: usize) -> Result<Hidden>;
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
