//! Watching a model: what predictors would get, and which neurons fire.

use super::{PredictorKind, Progress, TrainOptions, ended};
use crate::{Engine, Error, Observer, Result, SessionOptions, StepToken};
use pi_core::SignKernels;
use pi_core::text::TokenId;
use pi_predictor::train::Samples;
use std::ops::{ControlFlow, Range};

/// One window in so many is kept back from training.
const KEPT: usize = 9;

/// Samples of a layer: to train on, and to measure with.
pub(super) struct Seen {
    pub train: Samples,
    pub test: Samples,
    /// Signs of what the FFN got for each sample of `test`, packed.
    pub signs: Vec<u64>,
}

/// What will be collected, for a text and options.
pub(super) struct Plan {
    dim: usize,
    neurons: usize,
    /// Tokens of a window that are of the text.
    body: usize,
    /// Windows that the text has, and how many of them are used.
    windows: usize,
    used: usize,
    /// Samples of each layer, to train on and to measure with.
    train: usize,
    test: usize,
    /// Words of signs of a sample.
    words: usize,
}

impl Plan {
    /// # Errors
    /// If the text is too short.
    pub(super) fn new(engine: &Engine, text: usize, options: &TrainOptions) -> Result<Self> {
        let c = engine.config();
        let body = options.context - 1;
        let windows = text / body;
        if windows < KEPT {
            let least = KEPT * body;
            return Err(Error::setting(
                "text to train on",
                format!("at least {least} tokens"),
                format!("{text} tokens"),
            ));
        }
        let has = |kind| options.kinds.contains(&kind);
        let tested = options.samples / (KEPT - 1) + 1;
        let wanted = (options.samples + tested).div_ceil(body).next_multiple_of(KEPT);
        let used = wanted.min(windows);
        let of_test = used / KEPT;
        let samples = |windows: usize, most: usize| most.min(windows * options.context);
        Ok(Self {
            dim: c.dim,
            neurons: c.neurons,
            body,
            windows,
            used,
            train: if has(PredictorKind::Mlp) { samples(used - of_test, options.samples) } else { 0 },
            test: samples(of_test, tested),
            words: if has(PredictorKind::Sign) { c.dim.div_ceil(64) } else { 0 },
        })
    }

    /// Bytes that the samples of one layer take.
    pub(super) fn layer_bytes(&self) -> u64 {
        let samples = (self.train + self.test) as u64 * Samples::token_bytes(self.dim, self.neurons) as u64;
        samples + 8 * (self.test * self.words) as u64
    }
}

struct Collector {
    first: usize,
    layers: Vec<Seen>,
    /// Inputs of the layer at hand: of matrices, and packed signs of the FFN's.
    inputs: Vec<f32>,
    signs: Vec<u64>,
    dim: usize,
    neurons: usize,
    /// Words of signs of a sample.
    words: usize,
    /// Whether samples are for measuring.
    test: bool,
    error: Option<pi_core::Error>,
}

impl Observer for Collector {
    fn inputs(&mut self, layer: usize, h: &[f32], x: &[f32]) {
        if !(self.first..self.first + self.layers.len()).contains(&layer) {
            return;
        }
        self.inputs.clear();
        self.inputs.extend_from_slice(h);
        self.signs.clear();
        if self.test && self.words > 0 {
            self.signs.resize(x.len() / self.dim * self.words, 0);
            let rows = x.chunks_exact(self.dim).zip(self.signs.chunks_exact_mut(self.words));
            rows.for_each(|(x, signs)| (SignKernels::PLAIN.pack)(x, signs));
        }
    }

    fn values(&mut self, layer: usize, values: &[f32]) {
        let Some(seen) = layer.checked_sub(self.first).and_then(|i| self.layers.get_mut(i)) else { return };
        let samples = if self.test { &mut seen.test } else { &mut seen.train };
        let rows = self.inputs.chunks_exact(self.dim).zip(values.chunks_exact(self.neurons));
        for (i, (input, values)) in rows.enumerate() {
            let room = !samples.is_full();
            if let Err(e) = samples.push(input, values) {
                self.error.get_or_insert(e);
            } else if room {
                seen.signs.extend(self.signs.iter().skip(i * self.words).take(self.words));
            }
        }
    }
}

/// Runs over the text until there are samples enough for some layers.
pub(super) fn collect(
    engine: &Engine,
    text: &[TokenId],
    layers: Range<usize>,
    plan: &Plan,
    options: &TrainOptions,
    progress: &mut (dyn FnMut(Progress<'_>) -> ControlFlow<()> + Send),
) -> Result<Vec<Seen>> {
    let special = engine.tokenizer().special();
    let bos = special.bos.filter(|_| special.add_bos);
    let new = |_| {
        let samples = |n| Samples::new(plan.dim, plan.neurons, n);
        let signs = Vec::with_capacity(plan.test * plan.words);
        Ok(Seen { train: samples(plan.train)?, test: samples(plan.test)?, signs })
    };
    let mut collector = Collector {
        first: layers.start,
        layers: layers.clone().map(new).collect::<Result<_>>()?,
        inputs: Vec::new(),
        signs: Vec::new(),
        dim: plan.dim,
        neurons: plan.neurons,
        words: plan.words,
        test: false,
        error: None,
    };
    let mut session = engine.session(&SessionOptions {
        context: Some(options.context),
        batch: options.batch,
        ..Default::default()
    })?;
    let Plan { body, windows, used, .. } = *plan;
    let mut step = Vec::with_capacity(options.context);
    for i in 0..used {
        collector.test = i % KEPT == KEPT - 1;
        if !collector.test && plan.train == 0 {
            continue;
        }
        // from all over the text, if it is longer than needed
        let at = (i as u64 * windows as u64 / used as u64) as usize * body;
        step.clear();
        let tokens = bos.iter().chain(&text[at..at + body]);
        step.extend(tokens.map(|&token| StepToken { token, seq: 0, logits: false }));
        session.truncate(0, 0);
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
