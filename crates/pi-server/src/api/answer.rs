//! From what the engine says to a response, whole or streamed.

use super::{json, params::Params};
use crate::{
    batch::job::{Done, Event, Piece},
    error::ApiError,
    logprobs::{self, TokenLogprob},
    server::App,
    sse,
    state::{Model, now},
    tools::{Part, Recogniser, ToolFormat},
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
    /// What finds calls in the answer, if it may have any.
    calls: Option<Recogniser>,
    /// Calls that were found.
    called: usize,
    /// Log-probabilities of tokens whose text was held back.
    held: Vec<TokenLogprob>,
}

impl Reply {
    pub(super) fn new(shape: Shape, app: &App, model: Arc<Model>, params: &Params, seed: u64) -> Self {
        let number = random();
        let id = match shape {
            Shape::Chat => format!("chatcmpl-{number:016x}"),
            Shape::Text => format!("cmpl-{number:016x}"),
        };
        let name = app.options.name().to_string();
        let (logprobs, usage) = (params.logprobs.is_some(), params.usage);
        Self {
            shape,
            id,
            created: now(),
            name,
            model,
            seed,
            logprobs,
            usage,
            offset: 0,
            calls: None,
            called: 0,
            held: Vec::new(),
        }
    }

    /// The answer may have calls in this form.
    pub(super) fn with_calls(self, format: Option<ToolFormat>, only: bool) -> Self {
        Self { calls: format.map(|format| Recogniser::new(format).only_calls(only)), ..self }
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
            Event::Piece(piece) if self.calls.is_some() => self.found(piece, false, out),
            Event::Piece(piece) => out.extend([self.piece(piece)]),
            Event::Failed(error) => {
                out.extend([error.body_json().to_string()]);
                return true;
            }
            Event::Done(mut done) => {
                let rest = std::mem::take(&mut done.rest);
                if self.calls.is_some() {
                    self.found(rest, true, out);
                } else if !rest.text.is_empty() || !rest.logprobs.is_empty() {
                    out.extend([self.piece(rest)]);
                }
                let reason = self.finish_reason(&done.stop);
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

    /// What a piece of an answer with calls brings; `end`: it is the last one.
    fn found(&mut self, piece: Piece, end: bool, out: &mut impl Extend<String>) {
        self.held.extend(piece.logprobs);
        let parts = self.recognised(&piece.text, end);
        let mut deltas: Vec<Value> = parts.into_iter().map(|part| self.part(part)).collect();
        if end && deltas.is_empty() && !self.held.is_empty() {
            deltas.push(value!({}));
        }
        for delta in deltas {
            let logprobs = std::mem::take(&mut self.held);
            let logprobs = match logprobs[..] {
                [] => Value::Null,
                _ => self.logprobs(&Piece { text: String::new(), logprobs }),
            };
            out.extend([self.delta(delta, logprobs, None)]);
        }
    }

    fn recognised(&mut self, text: &str, end: bool) -> Vec<Part> {
        let Some(calls) = &mut self.calls else { return Vec::new() };
        let mut parts = calls.push(text);
        if end {
            parts.extend(calls.finish());
        }
        parts
    }

    /// The difference that a part makes to a message.
    fn part(&mut self, part: Part) -> Value {
        let call = match part {
            Part::Text(text) => return value!({"content": text}),
            Part::Call(name) => {
                self.called += 1;
                let format = self.calls.as_ref().map_or(ToolFormat::Hermes, Recogniser::format);
                let id = format.id(random());
                let function = value!({"name": name, "arguments": ""});
                value!({"index": self.called - 1, "id": id, "type": "function", "function": function})
            }
            Part::Arguments(text) => {
                value!({"index": self.called.saturating_sub(1), "function": {"arguments": text}})
            }
        };
        value!({"tool_calls": [call]})
    }

    /// A message that is told by its parts.
    fn message(&mut self, text: &str) -> Value {
        let (mut content, mut calls) = (String::new(), Vec::<Value>::new());
        for part in self.recognised(text, true) {
            match (part, calls.last_mut()) {
                (Part::Text(text), _) => content += &text,
                (Part::Arguments(text), Some(call)) => {
                    let before = call["function"]["arguments"].as_str().unwrap_or_default();
                    call["function"]["arguments"] = (before.to_string() + &text).into();
                }
                (part, _) => {
                    let mut call = self.part(part)["tool_calls"][0].take();
                    if let Some(fields) = call.as_object_mut() {
                        fields.shift_remove("index");
                    }
                    calls.push(call);
                }
            }
        }
        let content = if content.is_empty() && !calls.is_empty() { Value::Null } else { content.into() };
        let mut message = value!({"role": "assistant", "content": content, "refusal": null});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }

    /// An answer that ended by itself behind a call waits for what the call brings.
    fn finish_reason(&self, stop: &StopReason) -> &'static str {
        match finish_reason(stop) {
            "stop" if self.calls.as_ref().is_some_and(Recogniser::has_called) => "tool_calls",
            reason => reason,
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
        let logprobs = self.logprobs(&all);
        let message = (self.shape == Shape::Chat).then(|| match self.calls {
            Some(_) => self.message(&all.text),
            None => value!({"role": "assistant", "content": all.text, "refusal": null}),
        });
        let reason = self.finish_reason(&done.stop);
        let mut choice = value!({"index": 0, "logprobs": logprobs, "finish_reason": reason});
        let kind = match message {
            Some(message) => {
                choice["message"] = message;
                "chat.completion"
            }
            None => {
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

/// A number that is different each time.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The engine's thread ended in the middle of an answer.
pub(crate) fn gone() -> ApiError {
    ApiError::engine("the engine ended before the answer did")
}

fn finish_reason(stop: &StopReason) -> &'static str {
    match stop {
        StopReason::Eos(_) | StopReason::Stop(_) | StopReason::Complete => "stop",
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
