//! Room and time for what templates do. Reading an expression, and dropping a value, recurse as deep as a template nests them, which is
//! its author's choice; the text's length and the fuel bound it, and the stack has to be as large as these bounds. What the fuel does
//! not bound (values that share what is in them, so that comparing or joining them takes exponentially many steps) a limit of time does.

use super::TemplateError;
use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Bytes. Only what is used of it is ever taken from the system.
const SIZE: usize = 1 << 29;

/// Runs `work` where there is room, and waits for it.
///
/// # Errors
/// If the system gives no thread, or `work` panics.
pub(super) fn large<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let thread = builder().spawn_scoped(scope, work).map_err(|e| no_thread(&e))?;
        thread.join().map_err(|_| failed())
    })
}

/// Work that may take a limited time each. While one that took longer is still busy, there is no other: they must not become many.
#[derive(Debug, Default)]
pub(super) struct Timed {
    late: Mutex<Option<JoinHandle<()>>>,
}

impl Timed {
    /// As [`large`], but does not wait for longer than `limit`: whatever `work` does after that, it does for nobody.
    ///
    /// # Errors
    /// As [`large`]; [`TemplateError::Hangs`] if it takes longer, or an earlier one is not done yet.
    pub fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TemplateError> {
        let late = || self.late.lock().unwrap_or_else(PoisonError::into_inner);
        if late().as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Err(TemplateError::Hangs(limit));
        }
        let (done, result) = mpsc::channel();
        let work = move || {
            let _ = done.send(work()); // nobody waits any more
        };
        let thread = builder().spawn(work).map_err(|e| no_thread(&e))?;
        result.recv_timeout(limit).map_err(|e| match e {
            RecvTimeoutError::Timeout => {
                *late() = Some(thread);
                TemplateError::Hangs(limit)
            }
            RecvTimeoutError::Disconnected => failed(),
        })
    }
}

fn builder() -> thread::Builder {
    thread::Builder::new().name("pi-template".into()).stack_size(SIZE)
}

fn no_thread(e: &std::io::Error) -> TemplateError {
    TemplateError::Refused(format!("there is no thread to write it: {e}"))
}

fn failed() -> TemplateError {
    TemplateError::Refused("writing it failed".into())
}
