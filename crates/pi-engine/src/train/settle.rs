//! Which thresholds the predictors get: as high as perplexity allows.

use super::{Candidate, Choice, Form, Progress, TrainOptions, Used, ended};
use crate::{
    Engine, Result,
    evaluate::{Comparison, EvaluateOptions, Evaluation, Windows, evaluate},
    predictors,
};
use pi_core::{Matrix, MlpSpec, Predictor, QuantType, text::TokenId};
use pi_predictor::train::Fitted;
use std::{ops::ControlFlow, sync::Arc};

/// The share of the magnitudes at which layers are tried one by one, to learn how much each of them matters.
const PROBED_AT: f64 = 0.95;
/// Windows of text for that.
const PROBED_WINDOWS: usize = 6;
/// Prices of divergence that are searched through.
const PRICES: i32 = 32;
/// The divergence that is accepted, as a share of the loss asked for. On average over texts perplexity grows by the divergence;
/// on one text it grows by more or less, so what was measured there alone would promise too much for the next.
const SURE: f64 = 0.5;

/// A set of thresholds, tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Share of neurons that a nat of divergence is worth: the higher, the lower the thresholds.
    pub price: f64,
    /// Perplexity of the exact model.
    pub exact: f64,
    /// Perplexity with the predictors.
    pub perplexity: f64,
    /// Mean divergence KL(exact ‖ predictors), nats per token.
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

    fn new(price: f64, found: &Evaluation, layers: &[Choice]) -> Self {
        let nothing = Comparison::default();
        let against = found.against.as_ref().unwrap_or(&nothing);
        Self {
            price,
            exact: against.base.perplexity(),
            perplexity: found.perplexity(),
            kl: against.kl_mean(),
            marked: f64::from(found.stats.marked_share().unwrap_or(1.0)),
            layers: layers.iter().filter(|l| l.used.is_some()).count(),
        }
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

/// Gives every layer one of its candidates and the point at which it works, or none.
///
/// How much of its neurons' magnitudes a layer may lose depends on how much that changes what the model says. So each candidate
/// is first tried alone. Then all layers get what costs least: bytes read, and divergence at a price. The last neurons let
/// through then cost the same per divergence that they spare, in every layer; and the price is raised until perplexity is near
/// enough to the exact model's, and divergence is half of that or less.
pub(super) fn settle(
    engine: &Engine,
    kept: &[TokenId],
    layers: &mut [Choice],
    options: &TrainOptions,
    progress: Watcher<'_>,
) -> Result<Settled> {
    let text = Text { engine, kept, options };
    let harm = harms(&text, layers, progress)?;
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
        let found = text.evaluate(&text.sparse(layers)?, usize::MAX, progress)?;
        let trial = Trial::new(price, &found, layers);
        tried.push(trial);
        if progress(Progress::Tried(&trial)).is_break() {
            return Err(ended());
        }
        if trial.growth() <= options.loss && trial.kl <= SURE * options.loss {
            (high, accepted) = (middle, Some(trial));
        } else {
            low = middle + 1;
        }
    }
    match &accepted {
        Some(trial) => {
            set(layers, &harm, trial.price);
            alone(&text, layers, progress)?;
        }
        None => layers.iter_mut().for_each(|l| l.used = None),
    }
    Ok(Settled { trial: accepted, tried })
}

/// Divergence per square of the share of magnitudes that is lost, for each candidate of each layer; infinite for those that do not
/// pay even where they lose much.
fn harms(text: &Text<'_>, layers: &[Choice], progress: Watcher<'_>) -> Result<Vec<Vec<f64>>> {
    let one = |layer: &Choice| -> Result<Vec<f64>> {
        let of = |candidate: usize| {
            let c = &layer.candidates[candidate];
            let point = c.curve.with_recall(PROBED_AT);
            if c.cost(&point) >= 1.0 {
                return Ok(f64::INFINITY);
            }
            let kl = text.alone(layer, &Used { candidate, point, kl: f64::NAN }, progress)?;
            Ok(kl / (1.0 - point.magnitude).max(1e-3).powi(2))
        };
        (0..layer.candidates.len()).map(of).collect()
    };
    layers.iter().map(one).collect()
}

/// Measures what each layer's predictor does alone.
fn alone(text: &Text<'_>, layers: &mut [Choice], progress: Watcher<'_>) -> Result<()> {
    for layer in layers.iter_mut() {
        if let Some(used) = layer.used {
            let kl = text.alone(layer, &used, progress)?;
            layer.used = Some(Used { kl, ..used });
        }
    }
    Ok(())
}

/// The `i`-th price: from 4 to 190,000.
fn price(i: i32) -> f64 {
    4.0 * 1.4f64.powi(i)
}

/// Gives each layer the candidate and point at which bytes and divergence cost least together, or none where that does not pay.
/// False if no layer is left with a predictor.
fn set(layers: &mut [Choice], harm: &[Vec<f64>], price: f64) -> bool {
    for (layer, harm) in layers.iter_mut().zip(harm) {
        let mut best: Option<(f64, Used)> = None;
        for (candidate, (c, harm)) in layer.candidates.iter().zip(harm).enumerate().filter(|(_, (_, h))| h.is_finite())
        {
            for point in c.curve.points() {
                // divergence grows with the square of what is lost
                let cost = c.cost(point) + price * harm * (1.0 - point.magnitude).powi(2);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, Used { candidate, point: *point, kl: f64::NAN }));
                }
            }
        }
        layer.used = best.map(|b| b.1).filter(|u| layer.candidates[u.candidate].cost(&u.point) < 1.0);
    }
    layers.iter().any(|l| l.used.is_some())
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
        let all = layers.iter().map(|l| in_use(self.engine, l, self.options.ty)).collect::<Result<Vec<_>>>()?;
        self.engine.with_predictors(&all)
    }

    /// Divergence if one layer alone has a predictor, over some windows.
    fn alone(&self, layer: &Choice, used: &Used, progress: Watcher<'_>) -> Result<f64> {
        let mut all = vec![None; self.engine.config().layers];
        if let Some(place) = all.get_mut(layer.layer) {
            *place =
                Some(predictor(self.engine, layer.layer, &layer.candidates[used.candidate], used, self.options.ty)?);
        }
        let found = self.evaluate(&self.engine.with_predictors(&all)?, PROBED_WINDOWS, progress)?;
        Ok(found.against.as_ref().map_or(0.0, |a| a.kl_mean()))
    }

    fn evaluate(&self, model: &Engine, windows: usize, progress: Watcher<'_>) -> Result<Evaluation> {
        let context = self.options.context;
        let settings = EvaluateOptions {
            context,
            batch: self.options.batch,
            limit: Some(windows),
            windows: Windows::Stride(context - 1),
        };
        let mut stopped = false;
        let found = evaluate(model, Some(self.engine), self.kept, &settings, &mut |so_far| {
            stopped = progress(Progress::Evaluating { windows: so_far.windows, of: so_far.of }).is_break();
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if stopped { Err(ended()) } else { Ok(found) }
    }
}

/// A layer's predictor as it will be used; `None` if the layer runs exactly.
pub(super) fn in_use(engine: &Engine, layer: &Choice, ty: QuantType) -> Result<Option<Arc<dyn Predictor>>> {
    layer.in_use().map(|(candidate, used)| predictor(engine, layer.layer, candidate, used, ty)).transpose()
}

fn predictor(
    engine: &Engine,
    layer: usize,
    candidate: &Candidate,
    used: &Used,
    ty: QuantType,
) -> Result<Arc<dyn Predictor>> {
    let threshold = used.point.threshold;
    match &candidate.form {
        Form::Mlp(fitted) => {
            let [fc1, fc2] = matrices(layer, fitted, ty)?;
            Ok(engine.device().mlp(&MlpSpec { fc1, fc2, threshold })?)
        }
        Form::Sign => {
            let gate = &engine.inner.model.layers[layer].gate;
            Ok(Arc::new(predictors::sign(gate, -threshold, engine.device(), &engine.inner.exec)?))
        }
    }
}

/// A layer's two matrices as they are stored.
pub(super) fn matrices(layer: usize, fitted: &Fitted, ty: QuantType) -> Result<[Matrix; 2]> {
    let of = |name: &str, m: &ndarray::Array2<f32>| {
        let name = format!("blk.{layer}.{name}.weight");
        let data = m.as_standard_layout();
        Matrix::encode(name, ty, m.nrows(), m.ncols(), data.as_slice().unwrap_or(&[]))
    };
    Ok([of("fc1", &fitted.fc1)?, of("fc2", &fitted.fc2)?])
}
