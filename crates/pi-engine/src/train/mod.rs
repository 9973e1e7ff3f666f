//! Predictors for a model, trained on what its neurons do in a text (paper §5.1).
//!
//! 1. `collect`: the model runs exactly over the text; for every layer, what a predictor would have got and which
//!    neurons fired are kept, in bounded memory.
//! 2. `choose`: each layer's candidates are found: matrices, whose rank starts from the layer's sparsity and grows or shrinks
//!    while that saves bytes, and the signs of its gate.
//! 3. `settle`: each layer gets the candidate and threshold that cost least, and thresholds are lowered until the perplexity of a
//!    text that was not trained on is near enough to that of the exact model. A layer whose predictors would all read more than
//!    they save stays exact.
//!
//! The result is written as a file beside the model or into one file with it ([`Trained::write`], [`Trained::write_model`]), and
//! [`Trained::time`] says how fast it is.

mod choice;
mod choose;
mod collect;
mod file;
mod settle;
mod timing;

pub use choice::{Candidate, Choice, Form, PredictorKind, Used};
pub use settle::{Settled, Trial};
pub use timing::{Timing, decode_speeds};

use crate::{Engine, Error, ModelConfig, Result};
use choose::Costs;
use collect::Plan;
use pi_core::{Predictor, QuantType, text::TokenId};
use pi_predictor::train::FitOptions;
use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

/// How predictors are trained.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Tokens that each layer's predictor is trained on. An eighth as many more are kept back to measure it.
    pub samples: usize,
    /// Tokens of a window of text.
    pub context: usize,
    /// Most tokens computed at once.
    pub batch: usize,
    /// Most bytes of samples at a time. If they do not suffice for all layers, the text is gone through several times.
    pub memory: u64,
    /// By how much perplexity may grow, as a share of the exact model's: 0.001 is 0.1 %.
    pub loss: f64,
    /// Kinds of predictors that layers may get.
    pub kinds: Vec<PredictorKind>,
    /// Ranks to be tried; empty: found for each layer, from its sparsity.
    pub ranks: Vec<usize>,
    /// How matrices are fitted. The rank is replaced.
    pub fit: FitOptions,
    /// How the matrices are stored.
    pub ty: QuantType,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            samples: 50_000,
            context: 512,
            batch: 512,
            memory: 2 << 30,
            loss: 1e-3,
            kinds: vec![PredictorKind::Mlp, PredictorKind::Sign],
            ranks: Vec::new(),
            fit: FitOptions::default(),
            ty: QuantType::F16,
        }
    }
}

/// What is being done.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Tokens of the text that were computed for these layers.
    Collecting {
        /// The layers.
        layers: Range<usize>,
        /// Tokens so far.
        tokens: usize,
        /// Of how many.
        of: usize,
    },
    /// Windows of the text that was kept back are computed with predictors and without.
    Evaluating {
        /// Windows so far.
        windows: usize,
        /// Of how many.
        of: usize,
    },
    /// A layer is being fitted.
    Fitting {
        /// Layer.
        layer: usize,
        /// Rank that is tried.
        rank: usize,
        /// Share of the work on this rank.
        done: f64,
    },
    /// A layer is done.
    Fitted(&'a Choice),
    /// A set of thresholds was tried on the text that was kept back.
    Tried(&'a Trial),
}

/// Predictors of a model.
pub struct Trained {
    /// One per layer, in order.
    pub layers: Vec<Choice>,
    /// What thresholds were settled on, and what they cost.
    pub settled: Settled,
    ty: QuantType,
    about: file::About,
}

impl Trained {
    /// The model with these predictors.
    ///
    /// # Errors
    /// If they do not fit the engine's model.
    pub fn engine(&self, engine: &Engine) -> Result<Engine> {
        engine.with_predictors(&self.predictors(engine)?)
    }

    fn predictors(&self, engine: &Engine) -> Result<Vec<Option<Arc<dyn Predictor>>>> {
        self.layers.iter().map(|l| settle::in_use(engine, l, self.ty)).collect()
    }
}

/// Trains predictors. `engine` must leave out idle neurons exactly ([`crate::Sparsity::Exact`]); `text` is trained on, `kept` is
/// what perplexity is measured on. Both are tokens without marks of begin and end. `known` are layers of an earlier, interrupted
/// run with the same options ([`Choice::read`]). `progress` may end the training.
///
/// # Errors
/// If the model has no idle neurons, texts are too short, a setting is out of range, an operator fails, or it was ended.
pub fn train(
    engine: &Engine,
    text: &[TokenId],
    kept: &[TokenId],
    options: &TrainOptions,
    known: Vec<Choice>,
    progress: &mut (dyn FnMut(Progress<'_>) -> ControlFlow<()> + Send),
) -> Result<Trained> {
    let c = engine.config();
    let (plan, at_once) = plan(engine, text.len(), options)?;
    let mut layers: Vec<Option<Choice>> = (0..c.layers).map(|_| None).collect();
    for choice in known.into_iter().filter(|choice| fits(choice, c, options)) {
        let layer = choice.layer;
        layers[layer] = Some(choice);
    }
    let costs = Costs::new(engine, options.ty);
    for first in (0..c.layers).step_by(at_once) {
        let some = first..(first + at_once).min(c.layers);
        if some.clone().all(|i| layers[i].is_some()) {
            continue;
        }
        let samples = collect::collect(engine, text, some.clone(), &plan, options, progress)?;
        for choice in choose::layers(engine, samples, some, &layers, options, &costs, progress)? {
            let layer = choice.layer;
            layers[layer] = Some(choice);
        }
    }
    let mut layers: Vec<Choice> = layers.into_iter().flatten().collect();
    let settled = settle::settle(engine, kept, &mut layers, options, progress)?;
    Ok(Trained { layers, settled, ty: options.ty, about: file::About::new(engine) })
}

/// Whether a training with a text of `text` tokens can begin: what [`train`] would refuse at once is refused without any work.
///
/// # Errors
/// If the model has no idle neurons, the text is too short, or a setting is out of range.
pub fn check(engine: &Engine, text: usize, options: &TrainOptions) -> Result<()> {
    plan(engine, text, options).map(drop)
}

/// What will be collected, and how many layers at a time.
fn plan(engine: &Engine, text: usize, options: &TrainOptions) -> Result<(Plan, usize)> {
    check_options(engine, options)?;
    let plan = Plan::new(engine, text, options)?;
    let at_once = choose::at_once(&plan, engine.config().layers, options.memory)?;
    Ok((plan, at_once))
}

/// Whether a layer of an earlier run can be used: it is of this model's shape, and has the kinds asked for.
fn fits(choice: &Choice, c: &ModelConfig, options: &TrainOptions) -> bool {
    let shape = |candidate: &Candidate| match &candidate.form {
        Form::Mlp(f) => (f.fc1.ncols(), f.fc2.nrows()) == (c.dim, c.neurons) && f.fc2.ncols() == f.fc1.nrows(),
        Form::Sign => true,
    };
    let has = |kind: &PredictorKind| choice.candidates.iter().any(|c| c.kind() == *kind);
    choice.layer < c.layers && choice.candidates.iter().all(shape) && options.kinds.iter().all(has)
}

fn check_options(engine: &Engine, options: &TrainOptions) -> Result<()> {
    let c = engine.config();
    if !engine.sparsity().is_on() || !engine.sparsity().predictors.is_empty() {
        let got = engine.sparsity();
        return Err(Error::setting("a model to train predictors for", "one that leaves idle neurons out exactly", got));
    }
    for (name, value, range) in [
        ("samples", options.samples, 64..=1 << 24),
        ("context", options.context, 8..=c.context.max(8)),
        ("batch", options.batch, 1..=1 << 24),
        ("layers", c.layers, 1..=usize::MAX),
    ] {
        if !range.contains(&value) {
            return Err(Error::setting(name, format!("a number from {} to {}", range.start(), range.end()), value));
        }
    }
    let valid = options.loss >= 0.0 && options.loss.is_finite();
    if !valid {
        return Err(Error::setting("loss", "a share from 0 on", options.loss));
    }
    if options.kinds.is_empty() {
        return Err(Error::setting("kinds of predictors", "at least one", "none"));
    }
    let block = options.ty.info().block_len;
    if !c.dim.is_multiple_of(block) {
        return Err(Error::setting(
            "type of predictors",
            format!("blocks that divide the width {}", c.dim),
            options.ty,
        ));
    }
    if let Some(rank) = options.ranks.iter().find(|r| !(1..=c.neurons).contains(*r) || !r.is_multiple_of(block)) {
        let expected = format!("a multiple of {block} (blocks of {}), at most {}", options.ty, c.neurons);
        return Err(Error::setting("rank", expected, rank));
    }
    Ok(())
}

/// What ends a training that was asked to end.
fn ended() -> Error {
    Error::setting("training", "to be let finish", "an interruption")
}
