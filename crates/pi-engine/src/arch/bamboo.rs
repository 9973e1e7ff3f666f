//! Bamboo: Mistral's shape with dReLU, `relu(gate) · relu(up)`.

use super::Architecture;
use crate::{
    Result,
    config::{Keys, ModelConfig},
};
use pi_core::{Activation, Gating, RopeKind};

pub(super) struct Bamboo;

impl Architecture for Bamboo {
    fn names(&self) -> &[&str] {
        &["bamboo"]
    }

    fn config(&self, keys: &Keys<'_>) -> Result<ModelConfig> {
        let common = keys.config(Activation::Relu)?;
        Ok(ModelConfig {
            norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
            gating: Gating::Symmetric,
            rope: keys.rope(RopeKind::Interleaved, common.head_dim)?,
            ..common
        })
    }
}
