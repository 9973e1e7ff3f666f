//! Golden logits of a reference engine, as JSON files.

use serde::Deserialize;
use std::path::Path;

/// What the reference computed for a tiny model.
#[derive(Debug, Deserialize)]
pub struct TinyGolden {
    /// The tokens fed.
    pub ids: Vec<u32>,
    /// After each token: the largest logits, and the log-sum-exp of all.
    pub positions: Vec<Position>,
    /// All logits after the first token.
    pub first_logits: Vec<f32>,
    /// All logits after the last token.
    pub last_logits: Vec<f32>,
    /// A greedy continuation.
    pub greedy: Greedy,
}

/// The distribution after one token.
#[derive(Debug, Deserialize)]
pub struct Position {
    /// Tokens with the largest logits.
    pub top: Vec<(u32, f32)>,
    /// Log-sum-exp of all logits.
    #[serde(alias = "lse")]
    pub logsumexp: f32,
    /// Log-probability of the token that follows, where there is one.
    #[serde(default)]
    pub next_logprob: Option<f32>,
}

/// A greedy continuation of a prompt.
#[derive(Debug, Deserialize)]
pub struct Greedy {
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// The most likely tokens.
    pub gen_ids: Vec<u32>,
    /// At each step, how far the most likely token was ahead of the second.
    pub top1_top2_gap: Vec<f32>,
    /// At each step, the log-probability of the most likely token.
    #[serde(default)]
    pub logprob: Vec<f32>,
}

/// Reads a golden file.
///
/// # Panics
/// If it cannot be read: golden data is part of the tests.
pub fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> T {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Fails unless two greedy continuations agree up to the first step at which the reference was undecided (a gap below `gap`).
///
/// # Panics
/// If they differ before.
pub fn assert_greedy(name: &str, got: &[u32], want: &Greedy, gap: f32) {
    for (i, (g, w)) in got.iter().zip(&want.gen_ids).enumerate() {
        if want.top1_top2_gap[i] < gap {
            return;
        }
        assert_eq!(g, w, "{name}: greedy token {i} (gap {})", want.top1_top2_gap[i]);
    }
    assert_eq!(got.len(), want.gen_ids.len(), "{name}: number of greedy tokens");
}

/// What the reference computed for a real model.
#[derive(Debug, Deserialize)]
pub struct ModelGolden {
    /// Distributions along fixed texts, keys and values in F32.
    pub logits_kvf32: Vec<TextLogits>,
    /// Greedy continuations, keys and values in F32.
    pub greedy_kvf32: Vec<Greedy>,
    /// Perplexity of a text, keys and values in F32.
    pub ppl_kvf32: Perplexity,
}

/// Distributions along a text.
#[derive(Debug, Deserialize)]
pub struct TextLogits {
    /// The text.
    pub prompt: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// One per token.
    pub positions: Vec<Position>,
}

/// Perplexity of a text in windows.
#[derive(Debug, Deserialize)]
pub struct Perplexity {
    /// Tokens of the text.
    pub n_tokens: usize,
    /// Tokens per window.
    pub window: usize,
    /// Whole windows.
    pub n_windows: usize,
    /// Over all positions of all windows but the last of each.
    pub ppl_all: f64,
    /// Over the second halves.
    pub ppl_half: f64,
}
