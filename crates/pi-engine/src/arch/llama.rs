//! LLaMA and its relatives that keep the name: Mistral, SmolLM, TinyLlama, ReluLLaMA, ProSparse, …

use super::Architecture;
use crate::{
    Result,
    config::{Keys, ModelConfig},
};
use pi_core::{Activation, Gating, RopeKind};

pub(super) struct Llama;

impl Architecture for Llama {
    fn names(&self) -> &[&str] {
        &["llama"]
    }

    fn config(&self, keys: &Keys<'_>) -> Result<ModelConfig> {
        if let Some(experts) = keys.get::<u32>("expert_count")?.filter(|&n| n > 0) {
            return Err(keys.error("expert_count", "0 (mixtures of experts are not supported)", experts));
        }
        let (dim, heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
        let kv_heads = keys.size_or("attention.head_count_kv", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.error("attention.head_count_kv", format!("a divisor of {heads} heads"), kv_heads));
        }
        if keys.get::<u32>("attention.key_length")?.is_none() && !dim.is_multiple_of(heads) {
            return Err(keys.error("attention.head_count", format!("a divisor of the width {dim}"), heads));
        }
        let head_dim = keys.size_or("attention.key_length", dim / heads)?;
        let value_dim = keys.size_or("attention.value_length", head_dim)?;
        if value_dim != head_dim {
            return Err(keys.error("attention.value_length", format!("{head_dim}, as the keys"), value_dim));
        }
        Ok(ModelConfig {
            architecture: keys.arch().into(),
            name: None,
            layers: keys.size("block_count")?,
            dim,
            heads,
            kv_heads,
            head_dim,
            neurons: keys.size("feed_forward_length")?,
            context: keys.size("context_length")?,
            norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
            activation: keys.activation(Activation::Silu)?,
            gating: Gating::Gated,
            rope: keys.rope(RopeKind::Interleaved, head_dim)?,
        })
    }
}
