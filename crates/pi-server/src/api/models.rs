//! `/v1/models`, and what this model cannot do.

use super::{Answered, Shared, json};
use crate::{error::ApiError, server::App, state::Model};
use axum::extract::{Path, State, rejection::PathRejection};
use serde_json::{Value, json as value};

fn entry(name: &str, model: &Model) -> Value {
    value!({"id": name, "object": "model", "created": model.created, "owned_by": "pi"})
}

fn names(app: &App) -> Vec<&str> {
    let names: Vec<&str> = app.options.names.iter().map(String::as_str).collect();
    if names.is_empty() { vec![app.options.name()] } else { names }
}

pub(super) async fn list(State(app): Shared) -> Answered {
    let model = app.model()?;
    let data: Vec<Value> = names(&app).into_iter().map(|name| entry(name, &model)).collect();
    Ok(json(&value!({"object": "list", "data": data})))
}

pub(super) async fn one(State(app): Shared, path: Result<Path<String>, PathRejection>) -> Answered {
    let model = app.model()?;
    let Path(name) = path.map_err(|e| ApiError::field("model", e.body_text()))?;
    match names(&app).contains(&name.as_str()) {
        true => Ok(json(&entry(&name, &model))),
        false => Err(ApiError::model(&name)),
    }
}

/// A model that generates text has no vectors to offer: better no answer than one that looks like some.
pub(super) async fn embeddings() -> ApiError {
    ApiError::unsupported("model", "this model generates text; it makes no embeddings")
}
