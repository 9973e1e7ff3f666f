//! What a model file would do here, without loading it.

mod predictors;

pub use predictors::{LayerPredictor, PredictorForm, PredictorReport, is_predictors};

use crate::{
    Sparsity, SparsityReport,
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
    /// The model's shape, if the family is supported and its metadata is sound. `None` for a file of predictors.
    pub config: Option<ModelConfig>,
    /// What can be skipped, and why something cannot.
    pub sparsity: Option<SparsityReport>,
    /// The predictors that the file carries.
    pub predictors: Option<PredictorReport>,
    /// Everything that would keep the file from running, or is odd about it.
    pub problems: Vec<String>,
}

/// Reads what a file says about itself. Never fails: what is wrong is listed in [`ModelReport::problems`].
pub fn inspect(source: &dyn WeightSource) -> ModelReport {
    let mut problems = Vec::new();
    if is_predictors(source) {
        let predictors = predictors::report(source, None, &mut problems);
        return ModelReport { config: None, sparsity: None, predictors, problems };
    }
    let mut note = |e: String| problems.push(e);
    let mut config = None;
    let mut sparsity = None;
    match arch::detect(source) {
        Err(e) => note(e.to_string()),
        Ok((arch, c)) if load::is_bare(source, arch) => {
            note(load::BARE.into());
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
    let predictors = predictors::report(source, config.as_ref(), &mut problems);
    if source.kind() == Kind::PowerInfer && predictors.is_none() {
        problems.push("the file has PowerInfer's magic but no predictors (blk.N.fc1, blk.N.fc2)".into());
    }
    ModelReport { config, sparsity, predictors, problems }
}

/// Tensors that every layer needs and that are not there, not usable or of another shape; at most a handful.
fn missing(source: &dyn WeightSource, arch: &dyn arch::Architecture, config: &ModelConfig) -> Vec<String> {
    let (d, n, q, kv) = (
        config.dim,
        config.neurons,
        config.heads.saturating_mul(config.head_dim),
        config.kv_heads.saturating_mul(config.head_dim),
    );
    let mut found = Vec::new();
    let mut need = |slot: Slot, layer: usize, rows: Option<usize>, cols: usize| {
        if found.len() >= 8 {
            return;
        }
        let name = format!("{}.weight", arch.tensor(slot, layer));
        match source.matrix(&name) {
            Ok(Some(m)) => {
                if let Err(e) = m.expect_shape(rows.unwrap_or(m.rows()), cols) {
                    found.push(e.to_string());
                }
            }
            Ok(None) => found.push(format!("tensor '{name}' is missing")),
            Err(e) => found.push(e.to_string()),
        }
    };
    let there = |slot, layer| matches!(source.matrix(&format!("{}.weight", arch.tensor(slot, layer))), Ok(Some(_)));
    need(Slot::Embedding, 0, None, d);
    if config.position_offset.is_some() {
        need(Slot::PositionEmbedding, 0, None, d);
    }
    need(Slot::OutputNorm, 0, Some(1), d);
    for layer in 0..config.layers {
        need(Slot::Norm1, layer, Some(1), d);
        if there(Slot::QueryKeyValue, layer) {
            need(Slot::QueryKeyValue, layer, Some(q.saturating_add(kv).saturating_add(kv)), d);
        } else {
            need(Slot::Query, layer, Some(q), d);
            need(Slot::Key, layer, Some(kv), d);
            need(Slot::Value, layer, Some(kv), d);
        }
        need(Slot::AttentionOutput, layer, Some(d), q);
        need(Slot::Norm2, layer, Some(1), d);
        need(Slot::Up, layer, Some(n), d);
        if config.gating != pi_core::Gating::UpOnly {
            need(Slot::Gate, layer, Some(n), d);
        }
        match there(Slot::DownTransposed, layer) {
            true => need(Slot::DownTransposed, layer, Some(n), d),
            false => need(Slot::Down, layer, Some(d), n),
        }
        if !there(Slot::Norm1, layer) {
            break; // a file that ends early, or a layer count that is damaged
        }
    }
    found.extend(load::surplus(source, arch, config));
    found
}
