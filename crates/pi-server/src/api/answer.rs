//! From what the engine says to a response, whole or streamed.

use super::{json, params::Params};
use crate::{
    batch::job::{Done, Event, Piece},
    error::ApiError,
    logprobs,
    server::App,
    sse,
    state::{Model, now},
};
use axum::response::Response;
use pi_engine::StopReason;
use serde_json::{Value, json as value};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
};
use tokio::sync::mpsc::UnboundedReceiver;

/// Which of OpenAI's two forms an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Messages.
    Chat,
    /// Plain text.
    Text,
}

/// What is the same in all parts of one answer.
pub(crate) struct Reply {
    shape: Shape,
    id: String,
    created: u64,
    name: String,
    model: Arc<Model>,
    seed: u64,
    logprobs: bool,
    usage: bool,
    /// Characters of the text so far, for the places of tokens in it.
    offset: usize,
}

impl Reply {
    pub(super) fn new(shape: Shape, app: &App, model: Arc<Model>, params: &Params, seed: u64) -> Self {
        let number = RandomState::new().build_hasher().finish();
        let id = match shape {
            Shape::Chat => format!("chatcmpl-{number:016x}"),
            Shape::Text => format!("cmpl-{number:016x}"),
        };
        let name = app.options.name().to_string();
        let (logprobs, usage) = (params.logprobs.is_some(), params.usage);
        Self { shape, id, created: now(), name, model, seed, logprobs, usage, offset: 0 }
    }

    /// The response. Nothing is sent before the request has a slot, so that what keeps it from one has a status of its own.
    pub(super) async fn respond(
        self,
        mut events: UnboundedReceiver<Event>,
        stream: bool,
    ) -> Result<Response, ApiError> {
        if !stream {
            return self.whole(events).await;
        }
        match events.recv().await {
            Some(Event::Failed(error)) => Err(error),
            Some(first) => Ok(sse::response(self, first, events)),
            None => Err(gone()),
        }
    }

    async fn whole(mut self, mut events: UnboundedReceiver<Event>) -> Result<Response, ApiError> {
        let mut all = Piece::default();
        loop {
            match events.recv().await.ok_or_else(gone)? {
                Event::Started => {}
                Event::Failed(error) => return Err(error),
                Event::Piece(piece) => all.append(piece),
                Event::Done(mut done) => {
                    all.append(std::mem::take(&mut done.rest));
                    return Ok(json(&self.object(all, &done)));
                }
            }
        }
    }

    /// The parts of a stream that an event becomes. True: nothing follows.
    pub(crate) fn parts(&mut self, event: Event, out: &mut impl Extend<String>) -> bool {
        match event {
            Event::Started if self.shape == Shape::Chat => {
                out.extend([self.delta(value!({"role": "assistant", "content": ""}), Value::Null, None)]);
            }
            Event::Started => {}
            Event::Piece(piece) => out.extend([self.piece(piece)]),
            Event::Failed(error) => {
                out.extend([error.body_json().to_string()]);
                return true;
            }
            Event::Done(mut done) => {
                let rest = std::mem::take(&mut done.rest);
                if !rest.text.is_empty() || !rest.logprobs.is_empty() {
                    out.extend([self.piece(rest)]);
                }
                let reason = finish_reason(&done.stop);
                out.extend([match self.shape {
                    Shape::Chat => self.delta(value!({}), Value::Null, Some((reason, &done))),
                    Shape::Text => self.text(String::new(), Value::Null, Some((reason, &done))),
                }]);
                if self.usage {
                    let mut chunk = self.chunk(value!([]));
                    chunk["usage"] = usage(&done);
                    out.extend([chunk.to_string()]);
                }
                out.extend(["[DONE]".to_string()]);
                return true;
            }
        }
        false
    }

    fn piece(&mut self, piece: Piece) -> String {
        let logprobs = self.logprobs(&piece);
        match self.shape {
            Shape::Chat => self.delta(value!({"content": piece.text}), logprobs, None),
            Shape::Text => self.text(piece.text, logprobs, None),
        }
    }

    fn delta(&self, delta: Value, logprobs: Value, end: Option<(&str, &Done)>) -> String {
        let choice = value!({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": end.map(|e| e.0)});
        self.ended(self.chunk(value!([choice])), end)
    }

    fn text(&self, text: String, logprobs: Value, end: Option<(&str, &Done)>) -> String {
        let choice = value!({"index": 0, "text": text, "logprobs": logprobs, "finish_reason": end.map(|e| e.0)});
        self.ended(self.chunk(value!([choice])), end)
    }

    /// The last chunk of the text says how fast it was and with which seed.
    fn ended(&self, mut chunk: Value, end: Option<(&str, &Done)>) -> String {
        if let Some((_, done)) = end {
            chunk["seed"] = self.seed.into();
            chunk["timings"] = timings(done);
        }
        chunk.to_string()
    }

    fn chunk(&self, choices: Value) -> Value {
        let kind = if self.shape == Shape::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut chunk = self.head(kind, choices);
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn head(&self, kind: &str, choices: Value) -> Value {
        value!({"id": self.id, "object": kind, "created": self.created, "model": self.name, "choices": choices})
    }

    /// The whole answer.
    fn object(&mut self, all: Piece, done: &Done) -> Value {
        let (logprobs, reason) = (self.logprobs(&all), finish_reason(&done.stop));
        let mut choice = value!({"index": 0, "logprobs": logprobs, "finish_reason": reason});
        let kind = match self.shape {
            Shape::Chat => {
                choice["message"] = value!({"role": "assistant", "content": all.text, "refusal": null});
                "chat.completion"
            }
            Shape::Text => {
                choice["text"] = all.text.into();
                "text_completion"
            }
        };
        let mut object = self.head(kind, value!([choice]));
        object["usage"] = usage(done);
        object["seed"] = self.seed.into();
        object["timings"] = timings(done);
        object
    }

    fn logprobs(&mut self, piece: &Piece) -> Value {
        let tokenizer = &**self.model.engine.tokenizer();
        match self.shape {
            _ if !self.logprobs => Value::Null,
            Shape::Chat => logprobs::chat(&piece.logprobs, tokenizer),
            Shape::Text => logprobs::legacy(&piece.logprobs, tokenizer, &mut self.offset),
        }
    }
}

impl Piece {
    fn append(&mut self, other: Self) {
        self.text.push_str(&other.text);
        self.logprobs.extend(other.logprobs);
    }
}

/// The engine's thread ended in the middle of an answer.
pub(crate) fn gone() -> ApiError {
    ApiError::engine("the engine ended before the answer did")
}

fn finish_reason(stop: &StopReason) -> &'static str {
    match stop {
        StopReason::Eos(_) | StopReason::Stop(_) => "stop",
        _ => "length",
    }
}

fn usage(done: &Done) -> Value {
    value!({
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "total_tokens": done.prompt_tokens + done.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
    })
}

/// Milliseconds and speeds. The first token comes with the prompt, so the time after it brought one fewer.
fn timings(done: &Done) -> Value {
    let (prompt, decode) = (done.prompt_time.as_secs_f64(), done.decode_time.as_secs_f64());
    let per_second = |tokens: usize, seconds: f64| (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds);
    let computed = done.prompt_tokens - done.cached_tokens;
    value!({
        "prompt_ms": prompt * 1e3,
        "prompt_per_second": per_second(computed, prompt),
        "predicted_ms": decode * 1e3,
        "predicted_per_second": per_second(done.completion_tokens.saturating_sub(1), decode),
    })
}
