//! Falcon: attention and FFN side by side, LayerNorm, no gate, one matrix for queries, keys and values.
//!
//! With one norm (7B) both branches read it. With two (40B) `attn_norm` is the FFN's and `attn_norm_2` attention's.

use super::{Architecture, Slot};
use crate::{
    Error, Result,
    config::{Keys, ModelConfig, NormKind},
    schedule::LayerOrder,
    source::WeightSource,
};
use pi_core::{Activation, Gating, RopeKind};

pub(super) struct Falcon;

impl Architecture for Falcon {
    fn names(&self) -> &[&str] {
        &["falcon"]
    }

    fn config(&self, keys: &Keys<'_>) -> Result<ModelConfig> {
        keys.only("alibi", false, "positions by ALiBi are not supported")?;
        keys.only("attention.max_alibi_bias", 0.0f32, "positions by ALiBi are not supported")?;
        keys.only("use_parallel_residual", true, "an FFN behind the attention is not supported")?;
        let common = keys.config(Activation::Gelu)?;
        Ok(ModelConfig {
            norm: NormKind::Layer,
            norm_eps: keys.positive("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
            gating: Gating::UpOnly,
            rope: keys.rope(RopeKind::SplitHalf, common.head_dim)?,
            parallel: true,
            ..common
        })
    }

    /// Falcon-RW has ALiBi and sequential layers, and no key says so.
    fn check(&self, source: &dyn WeightSource, _: &ModelConfig) -> Result<()> {
        let tensor = format!("{}.weight", Slot::Norm2.default_name(0));
        match source.matrix(&tensor)? {
            None => Ok(()),
            Some(_) => Err(Error::Tensor {
                path: source.metadata().path().display().to_string(),
                tensor,
                message: "expected none: layers whose FFN comes behind the attention (falcon-rw) are not supported"
                    .into(),
            }),
        }
    }

    fn tensor(&self, slot: Slot, layer: usize) -> String {
        match slot {
            Slot::Norm1 | Slot::Norm2 => Slot::Norm1.default_name(layer),
            other => other.default_name(layer),
        }
    }

    /// Both branches see the layer's input: the FFN reads it first and adds last.
    fn layer(&self, order: &mut LayerOrder<'_>) {
        order.norm2();
        order.mark();
        order.start_ffn();
        if !order.shares_norm() {
            order.norm1();
        }
        order.attention();
        order.finish_ffn();
    }
}
