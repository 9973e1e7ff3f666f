//! Reading requests.

use crate::{error::ApiError, fields::Fields, server::App};
use axum::{
    body::{Body, HttpBody},
    extract::Request,
    http::header,
};
use serde_json::Value;
use tokio::time::timeout;

/// The JSON object of a request's body.
///
/// # Errors
/// 415 for another type, 413 for a body that is too long, 408 for one that does not come, 400 for what is no JSON object: JSON
/// nested more than 128 deep and text that is not UTF-8 included.
pub(crate) async fn object(app: &App, request: Request) -> Result<Fields, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).map_or(&b""[..], |v| v.as_bytes());
    let kind = kind.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
    if !kind.eq_ignore_ascii_case(b"application/json") {
        return Err(ApiError::content_type());
    }
    let limit = app.options.body_limit;
    if request.body().size_hint().lower() > limit as u64 {
        return Err(ApiError::body(limit));
    }
    let bytes = timeout(app.options.body_timeout, read(request.into_body(), limit)).await;
    let bytes = bytes.map_err(|_| ApiError::slow_body())??;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(fields)) => Ok(Fields::new(fields)),
        Ok(_) => Err(ApiError::request("expected a JSON object")),
        Err(e) => Err(ApiError::request(format!("the body is not valid JSON: {e}"))),
    }
}

async fn read(body: Body, limit: usize) -> Result<axum::body::Bytes, ApiError> {
    axum::body::to_bytes(body, limit).await.map_err(|e| {
        // The only other failure is a client that stopped sending, and it reads no answer.
        let whole = std::error::Error::source(&e).is_some_and(|e| e.to_string().contains("length limit"));
        if whole { ApiError::body(limit) } else { ApiError::request("the body ended early") }
    })
}
