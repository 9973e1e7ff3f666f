//! Where the parts of a model are: on the CPU, or on an accelerator beside it (paper §5).

use crate::{Error, Result, config::ModelConfig};
use pi_core::NeuronSet;

/// Who holds and computes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Side {
    /// The CPU.
    #[default]
    Cpu,
    /// The accelerator.
    Accelerator,
}

impl Side {
    /// The other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Cpu => Self::Accelerator,
            Self::Accelerator => Self::Cpu,
        }
    }
}

/// Where the parts of a layer are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    /// Norms, attention with its KV cache, and the predictor.
    pub dense: Side,
    /// Neurons of the FFN that are on the accelerator; the others are on the CPU.
    pub hot: NeuronSet,
}

/// Where the parts of a model are. The result is the same whatever the plan, up to roundings. Only down matrices that are
/// neuron-major (or of float types, where idle neurons are left out) can be divided: others need all or none of a layer's neurons hot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// One per layer.
    pub layers: Vec<LayerPlan>,
    /// The last norm, and the matrix that gives logits.
    pub head: Side,
}

impl Plan {
    /// Everything on one side.
    pub fn whole(config: &ModelConfig, side: Side) -> Self {
        let hot = match side {
            Side::Cpu => NeuronSet::none(config.neurons),
            Side::Accelerator => NeuronSet::all(config.neurons),
        };
        Self { layers: vec![LayerPlan { dense: side, hot }; config.layers], head: side }
    }

    /// Whether anything is on the accelerator. If not, it is not used at all: nothing is allocated there.
    pub fn uses_accelerator(&self) -> bool {
        let layer = |l: &LayerPlan| l.dense == Side::Accelerator || !l.hot.is_empty();
        self.head == Side::Accelerator || self.layers.iter().any(layer)
    }

    /// Fails unless the plan is for a model of this shape.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the layer.
    pub fn check(&self, config: &ModelConfig) -> Result<()> {
        if self.layers.len() != config.layers {
            return Err(Error::setting("plan", format!("one for {} layers", config.layers), self.layers.len()));
        }
        match self.layers.iter().enumerate().find(|(_, l)| l.hot.total() != config.neurons) {
            Some((i, l)) => {
                let got = format!("{} in layer {i}", l.hot.total());
                Err(Error::setting("plan", format!("layers of {} neurons", config.neurons), got))
            }
            None => Ok(()),
        }
    }
}
