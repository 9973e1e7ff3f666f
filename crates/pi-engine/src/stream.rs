//! Weights that are not on the accelerator, sent to it for one step: a long prompt shares one copy of them among its tokens.

use crate::hybrid::Part;
use pi_core::{Device, Error, FfnWeights, Limits, NeuronSet, Result, footprint::FfnShape};
use std::sync::Arc;

/// When the neurons that are on the CPU are sent to the accelerator and computed there. One layer's are there at a time, from the beginning of
/// its FFN to its end; then their memory is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// Tokens of a step from which on it is done. For shorter steps the CPU computes them.
    pub from: usize,
    /// Most bytes of the accelerator that a session may take for it, weights and scratch. The CPU computes a layer that needs more.
    pub memory: u64,
}

/// The neurons of a layer that are on the CPU.
pub(crate) struct Stream {
    pub device: Arc<dyn Device>,
    pub weights: FfnWeights,
    pub neurons: NeuronSet,
    pub when: Streaming,
}

impl Stream {
    /// Whether a step of so many tokens is long enough.
    pub(crate) fn wants(&self, tokens: usize) -> bool {
        tokens >= self.when.from
    }

    /// Whether a step of so many tokens needs no more memory than it may.
    pub(crate) fn fits(&self, tokens: usize) -> bool {
        self.bytes(tokens) <= self.when.memory
    }

    /// Bytes of the accelerator for a step of so many tokens.
    fn bytes(&self, tokens: usize) -> u64 {
        let (device, shape) = (self.device.footprint(), FfnShape::from(&self.weights));
        let limits = Limits { tokens, ..NO_CACHE };
        let weights = device.sparse_ffn(&shape, (&self.neurons).into());
        weights.saturating_add(device.ffn_scratch(&shape, self.neurons.len(), &limits))
    }

    /// Sends the weights for a step of so many tokens. `None` if the device cannot take them: the CPU has them as well. If it failed for
    /// another reason than want of memory, whatever it is asked next says so.
    ///
    /// # Errors
    /// What is no failure of the device.
    pub(crate) fn send(&self, limits: &Limits) -> Result<Option<Part>> {
        match self.device.sparse_ffn(&self.weights, &self.neurons).and_then(|op| Part::new(op, limits)) {
            Ok(part) => Ok(Some(part)),
            Err(Error::Device { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// FFNs know no sequences.
const NO_CACHE: Limits = Limits { tokens: 0, sequences: 0, context: 0 };
