//! Reading requests.

use crate::{api::blocking, error::ApiError, fields::Fields, server::App};
use axum::{
    body::{Body, HttpBody},
    extract::Request,
    http::{HeaderMap, HeaderValue, header},
};
use serde_json::Value;
use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

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
    let read = timeout(app.options.body_timeout, read(request.into_body(), limit, &app.arriving)).await;
    let (bytes, room) = read.map_err(|_| ApiError::slow_body())??;
    if bytes.len() < LONG {
        return parsed(&bytes);
    }
    // JSON may take forty times its length in memory: few long bodies are looked at at a time. And it takes long enough to keep
    // others waiting
    let place = app.long_bodies.clone().acquire_owned().await.ok();
    let parse = move || {
        let fields = parsed(&bytes);
        drop((bytes, room));
        fields
    };
    Ok(blocking(parse).await?.long(place))
}

/// Takes what has been sent of a request that is refused without a look at it: a connection that is closed with bytes that nobody read
/// may end before the answer has arrived.
pub(crate) async fn passed_over(app: &App, request: Request, why: ApiError) -> ApiError {
    let _ = timeout(PASSED_OVER, read(request.into_body(), app.options.body_limit, &app.arriving)).await;
    why
}

/// How long such a request is waited for.
const PASSED_OVER: Duration = Duration::from_secs(1);

/// Bytes that are read in less than a millisecond.
const LONG: usize = 1 << 16;
/// Bytes of long bodies that may have come and not be read yet, unless a single body may have more.
const ARRIVING: usize = 64 << 20;

/// Room for what has come of long bodies, in pieces of [`LONG`] bytes.
pub(crate) fn arriving(limit: usize) -> Semaphore {
    Semaphore::new((ARRIVING.max(limit.saturating_mul(2)) / LONG).min(Semaphore::MAX_PERMITS))
}

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

/// The bytes of a body, and the room that they take. One that stops coming takes no more than it has sent, so that others are not kept
/// waiting.
async fn read(
    mut body: Body,
    limit: usize,
    arriving: &Arc<Semaphore>,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
    let (mut bytes, mut room) = (Vec::new(), None::<OwnedSemaphorePermit>);
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        // The only failure is a client that stopped sending, and it reads no answer.
        let frame = frame.map_err(|_| ApiError::request("the body ended early"))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > limit - bytes.len() {
            return Err(ApiError::body(limit));
        }
        bytes.extend_from_slice(&data);
        let more = bytes.len() / LONG - room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if more > 0 {
            let more = arriving.clone().acquire_many_owned(more.try_into().unwrap_or(u32::MAX)).await.ok();
            match (&mut room, more) {
                (Some(room), Some(more)) => room.merge(more),
                (_, more) => room = more,
            }
        }
    }
    Ok((bytes, room))
}
