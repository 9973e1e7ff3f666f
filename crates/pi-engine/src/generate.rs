//! From a prompt to text.

use crate::{
    Error, Result, Session, Stats,
    sampler::{Chain, Sampler, SamplingParams},
    turn::Turn,
};
use pi_core::text::TokenId;
use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

/// What to generate, and until when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateOptions {
    /// Most tokens to generate. `None`: until something else stops it.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Text that ends the generation; it is not part of the result.
    pub stop: Vec<String>,
    /// End-of-generation tokens do not stop; they are generated and passed over like any other.
    pub ignore_eos: bool,
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// An end-of-generation token, which is not part of the result.
    Eos(TokenId),
    /// A stop string.
    Stop(String),
    /// The text is complete: it has the form that it must have, and nothing can follow.
    Complete,
    /// The wanted number of tokens.
    Length,
    /// The context is full.
    Context,
    /// The sink asked for it.
    Cancelled,
}

impl StopReason {
    /// A word for programs: `eos`, `stop`, `complete`, `length`, `context`, `cancelled`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Eos(_) => "eos",
            Self::Stop(_) => "stop",
            Self::Complete => "complete",
            Self::Length => "length",
            Self::Context => "context",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Takes text as it comes. Implemented for closures.
pub trait Sink {
    /// Whole characters of new text. [`ControlFlow::Break`] ends the generation.
    fn text(&mut self, text: &str) -> ControlFlow<()>;

    /// Asked before every token: [`ControlFlow::Break`] ends the generation. Not every token brings text, so that this is
    /// where to look for a wish to stop.
    fn proceed(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<F: FnMut(&str) -> ControlFlow<()>> Sink for F {
    fn text(&mut self, text: &str) -> ControlFlow<()> {
        self(text)
    }
}

/// A finished generation.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The text, without the prompt.
    pub text: String,
    /// The generated tokens.
    pub tokens: Vec<TokenId>,
    /// Why it ended.
    pub stop: StopReason,
    /// The seed that was used.
    pub seed: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time for the prompt.
    pub prompt_time: Duration,
    /// Time for the steps after it.
    pub decode_time: Duration,
    /// What was read and computed while decoding (after the prompt).
    pub stats: Stats,
}

impl Generated {
    /// Prompt tokens per second.
    pub fn prompt_tps(&self) -> f64 {
        self.prompt_tokens as f64 / self.prompt_time.as_secs_f64().max(1e-9)
    }

    /// Steps per second after the prompt; `None` if there was none. (The first token comes from the prompt's logits.)
    pub fn decode_tps(&self) -> Option<f64> {
        (self.stats.tokens > 0).then(|| self.stats.tokens as f64 / self.decode_time.as_secs_f64().max(1e-9))
    }
}

impl Session {
    /// Appends `prompt` to sequence `seq` and generates with the usual chain of samplers.
    ///
    /// The last generated token is not computed until it is needed: [`len`](Self::len) does not count it yet. The next call for
    /// the sequence, if nothing else changed it, puts the token in front of its prompt; so two calls continue like one, and
    /// the second may have an empty prompt.
    ///
    /// # Errors
    /// If settings are out of range, the prompt is empty or does not fit the context, the logits are not finite, or an
    /// operator fails.
    pub fn generate(
        &mut self,
        seq: u32,
        prompt: &[TokenId],
        options: &GenerateOptions,
        sink: &mut dyn Sink,
    ) -> Result<Generated> {
        let mut chain = Chain::new(options.sampling.clone(), self.engine().vocab())?;
        let seed = chain.seed();
        let mut generated = self.generate_with(seq, prompt, options, &mut chain, sink)?;
        generated.seed = seed;
        Ok(generated)
    }

    /// The same with a sampler of your own; `options.sampling` is not used.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_with(
        &mut self,
        seq: u32,
        prompt: &[TokenId],
        options: &GenerateOptions,
        sampler: &mut dyn Sampler,
        sink: &mut dyn Sink,
    ) -> Result<Generated> {
        let engine = self.engine().clone();
        let pending = self.pending(seq);
        let prompt: Vec<TokenId> = pending.into_iter().chain(prompt.iter().copied()).collect();
        if prompt.len() + self.len(seq) >= self.context() && options.max_tokens != Some(0) {
            return Err(Error::Context { needed: prompt.len() + self.len(seq) + 1, context: self.context() });
        }
        let start = Instant::now();
        self.feed(seq, &prompt)?;
        prompt.iter().for_each(|&t| sampler.accept(t));
        let prompt_time = start.elapsed();
        self.reset_stats();
        let mut turn = Turn::new(&engine, options, self.context() - self.len(seq) + 1);
        let start = Instant::now();
        let mut pending = None;
        let stop = loop {
            if turn.is_full() {
                break StopReason::Length;
            }
            if sink.proceed().is_break() {
                break StopReason::Cancelled;
            }
            let before = turn.tokens().len();
            let ended = turn.next(self.logits(0)?, sampler)?;
            pending = turn.tokens().get(before).copied();
            let flow = show(sink, turn.fresh());
            match (ended, pending) {
                (Some(stop @ (StopReason::Eos(_) | StopReason::Stop(_))), _) => break stop,
                _ if flow.is_break() => break StopReason::Cancelled,
                (Some(stop), _) => break stop,
                (None, _) if self.len(seq) >= self.context() => break StopReason::Context,
                (None, Some(token)) => self.step(&[crate::StepToken { token, seq, logits: true }])?,
                (None, None) => {}
            }
            pending = None;
        };
        self.set_pending(seq, pending);
        let decode_time = start.elapsed();
        turn.finish(&stop);
        let _ = show(sink, turn.fresh());
        let (text, tokens) = turn.into_parts();
        let stats = self.stats();
        Ok(Generated { text, tokens, stop, seed: 0, prompt_tokens: prompt.len(), prompt_time, decode_time, stats })
    }
}

fn show(sink: &mut dyn Sink, text: &str) -> ControlFlow<()> {
    if text.is_empty() { ControlFlow::Continue(()) } else { sink.text(text) }
}
