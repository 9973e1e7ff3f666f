//! LLaMA and its relatives that keep the name: Mistral, SmolLM, TinyLlama, ReluLLaMA, ProSparse, …

use super::Architecture;
use crate::{
    Result,
    config::{Keys, ModelConfig},
};
use pi_core::{Activation, RopeKind};

pub(super) struct Llama;

impl Architecture for Llama {
    fn names(&self) -> &[&str] {
        &["llama"]
    }

    fn config(&self, keys: &Keys<'_>) -> Result<ModelConfig> {
        if let Some(experts) = keys.get::<u32>("expert_count")?.filter(|&n| n > 0) {
            return Err(keys.error("expert_count", "0 (mixtures of experts are not supported)", experts));
        }
        let common = keys.config(Activation::Silu)?;
        Ok(ModelConfig {
            norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
            rope: keys.rope(RopeKind::Interleaved, common.head_dim)?,
            ..common
        })
    }
}
