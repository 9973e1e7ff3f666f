//! Connections: how many there may be, and how long a client may take to say what it wants.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{io, pin::pin, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore};

/// Most connections at a time; others wait to be taken.
const MOST: usize = 1024;

/// Before the next connection is tried for, after there was no memory or no file for one.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers until `stop` comes, then lets what is in progress end. A connection without a request is closed after `headers`.
///
/// # Errors
/// If the listener cannot be used.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    headers: Duration,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.local_addr()?;
    let (open, graceful) = (Arc::new(Semaphore::new(MOST)), GracefulShutdown::new());
    let mut stop = pin!(stop);
    loop {
        let next = async {
            let place = open.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        let Ok((stream, _)) = accepted else {
            // a client that left is no reason to wait, but too many open files are
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true); // tokens are small, and should not wait for each other
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(headers);
        let answers = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let answers = graceful.watch(answers);
        tokio::spawn(async move {
            let _ = answers.await; // what a client does wrong concerns nobody else
            drop(place);
        });
    }
    drop(listener);
    graceful.shutdown().await;
    Ok(())
}
