//! Sequences of tokens in progress: KV caches and buffers. What a step computes is in `step.rs`.

use crate::{
    Engine, Error, Result,
    hybrid::Sent,
    layer::{LayerCounts, LayerRun, Observer},
    watched::Watched,
};
use pi_core::{ActiveSet, BatchToken, Hidden, Limits, OpStats, text::TokenId};
use std::{mem, sync::Arc};

/// What a session must be able to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Positions per sequence. Default: what the model was made for, at most 4096.
    pub context: Option<usize>,
    /// Tokens per step; longer prompts are cut into steps.
    pub batch: usize,
    /// Sequences at the same time.
    pub sequences: usize,
    /// Tokens per step whose logits can be asked for.
    pub logits: usize,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { context: None, batch: 512, sequences: 1, logits: 1 }
    }
}

impl SessionOptions {
    /// Checks the ranges of all settings, for a model that has learned so many positions.
    pub(crate) fn check(&self, context: usize, positions: usize) -> Result<()> {
        let most = 1 << 24;
        let numbers =
            [("context", context), ("batch", self.batch), ("sequences", self.sequences), ("logits", self.logits)];
        if let Some((name, value)) = numbers.into_iter().find(|(_, value)| !(1..=most).contains(value)) {
            return Err(Error::setting(name, format!("a number from 1 to {most}"), value));
        }
        if positions < context {
            let expected = format!("at most {positions}, as many positions as the model has learned");
            return Err(Error::setting("context", expected, context));
        }
        Ok(())
    }
}

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepToken {
    /// The token.
    pub token: TokenId,
    /// Its sequence; it is appended there.
    pub seq: u32,
    /// Whether the logits after it are wanted.
    pub logits: bool,
}

/// What a session has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens computed.
    pub tokens: u64,
    /// Bytes of weights and caches read.
    pub bytes: u64,
    /// Per layer: share of neurons that contributed, 0 to 1; 1 where idle neurons are not left out.
    pub active: Vec<f32>,
    /// Per layer: share of neurons that a predictor let through, 0 to 1; 1 where there is none.
    pub marked: Vec<f32>,
    /// Per layer: share of neurons that were computed by the dense path, 0 to 1 (see [`pi_sparse_cpu::Crossover`]).
    pub dense: Vec<f32>,
    /// Layers of steps whose neurons of the CPU were sent to the accelerator (see [`Streaming`](crate::Streaming)).
    pub streamed: u64,
    /// Layers of steps that were long enough for that, but had no room there: the CPU computed them.
    pub not_streamed: u64,
}

impl Stats {
    /// The mean share of neurons that contributed; `None` if nothing was computed.
    pub fn active_share(&self) -> Option<f32> {
        self.mean(&self.active)
    }

    /// The mean share of neurons that predictors let through; `None` if nothing was computed.
    pub fn marked_share(&self) -> Option<f32> {
        self.mean(&self.marked)
    }

    /// The mean share of neurons computed by the dense path; `None` if nothing was computed.
    pub fn dense_share(&self) -> Option<f32> {
        self.mean(&self.dense)
    }

    fn mean(&self, shares: &[f32]) -> Option<f32> {
        (!shares.is_empty() && self.tokens > 0).then(|| shares.iter().sum::<f32>() / shares.len() as f32)
    }

    /// Bytes read per token; `None` if nothing was computed.
    pub fn bytes_per_token(&self) -> Option<u64> {
        self.bytes.checked_div(self.tokens)
    }
}

/// Sequences in progress. After a failed step all of them are as they were before it.
pub struct Session {
    pub(crate) engine: Engine,
    limits: Limits,
    pub(crate) layers: Vec<LayerRun>,
    pub(crate) h: Hidden,
    pub(crate) x: Hidden,
    /// What neurons contributed that are not where the rest of their layer is; there is none without an accelerator.
    pub(crate) part: Option<Hidden>,
    pub(crate) picked: Hidden,
    pub(crate) normed: Hidden,
    pub(crate) logits: Hidden,
    pub(crate) active: ActiveSet,
    pub(crate) batch: Vec<BatchToken>,
    pub(crate) wanted: Vec<usize>,
    len: Vec<usize>,
    /// Per sequence: a generated token that was not computed yet, and the length it belongs behind.
    pending: Vec<Option<(usize, TokenId)>>,
    /// The tokens of each sequence, if they may be needed again.
    history: Option<Vec<Vec<TokenId>>>,
    /// What the accelerator said when it was lost.
    loss: Option<Arc<str>>,
    tokens: u64,
    pub(crate) stats: OpStats,
}

impl Session {
    pub(crate) fn new(engine: Engine, options: &SessionOptions) -> Result<Self> {
        let inner = engine.inner.clone();
        let (engine, loss) = match inner.after_loss() {
            Some(lost) => lost,
            None => match Self::open(engine, options) {
                Ok(session) => return Ok(session),
                Err(e) => inner.lost_before(e)?,
            },
        };
        Ok(Self { loss: Some(loss), ..Self::open(engine, options)? })
    }

    fn open(engine: Engine, options: &SessionOptions) -> Result<Self> {
        let (inner, c) = (&engine.inner, engine.config());
        let context = options.context.unwrap_or(c.context.min(4096));
        options.check(context, inner.model.positions.as_ref().map_or(usize::MAX, |p| p.len()))?;
        let batch = options.batch.min(context.saturating_mul(options.sequences));
        let limits = Limits { tokens: batch, sequences: options.sequences, context };
        let layers = inner.model.layers.iter().map(|l| LayerRun::open(l, &limits)).collect::<Result<Vec<_>>>()?;
        let (rows, vocab) = (options.logits.min(batch), inner.model.embedding.rows());
        let device = &inner.device;
        Ok(Self {
            layers,
            h: device.hidden(batch, c.dim)?,
            x: device.hidden(batch, c.dim)?,
            part: (!Arc::ptr_eq(device, &inner.cpu)).then(|| device.hidden(batch, c.dim)).transpose()?,
            picked: device.hidden(rows, c.dim)?,
            normed: device.hidden(rows, c.dim)?,
            logits: device.hidden(rows, vocab)?,
            active: device.active(batch, c.neurons)?,
            batch: Vec::with_capacity(batch),
            wanted: Vec::with_capacity(rows),
            len: vec![0; options.sequences],
            pending: vec![None; options.sequences],
            history: inner
                .fallback
                .as_ref()
                .map(|_| (0..options.sequences).map(|_| Vec::with_capacity(context)).collect()),
            loss: None,
            tokens: 0,
            stats: OpStats::default(),
            limits,
            engine,
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Positions per sequence.
    pub fn context(&self) -> usize {
        self.limits.context
    }

    /// Tokens per step.
    pub fn batch(&self) -> usize {
        self.limits.tokens
    }

    /// Tokens in sequence `seq`; 0 if there is no such sequence.
    pub fn len(&self, seq: u32) -> usize {
        self.len.get(seq as usize).copied().unwrap_or(0)
    }

    /// True if sequence `seq` has no tokens.
    pub fn is_empty(&self, seq: u32) -> bool {
        self.len(seq) == 0
    }

    /// Forgets the tokens of `seq` from `len` on.
    pub fn truncate(&mut self, seq: u32, len: usize) {
        if let Some(l) = self.len.get_mut(seq as usize) {
            *l = (*l).min(len);
            self.pending[seq as usize] = None;
            if let Some(history) = &mut self.history {
                history[seq as usize].truncate(len);
            }
            self.layers.iter_mut().for_each(|run| run.attention.truncate(seq, len));
        }
    }

    /// Computes one step: every token is appended to its sequence. Afterwards [`logits`](Self::logits) gives the wanted ones.
    ///
    /// # Errors
    /// [`Error::Context`] if a sequence would outgrow the context, [`Error::Setting`] if there are too many tokens or ids out
    /// of range, or whatever an operator reports. No sequence is changed then, and there are no logits.
    pub fn step(&mut self, tokens: &[StepToken]) -> Result<()> {
        self.step_observed(tokens, None)
    }

    /// The same while somebody looks on.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_with(&mut self, tokens: &[StepToken], observer: &mut dyn Observer) -> Result<()> {
        self.step_observed(tokens, Some(observer))
    }

    fn step_observed(&mut self, tokens: &[StepToken], mut observer: Option<&mut dyn Observer>) -> Result<()> {
        if let Err(e) = self.plan(tokens) {
            self.wanted.clear(); // or old logits would pass for those of this step
            return Err(e);
        }
        let mut watched = Watched::default();
        let mut result = self.attempt(tokens, &mut watched, &mut observer);
        if let Err(e) = &result
            && self.engine.inner.is_loss(e)
        {
            result = match self.leave_device(e) {
                Ok(true) => self.plan(tokens).and_then(|()| self.attempt(tokens, &mut watched, &mut observer)),
                Ok(false) => result,
                Err(e) => Err(e),
            };
        }
        let touched = |seq: usize| tokens.iter().any(|t| t.seq as usize == seq);
        match result {
            Ok(()) => {
                for (t, token) in self.batch.iter().zip(tokens) {
                    self.len[t.seq as usize] = t.pos as usize + 1;
                    if let Some(history) = &mut self.history {
                        history[t.seq as usize].push(token.token);
                    }
                }
                self.tokens += tokens.len() as u64;
            }
            Err(_) => {
                self.wanted.clear();
                for seq in (0..self.len.len()).filter(|&s| touched(s)) {
                    let len = self.len[seq];
                    self.layers.iter_mut().for_each(|run| run.attention.truncate(seq as u32, len));
                }
            }
        }
        result
    }

    fn attempt(
        &mut self,
        tokens: &[StepToken],
        watched: &mut Watched,
        observer: &mut Option<&mut dyn Observer>,
    ) -> Result<()> {
        match observer {
            Some(observer) => self.compute(tokens, Some(&mut watched.by(&mut **observer))),
            None => self.compute(tokens, None),
        }
    }

    /// After the accelerator failed with `loss`: goes on with the CPU, from the sequences' tokens. False if that is not wanted.
    fn leave_device(&mut self, loss: &Error) -> Result<bool> {
        let Some((engine, loss)) = self.engine.inner.lose(loss)? else { return Ok(false) };
        let Limits { tokens, sequences, context } = self.limits;
        let logits = self.picked.max_tokens();
        let mut fresh =
            Self::open(engine, &SessionOptions { context: Some(context), batch: tokens, sequences, logits })?;
        for (seq, history) in (0u32..).zip(self.history.iter().flatten()) {
            for part in history.chunks(tokens) {
                let step: Vec<_> = part.iter().map(|&token| StepToken { token, seq, logits: false }).collect();
                fresh.step(&step)?;
            }
        }
        // what is computed again is not counted again
        (fresh.tokens, fresh.stats) = (self.tokens, self.stats);
        for (new, old) in fresh.layers.iter_mut().zip(&self.layers) {
            new.counts = old.counts;
        }
        fresh.pending = mem::take(&mut self.pending);
        fresh.loss = Some(loss);
        *self = fresh;
        Ok(true)
    }

    /// What the accelerator said when it failed, if the session goes on without it (see
    /// [`OnDeviceLoss::Cpu`](crate::OnDeviceLoss::Cpu)).
    pub fn device_loss(&self) -> Option<&str> {
        self.loss.as_deref()
    }

    /// Appends tokens to a sequence, in as many steps as it takes, and returns the logits after the last.
    ///
    /// # Errors
    /// As [`step`](Self::step); the sequence is then as it was before. Also if there are no tokens.
    pub fn feed(&mut self, seq: u32, tokens: &[TokenId]) -> Result<&mut [f32]> {
        let before = self.len(seq);
        let needed = before + tokens.len();
        if needed > self.limits.context {
            return Err(Error::Context { needed, context: self.limits.context });
        }
        if tokens.is_empty() {
            return Err(Error::setting("tokens", "at least one token", 0));
        }
        let mut step = Vec::with_capacity(self.limits.tokens.min(tokens.len()));
        let batch = self.limits.tokens;
        for (i, part) in tokens.chunks(batch).enumerate() {
            step.clear();
            let last = i * batch + part.len() == tokens.len();
            let logits = |k| last && k + 1 == part.len();
            step.extend(part.iter().enumerate().map(|(k, &token)| StepToken { token, seq, logits: logits(k) }));
            if let Err(e) = self.step(&step) {
                self.truncate(seq, before);
                return Err(e);
            }
        }
        self.logits(0)
    }

    /// The logits after the `i`-th token of the last step that wanted them: one number per token of the tokenizer.
    ///
    /// # Errors
    /// If fewer were wanted.
    pub fn logits(&mut self, i: usize) -> Result<&mut [f32]> {
        if i >= self.wanted.len() {
            return Err(Error::setting("logits", format!("an index below {}", self.wanted.len()), i));
        }
        let (rows, vocab) = (self.logits.dim(), self.engine.vocab());
        Ok(&mut self.logits.host_mut()?[i * rows..i * rows + vocab])
    }

    /// What was done since the session began or [`reset_stats`](Self::reset_stats) was called.
    pub fn stats(&self) -> Stats {
        let shares = |part: fn(&LayerCounts) -> u64| {
            let share = |c: &LayerCounts| if c.neurons == 0 { 0.0 } else { part(c) as f32 / c.neurons as f32 };
            self.layers.iter().map(|r| share(&r.counts)).collect()
        };
        let (tokens, bytes) = (self.tokens, self.stats.bytes);
        let sent = |part: fn(&Sent) -> u64| self.layers.iter().map(|r| part(&r.ffn.sent)).sum();
        Stats {
            tokens,
            bytes,
            active: shares(|r| r.active),
            marked: shares(|r| r.marked),
            dense: shares(|r| r.dense),
            streamed: sent(|s| s.streamed),
            not_streamed: sent(|s| s.refused),
        }
    }

    /// Counts from 0 again.
    pub fn reset_stats(&mut self) {
        self.tokens = 0;
        self.stats = OpStats::default();
        for layer in &mut self.layers {
            (layer.counts, layer.ffn.sent) = (LayerCounts::default(), Sent::default());
        }
    }

    /// The generated token that belongs at the end of `seq`, if the sequence is as [`set_pending`](Self::set_pending) left it.
    pub(crate) fn pending(&self, seq: u32) -> Option<TokenId> {
        let (len, token) = self.pending.get(seq as usize).copied().flatten()?;
        (len == self.len(seq)).then_some(token)
    }

    pub(crate) fn set_pending(&mut self, seq: u32, token: Option<TokenId>) {
        let len = self.len(seq);
        if let Some(p) = self.pending.get_mut(seq as usize) {
            *p = token.map(|t| (len, t));
        }
    }

    /// Checks a step and finds the positions of its tokens.
    fn plan(&mut self, tokens: &[StepToken]) -> Result<()> {
        self.batch.clear();
        self.wanted.clear();
        if tokens.is_empty() || tokens.len() > self.limits.tokens {
            return Err(Error::setting("tokens of a step", format!("1 to {}", self.limits.tokens), tokens.len()));
        }
        let rows = self.engine.inner.model.embedding.rows();
        for (i, t) in tokens.iter().enumerate() {
            if t.token as usize >= rows {
                return Err(Error::setting("token", format!("an id below {rows}"), t.token));
            }
            let Some(&len) = self.len.get(t.seq as usize) else {
                return Err(Error::setting("sequence", format!("a number below {}", self.len.len()), t.seq));
            };
            let pos = self.batch.iter().rev().find(|b| b.seq == t.seq).map_or(len, |b| b.pos as usize + 1);
            if pos >= self.limits.context {
                return Err(Error::Context { needed: pos + 1, context: self.limits.context });
            }
            self.batch.push(BatchToken { seq: t.seq, pos: pos as u32 });
            if t.logits {
                self.wanted.push(i);
            }
        }
        let room = self.picked.max_tokens();
        if self.wanted.len() > room {
            return Err(Error::setting("logits of a step", format!("at most {room}"), self.wanted.len()));
        }
        Ok(())
    }
}
