//! The queue of a simulated device: work is done in order, by a thread of its own, on a clock.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

struct Job {
    number: u64,
    /// When it was queued.
    at: Instant,
    cost: Duration,
    then: Box<dyn FnOnce() + Send>,
}

pub(super) struct Queue {
    /// Who gives work, and the number of the last: given under a lock, so that numbers ascend in the queue.
    jobs: Mutex<(Option<Sender<Job>>, u64)>,
    /// The last job that is done, as the device knows.
    done: Arc<(Mutex<u64>, Condvar)>,
    /// The last job that is done, as the host knows because it waited.
    known: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    pub(super) fn new() -> io::Result<Self> {
        let (jobs, incoming) = channel();
        let done = Arc::new((Mutex::new(0), Condvar::new()));
        let seen = done.clone();
        let thread = thread::Builder::new().name("sim-device".into()).spawn(move || work(&incoming, &seen))?;
        Ok(Self { jobs: Mutex::new((Some(jobs), 0)), done, known: AtomicU64::new(0), thread: Some(thread) })
    }

    /// Queues work that takes `cost` and shows as `then`. Returns its number.
    pub(super) fn push(&self, cost: Duration, then: impl FnOnce() + Send + 'static) -> u64 {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.1 += 1;
        let number = jobs.1;
        if let Some(jobs) = &jobs.0 {
            // the thread ends only after the sender is gone
            let _ = jobs.send(Job { number, at: Instant::now(), cost, then: Box::new(then) });
        }
        number
    }

    /// Waits until a job is done. False if the host knew that it was.
    pub(super) fn wait(&self, number: u64) -> bool {
        if self.known.load(Relaxed) >= number {
            return false;
        }
        let (done, changed) = &*self.done;
        let mut now = done.lock().unwrap_or_else(PoisonError::into_inner);
        while *now < number {
            now = changed.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
        self.known.fetch_max(number, Relaxed);
        true
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner).0 = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Receiver<Job>, done: &(Mutex<u64>, Condvar)) {
    let mut free = Instant::now();
    for job in jobs {
        // what is queued in time follows without a gap, however late this thread is told
        free = free.max(job.at) + job.cost;
        if let Some(rest) = free.checked_duration_since(Instant::now()).filter(|_| !job.cost.is_zero()) {
            thread::sleep(rest);
        }
        (job.then)();
        *done.0.lock().unwrap_or_else(PoisonError::into_inner) = job.number;
        done.1.notify_all();
    }
}
