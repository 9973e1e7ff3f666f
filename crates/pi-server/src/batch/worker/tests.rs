//! Steps that fail, forms that take their time, and who is told.

use super::*;
use crate::batch::{
    inbox::{Jobs, inbox},
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
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
};
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
    let (jobs, todo) = inbox();
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
    let (jobs, todo) = inbox();
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

/// A form with no rules whose masks take their time, each on a thread of its own. It counts how often it was asked in vain.
struct Sleepy {
    time: Duration,
    begun: Option<Instant>,
    /// Ends the thread that waits for the time to be over.
    ended: Option<Sender<()>>,
    in_vain: Arc<AtomicUsize>,
}

impl Sleepy {
    fn new(time: Duration) -> Self {
        Self { time, begun: None, ended: None, in_vain: Arc::default() }
    }
}

impl Constraint for Sleepy {
    fn mask(&mut self, _: &mut [f32]) -> pi_engine::Result<()> {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        thread::sleep(self.time.saturating_sub(begun.elapsed()));
        Ok(())
    }

    fn is_ready(&mut self, waker: &Waker) -> bool {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let is_ready = begun.elapsed() >= self.time;
        if !is_ready {
            self.in_vain.fetch_add(1, SeqCst);
        }
        if !is_ready && self.ended.is_none() {
            let (left, waker) = (self.time.saturating_sub(begun.elapsed()), waker.clone());
            let (done, ended) = channel();
            thread::spawn(move || {
                if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                    waker.wake();
                }
            });
            self.ended = Some(done);
        }
        is_ready
    }

    fn accept(&mut self, _: TokenId) -> pi_engine::Result<()> {
        (self.begun, self.ended) = (None, None);
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

/// A job whose form needs so long for each token.
fn sleepy(
    engine: &Engine,
    door: &Arc<Door>,
    time: Duration,
    n: usize,
) -> (Job, UnboundedReceiver<Event>, Arc<AtomicUsize>) {
    let (mut job, said) = job(engine, door, &[5, 6, 7], n);
    let chain = Chain::new(SamplingParams::greedy(), engine.vocab()).unwrap();
    let form = Sleepy::new(time);
    let in_vain = form.in_vain.clone();
    job.sampler = Box::new(Constrained::new(chain, Box::new(form)));
    (job, said, in_vain)
}

/// Runs three slots while `work` sends jobs, until `work` is done and all jobs are.
fn served(work: impl FnOnce(&Engine, &Arc<Door>, Jobs)) {
    let engine = Engine::builder().threads(1).load(&TinyModel::default().file()).unwrap();
    let (door, state) = (Door::new(9), State::new(3));
    let options = SessionOptions { sequences: 3, logits: 3, batch: 64, ..Default::default() };
    let ((jobs, todo), session) = (inbox(), engine.session(&options).unwrap());
    thread::scope(|scope| {
        let state = &state;
        scope.spawn(move || run(session, 3, &todo, state).unwrap());
        work(&engine, &door, jobs);
    });
    assert_eq!(door.inside(), 0);
}

/// Waits for something.
fn until(done: impl Fn() -> bool, what: &str) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < 5 * LONG, "in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

const LONG: Duration = Duration::from_secs(2);

#[test]
fn an_answer_whose_form_takes_its_time_holds_up_no_other() {
    served(|engine, door, jobs| {
        let (plain, want) = job(engine, door, &[5, 6, 7], 20);
        jobs.send(plain).unwrap();
        let want = tokens(want).unwrap();
        let began = Instant::now();
        let (slow, slow_said, in_vain) = sleepy(engine, door, LONG, 2);
        jobs.send(slow).unwrap();
        until(|| in_vain.load(SeqCst) > 0, "it is known to be slow");
        // one that comes while nothing else is to be done, and one beside it
        let others = [20, 20].map(|n| job(engine, door, &[5, 6, 7], n));
        for (other, said) in others {
            jobs.send(other).unwrap();
            assert_eq!(tokens(said).unwrap(), want);
        }
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
        // its tokens are those that it would have had without waiting
        assert_eq!(tokens(slow_said).unwrap(), want[..2]);
        assert!(began.elapsed() >= 2 * LONG, "{:?}", began.elapsed());
        // between its steps the thread slept
        let looks = 2 * LONG.as_millis() / LOOK.as_millis();
        assert!(in_vain.load(SeqCst) < 2 * looks as usize + 60, "{in_vain:?}");
    });
}

#[test]
fn answers_that_wait_beside_each_other_are_those_that_do_not() {
    served(|engine, door, jobs| {
        let (plain, want) = job(engine, door, &[5, 6, 7], 20);
        jobs.send(plain).unwrap();
        let want = tokens(want).unwrap();
        let times = [0, 1, 7].map(Duration::from_millis);
        let all = times.map(|time| sleepy(engine, door, time, 20));
        let all = all.map(|(job, said, _)| {
            jobs.send(job).unwrap();
            said
        });
        all.into_iter().for_each(|said| assert_eq!(tokens(said).unwrap(), want));
    });
}

#[test]
fn an_answer_that_waits_ends_with_its_deadline_and_with_its_client() {
    served(|engine, door, jobs| {
        let began = Instant::now();
        let ((mut late, late_said, _), (left, left_said, in_vain)) =
            (sleepy(engine, door, 9 * LONG, 2), sleepy(engine, door, 9 * LONG, 2));
        late.deadline = Some(began + LONG / 10);
        [late, left].into_iter().for_each(|job| jobs.send(job).unwrap());
        let error = tokens(late_said).unwrap_err();
        assert_eq!(error.body_json(), ApiError::deadline().body_json());
        until(|| in_vain.load(SeqCst) > 0, "the other waits");
        drop(left_said);
        until(|| door.inside() == 0, "it is let go of");
        assert!(began.elapsed() < 4 * LONG, "{:?}", began.elapsed());
    });
}

/// A form that knows that it is complete only when its mask would be there.
struct Late {
    left: usize,
    certain: bool,
}

impl Constraint for Late {
    fn mask(&mut self, _: &mut [f32]) -> pi_engine::Result<()> {
        Ok(())
    }

    fn is_ready(&mut self, waker: &Waker) -> bool {
        waker.wake_by_ref();
        std::mem::replace(&mut self.certain, true)
    }

    fn accept(&mut self, _: TokenId) -> pi_engine::Result<()> {
        (self.left, self.certain) = (self.left - 1, false);
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.left == 0 && self.certain
    }
}

#[test]
fn an_answer_that_is_known_to_be_complete_late_has_no_token_more() {
    served(|engine, door, jobs| {
        let (mut late, mut said) = job(engine, door, &[5, 6, 7], 20);
        let chain = Chain::new(SamplingParams::greedy(), engine.vocab()).unwrap();
        late.sampler = Box::new(Constrained::new(chain, Box::new(Late { left: 3, certain: true })));
        jobs.send(late).unwrap();
        let done = loop {
            match said.blocking_recv().unwrap() {
                Event::Done(done) => break done,
                Event::Failed(e) => panic!("{e:?}"),
                _ => {}
            }
        };
        assert_eq!((done.stop, done.completion_tokens), (StopReason::Complete, 3));
    });
}
