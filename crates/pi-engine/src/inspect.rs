//! What a model file would do here, without loading it.

use crate::{
    Result, Sparsity, SparsityReport,
    arch::{self, Slot},
    config::ModelConfig,
    load,
    source::WeightSource,
    tokenizer,
};
use pi_gguf::Kind;

/// What [`inspect`] found.
#[derive(Clone, Debug)]
pub struct ModelReport {
    /// The model's shape, if the family is supported and its metadata is sound.
    pub config: Option<ModelConfig>,
    /// What can be skipped, and why something cannot.
    pub sparsity: Option<SparsityReport>,
    /// Whether the file carries predictors: PowerInfer's magic, and `fc1`/`fc2` in the first layer.
    pub predictors: Option<PredictorReport>,
    /// Everything that would keep the file from running, or is odd about it.
    pub problems: Vec<String>,
}

/// The predictors in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictorReport {
    /// Layers that have one.
    pub layers: usize,
    /// Smallest and largest rank.
    pub rank: (usize, usize),
    /// `powerinfer.sparse_threshold`.
    pub threshold: Option<f32>,
}

/// Reads what a file says about itself. Never fails: what is wrong is listed in [`ModelReport::problems`].
pub fn inspect(source: &dyn WeightSource) -> ModelReport {
    let mut problems = Vec::new();
    let mut note = |e: String| problems.push(e);
    let mut config = None;
    let mut sparsity = None;
    match arch::detect(source) {
        Err(e) => note(e.to_string()),
        Ok((arch, c)) if is_bare(source, arch) => {
            note("the file has no weights, only metadata (a vocabulary, perhaps)".into());
            config = Some(c);
        }
        Ok((arch, c)) => {
            match load::sparsity(source, arch, &c, Sparsity::Auto) {
                Ok(s) => sparsity = Some(s),
                Err(e) => note(e.to_string()),
            }
            for e in missing(source, arch, &c) {
                note(e);
            }
            config = Some(c);
        }
    }
    match tokenizer::load(source.metadata()) {
        Ok(loaded) => loaded.warnings.iter().for_each(|w| note(w.to_string())),
        Err(e) => note(e.to_string()),
    }
    let predictors = predictors(source).unwrap_or_else(|e| {
        problems.push(e.to_string());
        None
    });
    if source.kind() == Kind::PowerInfer && predictors.is_none() {
        problems.push("the file has PowerInfer's magic but no predictors (blk.N.fc1, blk.N.fc2)".into());
    }
    ModelReport { config, sparsity, predictors, problems }
}

/// True if not even the first tensors are there: the file is a vocabulary, and naming all that is missing would say less.
fn is_bare(source: &dyn WeightSource, arch: &dyn arch::Architecture) -> bool {
    let first = [Slot::Embedding, Slot::Norm1, Slot::Query, Slot::Up, Slot::OutputNorm];
    first.iter().all(|&slot| matches!(source.matrix(&format!("{}.weight", arch.tensor(slot, 0))), Ok(None)))
}

/// Tensors that every layer needs and that are not there or not usable; at most a handful.
fn missing(source: &dyn WeightSource, arch: &dyn arch::Architecture, config: &ModelConfig) -> Vec<String> {
    let mut found = Vec::new();
    let mut need = |slot: Slot, layer: usize| {
        if found.len() >= 8 {
            return;
        }
        let name = format!("{}.weight", arch.tensor(slot, layer));
        match source.matrix(&name) {
            Ok(Some(_)) => {}
            Ok(None) => found.push(format!("tensor '{name}' is missing")),
            Err(e) => found.push(e.to_string()),
        }
    };
    need(Slot::Embedding, 0);
    need(Slot::OutputNorm, 0);
    for layer in 0..config.layers {
        let mut slots =
            vec![Slot::Norm1, Slot::Query, Slot::Key, Slot::Value, Slot::AttentionOutput, Slot::Norm2, Slot::Up];
        if config.gating != pi_core::Gating::UpOnly {
            slots.push(Slot::Gate);
        }
        let transposed = format!("{}.weight", arch.tensor(Slot::DownTransposed, layer));
        if !matches!(source.matrix(&transposed), Ok(Some(_))) {
            slots.push(Slot::Down);
        }
        slots.into_iter().for_each(|slot| need(slot, layer));
        if !matches!(source.matrix(&format!("{}.weight", arch.tensor(Slot::Norm1, layer))), Ok(Some(_))) {
            break; // a file that ends early, or a layer count that is damaged
        }
    }
    found
}

fn predictors(source: &dyn WeightSource) -> Result<Option<PredictorReport>> {
    let (mut layers, mut rank) = (0, (usize::MAX, 0));
    while let (Some(fc1), Some(_)) =
        (source.matrix(&format!("blk.{layers}.fc1.weight"))?, source.matrix(&format!("blk.{layers}.fc2.weight"))?)
    {
        rank = (rank.0.min(fc1.rows()), rank.1.max(fc1.rows()));
        layers += 1;
    }
    let threshold = source.metadata().get("powerinfer.sparse_threshold")?;
    Ok((layers > 0).then_some(PredictorReport { layers, rank, threshold }))
}
