//! Which predictors a layer could have: matrices of the best rank, and signs.

use super::{
    Candidate, Choice, Form, PredictorKind, Progress, TrainOptions,
    collect::{Plan, Seen},
    ended,
};
use crate::{Engine, Error, Result, predictors};
use pi_core::{Predictor, QuantType};
use pi_predictor::train::{Curve, FitOptions, Fitted, fit};
use rayon::prelude::*;
use std::{
    ops::{ControlFlow, Range},
    sync::Mutex,
};

/// The share of magnitudes at which ranks are compared.
const COMPARED_AT: f64 = 0.98;
/// A rank has to save so much of what the layer's gate is, in bytes, to be preferred.
const WORTH: f64 = 0.01;
/// Ranks are compared after one in so many epochs; only the best is then trained with all.
const SEARCH: usize = 3;

/// What things weigh.
pub(super) struct Costs {
    dim: usize,
    neurons: usize,
    /// Bytes of the matrix that a predictor saves reading, per layer.
    gate: f64,
    ty: QuantType,
}

impl Costs {
    pub(super) fn new(engine: &Engine, ty: QuantType) -> Self {
        let c = engine.config();
        let gate = engine.inner.model.layers.iter().map(|l| l.gate.size_bytes()).max().unwrap_or(1).max(1) as f64;
        Self { dim: c.dim, neurons: c.neurons, gate, ty }
    }

    /// The bytes of two matrices as a share of the gate.
    fn size(&self, rank: usize) -> f64 {
        let numbers = rank * (self.dim + self.neurons);
        let info = self.ty.info();
        numbers as f64 / info.block_len as f64 * info.block_bytes as f64 / self.gate
    }

    /// Where the search begins: the fewer neurons fire, the less there is to know (paper §5.1).
    fn first_rank(&self, active: f64, block: usize) -> usize {
        let part = if active < 0.03 {
            16
        } else if active < 0.12 {
            8
        } else {
            4
        };
        (self.dim / part).max(16).next_multiple_of(block.max(16))
    }
}

type Tell<'a> = &'a (dyn Fn(Progress<'_>) -> bool + Sync);

/// Finds predictors for some layers, several at a time.
pub(super) fn layers(
    engine: &Engine,
    samples: Vec<Seen>,
    range: Range<usize>,
    known: &[Option<Choice>],
    options: &TrainOptions,
    costs: &Costs,
    progress: &mut (dyn FnMut(Progress<'_>) -> ControlFlow<()> + Send),
) -> Result<Vec<Choice>> {
    let progress = Mutex::new(progress);
    let tell = |now: Progress<'_>| {
        let mut progress = progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        progress(now).is_continue()
    };
    let wanted = samples.into_par_iter().zip(range.into_par_iter()).filter(|(_, layer)| known[*layer].is_none());
    wanted
        .map(|(seen, layer)| {
            let mut choice =
                Choice { layer, candidates: Vec::new(), used: None, active: seen.test.share(), tried: Vec::new() };
            if options.kinds.contains(&PredictorKind::Mlp) {
                let mlp = Search { seen: &seen, options, costs, tell: &tell, layer }.mlp(&mut choice)?;
                choice.candidates.push(mlp);
            }
            if options.kinds.contains(&PredictorKind::Sign) {
                choice.candidates.push(signs(engine, layer, &seen, costs)?);
            }
            if tell(Progress::Fitted(&choice)) { Ok(choice) } else { Err(ended()) }
        })
        .collect()
}

fn signs(engine: &Engine, layer: usize, seen: &Seen, costs: &Costs) -> Result<Candidate> {
    let sign = predictors::sign(&engine.inner.model.layers[layer].gate, 0.0, engine.device(), &engine.inner.exec)?;
    let curve = Curve::of_signs(&sign, &seen.signs, &seen.test)?;
    Ok(Candidate { form: Form::Sign, curve, size: sign.bytes() as f64 / costs.gate })
}

/// The search for a layer's rank.
struct Search<'a> {
    seen: &'a Seen,
    options: &'a TrainOptions,
    costs: &'a Costs,
    tell: Tell<'a>,
    layer: usize,
}

impl Search<'_> {
    /// The best matrices.
    fn mlp(&self, choice: &mut Choice) -> Result<Candidate> {
        let rank = match &self.options.ranks[..] {
            [one] => *one,
            some => {
                self.compare(some, choice)?;
                let best = choice.tried.iter().copied().reduce(|best, t| if t.1 < best.1 - WORTH { t } else { best });
                best.ok_or_else(|| Error::setting("ranks", "at least one", "none"))?.0
            }
        };
        let (fitted, curve) = self.fit(rank, self.options.fit.epochs)?;
        Ok(Candidate { form: Form::Mlp(fitted), curve, size: self.costs.size(rank) })
    }

    /// Tries ranks: those asked for, or from one that the layer's sparsity suggests up or down as long as that gets better.
    fn compare(&self, asked: &[usize], choice: &mut Choice) -> Result<()> {
        let epochs = self.options.fit.epochs.div_ceil(SEARCH);
        let tried = &mut choice.tried;
        let mut attempt = |rank: usize| -> Result<bool> {
            let least = tried.iter().fold(f64::INFINITY, |least, t| least.min(t.1));
            let (_, curve) = self.fit(rank, epochs)?;
            let cost = self.costs.size(rank) + curve.with_recall(COMPARED_AT).share;
            tried.push((rank, cost));
            Ok(cost < least - WORTH)
        };
        if !asked.is_empty() {
            return asked.iter().try_for_each(|rank| attempt(*rank).map(drop));
        }
        let block = self.options.ty.info().block_len;
        let first = self.costs.first_rank(choice.active, block);
        attempt(first)?;
        let mut rank = 2 * first;
        let mut grew = false;
        while rank <= self.costs.dim && self.costs.size(rank) < 1.0 && attempt(rank)? {
            (rank, grew) = (2 * rank, true);
        }
        let mut rank = first / 2;
        while !grew && rank >= 16 && rank.is_multiple_of(block) && attempt(rank)? {
            rank /= 2;
        }
        Ok(())
    }

    fn fit(&self, rank: usize, epochs: usize) -> Result<(Fitted, Curve)> {
        let (layer, fit_options) = (self.layer, self.options.fit);
        let fit_options = FitOptions { rank, epochs, seed: fit_options.seed.wrapping_add(layer as u64), ..fit_options };
        let mut stopped = false;
        let fitted = fit(&self.seen.train, &fit_options, &mut |done| {
            stopped = !(self.tell)(Progress::Fitting { layer, rank, done });
            !stopped
        });
        if stopped {
            return Err(ended());
        }
        let fitted = fitted?;
        let curve = Curve::new(&fitted, &self.seen.test);
        Ok((fitted, curve))
    }
}

/// How many layers' samples fit into the memory asked for.
///
/// # Errors
/// If not even one layer's do.
pub(super) fn at_once(plan: &Plan, layers: usize, memory: u64) -> Result<usize> {
    let each = plan.layer_bytes().max(1);
    match (memory / each) as usize {
        0 => {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            let expected = format!("at least {} MiB, for the samples of one layer (or fewer samples)", mib(each));
            Err(Error::setting("memory", expected, format!("{} MiB", memory >> 20)))
        }
        n => Ok(n.min(layers.max(1))),
    }
}
