//! Which thresholds the predictors get: as high as perplexity allows.

use super::{Choice, Progress, TrainOptions, ended};
use crate::{
    Engine, Result,
    evaluate::{EvaluateOptions, Evaluation, evaluate},
};
use pi_core::{Matrix, MlpSpec, Predictor, QuantType, text::TokenId};
use pi_predictor::train::Point;
use std::{ops::ControlFlow, sync::Arc};

/// The share of the magnitudes at which layers are tried one by one, to learn how much each of them matters.
const PROBED_AT: f64 = 0.95;
/// Windows of text for that.
const PROBED_WINDOWS: usize = 6;
/// Prices of divergence that are searched through.
const PRICES: i32 = 32;

/// A set of thresholds, tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Share of neurons that a nat of divergence is worth: the higher, the lower the thresholds.
    pub price: f64,
    /// Perplexity of the exact model.
    pub exact: f64,
    /// Perplexity with the predictors.
    pub perplexity: f64,
    /// Mean divergence KL(exact ‖ predictors), nats per token; 0 if it was not measured.
    pub kl: f64,
    /// Share of neurons that predictors let through, mean of all layers; 1 for exact ones.
    pub marked: f64,
    /// Layers with a predictor.
    pub layers: usize,
}

impl Trial {
    /// By how much perplexity grows, as a share.
    pub fn growth(&self) -> f64 {
        self.perplexity / self.exact - 1.0
    }
}

/// What was settled on.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The trial of the thresholds in use; `None` if no layer has a predictor.
    pub trial: Option<Trial>,
    /// All trials.
    pub tried: Vec<Trial>,
}

type Watcher<'a> = &'a mut (dyn FnMut(Progress<'_>) -> ControlFlow<()> + Send);

/// Sets the points of all layers.
///
/// How much of its neurons' magnitudes a layer may lose depends on how much that changes what the model says. So each layer is
/// first tried alone. Then all of them get the thresholds at which the last neurons let through cost the same per divergence
/// that they spare; and the price of divergence is raised until perplexity is near enough to the exact model's.
pub(super) fn settle(
    engine: &Engine,
    kept: &[TokenId],
    layers: &mut [Choice],
    options: &TrainOptions,
    progress: Watcher<'_>,
) -> Result<Settled> {
    let text = Text { engine, kept, options };
    let exact = text.evaluate(engine, false, usize::MAX, progress)?.perplexity();
    let mut harm = Vec::new();
    for i in 0..layers.len() {
        layers.iter_mut().for_each(|l| l.point = None);
        let point = layers[i].curve.with_recall(PROBED_AT);
        layers[i].point = Some(point);
        let found = text.evaluate(&text.sparse(layers)?, true, PROBED_WINDOWS, progress)?;
        let kl = found.against.as_ref().map_or(0.0, |a| a.kl_mean());
        harm.push(kl / (1.0 - point.magnitude).max(1e-3).powi(2));
    }
    let (mut tried, mut accepted) = (Vec::new(), None);
    let (mut low, mut high) = (0, PRICES);
    while low < high {
        let middle = (low + high) / 2;
        let price = price(middle);
        if !set(layers, &harm, price) {
            // so dear that every layer runs exactly: near enough, and no gain
            high = middle;
            continue;
        }
        let found = text.evaluate(&text.sparse(layers)?, false, usize::MAX, progress)?;
        let marked = f64::from(found.stats.marked_share().unwrap_or(1.0));
        let with = layers.iter().filter(|l| l.point.is_some()).count();
        let trial = Trial { price, exact, perplexity: found.perplexity(), kl: 0.0, marked, layers: with };
        tried.push(trial);
        if progress(Progress::Tried(&trial)).is_break() {
            return Err(ended());
        }
        if trial.growth() <= options.loss {
            (high, accepted) = (middle, Some(trial));
        } else {
            low = middle + 1;
        }
    }
    match &mut accepted {
        Some(trial) => {
            set(layers, &harm, trial.price);
            let found = text.evaluate(&text.sparse(layers)?, true, usize::MAX, progress)?;
            trial.kl = found.against.as_ref().map_or(0.0, |a| a.kl_mean());
        }
        None => layers.iter_mut().for_each(|l| l.point = None),
    }
    Ok(Settled { trial: accepted, tried })
}

/// The `i`-th price: from 4 to 190,000.
fn price(i: i32) -> f64 {
    4.0 * 1.4f64.powi(i)
}

/// Gives each layer the point at which its neurons and the divergence they spare cost least together, or none where that does
/// not pay. False if no layer is left with a predictor.
fn set(layers: &mut [Choice], harm: &[f64], price: f64) -> bool {
    for (layer, harm) in layers.iter_mut().zip(harm) {
        // divergence grows with the square of what is lost
        let cost = |p: &Point| p.share + price * harm * (1.0 - p.magnitude).powi(2);
        let best = layer.curve.points().iter().copied().min_by(|a, b| cost(a).total_cmp(&cost(b)));
        layer.point = best.filter(|p| layer.cost(p) < 1.0);
    }
    layers.iter().any(|l| l.point.is_some())
}

/// What perplexity is measured on.
struct Text<'a> {
    engine: &'a Engine,
    kept: &'a [TokenId],
    options: &'a TrainOptions,
}

impl Text<'_> {
    /// The model with the layers' predictors.
    fn sparse(&self, layers: &[Choice]) -> Result<Engine> {
        let all = layers.iter().map(|l| predictor(self.engine, l, self.options.ty)).collect::<Result<Vec<_>>>()?;
        self.engine.with_predictors(&all)
    }

    fn evaluate(&self, model: &Engine, against: bool, windows: usize, progress: Watcher<'_>) -> Result<Evaluation> {
        let context = self.options.context;
        let settings =
            EvaluateOptions { context, batch: self.options.batch, limit: Some(windows), ..EvaluateOptions::default() };
        let mut stopped = false;
        let found = evaluate(model, against.then_some(self.engine), self.kept, &settings, &mut |so_far| {
            stopped = progress(Progress::Evaluating { windows: so_far.windows, of: so_far.of }).is_break();
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if stopped { Err(ended()) } else { Ok(found) }
    }
}

/// A layer's predictor as it will be used; `None` if the layer runs exactly.
pub(super) fn predictor(engine: &Engine, layer: &Choice, ty: QuantType) -> Result<Option<Arc<dyn Predictor>>> {
    let Some(point) = layer.point else { return Ok(None) };
    let [fc1, fc2] = matrices(layer, ty)?;
    Ok(Some(engine.device().mlp(&MlpSpec { fc1, fc2, threshold: point.threshold })?))
}

/// A layer's two matrices as they are stored.
pub(super) fn matrices(layer: &Choice, ty: QuantType) -> Result<[Matrix; 2]> {
    let of = |name: &str, m: &ndarray::Array2<f32>| {
        let name = format!("blk.{}.{name}.weight", layer.layer);
        let data = m.as_standard_layout();
        Matrix::encode(name, ty, m.nrows(), m.ncols(), data.as_slice().unwrap_or(&[]))
    };
    Ok([of("fc1", &layer.fitted.fc1)?, of("fc2", &layer.fitted.fc2)?])
}
