//! From a prompt to a job of the engine's thread.

use super::params::Params;
use crate::{
    batch::job::{Event, Job},
    batch::queue::Ticket,
    error::ApiError,
    server::App,
    state::Model,
};
use pi_engine::{Constrained, Sampler, pi_core::text::TokenId, sampler::Chain};
use pi_grammar::Matcher;
use std::time::Instant;
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::timeout_at,
};

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

/// The same for what takes a while only if a body is long.
///
/// # Errors
/// What it says.
pub(super) async fn aside<T: Send + 'static>(
    long: bool,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if long { blocking(work).await } else { work() }
}

/// Waits for something until the request has taken as long as it may. What is done in another thread then goes on, and keeps its place.
///
/// # Errors
/// What it says; 504 if it took too long.
pub(super) async fn in_time<T>(
    app: &App,
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let Some(deadline) = deadline else { return work.await };
    timeout_at(deadline.into(), work).await.unwrap_or_else(|_| {
        app.state.metrics.failed();
        Err(ApiError::deadline())
    })
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

/// What the engine is to work on.
pub(super) struct Order {
    pub ticket: Ticket,
    pub prompt: Vec<TokenId>,
    /// The field that the prompt came from.
    pub param: &'static str,
    /// What the answer must look like, and the field that said so.
    pub form: Option<(&'static str, Matcher)>,
    /// Control tokens whose text is part of the answer.
    pub shown: Vec<TokenId>,
}

/// Hands a prompt to the engine. Returns what the engine will say, and the seed.
///
/// # Errors
/// 400 if the prompt does not fit the context or a setting makes no sense, 503 if the engine is gone.
pub(super) fn submit(
    app: &App,
    model: &Model,
    order: Order,
    params: &Params,
) -> Result<(UnboundedReceiver<Event>, u64), ApiError> {
    let Order { ticket, prompt, param, form, shown } = order;
    if prompt.is_empty() {
        return Err(ApiError::field(param, "expected at least one token, got none"));
    }
    if prompt.len() >= model.context {
        return Err(ApiError::context(param, prompt.len(), model.context));
    }
    let chain = Chain::new(params.options.sampling.clone(), model.engine.vocab()).map_err(|e| params.refused(&e))?;
    let seed = chain.seed();
    let field = form.as_ref().map(|(field, _)| *field);
    let sampler: Box<dyn Sampler + Send> = match form {
        Some((_, form)) => Box::new(Constrained::new(chain, Box::new(form))),
        None => Box::new(chain),
    };
    let (events, answer) = unbounded_channel();
    let job = Job {
        prompt,
        options: params.options.clone(),
        sampler,
        form: field,
        shown,
        logprobs: params.logprobs,
        reuse: params.reuse,
        deadline: params.deadline,
        events,
        ticket,
    };
    app.jobs.send(job).map_err(|_| ApiError::unavailable("the engine is not running", 60))?;
    Ok((answer, seed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn the_fields_of_long_bodies_are_looked_at_beside_the_networks_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let thread = |long| runtime.block_on(aside(long, || Ok(thread::current().id()))).unwrap();
        assert_eq!(thread(false), thread::current().id());
        assert_ne!(thread(true), thread::current().id());
    }
}
