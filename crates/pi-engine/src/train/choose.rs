//! Which rank a layer's predictor gets.

use super::{Progress, TrainOptions, collect::Seen, ended};
use crate::{Engine, Error, Result};
use pi_core::QuantType;
use pi_predictor::train::{Curve, FitOptions, Fitted, Point, fit};
use rayon::prelude::*;
use std::{
    ops::{ControlFlow, Range},
    sync::Mutex,
};

/// The share of magnitudes at which ranks are compared.
const COMPARED_AT: f64 = 0.98;
/// A rank has to save so much of what the layer's gate is, in bytes, to be preferred.
const WORTH: f64 = 0.01;

/// A layer's predictor.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The layer.
    pub layer: usize,
    /// The matrices; plain outputs for plain inputs.
    pub fitted: Fitted,
    /// How good they are, on tokens that they were not trained on.
    pub curve: Curve,
    /// The threshold in use. `None`: the layer runs exactly, because a predictor would not pay.
    pub point: Option<Point>,
    /// Share of the neurons that fire.
    pub active: f64,
    /// The predictor's bytes as a share of the layer's gate.
    pub size: f64,
    /// Ranks that were tried, with what is read of the gate and the predictor together, as a share of the gate, where 98 % of
    /// the magnitudes are kept.
    pub tried: Vec<(usize, f64)>,
}

impl Choice {
    /// Width between the matrices.
    pub fn rank(&self) -> usize {
        self.fitted.fc1.nrows()
    }

    /// What is read at a point of the curve, as a share of the gate: the predictor, and the gates of what it lets through.
    pub fn cost(&self, point: &Point) -> f64 {
        self.size + point.share
    }
}

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
        let gate = engine.inner.model.layers.iter().map(|l| l.gate_bytes).max().unwrap_or(1).max(1) as f64;
        Self { dim: c.dim, neurons: c.neurons, gate, ty }
    }

    /// A predictor's bytes as a share of the gate.
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

/// Finds predictors for some layers, several at a time.
pub(super) fn layers(
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
            let choice = choose(&seen, layer, options, costs, &tell)?;
            if tell(Progress::Fitted(&choice)) { Ok(choice) } else { Err(ended()) }
        })
        .collect()
}

fn choose(
    seen: &Seen,
    layer: usize,
    options: &TrainOptions,
    costs: &Costs,
    tell: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Choice> {
    let block = options.ty.info().block_len;
    let active = seen.test.share();
    let mut tried: Vec<(usize, f64)> = Vec::new();
    let mut best: Option<(f64, Fitted, Curve)> = None;
    let mut attempt = |rank: usize, best: &mut Option<(f64, Fitted, Curve)>| -> Result<bool> {
        let fit_options = FitOptions { rank, seed: options.fit.seed.wrapping_add(layer as u64), ..options.fit };
        let mut stopped = false;
        let fitted = fit(&seen.train, &fit_options, &mut |done| {
            stopped = !tell(Progress::Fitting { layer, rank, done });
            !stopped
        });
        if stopped {
            return Err(ended());
        }
        let fitted = fitted?;
        let curve = Curve::new(&fitted, &seen.test);
        let cost = costs.size(rank) + curve.with_recall(COMPARED_AT).share;
        tried.push((rank, cost));
        let better = best.as_ref().is_none_or(|(least, ..)| cost < least - WORTH);
        if better {
            *best = Some((cost, fitted, curve));
        }
        Ok(better)
    };
    if options.ranks.is_empty() {
        let first = costs.first_rank(active, block);
        attempt(first, &mut best)?;
        let mut rank = 2 * first;
        let mut grew = false;
        while rank <= costs.dim && costs.size(rank) < 1.0 && attempt(rank, &mut best)? {
            (rank, grew) = (2 * rank, true);
        }
        let mut rank = first / 2;
        while !grew && rank >= 16 && rank.is_multiple_of(block) && attempt(rank, &mut best)? {
            rank /= 2;
        }
    } else {
        for &rank in &options.ranks {
            attempt(rank, &mut best)?;
        }
    }
    let Some((_, fitted, curve)) = best else { return Err(Error::setting("ranks", "at least one", "none")) };
    let size = costs.size(fitted.fc1.nrows());
    Ok(Choice { layer, fitted, curve, point: None, active, size, tried })
}
