//! Streamed answers: server-sent events.

use crate::{
    api::answer::{Reply, gone},
    batch::job::Event,
};
use axum::response::{
    IntoResponse, Response,
    sse::{self, KeepAlive, Sse},
};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::sync::mpsc::UnboundedReceiver;

/// How often a comment is sent while a prompt is computed, so that nobody on the way takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The response that streams an answer, of which `first` came already.
pub(crate) fn response(mut reply: Reply, first: Event, events: UnboundedReceiver<Event>) -> Response {
    let mut ready = VecDeque::new();
    let over = reply.parts(first, &mut ready);
    let mut response = Sse::new(Chunks { reply, events, ready, over })
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response();
    // proxies that collect responses before they pass them on leave this one alone
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}

/// The events of a stream. When the client leaves, this is dropped, and with it the receiver: the engine's thread sees that.
struct Chunks {
    reply: Reply,
    events: UnboundedReceiver<Event>,
    ready: VecDeque<String>,
    over: bool,
}

impl Stream for Chunks {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(data) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(sse::Event::default().data(data))));
            }
            if this.over {
                return Poll::Ready(None);
            }
            let event = ready!(this.events.poll_recv(context)).unwrap_or_else(|| Event::Failed(gone()));
            this.over = this.reply.parts(event, &mut this.ready);
        }
    }
}
