//! Log-probabilities of tokens: natural logarithms of the softmax of what the model said, before any setting changed it.

use pi_engine::{
    pi_core::text::{TokenId, Tokenizer},
    sampler::top_logprobs,
};
use serde_json::{Map, Value, json};

/// A chosen token, and the likeliest ones at its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprob {
    pub token: TokenId,
    pub logprob: f32,
    /// Likeliest first.
    pub top: Vec<(TokenId, f32)>,
}

/// The `n` likeliest tokens; those that cannot come at all are left out.
pub(crate) fn likeliest(logits: &[f32], n: usize) -> Vec<(TokenId, f32)> {
    if n == 0 {
        return Vec::new();
    }
    let mut top = top_logprobs(logits, n);
    top.retain(|(_, logprob)| logprob.is_finite());
    top
}

fn piece(tokenizer: &dyn Tokenizer, token: TokenId) -> &[u8] {
    tokenizer.piece(token, true).unwrap_or_default()
}

fn text(tokenizer: &dyn Tokenizer, token: TokenId) -> String {
    String::from_utf8_lossy(piece(tokenizer, token)).into_owned()
}

/// As chat completions have them: `{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`.
pub(crate) fn chat(tokens: &[TokenLogprob], tokenizer: &dyn Tokenizer) -> Value {
    let one = |token: TokenId, logprob: f32| json!({"token": text(tokenizer, token), "logprob": logprob, "bytes": piece(tokenizer, token)});
    let content = tokens.iter().map(|t| {
        let mut entry = one(t.token, t.logprob);
        entry["top_logprobs"] = t.top.iter().map(|&(token, logprob)| one(token, logprob)).collect();
        entry
    });
    json!({"content": content.collect::<Vec<_>>()})
}

/// As plain completions have them: four lists. `offset` is where the text of these tokens begins; it is moved to their end.
pub(crate) fn legacy(tokens: &[TokenLogprob], tokenizer: &dyn Tokenizer, offset: &mut usize) -> Value {
    let mut offsets = Vec::with_capacity(tokens.len());
    for t in tokens {
        offsets.push(*offset);
        *offset += text(tokenizer, t.token).chars().count();
    }
    let top = |t: &TokenLogprob| -> Map<String, Value> {
        t.top.iter().map(|&(token, logprob)| (text(tokenizer, token), json!(logprob))).collect()
    };
    json!({
        "tokens": tokens.iter().map(|t| text(tokenizer, t.token)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|t| t.logprob).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}
