//! Watching a model: what predictors would get, and which neurons fire.

use super::{Progress, TrainOptions, ended};
use crate::{Engine, Error, Observer, Result, SessionOptions, StepToken};
use pi_core::text::TokenId;
use pi_predictor::train::Samples;
use std::ops::{ControlFlow, Range};

/// One window in so many is kept back from training.
const KEPT: usize = 9;

/// Samples of a layer: to train on, and to measure with.
pub(super) struct Seen {
    pub train: Samples,
    pub test: Samples,
}

struct Collector {
    first: usize,
    layers: Vec<Seen>,
    /// Inputs of the layer at hand.
    inputs: Vec<f32>,
    dim: usize,
    neurons: usize,
    /// Whether samples are for measuring.
    test: bool,
    error: Option<pi_core::Error>,
}

impl Observer for Collector {
    fn inputs(&mut self, layer: usize, h: &[f32], _: &[f32]) {
        if (self.first..self.first + self.layers.len()).contains(&layer) {
            self.inputs.clear();
            self.inputs.extend_from_slice(h);
        }
    }

    fn values(&mut self, layer: usize, values: &[f32]) {
        let Some(seen) = layer.checked_sub(self.first).and_then(|i| self.layers.get_mut(i)) else { return };
        let samples = if self.test { &mut seen.test } else { &mut seen.train };
        let rows = self.inputs.chunks_exact(self.dim).zip(values.chunks_exact(self.neurons));
        for (input, values) in rows {
            if let Err(e) = samples.push(input, values) {
                self.error.get_or_insert(e);
            }
        }
    }
}

/// Runs over the text until there are samples enough for some layers.
pub(super) fn collect(
    engine: &Engine,
    text: &[TokenId],
    layers: Range<usize>,
    options: &TrainOptions,
    progress: &mut (dyn FnMut(Progress<'_>) -> ControlFlow<()> + Send),
) -> Result<Vec<Seen>> {
    let c = engine.config();
    let special = engine.tokenizer().special();
    let bos = special.bos.filter(|_| special.add_bos);
    let body = options.context - 1;
    let windows = text.len() / body;
    let tested = options.samples / (KEPT - 1) + 1;
    let wanted = (options.samples + tested).div_ceil(body).next_multiple_of(KEPT);
    if windows < KEPT {
        let least = KEPT * body;
        return Err(Error::setting(
            "text to train on",
            format!("at least {least} tokens"),
            format!("{} tokens", text.len()),
        ));
    }
    let new = |_| {
        let samples = |n| Samples::new(c.dim, c.neurons, n);
        Ok(Seen { train: samples(options.samples)?, test: samples(tested)? })
    };
    let mut collector = Collector {
        first: layers.start,
        layers: layers.clone().map(new).collect::<Result<_>>()?,
        inputs: Vec::new(),
        dim: c.dim,
        neurons: c.neurons,
        test: false,
        error: None,
    };
    let mut session = engine.session(&SessionOptions {
        context: Some(options.context),
        batch: options.batch,
        ..Default::default()
    })?;
    let used = wanted.min(windows);
    let mut step = Vec::with_capacity(options.context);
    for i in 0..used {
        // from all over the text, if it is longer than needed
        let at = (i as u64 * windows as u64 / used as u64) as usize * body;
        step.clear();
        let tokens = bos.iter().chain(&text[at..at + body]);
        step.extend(tokens.map(|&token| StepToken { token, seq: 0, logits: false }));
        session.truncate(0, 0);
        collector.test = i % KEPT == KEPT - 1;
        for part in step.chunks(session.batch()) {
            session.step_with(part, &mut collector)?;
        }
        if let Some(e) = collector.error.take() {
            return Err(e.into());
        }
        let now = Progress::Collecting { layers: layers.clone(), tokens: (i + 1) * body, of: used * body };
        if progress(now).is_break() {
            return Err(ended());
        }
    }
    Ok(collector.layers)
}
