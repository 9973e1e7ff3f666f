//! Whether predictors in a file of their own were made for the model they are used with.
//!
//! A fingerprint of bytes would refuse a model that was quantised after training, whose predictors stay good. So a file of
//! predictors keeps a few numbers of every layer's first matrix, and those of the model have to point the same way.

use crate::{
    Error, Result,
    arch::{self, Architecture, Slot},
    config::ModelConfig,
    predictors::{ARCHITECTURE, LIKENESS, THRESHOLDS},
    source::WeightSource,
};
use pi_core::Gating;
use pi_gguf::Metadata;

/// Numbers of a row that are kept.
const NUMBERS: usize = 32;
/// Cosine from which two models are taken for one. Numbers of 2 bits keep 0.9; models that have nothing to do with each other
/// are near 0.
const ALIKE: f64 = 0.7;

/// Some numbers of each layer: of the first and the middle row of the gate, or of up where there is none. What is not finite
/// counts as 0. A matrix that is missing or damaged ends the list: the loader says what is wrong with it.
pub(crate) fn numbers(source: &dyn WeightSource, arch: &dyn Architecture, config: &ModelConfig) -> Vec<f32> {
    let slot = if config.gating == Gating::UpOnly { Slot::Up } else { Slot::Gate };
    let mut all = Vec::new();
    for layer in 0..config.layers {
        let Ok(Some(m)) = source.matrix(&format!("{}.weight", arch.tensor(slot, layer))) else { break };
        let mut row = vec![0.0; m.cols()];
        for i in [0, m.rows() / 2].into_iter().filter(|i| *i < m.rows()) {
            (m.ty().info().decode)(m.view().row(i), &mut row);
            all.extend(row.iter().take(NUMBERS).map(|v| if v.is_finite() { *v } else { 0.0 }));
        }
    }
    all
}

/// Checks that the predictors of `source` belong to a model of this shape with these numbers. Files of earlier versions, which
/// say less, are only checked for what they say.
///
/// # Errors
/// [`Error::Config`] and [`Error::Tensor`], which name the file of the predictors.
pub(crate) fn check(source: &dyn WeightSource, config: &ModelConfig, model: &[f32]) -> Result<()> {
    let meta = source.metadata();
    let name: &str = meta.require("general.architecture")?;
    let theirs = if name == ARCHITECTURE {
        for (key, want) in [
            ("pi.predictor.block_count", config.layers),
            ("pi.predictor.embedding_length", config.dim),
            ("pi.predictor.feed_forward_length", config.neurons),
        ] {
            if let Some(got) = meta.get::<u32>(key)?.filter(|got| *got as usize != want) {
                return Err(other(meta, key, format!("{want}, as the model has"), got));
            }
        }
        if let Some(all) = meta.get::<Vec<f32>>(THRESHOLDS)?.filter(|all| all.len() != config.layers) {
            let expected = format!("{} numbers, one for each layer of the model", config.layers);
            return Err(other(meta, THRESHOLDS, expected, format!("{} numbers", all.len())));
        }
        meta.get::<Vec<f32>>(LIKENESS)?
    } else if arch::names().any(|n| n == name) {
        let (arch, theirs) = arch::detect(source)?;
        let shape = |c: &ModelConfig| format!("{} layers, width {}, {} neurons", c.layers, c.dim, c.neurons);
        let (want, got) = (shape(config), shape(&theirs));
        if want != got {
            return Err(other(meta, "general.architecture", format!("a model of {want}"), got));
        }
        Some(numbers(source, arch, &theirs))
    } else {
        let expected = format!("{ARCHITECTURE:?} (a file of predictors) or a model with predictors");
        return Err(other(meta, "general.architecture", expected, format!("{name:?}")));
    };
    match theirs {
        Some(theirs) if !alike(&theirs, model) => {
            let key = if name == ARCHITECTURE { LIKENESS } else { "general.architecture" };
            Err(other(meta, key, "what belongs to this model", "what belongs to another model of the same shape"))
        }
        _ => Ok(()),
    }
}

fn other(meta: &Metadata, key: &str, expected: impl ToString, got: impl ToString) -> Error {
    Error::Config {
        path: meta.path().display().to_string(),
        key: key.into(),
        expected: expected.to_string(),
        got: got.to_string(),
    }
}

/// Whether two lists of numbers point the same way.
fn alike(a: &[f32], b: &[f32]) -> bool {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let (aa, bb) = (dot(a, a), dot(b, b));
    a.len() == b.len() && ((aa == 0.0 && bb == 0.0) || dot(a, b) >= ALIKE * (aa * bb).sqrt() && aa > 0.0 && bb > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_were_rounded_are_alike_and_others_are_not() {
        let a: Vec<f32> = (0..64).map(|i| (i as f32 * 1.7).sin()).collect();
        let rounded: Vec<f32> = a.iter().map(|v| (v * 2.0).round() / 2.0).collect();
        let other: Vec<f32> = (0..64).map(|i| (i as f32 * 0.9 + 1.0).sin()).collect();
        assert!(alike(&a, &a) && alike(&a, &rounded) && alike(&[], &[]) && alike(&[0.0], &[0.0]));
        for b in [&other[..], &a[1..], &[0.0; 64], &[f32::NAN; 64], &[]] {
            assert!(!alike(&a, b), "{b:?}");
        }
    }
}
