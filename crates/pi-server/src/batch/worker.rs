//! The engine's thread: steps until there is nothing to do, then sleeps until a request comes.

use super::{
    job::{Event, Job},
    prefix::{self, Free},
    share::{self, Pace},
    slot::{Slot, Work},
};
use crate::{error::ApiError, metrics::Metrics, state::State};
use pi_engine::{Error, Session, StepToken, StopReason};
use std::{collections::VecDeque, ops::Range, sync::mpsc::Receiver, time::Instant};

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
pub(crate) fn run(session: Session, slots: usize, jobs: &Receiver<Job>, state: &State) -> Result<(), String> {
    let metrics = &state.metrics;
    state.lose(session.device_loss()); // when it was opened
    let slots = (0..slots).map(|_| Slot::default()).collect();
    let (queue, pace, raw) = (VecDeque::new(), Pace::default(), Vec::new());
    let mut worker = Worker { session, slots, queue, pace, begun: 0, first: 0, raw, metrics, end: None };
    loop {
        if worker.is_idle() {
            metrics.idle();
            match jobs.recv() {
                Ok(job) => worker.queue.push_back(job),
                Err(_) => return Ok(()),
            }
        }
        worker.queue.extend(jobs.try_iter());
        worker.round();
        state.lose(worker.session.device_loss());
        if let Some(why) = worker.end.take() {
            worker.give_up(&why);
            return Err(why);
        }
    }
}

impl Worker<'_> {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.slots.iter().all(|slot| slot.work.is_none())
    }

    /// Lets go of who left, lets in who waits, and computes one step.
    fn round(&mut self) {
        self.let_go();
        self.let_in();
        self.metrics.occupied(self.slots.iter().filter(|s| s.work.is_some()).count(), self.queue.len());
        let (tokens, parts) = self.plan();
        if tokens.is_empty() {
            return;
        }
        let began = Instant::now();
        self.compute(&tokens, &parts);
        let prompt: usize = parts.iter().map(|p| p.tokens.len()).filter(|&n| n > 1).sum();
        let time = began.elapsed();
        self.pace.measured(prompt, time);
        self.metrics.step(&mut self.session, time);
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
            let Some(work) = &self.slots[slot].work else { continue };
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
            Err(e) if self.is_end(&e) => {}
            Err(e) if parts.len() == 1 => self.broken(parts[0].slot, &e),
            Err(_) => {
                for part in parts {
                    let tokens = &tokens[part.tokens.clone()];
                    match self.session.step(tokens) {
                        Ok(()) => self.computed(part, tokens, 0),
                        Err(e) if self.is_end(&e) => return,
                        Err(e) => self.broken(part.slot, &e),
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
        let Some(work) = &mut slot.work else { return };
        if !part.logits {
            return;
        }
        let full = slot.computed.len() >= self.session.context();
        let before = work.tokens();
        let advanced = self.session.logits(row).and_then(|logits| work.advance(logits, &mut self.raw, full));
        self.metrics.generated(work.tokens() - before);
        match advanced {
            Ok(None) => {}
            Ok(Some(stop)) => self.finish(part.slot, stop),
            // what was computed is right; only the answer cannot go on
            Err(Error::Constraint(why)) => {
                let field = work.job.form.unwrap_or("grammar");
                let why = format!("the answer was begun, but cannot go on in this form: {why}");
                self.fail(part.slot, ApiError::field(field, why));
            }
            Err(e) => self.broken(part.slot, &e),
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
        self.keep(index, 0);
        self.fail(index, ApiError::engine(error.to_string()));
    }

    /// Before a client hears that its request is over, it is counted out.
    fn leave(&self) {
        self.metrics.occupied(self.slots.iter().filter(|s| s.work.is_some()).count(), self.queue.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{
        job::{Done, Piece},
        queue::Door,
    };
    use pi_engine::{
        Constrained, Constraint, Engine, GenerateOptions, Plan, SamplingParams, SessionOptions, Side,
        pi_core::{Serial, text::TokenId},
        pi_sparse_cpu::{CpuDevice, Kernels},
        sampler::Chain,
    };
    use pi_testkit::{
        TinyModel,
        sim::{SimDevice, SimOptions},
    };
    use std::{sync::Arc, thread};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn job(engine: &Engine, door: &Arc<Door>, prompt: &[TokenId], n: usize) -> (Job, UnboundedReceiver<Event>) {
        let options = GenerateOptions { max_tokens: Some(n), ignore_eos: true, ..Default::default() };
        let sampler = Box::new(Chain::new(SamplingParams::greedy(), engine.vocab()).unwrap());
        let (events, answer) = unbounded_channel();
        let (prompt, ticket) = (prompt.to_vec(), door.enter().unwrap());
        let shown = Vec::new();
        (
            Job {
                prompt,
                options,
                sampler,
                form: None,
                shown,
                logprobs: Some(0),
                reuse: true,
                deadline: None,
                events,
                ticket,
            },
            answer,
        )
    }

    /// The tokens of an answer, or the failure.
    fn tokens(mut answer: UnboundedReceiver<Event>) -> Result<Vec<TokenId>, ApiError> {
        let mut all = Vec::new();
        let mut take = |piece: Piece| all.extend(piece.logprobs.iter().map(|t| t.token));
        loop {
            match answer.blocking_recv() {
                Some(Event::Started) => {}
                Some(Event::Piece(piece)) => take(piece),
                Some(Event::Done(Done { rest, .. })) => {
                    take(rest);
                    return Ok(all);
                }
                Some(Event::Failed(e)) => return Err(e),
                None => panic!("the engine's thread is gone"),
            }
        }
    }

    #[test]
    fn a_step_that_fails_costs_only_the_request_that_made_it_fail() {
        // H13
        let file = TinyModel::default().file();
        let cpu = Engine::builder().threads(1).load(&file).unwrap();
        alone_in_failing(&cpu);
        // an accelerator that did nothing wrong is not taken for lost
        let device = CpuDevice::new(Kernels::best(), Arc::new(Serial));
        let device = Arc::new(SimDevice::new(Arc::new(device), SimOptions::default()).unwrap());
        let plan = Plan::whole(cpu.config(), Side::Accelerator);
        alone_in_failing(&Engine::builder().threads(1).accelerator(device, plan).load(&file).unwrap());
    }

    fn alone_in_failing(engine: &Engine) {
        let (door, state) = (Door::new(9), State::new(3));
        let options = SessionOptions { sequences: 3, logits: 3, batch: 64, ..Default::default() };
        let (jobs, todo) = std::sync::mpsc::channel();
        let (alone, want) = job(engine, &door, &[5, 6, 7], 20);
        jobs.send(alone).unwrap();
        let session = engine.session(&options).unwrap();
        thread::scope(|scope| {
            let state = &state;
            scope.spawn(move || run(session, 3, &todo, state).unwrap());
            let want = tokens(want).unwrap();
            assert_eq!(want.len(), 20);
            // a token that the model does not have: handlers refuse it, but here it makes the whole step fail
            let some = [&[5, 6, 7][..], &[8, 1 << 20], &[5, 6, 7]].map(|prompt| job(engine, &door, prompt, 20));
            let [(a, a_said), (b, b_said), (c, c_said)] = some;
            [a, b, c].into_iter().for_each(|job| jobs.send(job).unwrap());
            assert_eq!((tokens(a_said).unwrap(), tokens(c_said).unwrap()), (want.clone(), want.clone()));
            assert!(tokens(b_said).unwrap_err().message().contains("token"));
            let (again, said) = job(engine, &door, &[5, 6, 7], 20);
            jobs.send(again).unwrap();
            assert_eq!(tokens(said).unwrap(), want);
            drop(jobs); // ends the thread
        });
        assert_eq!(door.inside(), 0);
    }

    /// A form that becomes too much work at its third token.
    struct Tiring(usize);

    impl Constraint for Tiring {
        fn mask(&mut self, _: &mut [f32]) -> pi_engine::Result<()> {
            match self.0 {
                0 => Err(Error::Constraint("too much work".into())),
                _ => Ok(()),
            }
        }

        fn accept(&mut self, _: TokenId) -> pi_engine::Result<()> {
            self.0 -= 1;
            Ok(())
        }

        fn is_complete(&self) -> bool {
            false
        }
    }

    #[test]
    fn an_answer_that_cannot_go_on_in_its_form_names_the_field_that_asked_for_it() {
        let engine = Engine::builder().threads(1).load(&TinyModel::default().file()).unwrap();
        let (door, state) = (Door::new(9), State::new(1));
        let (jobs, todo) = std::sync::mpsc::channel();
        let session = engine.session(&SessionOptions::default()).unwrap();
        let (mut formed, said) = job(&engine, &door, &[5, 6], 20);
        let chain = Chain::new(SamplingParams::greedy(), engine.vocab()).unwrap();
        (formed.sampler, formed.form) = (Box::new(Constrained::new(chain, Box::new(Tiring(2)))), Some("json_schema"));
        let (plain, after) = job(&engine, &door, &[5, 6], 20);
        [formed, plain].into_iter().for_each(|job| jobs.send(job).unwrap());
        drop(jobs);
        run(session, 1, &todo, &state).unwrap();
        let error = tokens(said).unwrap_err();
        assert_eq!((error.status().as_u16(), &error.body_json()["error"]["param"]), (400, &"json_schema".into()));
        assert!(error.message().contains("begun") && error.message().contains("too much work"), "{}", error.message());
        assert_eq!(tokens(after).unwrap().len(), 20);
    }
}
