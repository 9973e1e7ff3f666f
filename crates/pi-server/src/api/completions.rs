//! `/v1/completions`.

use super::{
    Answered, Shared,
    answer::{Reply, Shape},
    form::{self, Form},
    params::{self, Params, TOP},
    submit::{Order, aside, blocking, enter, in_time, submit},
    tokenize::ids,
};
use crate::{
    body,
    error::ApiError,
    fields::{Fields, wrong},
    server::App,
    state::Model,
};
use axum::extract::{Request, State};
use pi_engine::pi_core::text::TokenId;
use serde_json::Value;
use std::{sync::Arc, time::Instant};

const EXPECTED: &str = "a string or an array of token ids";

pub(super) async fn create(State(app): Shared, request: Request) -> Answered {
    let deadline = app.deadline();
    let model = match app.model() {
        Ok(model) => model,
        Err(why) => return Err(body::passed_over(&app, request, why).await),
    };
    let (order, params) = in_time(&app, deadline, prepared(&app, &model, request, deadline)).await?;
    let (events, seed) = submit(&app, &model, order, &params)?;
    Reply::new(Shape::Text, &app, model, &params, seed).respond(events, params.stream).await
}

async fn prepared(
    app: &Arc<App>,
    model: &Arc<Model>,
    request: Request,
    deadline: Option<Instant>,
) -> Result<(Order, Params), ApiError> {
    let fields = body::object(app, request).await?;
    let (reader, asked) = (app.clone(), model.clone());
    let asked = aside(fields.is_long(), move || read(fields, &reader, &asked, deadline)).await?;
    let ticket = enter(app)?;
    let turn = form::turn(app, asked.form.is_some()).await;
    let model = model.clone();
    // the place is kept as long as there is work, even if the client leaves meanwhile
    blocking(move || {
        let prompt = tokens(&model, asked.prompt)?;
        let form = asked.form.map(|form| form.compile(&model)).transpose()?;
        drop((turn, asked._fields));
        Ok((Order { ticket, prompt, param: "prompt", form, shown: Vec::new() }, asked.params))
    })
    .await
}

/// What a request asks for.
struct Asked {
    params: Params,
    prompt: Value,
    form: Option<Form>,
    /// What is left of the fields.
    _fields: Fields,
}

fn read(mut fields: Fields, app: &App, model: &Model, deadline: Option<Instant>) -> Result<Asked, ApiError> {
    let mut params = params::read(&fields, app, model, 0, deadline)?;
    params.logprobs = fields.integer("logprobs", 0..=TOP)?.map(|n| n as usize);
    let prompt = fields.take("prompt").ok_or_else(|| ApiError::field("prompt", format!("expected {EXPECTED}")))?;
    let form = form::read(&mut fields)?;
    for name in ["tools", "tool_choice"] {
        let is_set =
            |v: &Value| !matches!(v.as_str(), Some("none" | "auto")) && v.as_array().is_none_or(|all| !all.is_empty());
        if fields.get(name).is_some_and(is_set) {
            return Err(ApiError::unsupported(name, "only /v1/chat/completions takes tools"));
        }
    }
    Ok(Asked { params, prompt, form, _fields: fields })
}

/// The tokens of a prompt: a text with what the vocabulary puts around it, or ids as they are. A list of one prompt is that one.
fn tokens(model: &Model, prompt: Value) -> Result<Vec<TokenId>, ApiError> {
    let text = match prompt {
        Value::String(text) => text,
        Value::Array(mut all) => match all.first() {
            None => return Err(ApiError::field("prompt", format!("expected {EXPECTED}, got an empty array"))),
            Some(Value::Number(_)) => return ids(&Value::Array(all), "prompt", model.engine.vocab()),
            Some(Value::String(_) | Value::Array(_)) if all.len() > 1 => {
                return Err(ApiError::unsupported("prompt", "expected one prompt per request, got several"));
            }
            Some(Value::String(_)) => return tokens(model, all.swap_remove(0)),
            Some(Value::Array(inner)) if inner.iter().all(Value::is_number) => {
                return tokens(model, all.swap_remove(0));
            }
            Some(other) => return Err(wrong("prompt", EXPECTED, other)),
        },
        other => return Err(wrong("prompt", EXPECTED, &other)),
    };
    if text.is_empty() {
        let begin = model.engine.tokenizer().special().bos;
        return begin.map(|bos| vec![bos]).ok_or_else(|| {
            ApiError::field("prompt", "expected some text: the vocabulary has no token that begins an empty one")
        });
    }
    model.engine.encode_prompt(&text).map_err(|e| ApiError::field("prompt", e.to_string()))
}
