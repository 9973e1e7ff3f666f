//! OPT: learned positions, LayerNorm, biases, no gate, the head usually tied to the embedding.

use super::{Architecture, Slot};
use crate::{
    Error, Result,
    config::{Keys, ModelConfig, NormKind},
    source::WeightSource,
};
use pi_core::{Activation, Gating};

pub(super) struct Opt;

/// The table of positions begins with rows that were meant for padding: position 0 has the third.
const OFFSET: usize = 2;

impl Architecture for Opt {
    fn names(&self) -> &[&str] {
        &["opt"]
    }

    fn config(&self, keys: &Keys<'_>) -> Result<ModelConfig> {
        keys.only("do_layer_norm_before", true, "norms behind the branches, as in opt-350m, are not supported")?;
        let common = keys.config(Activation::Relu)?;
        let inner = keys.size_or("word_embed_proj_dim", common.dim)?;
        if inner != common.dim {
            let expected =
                format!("the width {} (projected embeddings, as in opt-350m, are not supported)", common.dim);
            return Err(keys.error("word_embed_proj_dim", expected, inner));
        }
        Ok(ModelConfig {
            norm: NormKind::Layer,
            norm_eps: keys.positive("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
            gating: Gating::UpOnly,
            position_offset: Some(OFFSET),
            ..common
        })
    }

    /// opt-350m differs in ways that no key of today's files tells.
    fn check(&self, source: &dyn WeightSource, config: &ModelConfig) -> Result<()> {
        let refuse = |tensor: String, message: &str| {
            let path = source.metadata().path().display().to_string();
            Err(Error::Tensor { path, tensor, message: message.into() })
        };
        let name = |slot| format!("{}.weight", self.tensor(slot, 0));
        let embedding = source.matrix(&name(Slot::Embedding))?;
        if let Some(m) = embedding.as_ref().filter(|m| m.cols() != config.dim) {
            let message = format!(
                "has rows of {} in a model of width {}: projected embeddings (word_embed_proj_dim, as in opt-350m) are not \
                 supported",
                m.cols(),
                config.dim
            );
            return refuse(name(Slot::Embedding), &message);
        }
        if embedding.is_some() && source.matrix(&name(Slot::OutputNorm))?.is_none() {
            let message = "is missing: norms behind the branches (do_layer_norm_before = false, as in opt-350m) are not \
                           supported";
            return refuse(name(Slot::OutputNorm), message);
        }
        Ok(())
    }
}
