//! Errors as OpenAI's clients expect them.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// Why a request was not answered: a status, and what its JSON body says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None, retry_after: None }
    }

    /// 400: the request as a whole makes no sense.
    pub fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: the field `param` has a value that cannot be used.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("{param}: {}", message.into());
        Self { param: Some(param), ..Self::request(message) }
    }

    /// 400: the field asks for something that is not built.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(param, message) }
    }

    /// 400: the prompt does not fit a slot's context.
    pub fn context(param: &str, prompt: usize, context: usize) -> Self {
        let message = format!(
            "the prompt has {prompt} tokens; with room for one more it does not fit the context of {context} tokens \
             that each request has"
        );
        Self { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    /// 401: no key, or a wrong one.
    pub fn key() -> Self {
        let message = "this server needs an API key: send it as 'Authorization: Bearer KEY'";
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message) }
    }

    /// 403: a web page from elsewhere, which is not let in.
    pub fn origin(origin: &str) -> Self {
        let message = format!("Origin: pages from {} may not call this server (--cors lets them in)", shown(origin));
        let error = Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message);
        Self { param: Some("Origin".into()), code: Some("origin_not_allowed"), ..error }
    }

    /// 421: the server was called by a name that is not its own.
    pub fn host(host: &str) -> Self {
        let message = format!(
            "Host: this server is not called {}: call it by localhost or 127.0.0.1, or by a name that --allow-host gives it",
            shown(host)
        );
        let error = Self::new(StatusCode::MISDIRECTED_REQUEST, "invalid_request_error", message);
        Self { param: Some("Host".into()), code: Some("host_not_allowed"), ..error }
    }

    /// 404: there is no such route.
    pub fn route(path: &str) -> Self {
        Self { code: Some("unknown_url"), ..Self::missing(format!("there is no route {path}")) }
    }

    /// 404: there is no such model.
    pub fn model(name: &str) -> Self {
        Self { code: Some("model_not_found"), ..Self::missing(format!("there is no model {name:?}")) }
    }

    fn missing(message: String) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// 405: the route exists for other methods.
    pub fn method(method: &str, path: &str) -> Self {
        let message = format!("{path} cannot be called with {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// 408: the body did not come in time.
    pub fn slow_body() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "the body did not come in time")
    }

    /// 413: the body is longer than allowed.
    pub fn body(limit: usize) -> Self {
        let message = format!("the body has more than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 415: the body is not JSON.
    pub fn content_type() -> Self {
        let message = "expected a body with 'Content-Type: application/json', in UTF-8";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// 415: a body that is compressed.
    pub fn content_encoding() -> Self {
        let message = "expected a body without 'Content-Encoding'";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// 429: the queue is full; try again in so many seconds.
    pub fn busy(waiting: usize, seconds: u32) -> Self {
        let message = format!("{waiting} requests are waiting already: try again later");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("queue_full"), retry_after: Some(seconds), ..error }
    }

    /// 503: not now; try again in so many seconds.
    pub fn unavailable(message: impl Into<String>, seconds: u32) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        Self { retry_after: Some(seconds), ..error }
    }

    /// 503: nothing will ever be answered here.
    pub fn ended(why: &str) -> Self {
        Self::unavailable(format!("the engine is not running: {why}"), 60)
    }

    /// 504 or, in a stream, an event: the request took longer than it may. Not 503, which balancers take as a reason to ask another.
    pub fn deadline() -> Self {
        let error =
            Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", "the request took longer than this server allows");
        Self { code: Some("timeout"), ..error }
    }

    /// 500: the engine failed.
    pub fn engine(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What it says.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The body, as OpenAI's: `{"error": {"message", "type", "param", "code"}}`.
    pub fn body_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.body_json());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The beginning of a header's value.
fn shown(value: &str) -> String {
    format!("{:?}", value.chars().take(100).collect::<String>())
}

/// A response with a JSON body.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
