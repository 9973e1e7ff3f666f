//! The server: a thread that owns the engine, and a router that talks to it.

use crate::{
    api,
    batch::{
        inbox::{Inbox, Jobs, inbox},
        job::Event,
        queue::Door,
        worker,
    },
    body, connections,
    error::ApiError,
    options::ServerOptions,
    state::{Loaded, Model, Phase, State},
};
use axum::{
    Router,
    body::Body,
    http::{Request, header},
};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use pi_engine::{SessionOptions, pi_core::Error as CoreError};
use serde_json::Value;
use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};

/// An OpenAI-compatible server. Mount its [`router`](Self::router) into a program of your own, or let [`serve`](Self::serve) do the
/// rest. When it and its routers are dropped, the engine's thread ends after the answers in progress.
#[derive(Clone)]
pub struct Server {
    app: Arc<App>,
}

/// What handlers know.
pub(crate) struct App {
    pub options: ServerOptions,
    pub state: Arc<State>,
    pub jobs: Jobs,
    pub door: Arc<Door>,
    /// Places for forms that are being compiled.
    pub compiling: Arc<Semaphore>,
    /// Places for long bodies, from when they are there until there is a prompt.
    pub long_bodies: Arc<Semaphore>,
    /// Room for what has come of long bodies.
    pub arriving: Arc<Semaphore>,
}

/// Long bodies at a time.
const LONG_BODIES: usize = 8;

/// Forms that are compiled at a time.
const COMPILING: usize = 2;

impl Server {
    /// Starts the engine's thread. It calls `load` first; until that is done, `/health` and all other routes answer 503.
    ///
    /// # Errors
    /// If settings make no sense, or the system refuses to start a thread.
    pub fn start<L>(options: ServerOptions, load: L) -> io::Result<Self>
    where
        L: FnOnce() -> Result<Loaded, String> + Send + 'static,
    {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what.to_string()));
        if options.parallel == 0 || options.batch == 0 || options.body_limit == 0 {
            return wrong("parallel, batch and body_limit: expected at least 1");
        }
        if options.api_keys.iter().any(|key| key.trim().is_empty()) {
            return wrong("api_keys: expected keys that are not empty");
        }
        let state = Arc::new(State::new(options.parallel));
        let (jobs, todo) = inbox();
        let door = Door::new(options.parallel.saturating_add(options.queue));
        let long_bodies = Arc::new(Semaphore::new(LONG_BODIES));
        let compiling = Arc::new(Semaphore::new(COMPILING));
        let arriving = Arc::new(body::arriving(options.body_limit));
        let (copy, shared) = (options.clone(), state.clone());
        let app = App { options: copy, state: shared, jobs, door, compiling, long_bodies, arriving };
        let app = Arc::new(app);
        let work = move || {
            // Our own mistakes must not leave a server that takes requests and never answers.
            let worked = catch_unwind(AssertUnwindSafe(|| work(&options, &state, load, &todo)));
            match worked {
                Ok(Ok(())) => {}
                Ok(Err(why)) => {
                    let error = ApiError::ended(&why);
                    state.fail(why);
                    // who asked before that was known
                    todo.waiting().for_each(|job| {
                        state.metrics.failed();
                        job.end(Event::Failed(error.clone()));
                    });
                }
                Err(_) => state.fail("the engine's thread panicked"),
            }
        };
        std::thread::Builder::new().name("pi-engine".into()).spawn(work)?;
        Ok(Self { app })
    }

    /// All routes. It may be mounted anywhere and cloned. By which names it is called is for your program to look at.
    pub fn router(&self) -> Router {
        api::router(self.app.clone())
    }

    /// Answers one request without a network: a POST of `body` to `path`, as [`router`](Self::router) answers it. Returns the status
    /// and the JSON. Not for streams. Needs a tokio runtime with its clock.
    pub async fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        let mut request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = self.app.options.api_keys.first() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let failed = |error: ApiError| (error.status().as_u16(), error.body_json());
        let Ok(request) = request.body(Body::from(body.to_string())) else { return failed(ApiError::route(path)) };
        let Ok(response) = TowerToHyperService::new(self.router()).call(request).await;
        let status = response.status().as_u16();
        let whole = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        match whole.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            Some(answer) => (status, answer),
            None => failed(ApiError::engine("the answer is no JSON")),
        }
    }

    /// How far the server is.
    pub fn phase(&self) -> Phase {
        self.app.state.phase.borrow().clone()
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    /// Why it could not be.
    pub async fn loaded(&self) -> Result<(), String> {
        let mut phase = self.app.state.phase.subscribe();
        let phase = phase.wait_for(|phase| *phase != Phase::Loading).await.map(|phase| phase.clone());
        match phase {
            Ok(Phase::Failed(why)) => Err(why),
            _ => Ok(()),
        }
    }

    /// Waits until the engine cannot be used any more, as when its accelerator is lost and the CPU is not to go on, and says why.
    pub async fn failed(&self) -> String {
        let mut phase = self.app.state.phase.subscribe();
        let phase = phase.wait_for(|phase| matches!(phase, Phase::Failed(_))).await.map(|phase| phase.clone());
        match phase {
            Ok(Phase::Failed(why)) => why,
            _ => "the server was dropped".into(),
        }
    }

    /// Waits until the accelerator has failed and the CPU goes on without it, and says what the accelerator said.
    pub async fn device_lost(&self) -> String {
        let mut lost = self.app.state.lost.subscribe();
        let lost = lost.wait_for(Option::is_some).await.ok().and_then(|lost| lost.clone());
        lost.unwrap_or_default()
    }

    /// Positions of each slot's context, once the model is loaded.
    pub fn context(&self) -> Option<usize> {
        self.app.state.model.get().map(|model| model.context)
    }

    /// Requests that are waiting or running.
    pub fn requests(&self) -> usize {
        self.app.door.inside()
    }

    /// From now on new requests are refused with 503; those that are there go on.
    pub fn drain(&self) {
        self.app.state.phase.send_if_modified(|phase| {
            let failed = matches!(phase, Phase::Failed(_));
            if !failed {
                *phase = Phase::Draining;
            }
            !failed
        });
    }

    /// Answers on `listener` until `shutdown` comes; then no more connections are taken, and what is in progress may go on for
    /// `drain`. False if something was cut off by that.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
        drain: Duration,
    ) -> io::Result<bool> {
        let server = self.clone();
        let (asked, mut ask) = tokio::sync::watch::channel(false);
        // who is told that the server is ending and asks again must not be heard here
        let closed = move || {
            server.drain();
            let _ = asked.send(true);
        };
        let options = &self.app.options;
        let is_open = options.api_keys.is_empty() && listener.local_addr()?.ip().is_loopback();
        let router = if is_open || !options.hosts.is_empty() { api::by_name(&self.app) } else { self.router() };
        let mut serving =
            std::pin::pin!(connections::serve(listener, router, options.header_timeout, shutdown, closed));
        tokio::select! {
            ended = &mut serving => return ended.map(|()| true),
            _ = ask.wait_for(|asked| *asked) => {}
        }
        match timeout(drain, serving).await {
            Ok(ended) => ended.map(|()| true),
            Err(_) => Ok(false),
        }
    }
}

/// The engine's thread: loads, says so, and works.
fn work(
    options: &ServerOptions,
    state: &State,
    load: impl FnOnce() -> Result<Loaded, String>,
    todo: &Inbox,
) -> Result<(), String> {
    let loaded = load()?;
    let engine = &loaded.engine;
    let (slots, batch) = (options.parallel, options.batch.max(options.parallel));
    let context = options.context.map(|n| if n == 0 { engine.config().context } else { n });
    let wanted = SessionOptions { context, batch, sequences: slots, logits: slots };
    let session = engine.session(&wanted).map_err(|e| match e {
        pi_engine::Error::Core(CoreError::Device { .. }) => format!("{e} ({slots} slots: --parallel, --ctx-size)"),
        e => e.to_string(),
    })?;
    if let Err(e) = options.sampling.check(engine.vocab()) {
        return Err(e.to_string());
    }
    state.ready(Model::new(loaded, session.context()));
    worker::run(session, slots, todo, state)
}
