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

/// Connections that may have been waiting when the end came.
const BACKLOG: usize = 1024;

/// Before the next connection is tried for, after there was no memory or no file for one.
const PAUSE: Duration = Duration::from_millis(100);

/// After `stop`, how long a connection that is new may take to say what it wants. It hears that the server is ending, and whoever divides
/// requests among several servers asks another; a connection that ends without a word may have been a request that was lost. (No new
/// ones are taken meanwhile: a server that ends has the fewest, and would be asked again and again.)
const LINGER: Duration = Duration::from_millis(100);

/// Answers until `stop` comes, calls `closed` when no connection is taken any more, and lets what is in progress end. A connection
/// without a request is closed after `headers`.
///
/// # Errors
/// If the listener cannot be used.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    headers: Duration,
    stop: impl Future<Output = ()>,
    closed: impl FnOnce(),
) -> io::Result<()> {
    listener.local_addr()?;
    let (open, graceful) = (Arc::new(Semaphore::new(MOST)), GracefulShutdown::new());
    let mut stop = pin!(stop);
    let (mut stopped, mut waiting) = (false, usize::MAX);
    loop {
        let next = async {
            let place = open.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            // those that are waiting already are taken before the listener is closed, which would cut them off
            biased;
            next = next, if waiting > 0 => next,
            () = std::future::ready(()), if stopped => break,
            () = &mut stop, if !stopped => {
                (stopped, waiting) = (true, BACKLOG);
                continue;
            }
        };
        waiting -= usize::from(stopped);
        let Ok((stream, _)) = accepted else {
            if stopped {
                break;
            }
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
    closed();
    if open.available_permits() < MOST {
        // one that has said nothing yet is closed by what follows
        tokio::time::sleep(LINGER).await;
    }
    graceful.shutdown().await;
    Ok(())
}
