//! A thread that computes the masks of one answer, beside the model.

use llguidance::{CancellationHandle, toktrie::SimpleVob};
use pi_engine::pi_core::text::TokenId;
use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvError, Sender, TryRecvError},
    },
    task::Waker,
    thread,
    time::{Duration, Instant},
};

pub(crate) type Parser = Box<llguidance::Matcher>;

/// A mask, what it was computed with, and how long that took.
pub(crate) struct Computed {
    pub parser: Parser,
    pub mask: Result<SimpleVob, String>,
    pub time: Duration,
}

/// The thread is gone, which only a mistake of ours can make it.
pub(crate) struct Gone;

impl Computed {
    /// Accepts a token, if there is one, and computes the next mask, here.
    pub(crate) fn here(mut parser: Parser, token: Option<TokenId>) -> Self {
        let began = Instant::now();
        let mask = match token.map_or(Ok(()), |token| parser.consume_token(token)) {
            // to ask for a mask then would be a mistake, which llguidance does not forget
            Ok(()) if token.is_some() && is_over(&parser) => Err("the answer is complete".into()),
            accepted => accepted.and_then(|()| parser.compute_mask()).map_err(|e| e.to_string()),
        };
        Self { parser, mask, time: began.elapsed() }
    }
}

/// Whether an answer is complete.
pub(crate) fn is_over(parser: &llguidance::Matcher) -> bool {
    parser.is_stopped() && !parser.is_error()
}

/// The thread. It ends when this is dropped; what it is computing then is broken off.
pub(crate) struct Aside {
    todo: Sender<(Parser, Option<TokenId>)>,
    done: Receiver<Computed>,
    /// Who is to be woken when something is done.
    waker: Arc<Mutex<Option<Waker>>>,
    /// Breaks off what is being computed.
    cancel: Option<CancellationHandle>,
}

impl Aside {
    /// # Errors
    /// If the system has no thread to give.
    pub(crate) fn new() -> io::Result<Self> {
        let ((todo, to_do), (to_done, done)) = (mpsc::channel::<(Parser, _)>(), mpsc::channel());
        let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
        let called = waker.clone();
        let work = move || {
            for (parser, token) in to_do {
                if to_done.send(Computed::here(parser, token)).is_err() {
                    return;
                }
                // only now: whoever leaves a waker looks afterwards whether it is done
                let waker = called.lock().unwrap_or_else(PoisonError::into_inner).take();
                waker.into_iter().for_each(Waker::wake);
            }
        };
        thread::Builder::new().name("pi-mask".into()).spawn(work)?;
        Ok(Self { todo, done, waker, cancel: None })
    }

    /// Begins to accept a token, if there is one, and to compute the next mask. One at a time.
    pub(crate) fn begin(&mut self, parser: Parser, token: Option<TokenId>) {
        self.cancel = parser.cancellation_handle();
        // if the thread is gone, whoever asks for the result hears of it
        let _ = self.todo.send((parser, token));
    }

    /// The result, if it is there within `patience`; otherwise `waker` is woken when it is.
    pub(crate) fn poll(&mut self, patience: Duration, waker: &Waker) -> Result<Option<Computed>, Gone> {
        if !patience.is_zero()
            && let Ok(computed) = self.done.recv_timeout(patience)
        {
            return Ok(Some(self.over(computed)));
        }
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
        match self.done.try_recv() {
            Ok(computed) => Ok(Some(self.over(computed))),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    /// The result, however long it takes.
    pub(crate) fn wait(&mut self) -> Result<Computed, Gone> {
        let computed = self.done.recv().map_err(|RecvError| Gone)?;
        Ok(self.over(computed))
    }

    fn over(&mut self, computed: Computed) -> Computed {
        self.cancel = None;
        computed
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
    }
}
