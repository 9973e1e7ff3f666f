//! From a prompt to a job of the engine's thread.

use super::params::Params;
use crate::{
    batch::job::{Event, Job},
    batch::queue::Ticket,
    error::ApiError,
    server::App,
    state::Model,
};
use pi_engine::{pi_core::text::TokenId, sampler::Chain};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Runs something that takes a while beside the threads that answer.
///
/// # Errors
/// What it says; or that it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::engine("the request could not be prepared")))
}

/// A place among the requests that wait or run.
///
/// # Errors
/// 429 if there is none, with a guess when there will be.
pub(super) fn enter(app: &App) -> Result<Ticket, ApiError> {
    app.door.enter().ok_or_else(|| {
        app.state.metrics.refused();
        let rounds = app.options.queue.div_ceil(app.options.parallel).max(1) as f64;
        let seconds = app.state.metrics.mean_request().as_secs_f64() * rounds;
        ApiError::busy(app.options.queue, seconds.clamp(1.0, 60.0) as u32)
    })
}

/// Hands a prompt to the engine; `param` is the field it came from. Returns what the engine will say, and the seed.
///
/// # Errors
/// 400 if the prompt does not fit the context or a setting makes no sense, 503 if the engine is gone.
pub(super) fn submit(
    app: &App,
    model: &Model,
    ticket: Ticket,
    prompt: Vec<TokenId>,
    param: &str,
    params: &Params,
) -> Result<(UnboundedReceiver<Event>, u64), ApiError> {
    if prompt.is_empty() {
        return Err(ApiError::field(param, "expected at least one token, got none"));
    }
    if prompt.len() >= model.context {
        return Err(ApiError::context(param, prompt.len(), model.context));
    }
    let sampler = Chain::new(params.options.sampling.clone(), model.engine.vocab()).map_err(|e| params.refused(&e))?;
    let seed = sampler.seed();
    let (events, answer) = unbounded_channel();
    let job = Job {
        prompt,
        options: params.options.clone(),
        sampler: Box::new(sampler),
        logprobs: params.logprobs,
        reuse: params.reuse,
        deadline: app.options.timeout.and_then(|t| Instant::now().checked_add(t)),
        events,
        ticket,
    };
    app.jobs.send(job).map_err(|_| ApiError::unavailable("the engine is not running", 60))?;
    Ok((answer, seed))
}
