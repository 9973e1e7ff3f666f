//! `/tokenize` and `/detokenize`.

use super::{
    Answered, Shared, json,
    submit::{aside, blocking},
};
use crate::{
    body,
    error::ApiError,
    fields::{Fields, whole, wrong},
};
use axum::extract::{Request, State};
use pi_engine::pi_core::text::{DecodeOptions, EncodeOptions, TokenId};
use serde_json::{Value, json as value};

/// `{"content": TEXT, "add_special": false, "parse_special": true, "with_pieces": false}`: the tokens of a text.
pub(super) async fn tokenize(State(app): Shared, request: Request) -> Answered {
    let model = app.model()?;
    let mut fields = body::object(&app, request).await?;
    blocking(move || {
        let add_special = fields.boolean("add_special")?.unwrap_or(false);
        let parse_special = fields.boolean("parse_special")?.unwrap_or(true);
        let pieces = fields.boolean("with_pieces")?.unwrap_or(false);
        let content = match fields.take("content") {
            Some(Value::String(content)) => content,
            Some(other) => return Err(wrong("content", "a string", &other)),
            None => return Err(ApiError::field("content", "expected a string, got nothing")),
        };
        let tokenizer = model.engine.tokenizer();
        let tokens = tokenizer
            .encode(content.as_bytes(), EncodeOptions { add_special, parse_special })
            .map_err(|e| ApiError::field("content", e.to_string()))?;
        if !pieces {
            return Ok(json(&value!({"tokens": tokens})));
        }
        let piece = |id: TokenId| {
            let bytes = tokenizer.piece(id, true).unwrap_or_default();
            let piece = std::str::from_utf8(bytes).map_or_else(|_| value!(bytes), |text| value!(text));
            value!({"id": id, "piece": piece})
        };
        Ok(json(&value!({"tokens": tokens.into_iter().map(piece).collect::<Vec<_>>()})))
    })
    .await
}

/// `{"tokens": [IDS]}`: their text, with U+FFFD for what is not UTF-8.
pub(super) async fn detokenize(State(app): Shared, request: Request) -> Answered {
    let model = app.model()?;
    let fields = body::object(&app, request).await?;
    aside(fields.is_long(), move || {
        let tokens = match fields.get("tokens") {
            Some(Value::Array(_)) => tokens(&fields, "tokens", model.engine.vocab())?,
            Some(other) => return Err(wrong("tokens", "an array of token ids", other)),
            None => return Err(ApiError::field("tokens", "expected an array of token ids, got nothing")),
        };
        let options = DecodeOptions { special: true, ..Default::default() };
        let text = model.engine.tokenizer().decode(&tokens, options);
        let text = text.map_err(|e| ApiError::field("tokens", e.to_string()))?;
        Ok(json(&value!({"content": String::from_utf8_lossy(&text)})))
    })
    .await
}

/// The token ids in the array `name`.
pub(super) fn tokens(fields: &Fields, name: &str, vocab: usize) -> Result<Vec<TokenId>, ApiError> {
    ids(fields.get(name).unwrap_or(&Value::Null), name, vocab)
}

/// The token ids in an array.
pub(super) fn ids(array: &Value, name: &str, vocab: usize) -> Result<Vec<TokenId>, ApiError> {
    let expected = format!("token ids from 0 to {}", vocab.saturating_sub(1));
    let id = |v: &Value| {
        let id = v.is_number().then(|| whole(v)).flatten().and_then(|n| TokenId::try_from(n).ok());
        id.filter(|&id| (id as usize) < vocab).ok_or_else(|| wrong(name, &expected, v))
    };
    array.as_array().map_or_else(|| Err(wrong(name, &expected, array)), |all| all.iter().map(id).collect())
}
