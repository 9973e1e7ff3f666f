//! What is said after a generation: a line for people, an object for programs.

use crate::output::size;
use pi_engine::{Generated, StopReason, pi_core::text::TokenId};
use serde::Serialize;
use std::path::Path;

/// The object of `pi run --json`. What was not measured (no step after the prompt) is null.
#[derive(Serialize)]
pub struct Outcome<'a> {
    /// Path of the model, with U+FFFD for what is not Unicode in it.
    model: String,
    /// The generated text, without the prompt.
    text: &'a str,
    /// Ids of the generated tokens.
    tokens: &'a [TokenId],
    prompt_tokens: usize,
    generated_tokens: usize,
    /// Prompt tokens per second.
    prompt_tps: f64,
    /// Steps per second after the prompt.
    decode_tps: Option<f64>,
    /// Mean share of neurons that contributed while decoding.
    active_share: Option<f32>,
    /// The same for every layer.
    active_share_by_layer: &'a [f32],
    /// Mean share of neurons that predictors let through while decoding; 1 without them.
    marked_share: Option<f32>,
    /// The same for every layer.
    marked_share_by_layer: &'a [f32],
    /// Mean share of neurons computed by the dense path, because so many were expected to be active.
    dense_share: Option<f32>,
    /// The same for every layer.
    dense_share_by_layer: &'a [f32],
    /// Bytes of weights and caches read per step while decoding.
    bytes_per_token: Option<u64>,
    /// `eos`, `stop`, `length`, `context` or `cancelled`.
    stop_reason: &'static str,
    /// The stop string that was met.
    stop_string: Option<&'a str>,
    /// The seed in use, also if it was drawn at random.
    seed: u64,
}

impl<'a> Outcome<'a> {
    /// What `generated`, by the model at `path`, amounts to.
    pub fn new(generated: &'a Generated, path: &Path) -> Self {
        let stats = &generated.stats;
        Self {
            model: path.display().to_string(),
            text: &generated.text,
            tokens: &generated.tokens,
            prompt_tokens: generated.prompt_tokens,
            generated_tokens: generated.tokens.len(),
            prompt_tps: generated.prompt_tps(),
            decode_tps: generated.decode_tps(),
            active_share: stats.active_share(),
            active_share_by_layer: if stats.tokens > 0 { &stats.active } else { &[] },
            marked_share: stats.marked_share(),
            marked_share_by_layer: if stats.tokens > 0 { &stats.marked } else { &[] },
            dense_share: stats.dense_share(),
            dense_share_by_layer: if stats.tokens > 0 { &stats.dense } else { &[] },
            bytes_per_token: stats.bytes_per_token(),
            stop_reason: generated.stop.name(),
            stop_string: match &generated.stop {
                StopReason::Stop(text) => Some(text),
                _ => None,
            },
            seed: generated.seed,
        }
    }
}

/// The line at the end of `pi run`.
pub fn summary(generated: &Generated) -> String {
    let stats = &generated.stats;
    let tokens = |n: usize| format!("{n} token{}", if n == 1 { "" } else { "s" });
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "not measured".into());
    // Said where it was taken although neurons could be left out: not in every line of a dense model.
    let partly = stats.active_share().is_some_and(|share| share < 1.0);
    let dense = match stats.dense_share().filter(|share| partly && *share > 0.0) {
        Some(share) => format!(", {:.0} % by the dense path", share * 100.0),
        None => String::new(),
    };
    let marked = match stats.marked_share().filter(|share| *share < 1.0) {
        Some(share) => format!(" of {:.1} % predicted", share * 100.0),
        None => String::new(),
    };
    format!(
        "prompt: {}, {:.1} tokens/s | decode: {}, {} | active neurons: {}{}{} | read per token: {} | stop: {}",
        tokens(generated.prompt_tokens),
        generated.prompt_tps(),
        tokens(generated.tokens.len()),
        or_none(generated.decode_tps().map(|tps| format!("{tps:.1} tokens/s"))),
        or_none(stats.active_share().map(|share| format!("{:.1} %", share * 100.0))),
        marked,
        dense,
        or_none(stats.bytes_per_token().map(size)),
        generated.stop.name(),
    )
}
