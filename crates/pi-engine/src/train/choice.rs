//! What was found for a layer.

use pi_predictor::train::{Curve, Fitted, Point};
use std::{fmt, str::FromStr};

/// A kind of predictor that a layer can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictorKind {
    /// Two trained matrices.
    Mlp,
    /// The signs of the gate's weights: nothing is trained.
    Sign,
}

impl PredictorKind {
    /// As files and options call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Sign => "sign",
        }
    }
}

impl fmt::Display for PredictorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PredictorKind {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        [Self::Mlp, Self::Sign].into_iter().find(|k| k.name() == s).ok_or_else(|| "expected mlp or sign".into())
    }
}

/// What a candidate is made of.
#[derive(Clone, Debug)]
pub enum Form {
    /// Two matrices; plain outputs for plain inputs.
    Mlp(Fitted),
    /// The signs of the layer's gate.
    Sign,
}

/// A predictor that a layer could have.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What it is made of.
    pub form: Form,
    /// How good it is, on tokens that it was not trained on.
    pub curve: Curve,
    /// Its bytes as a share of the layer's gate.
    pub size: f64,
}

impl Candidate {
    /// Its kind.
    pub fn kind(&self) -> PredictorKind {
        match self.form {
            Form::Mlp(_) => PredictorKind::Mlp,
            Form::Sign => PredictorKind::Sign,
        }
    }

    /// Width between the matrices, if it has any.
    pub fn rank(&self) -> Option<usize> {
        match &self.form {
            Form::Mlp(fitted) => Some(fitted.fc1.nrows()),
            Form::Sign => None,
        }
    }

    /// What is read at a point of the curve, as a share of the gate: the predictor, and the gates of what it lets through. From 1
    /// on it does not pay.
    pub fn cost(&self, point: &Point) -> f64 {
        self.size + point.share
    }
}

/// The predictor that a layer uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Used {
    /// Which of the candidates.
    pub candidate: usize,
    /// Its threshold, and what it does with it.
    pub point: Point,
    /// Mean divergence KL(exact ‖ predictor) if this layer alone has a predictor, nats per token over a few windows of text; NaN
    /// until it is measured.
    pub kl: f64,
}

/// A layer, and the predictors that were found for it.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The layer.
    pub layer: usize,
    /// The best of each kind.
    pub candidates: Vec<Candidate>,
    /// The predictor in use. `None`: the layer runs exactly, because a predictor would not pay.
    pub used: Option<Used>,
    /// Share of the neurons that fire.
    pub active: f64,
    /// Ranks that were tried, with what is read of the gate and the predictor together, as a share of the gate, where 98 % of
    /// the magnitudes are kept.
    pub tried: Vec<(usize, f64)>,
}

impl Choice {
    /// The candidate in use and what it does; `None` if the layer runs exactly.
    pub fn in_use(&self) -> Option<(&Candidate, &Used)> {
        let used = self.used.as_ref()?;
        Some((self.candidates.get(used.candidate)?, used))
    }

    /// `mlp`, `sign` or `exact`.
    pub fn kind(&self) -> &'static str {
        self.in_use().map_or("exact", |(c, _)| c.kind().name())
    }
}
