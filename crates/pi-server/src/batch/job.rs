//! A request as the engine's thread sees it, and what it answers.

use super::queue::Ticket;
use crate::{error::ApiError, logprobs::TokenLogprob};
use pi_engine::{GenerateOptions, Sampler, StopReason, pi_core::text::TokenId};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// One answer to be made.
pub(crate) struct Job {
    /// At least one token, and at least one fewer than a slot's context.
    pub prompt: Vec<TokenId>,
    pub options: GenerateOptions,
    pub sampler: Box<dyn Sampler + Send>,
    /// The field that said what the answer must look like, if one did.
    pub form: Option<&'static str>,
    /// Control tokens whose text is part of the answer.
    pub shown: Vec<TokenId>,
    /// How many of the likeliest tokens are wanted beside each chosen one; `None`: no log-probabilities at all.
    pub logprobs: Option<usize>,
    /// Whether what a slot has computed before may be used.
    pub reuse: bool,
    /// After this the request is given up.
    pub deadline: Option<Instant>,
    /// The answer goes here. Closed: nobody wants it any more.
    pub events: UnboundedSender<Event>,
    /// Its place among the requests that are waiting or running; given back when the job is dropped.
    pub ticket: Ticket,
}

/// What comes back. After [`Done`](Self::Done) or [`Failed`](Self::Failed) nothing does.
#[derive(Debug)]
pub(crate) enum Event {
    /// The request has a slot.
    Started,
    /// Text that became whole, and the tokens since the last piece if they were asked for.
    Piece(Piece),
    Done(Done),
    Failed(ApiError),
}

#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub text: String,
    pub logprobs: Vec<TokenLogprob>,
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// What was held back until the end.
    pub rest: Piece,
    pub stop: StopReason,
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were not computed again.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    /// From the slot to the end of the prompt.
    pub prompt_time: Duration,
    /// From there to the end.
    pub decode_time: Duration,
}
