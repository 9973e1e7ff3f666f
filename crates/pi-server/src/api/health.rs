//! `/health` for load balancers, `/metrics` for Prometheus.

use super::{Answered, Shared, json, text};
use crate::{error::ApiError, state::Phase};
use axum::{extract::State, response::Response};
use serde_json::json as value;

/// 200 if requests are answered, with `"device_lost": true` if an accelerator failed and the CPU goes on; 503 with the reason while the model is loaded,
/// when it could not be or the engine cannot go on, and during shutdown.
pub(super) async fn health(State(app): Shared) -> Answered {
    match app.state.phase.borrow().clone() {
        Phase::Ready if app.state.lost.borrow().is_some() => Ok(json(&value!({"status": "ok", "device_lost": true}))),
        Phase::Ready => Ok(json(&value!({"status": "ok"}))),
        // what exactly went wrong is for those who have a key, and for the log
        Phase::Failed(_) => Err(ApiError::unavailable("the engine is not running", 60)),
        _ => app.model().map(|_| json(&value!({"status": "ok"}))),
    }
}

pub(super) async fn metrics(State(app): Shared) -> Response {
    let ready = *app.state.phase.borrow() == Phase::Ready;
    let compiled = app.state.model.get().map_or(0, |model| model.compiled());
    let lost = app.state.lost.borrow().is_some();
    text(app.state.metrics.text(ready, lost, compiled), "text/plain; version=0.0.4; charset=utf-8")
}
