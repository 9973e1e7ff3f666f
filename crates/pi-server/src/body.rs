//! Reading requests.

use crate::{api::blocking, error::ApiError, fields::Fields, server::App};
use axum::{
    body::{Body, HttpBody},
    extract::Request,
    http::{HeaderMap, HeaderValue, header},
};
use serde_json::Value;
use tokio::time::timeout;

/// The JSON object of a request's body.
///
/// # Errors
/// 415 for another type, 413 for a body that is too long, 408 for one that does not come, 400 for what is no JSON object: JSON
/// nested more than 128 deep and text that is not UTF-8 included.
pub(crate) async fn object(app: &App, request: Request) -> Result<Fields, ApiError> {
    understood(request.headers())?;
    let limit = app.options.body_limit;
    if request.body().size_hint().lower() > limit as u64 {
        return Err(ApiError::body(limit));
    }
    // JSON may take forty times its length in memory: few long bodies are there at a time
    let long = request.body().size_hint().exact().is_none_or(|n| n >= LONG as u64);
    let place = if long { app.long_bodies.clone().acquire_owned().await.ok() } else { None };
    let bytes = timeout(app.options.body_timeout, read(request.into_body(), limit)).await;
    let bytes = bytes.map_err(|_| ApiError::slow_body())??;
    match bytes.len() {
        0..LONG => parsed(&bytes),
        // it takes long enough to keep others waiting
        _ => Ok(blocking(move || parsed(&bytes)).await?.long(place)),
    }
}

/// Bytes that are read in less than a millisecond.
const LONG: usize = 1 << 16;

fn parsed(bytes: &[u8]) -> Result<Fields, ApiError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) => Ok(Fields::new(fields)),
        Ok(_) => Err(ApiError::request("expected a JSON object")),
        Err(e) => Err(ApiError::request(format!("the body is not valid JSON: {e}"))),
    }
}

/// A body has to be JSON in UTF-8, not compressed: `Content-Type` and `Content-Encoding`.
fn understood(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map_or(&b""[..], |v: &HeaderValue| v.as_bytes()).trim_ascii();
    let mut parts = text(header::CONTENT_TYPE).split(|&b| b == b';').map(<[u8]>::trim_ascii);
    let json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/json"));
    let other_charset = |part: &[u8]| {
        let part = part.to_ascii_lowercase();
        part.strip_prefix(b"charset=").is_some_and(|set| !matches!(set, b"utf-8" | b"\"utf-8\"" | b"utf8"))
    };
    if !json || parts.any(other_charset) {
        return Err(ApiError::content_type());
    }
    match text(header::CONTENT_ENCODING) {
        b"" => Ok(()),
        encoding if encoding.eq_ignore_ascii_case(b"identity") => Ok(()),
        _ => Err(ApiError::content_encoding()),
    }
}

async fn read(body: Body, limit: usize) -> Result<axum::body::Bytes, ApiError> {
    axum::body::to_bytes(body, limit).await.map_err(|e| {
        // The only other failure is a client that stopped sending, and it reads no answer.
        let whole = std::error::Error::source(&e).is_some_and(|e| e.to_string().contains("length limit"));
        if whole { ApiError::body(limit) } else { ApiError::request("the body ended early") }
    })
}
