//! Model families. One file each: which metadata and tensors a family has, and in which order its layers compute.

mod bamboo;
mod falcon;
mod llama;
mod opt;

use crate::{
    Error, Result,
    config::{Keys, ModelConfig},
    schedule::LayerOrder,
    source::WeightSource,
};

/// A model family: data, and the order of five calls.
pub trait Architecture: Send + Sync {
    /// The names in `general.architecture` that mean this family.
    fn names(&self) -> &[&str];
    /// Reads the family's metadata.
    ///
    /// # Errors
    /// If a key is missing, has another type or is out of range, or the file uses a feature that is not built.
    fn config(&self, keys: &Keys<'_>) -> Result<ModelConfig>;
    /// Refuses what only tensors tell: a variant of the family that is not built.
    ///
    /// # Errors
    /// If the file is one, naming the tensor that shows it.
    fn check(&self, source: &dyn WeightSource, config: &ModelConfig) -> Result<()> {
        let _ = (source, config);
        Ok(())
    }
    /// The tensor's name without `.weight` or `.bias`. The default is what most families use.
    fn tensor(&self, slot: Slot, layer: usize) -> String {
        slot.default_name(layer)
    }
    /// The order of a layer's calls. The default is the sequential pre-norm layer.
    fn layer(&self, order: &mut LayerOrder<'_>) {
        order.norm1();
        order.attention();
        order.norm2();
        order.mark();
        order.ffn();
    }
}

/// The places that tensors of a model take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Slot {
    /// Token embedding.
    Embedding,
    /// Table of learned positions.
    PositionEmbedding,
    /// Norm before the head.
    OutputNorm,
    /// The head; tied to the embedding if absent.
    Output,
    /// Divisors of the rotary frequencies.
    RopeFactors,
    /// Norm before attention.
    Norm1,
    /// The same in parallel layers that have a norm for each branch; others share [`Norm2`](Self::Norm2).
    AttentionNorm,
    /// Query, key and value projections as one matrix, in this order; where it is absent there is one for each.
    QueryKeyValue,
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Projection after attention.
    AttentionOutput,
    /// Norm before the FFN.
    Norm2,
    /// FFN gate.
    Gate,
    /// FFN up.
    Up,
    /// FFN down, output-major as usual.
    Down,
    /// FFN down, neuron-major (PowerInfer files).
    DownTransposed,
    /// First matrix of the predictor (PowerInfer files).
    Predictor1,
    /// Second matrix of the predictor.
    Predictor2,
}

impl Slot {
    fn default_name(self, layer: usize) -> String {
        let name = match self {
            Self::Embedding => return "token_embd".into(),
            Self::PositionEmbedding => return "position_embd".into(),
            Self::OutputNorm => return "output_norm".into(),
            Self::Output => return "output".into(),
            Self::RopeFactors => return "rope_freqs".into(),
            Self::Norm1 => "attn_norm",
            Self::AttentionNorm => "attn_norm_2",
            Self::QueryKeyValue => "attn_qkv",
            Self::Query => "attn_q",
            Self::Key => "attn_k",
            Self::Value => "attn_v",
            Self::AttentionOutput => "attn_output",
            Self::Norm2 => "ffn_norm",
            Self::Gate => "ffn_gate",
            Self::Up => "ffn_up",
            Self::Down => "ffn_down",
            Self::DownTransposed => "ffn_down_t",
            Self::Predictor1 => "fc1",
            Self::Predictor2 => "fc2",
        };
        format!("blk.{layer}.{name}")
    }
}

/// All families. A new one is a file and a line here.
static ALL: &[&dyn Architecture] = &[&llama::Llama, &bamboo::Bamboo, &falcon::Falcon, &opt::Opt];

/// The names that are supported.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().flat_map(|a| a.names()).copied()
}

/// The family of a model file.
///
/// # Errors
/// If the file does not say, or says one that is not known.
pub fn detect(source: &dyn WeightSource) -> Result<(&'static dyn Architecture, ModelConfig)> {
    let meta = source.metadata();
    let name: &str = meta.require("general.architecture")?;
    if name == "generic.gpu_index" {
        return Err(Error::Config {
            path: meta.path().display().to_string(),
            key: "general.architecture".into(),
            expected: "a model".into(),
            got: "a PowerInfer neuron index (.gpuidx), which belongs beside one".into(),
        });
    }
    if name == crate::predictors::ARCHITECTURE {
        return Err(Error::Config {
            path: meta.path().display().to_string(),
            key: "general.architecture".into(),
            expected: "a model".into(),
            got: "predictors alone, which belong beside one (--predictor-file)".into(),
        });
    }
    let arch = ALL.iter().find(|a| a.names().contains(&name)).ok_or_else(|| Error::Architecture {
        path: meta.path().display().to_string(),
        name: name.into(),
        known: names().collect::<Vec<_>>().join(", "),
    })?;
    let mut config = arch.config(&Keys::new(meta, name, source.kind()))?;
    config.name = meta.get::<&str>("general.name").ok().flatten().map(Into::into);
    arch.check(source, &config)?;
    Ok((*arch, config))
}
