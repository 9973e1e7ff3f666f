//! So many requests at a time until none is left.

use super::{
    Asked,
    input::{Inputs, Survey},
    request::{self, Defaults},
    results::Results,
};
use crate::{
    failure::{Failure, Result},
    output::say,
    progress::Progress,
};
use pi_server::Server;
use serde_json::Value;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Lines that may be begun before the first of them is answered: their numbers and places are held in memory.
const WINDOW: usize = 1 << 16;
/// Errors that are shown; all are in the output.
const SHOWN: u64 = 10;

/// Requests that are given to the server beyond those that it computes: their prompts are ready when a slot is.
pub fn ahead(parallel: usize) -> usize {
    parallel.max(2)
}

/// A run in progress.
pub struct Drive {
    server: Server,
    most: usize,
    inputs: Inputs,
    defaults: Defaults,
    fail_fast: bool,
    progress: Progress,
    running: JoinSet<(u64, Value, u16, Value)>,
    ended: Ended,
}

/// What has become of a run.
pub struct Ended {
    pub results: Results,
    /// The user wanted it to end.
    pub interrupted: bool,
    /// Checksum of the input that was read.
    pub sum: u64,
    /// Lines that got an answer or an error in this run, and how many of them an error.
    pub answered: u64,
    pub errors: u64,
    pub tokens: u64,
    pub time: Duration,
}

impl Ended {
    /// Nothing is done yet.
    pub fn new(results: Results) -> Self {
        Self { results, interrupted: false, sum: 0, answered: 0, errors: 0, tokens: 0, time: Duration::ZERO }
    }
}

impl Drive {
    pub fn new(
        server: Server,
        parallel: usize,
        inputs: Inputs,
        results: Results,
        defaults: Defaults,
        fail_fast: bool,
        survey: &Survey,
    ) -> Self {
        let mut progress = Progress::new(survey.lines, "lines");
        progress.begin_at(results.ready());
        let (most, running, ended) = (parallel + ahead(parallel), JoinSet::new(), Ended::new(results));
        Self { server, most, inputs, defaults, fail_fast, progress, running, ended }
    }

    /// Until all lines are answered, or somebody wants it to end.
    ///
    /// # Errors
    /// If files fail, the engine ends, or a line is wrong and that is to end it.
    pub async fn run(mut self, asked: &Arc<Asked>) -> Result<Ended> {
        let began = Instant::now();
        let mut more = true;
        loop {
            while more && self.running.len() < self.most && self.ended.results.due() < WINDOW && !asked.has_come() {
                more = self.begin_line()?;
            }
            tokio::select! {
                biased;
                () = asked.came() => {
                    self.ended.interrupted = true;
                    break;
                }
                done = self.running.join_next() => match done {
                    None if more => {} // all that was begun was answered already
                    None => break,
                    Some(Ok((line, id, status, answer))) => self.end_line(line, &id, status, answer)?,
                    Some(Err(e)) => return Err(Failure::Work(format!("a request ended without an answer: {e}"))),
                },
            }
        }
        self.progress.clear();
        self.ended.sum = self.inputs.sum();
        self.ended.time = began.elapsed();
        Ok(self.ended)
    }

    /// Gives the next line to the server, unless its answer is there. False at the end of the input.
    fn begin_line(&mut self) -> Result<bool> {
        let Some(line) = self.inputs.next()? else { return Ok(false) };
        let number = line.number;
        if self.ended.results.begin(number)? {
            return Ok(true);
        }
        let (id, request) = match line.bytes {
            Ok(bytes) => request::read(&bytes, &self.defaults),
            Err(why) => (Value::Null, Err(request::wrong(None, &why))),
        };
        match request {
            Err(error) => self.refused(number, &id, error)?,
            Ok(request) => {
                let server = self.server.clone();
                self.running.spawn(async move {
                    let (status, answer) = server.ask(request.path, &request.body).await;
                    (number, id, status, answer)
                });
            }
        }
        Ok(true)
    }

    fn end_line(&mut self, line: u64, id: &Value, status: u16, mut answer: Value) -> Result<()> {
        match status {
            200 => {
                self.ended.tokens += answer["usage"]["completion_tokens"].as_u64().unwrap_or(0);
                self.put(line, &request::answered(line, id, answer))
            }
            // the engine is gone: that is no answer to this line
            503 => Err(Failure::Work(answer["error"]["message"].as_str().unwrap_or("the engine ended").into())),
            _ => self.refused(line, id, answer["error"].take()),
        }
    }

    fn refused(&mut self, line: u64, id: &Value, error: Value) -> Result<()> {
        let message = error["message"].as_str().unwrap_or("refused");
        let message = format!("{}: line {line}: {message}", self.inputs.path().display());
        if self.fail_fast {
            return Err(Failure::Work(format!("{message} (without --fail-fast the same command goes on from there)")));
        }
        self.ended.errors += 1;
        match self.ended.errors {
            n if n <= SHOWN => say(&message),
            n if n == SHOWN + 1 => say("there are more lines with errors: all are in the output"),
            _ => {}
        }
        self.put(line, &request::refused(line, id, error))
    }

    fn put(&mut self, line: u64, answer: &Value) -> Result<()> {
        self.ended.results.put(line, answer)?;
        self.ended.answered += 1;
        self.progress.show(self.ended.results.ready(), &format!("{} tokens", self.ended.tokens));
        Ok(())
    }
}
