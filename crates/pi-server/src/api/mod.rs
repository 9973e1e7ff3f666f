//! The routes.
//!
//! | file | what |
//! |---|---|
//! | `chat`, `messages` | `/v1/chat/completions`, and the messages it takes |
//! | `completions` | `/v1/completions` |
//! | `form`, `calls` | what an answer must look like; the same for answers that may call functions |
//! | `params` | the fields that both have: sampling, stops, lengths |
//! | `submit` | from a prompt to a job of the engine's thread |
//! | `answer` | from its events to a response, whole or streamed |
//! | `page` | a page to talk with the model |
//! | `models`, `props`, `tokenize`, `health` | the small ones |

pub(crate) mod answer;
mod calls;
mod chat;
mod completions;
mod form;
mod health;
mod messages;
mod models;
mod page;
mod params;
mod props;
mod submit;
mod tokenize;

pub(crate) use submit::blocking;

use crate::{
    auth,
    error::ApiError,
    hosts,
    server::App,
    state::{Model, Phase},
};
use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, Method, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

type Shared = State<Arc<App>>;
type Answered = Result<Response, ApiError>;

/// How long clients are asked to wait while the model is loaded, in seconds.
const LOADING: u32 = 2;

/// All routes of a server.
pub(crate) fn router(app: Arc<App>) -> Router {
    let guarded = Router::new()
        .route("/", get(page::page))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(models::embeddings))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/props", get(props::props))
        .route("/metrics", get(health::metrics))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), guard));
    let all = guarded
        .route("/health", get(health::health))
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), count));
    match cors(&app.options.cors) {
        Some(cors) => all.layer(cors).with_state(app),
        None => all.with_state(app),
    }
}

/// All routes, for requests that call the server by one of its names. `/health` is for anybody.
pub(crate) fn by_name(app: &Arc<App>) -> Router {
    router(app.clone()).layer(middleware::from_fn_with_state(app.clone(), named))
}

async fn named(State(app): Shared, request: Request, next: Next) -> Response {
    let (options, uri) = (&app.options, request.uri());
    let checked = match uri.path() {
        "/health" => Ok(()),
        _ => hosts::check(&options.hosts, &options.cors, uri, request.headers()),
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => {
            app.state.metrics.response("other", error.status().as_u16());
            error.into_response()
        }
    }
}

/// Lets web pages of these origins in. Origins that cannot be written in a header match none.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let origin = match origins.iter().any(|o| o == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|o| HeaderValue::from_str(o).ok())),
    };
    let methods = [Method::GET, Method::POST];
    // clients send headers of their own, such as `x-stainless-…`
    let headers = AllowHeaders::mirror_request();
    let layer = CorsLayer::new().allow_origin(origin).allow_methods(methods).allow_headers(headers);
    Some(layer.max_age(Duration::from_secs(600)))
}

/// Asks for a key; people who open the page are asked by their browser.
async fn guard(State(app): Shared, request: Request, next: Next) -> Response {
    if auth::allowed(&app.options.api_keys, request.headers()) {
        return next.run(request).await;
    }
    let is_page = request.uri().path() == "/";
    let mut response = ApiError::key().into_response();
    if is_page {
        let ask = HeaderValue::from_static("Basic realm=\"pi: any name, and the API key as password\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
    }
    response
}

/// Counts responses. Unknown paths count together: clients must not be able to make the list longer.
async fn count(State(app): Shared, path: Option<MatchedPath>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let route = path.as_ref().map_or("other", MatchedPath::as_str);
    app.state.metrics.response(route, response.status().as_u16());
    response
}

async fn unknown(request: Request) -> ApiError {
    ApiError::route(request.uri().path())
}

async fn not_allowed(request: Request) -> ApiError {
    ApiError::method(request.method().as_str(), request.uri().path())
}

impl App {
    /// When a request that is here now must be answered.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.options.timeout.and_then(|time| Instant::now().checked_add(time))
    }

    /// The model, if it can be asked something.
    pub(crate) fn model(&self) -> Result<Arc<Model>, ApiError> {
        match (&*self.state.phase.borrow(), self.state.model.get()) {
            (Phase::Ready, Some(model)) => Ok(model.clone()),
            (Phase::Loading | Phase::Ready, _) => Err(ApiError::unavailable("the model is being loaded", LOADING)),
            (Phase::Draining, _) => Err(ApiError::unavailable("the server is shutting down", LOADING)),
            (Phase::Failed(why), _) => Err(ApiError::ended(why)),
        }
    }
}

/// A good answer.
fn json(body: &serde_json::Value) -> Response {
    crate::error::json_response(axum::http::StatusCode::OK, body)
}

/// Plain text.
fn text(body: String, kind: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}
