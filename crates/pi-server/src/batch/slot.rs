//! A sequence of the session, and the request that has it.

use super::job::{Done, Event, Job, Piece};
use crate::{
    error::ApiError,
    logprobs::{TokenLogprob, likeliest},
};
use pi_engine::{Engine, Error, StopReason, Turn, pi_core::text::TokenId, sampler::log_sum_exp};
use std::{
    task::Waker,
    time::{Duration, Instant},
};

/// A sequence.
#[derive(Default)]
pub(crate) struct Slot {
    /// The tokens that the session has computed for it.
    pub computed: Vec<TokenId>,
    /// When it was last given away: a count of all requests.
    pub used: u64,
    pub work: Option<Work>,
}

/// A request in its slot.
pub(crate) struct Work {
    pub job: Job,
    turn: Turn,
    cached: usize,
    /// The newest token of the answer, which is yet to be computed.
    pub pending: Option<TokenId>,
    /// The logits for the next token, while the sampler is not ready to choose it: this answer sits steps out.
    kept: Option<Vec<f32>>,
    /// Log-probabilities that were not given away yet: their tokens have brought no text.
    held: Vec<TokenLogprob>,
    began: Instant,
    prompted: Option<Instant>,
}

impl Work {
    /// The job in a slot that keeps its first `cached` tokens.
    pub(crate) fn begin(mut job: Job, engine: &Engine, context: usize, cached: usize) -> Self {
        job.prompt.iter().for_each(|&token| job.sampler.accept(token));
        let turn =
            Turn::new(engine, &job.options, context - job.prompt.len() + 1).showing(std::mem::take(&mut job.shown));
        let _ = job.events.send(Event::Started);
        Self { job, turn, cached, pending: None, kept: None, held: Vec::new(), began: Instant::now(), prompted: None }
    }

    /// Whether nobody waits for the answer any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.job.events.is_closed()
    }

    /// Whether logits are kept until the sampler can choose.
    pub(crate) fn is_waiting(&self) -> bool {
        self.kept.is_some()
    }

    /// The logits that were kept, once the sampler can choose; until then `waker` is left with it.
    pub(crate) fn waited(&mut self, waker: &Waker) -> Option<Vec<f32>> {
        if self.kept.is_some() && self.job.sampler.is_ready(waker) { self.kept.take() } else { None }
    }

    /// Takes the logits after the newest token. `raw` is memory to work in; `full`: the context has no room for another token.
    /// Says why the answer is over, if it is. If the sampler cannot choose yet, the logits are kept and `waker` is woken when it can.
    ///
    /// # Errors
    /// If the logits are of no use.
    pub(crate) fn advance(
        &mut self,
        logits: &mut [f32],
        raw: &mut Vec<f32>,
        full: bool,
        waker: &Waker,
    ) -> Result<Option<StopReason>, Error> {
        self.prompted.get_or_insert_with(Instant::now);
        if self.turn.is_full() {
            return Ok(Some(StopReason::Length));
        }
        if !self.job.sampler.is_ready(waker) {
            self.kept = Some(logits.to_vec());
            return Ok(None);
        }
        if self.job.sampler.is_done() && self.tokens() > 0 {
            return Ok(Some(StopReason::Complete)); // it was not certain before
        }
        raw.clear();
        if self.job.logprobs.is_some() {
            raw.extend_from_slice(logits); // the sampler changes them
        }
        let before = self.turn.tokens().len();
        let stop = self.turn.next(logits, &mut *self.job.sampler)?;
        self.pending = self.turn.tokens().get(before).copied();
        if let (Some(token), Some(n)) = (self.pending, self.job.logprobs) {
            let logprob = raw[token as usize] - log_sum_exp(raw);
            self.held.push(TokenLogprob { token, logprob, top: likeliest(raw, n) });
        }
        if !self.turn.fresh().is_empty() {
            let piece = Piece { text: self.turn.fresh().into(), logprobs: std::mem::take(&mut self.held) };
            let _ = self.job.events.send(Event::Piece(piece));
        }
        Ok(stop.or_else(|| full.then_some(StopReason::Context)))
    }

    /// Tokens of the answer.
    pub(crate) fn tokens(&self) -> usize {
        self.turn.tokens().len()
    }

    /// Tells the client how it ended. The ticket is given back before.
    pub(crate) fn finish(mut self, stop: StopReason) {
        self.turn.finish(&stop);
        let rest = Piece { text: self.turn.fresh().into(), logprobs: self.held };
        let prompted = self.prompted.unwrap_or(self.began);
        let done = Done {
            rest,
            stop,
            prompt_tokens: self.job.prompt.len(),
            cached_tokens: self.cached,
            completion_tokens: self.turn.tokens().len(),
            prompt_time: prompted - self.began,
            decode_time: prompted.elapsed(),
        };
        self.job.end(Event::Done(done));
    }

    /// Tells the client why it failed.
    pub(crate) fn fail(self, error: ApiError) {
        self.job.end(Event::Failed(error));
    }

    /// How long it has had its slot.
    pub(crate) fn age(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Job {
    /// The last event. Whoever gets it finds the request's place free.
    pub(crate) fn end(self, event: Event) {
        let Self { events, ticket, .. } = self;
        drop(ticket);
        let _ = events.send(event);
    }

    /// Whether it took longer than it may.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
}
