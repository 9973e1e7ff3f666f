//! Room and time for what templates do. Reading an expression, and dropping a value, recurse as deep as a template nests them, which is
//! its author's choice; the text's length and the fuel bound it, and the stack has to be as large as these bounds. What the fuel does
//! not bound (values that share what is in them, so that comparing or joining them takes exponentially many steps) a limit of time does.

use super::TemplateError;
use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
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

/// Work that may take a limited time each. What took longer keeps its place until it is done, so that it cannot become much.
#[derive(Debug, Default)]
pub(super) struct Timed {
    busy: Arc<Busy>,
}

/// Threads that are at work.
#[derive(Debug, Default)]
struct Busy {
    threads: Mutex<usize>,
    one_less: Condvar,
}

/// Most threads at a time.
pub(super) const THREADS: usize = 4;

impl Timed {
    /// As [`large`], but does not wait for longer than `limit`, and as long for a place: whatever `work` does after that, it does
    /// for nobody.
    ///
    /// # Errors
    /// As [`large`]; [`TemplateError::Hangs`] if it takes longer, or earlier ones do not end.
    pub fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TemplateError> {
        let place = Place::take(&self.busy, limit).ok_or(TemplateError::Hangs(limit))?;
        let (done, result) = mpsc::channel();
        let work = move || {
            let _ = done.send(work()); // nobody may be waiting any more
            drop(place);
        };
        builder().spawn(work).map_err(|e| no_thread(&e))?;
        result.recv_timeout(limit).map_err(|e| match e {
            RecvTimeoutError::Timeout => TemplateError::Hangs(limit),
            RecvTimeoutError::Disconnected => failed(),
        })
    }
}

/// One of the threads. It is free again when this is dropped.
struct Place(Arc<Busy>);

impl Place {
    fn take(busy: &Arc<Busy>, limit: Duration) -> Option<Self> {
        let threads = busy.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = busy.one_less.wait_timeout_while(threads, limit, |threads| *threads >= THREADS);
        let (mut threads, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *threads >= THREADS {
            return None;
        }
        *threads += 1;
        Some(Self(busy.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.one_less.notify_one();
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
