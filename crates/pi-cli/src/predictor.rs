//! Which predictors are used: the options of all commands that load a model.

use crate::{
    failure::{Failure, Result},
    values,
};
use clap::{Args, ValueEnum, ValueHint};
use pi_engine::{Predictors, Sparsity, pi_gguf::File};
use std::{path::PathBuf, sync::Arc};

/// A kind of predictor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The matrices in the file.
    #[default]
    Mlp,
    /// The signs of the gate's weights and of its input.
    Sign,
    /// The gates themselves: never wrong, and no gain.
    Oracle,
}

/// What `--sparsity predictor` is to do.
#[derive(Args, Clone, Debug, Default)]
pub struct PredictorFlags {
    /// With --sparsity predictor: mlp (matrices in the file), sign (signs of the gate's weights, nothing is trained), oracle
    /// (the gates themselves: never wrong, and no gain) [default: mlp]
    #[arg(long, value_enum, value_name = "mlp|sign|oracle", hide_possible_values = true)]
    pub predictor: Option<Kind>,
    /// With --sparsity predictor: the file that predictors are in, as pi train-predictor writes it [default: the model's own]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub predictor_file: Option<PathBuf>,
    /// What the output of an mlp has to reach for a neuron to be computed [default: what the file says, or 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::finite)]
    pub threshold: Option<f32>,
    /// Of sign: share of a gate's products by which negative ones may outnumber half. More finds more neurons and skips
    /// fewer [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = margin)]
    pub margin: Option<f32>,
}

impl PredictorFlags {
    /// The predictors that these flags ask for with a sparsity.
    ///
    /// # Errors
    /// If an option is given where it has no meaning.
    pub fn predictors(&self, sparsity: Sparsity) -> Result<Predictors> {
        let kind = self.predictor.unwrap_or_default();
        let needs = [
            ("--predictor", self.predictor.is_some(), sparsity == Sparsity::Predictor, "--sparsity predictor"),
            (
                "--predictor-file",
                self.predictor_file.is_some(),
                sparsity == Sparsity::Predictor,
                "--sparsity predictor",
            ),
            ("--predictor-file", self.predictor_file.is_some(), kind == Kind::Mlp, "--predictor mlp"),
            ("--threshold", self.threshold.is_some(), sparsity == Sparsity::Predictor, "--sparsity predictor"),
            ("--threshold", self.threshold.is_some(), kind == Kind::Mlp, "--predictor mlp"),
            ("--margin", self.margin.is_some(), sparsity == Sparsity::Predictor, "--sparsity predictor"),
            ("--margin", self.margin.is_some(), kind == Kind::Sign, "--predictor sign"),
        ];
        if let Some((flag, .., needed)) = needs.into_iter().find(|(_, given, holds, _)| *given && !holds) {
            return Err(Failure::Usage(format!("{flag} means nothing without {needed}")));
        }
        Ok(match kind {
            Kind::Mlp => match &self.predictor_file {
                None => Predictors::File { threshold: self.threshold },
                Some(path) => {
                    let file = File::open(path).map_err(|e| Failure::engine(&e.into(), path))?;
                    Predictors::Beside { source: Arc::new(file), threshold: self.threshold }
                }
            },
            Kind::Sign => Predictors::Sign { margin: self.margin.unwrap_or(0.0) },
            Kind::Oracle => Predictors::Oracle,
        })
    }
}

fn margin(text: &str) -> std::result::Result<f32, String> {
    let value = values::finite(text)?;
    if (-0.5..=0.5).contains(&value) { Ok(value) } else { Err("expected a share from -0.5 to 0.5".into()) }
}
