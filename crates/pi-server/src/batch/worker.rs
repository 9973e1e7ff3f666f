//! The engine's thread: steps until there is nothing to do, then sleeps until a request comes.

use super::{
    inbox::Inbox,
    job::{Event, Job},
    prefix::{self, Free},
    share::{self, Pace},
    slot::{Slot, Work},
};
use crate::{error::ApiError, metrics::Metrics, state::State};
use pi_engine::{Error, Session, StepToken, StopReason};
use std::{
    collections::VecDeque,
    ops::Range,
    task::Waker,
    time::{Duration, Instant},
};

/// While all answers wait for their samplers, it is looked this often whether somebody left or a request took too long.
const LOOK: Duration = Duration::from_millis(20);

/// All slots, and who waits for one.
pub(crate) struct Worker<'a> {
    session: Session,
    slots: Vec<Slot>,
    queue: VecDeque<Job>,
    pace: Pace,
    /// Requests that got a slot so far.
    begun: u64,
    /// The slot whose prompt is looked at first in the next step.
    first: usize,
    raw: Vec<f32>,
    metrics: &'a Metrics,
    /// Woken by samplers that can choose now.
    waker: Waker,
    /// Why nothing can be computed any more.
    end: Option<String>,
}

/// The tokens of a step that belong to one slot.
struct Part {
    slot: usize,
    tokens: Range<usize>,
    /// Whether the logits after the last of them are wanted.
    logits: bool,
}

/// Works until all senders of jobs are gone and the last answer is done.
///
/// # Errors
/// That the accelerator was lost, and what it said, if the CPU is not to go on. All requests that it knows of have been told.
pub(crate) fn run(session: Session, slots: usize, jobs: &Inbox, state: &State) -> Result<(), String> {
    let metrics = &state.metrics;
    state.lose(session.device_loss()); // when it was opened
    let slots = (0..slots).map(|_| Slot::default()).collect();
    let (queue, pace, raw) = (VecDeque::new(), Pace::default(), Vec::new());
    let waker = jobs.waker();
    let mut worker = Worker { session, slots, queue, pace, begun: 0, first: 0, raw, metrics, waker, end: None };
    loop {
        if worker.is_idle() {
            metrics.idle();
            match jobs.wait() {
                Ok(job) => worker.queue.push_back(job),
                Err(_) => return Ok(()),
            }
        }
        worker.queue.extend(jobs.waiting());
        let computed = worker.round();
        state.lose(worker.session.device_loss());
        if let Some(why) = worker.end.take() {
            worker.give_up(&why);
            return Err(why);
        }
        if !computed && !worker.is_idle() {
            jobs.rest(LOOK);
        }
    }
}

impl Worker<'_> {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.slots.iter().all(|slot| slot.work.is_none())
    }

    /// Lets go of who left, lets in who waits, and computes one step. False if there was nothing to compute: all answers wait.
    fn round(&mut self) -> bool {
        self.let_go();
        self.go_on();
        self.let_in();
        self.metrics.occupied(self.slots.iter().filter(|s| s.work.is_some()).count(), self.queue.len());
        let (tokens, parts) = self.plan();
        if tokens.is_empty() {
            return false;
        }
        let began = Instant::now();
        self.compute(&tokens, &parts);
        let prompt: usize = parts.iter().map(|p| p.tokens.len()).filter(|&n| n > 1).sum();
        let time = began.elapsed();
        self.pace.measured(prompt, time);
        self.metrics.step(&mut self.session, time);
        true
    }

    /// Requests that nobody waits for, and those that took too long.
    fn let_go(&mut self) {
        let now = Instant::now();
        for job in std::mem::take(&mut self.queue) {
            if job.events.is_closed() {
                self.metrics.cancelled();
            } else if job.is_late(now) {
                self.metrics.failed();
                job.end(Event::Failed(ApiError::deadline()));
            } else {
                self.queue.push_back(job);
            }
        }
        for index in 0..self.slots.len() {
            let Some(work) = &self.slots[index].work else { continue };
            if work.is_abandoned() {
                self.metrics.cancelled();
                self.slots[index].work = None;
            } else if work.job.is_late(now) {
                self.fail(index, ApiError::deadline());
            }
        }
    }

    /// Answers whose samplers had not been ready, and are.
    fn go_on(&mut self) {
        for index in 0..self.slots.len() {
            let work = self.slots[index].work.as_mut();
            if let Some(mut logits) = work.and_then(|work| work.waited(&self.waker)) {
                self.advance(index, Some(&mut logits), 0);
            }
        }
    }

    /// Who waited longest gets a slot first.
    fn let_in(&mut self) {
        while let Some(job) = self.queue.front() {
            let free = self.slots.iter().enumerate().filter(|(_, s)| s.work.is_none());
            let computed = |s: &'_ Slot| if job.reuse { s.computed.len() } else { 0 };
            let free = free.map(|(index, s)| Free { index, computed: &s.computed[..computed(s)], used: s.used });
            let Some((index, cached)) = prefix::choose(&job.prompt, free) else { return };
            let Some(job) = self.queue.pop_front() else { return };
            self.keep(index, cached);
            self.begun += 1;
            self.metrics.begun(job.prompt.len(), cached);
            let work = Work::begin(job, self.session.engine(), self.session.context(), cached);
            self.slots[index].used = self.begun;
            self.slots[index].work = Some(work);
        }
    }

    /// Forgets what a slot has computed, but for its first tokens.
    fn keep(&mut self, index: usize, tokens: usize) {
        self.slots[index].computed.truncate(tokens);
        self.session.truncate(index as u32, tokens);
    }

    /// The tokens of the next step: one of each answer, then parts of prompts.
    fn plan(&mut self) -> (Vec<StepToken>, Vec<Part>) {
        let (mut tokens, mut parts) = (Vec::new(), Vec::new());
        let mut prompts = Vec::new();
        let n = self.slots.len();
        for slot in (self.first..self.first + n).map(|i| i % n) {
            let Some(work) = self.slots[slot].work.as_ref().filter(|work| !work.is_waiting()) else { continue };
            match work.pending {
                Some(token) => {
                    parts.push(Part { slot, tokens: tokens.len()..tokens.len() + 1, logits: true });
                    tokens.push(StepToken { token, seq: slot as u32, logits: true });
                }
                None => prompts.push((slot, work.job.prompt.len() - self.slots[slot].computed.len())),
            }
        }
        let room = self.pace.room(self.session.batch(), parts.len());
        let wanted: Vec<usize> = prompts.iter().map(|(_, n)| *n).collect();
        for ((slot, wanted), given) in prompts.into_iter().zip(share::divide(room, &wanted)).filter(|(_, n)| *n > 0) {
            let (Some(work), done) = (&self.slots[slot].work, self.slots[slot].computed.len()) else { continue };
            let begin = tokens.len();
            tokens.extend(work.job.prompt[done..done + given].iter().enumerate().map(|(k, &token)| StepToken {
                token,
                seq: slot as u32,
                logits: given == wanted && k + 1 == given,
            }));
            parts.push(Part { slot, tokens: begin..tokens.len(), logits: given == wanted });
        }
        self.first = (self.first + 1) % n;
        (tokens, parts)
    }

    /// One step. If it fails, each slot's part is tried alone, so that only the request is lost that made it fail.
    fn compute(&mut self, tokens: &[StepToken], parts: &[Part]) {
        match self.session.step(tokens) {
            Ok(()) => {
                let mut row = 0;
                for part in parts {
                    self.computed(part, &tokens[part.tokens.clone()], row);
                    row += usize::from(part.logits);
                }
            }
            Err(e) if parts.len() == 1 => self.broken(parts[0].slot, &e),
            Err(e) if self.is_end(&e) => {}
            Err(_) => {
                for part in parts {
                    let tokens = &tokens[part.tokens.clone()];
                    match self.session.step(tokens) {
                        Ok(()) => self.computed(part, tokens, 0),
                        Err(e) => self.broken(part.slot, &e),
                    }
                    if self.end.is_some() {
                        return;
                    }
                }
            }
        }
    }

    /// Whether a step failed because the accelerator was lost: then no other will do better.
    fn is_end(&mut self, error: &Error) -> bool {
        if self.session.engine().has_lost_device() {
            self.end = Some(format!("the accelerator was lost: {error}"));
        }
        self.end.is_some()
    }

    /// Tells all requests that they will not be answered here.
    fn give_up(&mut self, why: &str) {
        let error = ApiError::ended(why);
        for index in 0..self.slots.len() {
            self.fail(index, error.clone());
        }
        for job in std::mem::take(&mut self.queue) {
            self.metrics.failed();
            job.end(Event::Failed(error.clone()));
        }
        self.leave();
    }

    /// A slot's tokens are computed; `row` is where its logits are, if it wants any.
    fn computed(&mut self, part: &Part, tokens: &[StepToken], row: usize) {
        let slot = &mut self.slots[part.slot];
        slot.computed.extend(tokens.iter().map(|t| t.token));
        if part.logits {
            self.advance(part.slot, None, row);
        }
    }

    /// Takes an answer on by a token: with logits that were kept, or else the session's.
    fn advance(&mut self, index: usize, kept: Option<&mut [f32]>, row: usize) {
        let slot = &mut self.slots[index];
        let full = slot.computed.len() >= self.session.context();
        let Some(work) = &mut slot.work else { return };
        let before = work.tokens();
        let logits = kept.map_or_else(|| self.session.logits(row), Ok);
        let advanced = logits.and_then(|logits| work.advance(logits, &mut self.raw, full, &self.waker));
        self.metrics.generated(work.tokens() - before);
        match advanced {
            Ok(None) => {}
            Ok(Some(stop)) => self.finish(index, stop),
            // what was computed is right; only the answer cannot go on
            Err(Error::Constraint(why)) => {
                let field = work.job.form.unwrap_or("grammar");
                let why = format!("the answer was begun, but cannot go on in this form: {why}");
                self.fail(index, ApiError::field(field, why));
            }
            Err(e) => self.broken(index, &e),
        }
    }

    fn finish(&mut self, index: usize, stop: StopReason) {
        if let Some(work) = self.slots[index].work.take() {
            self.metrics.finished(work.age());
            self.leave();
            work.finish(stop);
        }
    }

    fn fail(&mut self, index: usize, error: ApiError) {
        if let Some(work) = self.slots[index].work.take() {
            self.metrics.failed();
            self.leave();
            work.fail(error);
        }
    }

    /// What the engine refused may have left numbers in the cache that are none: nothing of it is used again.
    fn broken(&mut self, index: usize, error: &Error) {
        if self.is_end(error) {
            return; // who is told then is every request
        }
        self.keep(index, 0);
        self.fail(index, ApiError::engine(error.to_string()));
    }

    /// Before a client hears that its request is over, it is counted out.
    fn leave(&self) {
        self.metrics.occupied(self.slots.iter().filter(|s| s.work.is_some()).count(), self.queue.len());
    }
}

#[cfg(test)]
mod tests;
