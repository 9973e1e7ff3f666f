//! Where requests come in, and what else wakes the engine's thread.

use super::job::Job;
use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvError, SendError, Sender},
    },
    task::{Wake, Waker},
    time::Duration,
};

/// Rung when there is something to do again.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.heard.notify_all();
    }
}

/// Where handlers leave requests.
#[derive(Clone)]
pub(crate) struct Jobs {
    jobs: Sender<Job>,
    bell: Arc<Bell>,
}

impl Jobs {
    /// # Errors
    /// If the engine's thread has ended.
    pub(crate) fn send(&self, job: Job) -> Result<(), SendError<()>> {
        self.jobs.send(job).map_err(|_| SendError(()))?;
        self.bell.wake_by_ref();
        Ok(())
    }
}

/// Where the engine's thread finds them.
pub(crate) struct Inbox {
    jobs: Receiver<Job>,
    bell: Arc<Bell>,
}

/// Both ends.
pub(crate) fn inbox() -> (Jobs, Inbox) {
    let ((sender, jobs), bell) = (mpsc::channel(), Arc::new(Bell::default()));
    (Jobs { jobs: sender, bell: bell.clone() }, Inbox { jobs, bell })
}

impl Inbox {
    /// The next request, however long it takes to come.
    ///
    /// # Errors
    /// If none can come any more.
    pub(crate) fn wait(&self) -> Result<Job, RecvError> {
        self.jobs.recv()
    }

    /// The requests that are there.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = Job> {
        self.jobs.try_iter()
    }

    /// Sleeps until a request comes or the waker wakes, or for `most`. Not at all if that happened since the last time.
    pub(crate) fn rest(&self, most: Duration) {
        let rung = self.bell.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = self.bell.heard.wait_timeout_while(rung, most, |rung| !*rung);
        *rest.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// Ends a [`rest`](Self::rest).
    pub(crate) fn waker(&self) -> Waker {
        self.bell.clone().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::queue::Door;
    use pi_engine::{SamplingParams, sampler::Chain};
    use std::{thread, time::Instant};

    #[test]
    fn a_rest_ends_with_the_bell_and_one_ring_ends_one_rest() {
        let (_jobs, inbox) = inbox();
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(20));
        let began = Instant::now();
        inbox.waker().wake(); // before
        inbox.rest(long);
        thread::scope(|scope| {
            let waker = inbox.waker();
            scope.spawn(move || {
                thread::sleep(short);
                waker.wake();
            });
            inbox.rest(long);
        });
        assert!(began.elapsed() < long, "{:?}", began.elapsed());
        let began = Instant::now();
        inbox.rest(short);
        assert!(began.elapsed() >= short, "{:?}", began.elapsed());
    }

    #[test]
    fn a_request_ends_a_rest() {
        let (jobs, inbox) = inbox();
        let job = Job {
            prompt: vec![1],
            options: Default::default(),
            sampler: Box::new(Chain::new(SamplingParams::greedy(), 4).unwrap()),
            form: None,
            shown: Vec::new(),
            logprobs: None,
            reuse: false,
            deadline: None,
            events: tokio::sync::mpsc::unbounded_channel().0,
            ticket: Door::new(1).enter().unwrap(),
        };
        let (long, began) = (Duration::from_secs(60), Instant::now());
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                jobs.send(job).unwrap();
            });
            inbox.rest(long);
        });
        assert!(began.elapsed() < long, "{:?}", began.elapsed());
        assert_eq!(inbox.waiting().count(), 1);
        assert!(inbox.wait().is_err());
    }
}
