//! Threads that wait for work by spinning a bounded while, then sleep.
//!
//! A decoded token passes hundreds of short parallel sections; waking a sleeping thread for each would cost more than the work.
//! So workers spin between sections, but only for a fraction of a millisecond: an idle pool uses no CPU. A worker joins a
//! section only while it is open; one that is late (its core is taken by another process) is not waited for.
#![allow(unsafe_code)]

use pi_core::Executor;
use std::{
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, TryLockError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// How long a worker spins before it sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// Spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 64;

/// The state word: workers inside in the low bits, then the open flag, then the number of the section.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const SECTION: u64 = OPEN << 1;

type Task = dyn Fn(usize) + Sync;

struct Shared {
    state: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Option<(*const Task, usize)>>,
    panicked: AtomicBool,
    stop: AtomicBool,
    asleep: Vec<AtomicBool>,
}

// SAFETY: `job` is written only by the thread that holds `Pool::entry`, while the section is closed and nobody is inside
// (`Section::drop` waits for that), and read only by workers inside an open section. Everything else is atomic.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` refers to a `Sync` closure; see above for when it is read.
unsafe impl Send for Shared {}

/// A pool of threads. The calling thread works too, so a pool of width 1 has no threads of its own.
///
/// Several callers may share a pool. A caller that finds it busy does its tasks alone instead of waiting: results of this
/// crate's operators do not depend on who computes them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    threads: Vec<Thread>,
    entry: Mutex<()>,
}

impl Pool {
    /// A pool that runs up to `width` tasks at a time (at least one, at most 1024).
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn new(width: usize) -> std::io::Result<Self> {
        let others = width.clamp(1, 1024) - 1;
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            asleep: (0..others).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut pool = Self { shared, workers: Vec::new(), threads: Vec::new(), entry: Mutex::new(()) };
        for i in 0..others {
            let shared = pool.shared.clone();
            let worker = thread::Builder::new().name(format!("pi-worker-{i}")).spawn(move || shared.work(i))?;
            pool.threads.push(worker.thread().clone());
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// As many threads as this process may use cores.
    pub fn default_width() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    fn wake(&self) {
        for (asleep, thread) in self.shared.asleep.iter().zip(&self.threads) {
            if asleep.swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }
}

impl Shared {
    fn work(&self, me: usize) {
        let mut done = u64::MAX;
        while let Some(section) = self.await_section(me, done) {
            done = section;
            // Join, unless the section has been closed meanwhile.
            let mut state = self.state.load(Ordering::Acquire);
            let joined = loop {
                if state & OPEN == 0 || state / SECTION != section {
                    break false;
                }
                match self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break true,
                    Err(now) => state = now,
                }
            };
            if joined {
                self.run_tasks();
                self.state.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Waits for an open section other than `done`; `None` when the pool is dropped.
    fn await_section(&self, me: usize, done: u64) -> Option<u64> {
        let open = || {
            let state = self.state.load(Ordering::SeqCst);
            (state & OPEN != 0 && state / SECTION != done).then_some(state / SECTION)
        };
        loop {
            let start = Instant::now();
            loop {
                for _ in 0..SPINS_PER_LOOK {
                    if let Some(section) = open() {
                        return Some(section);
                    }
                    std::hint::spin_loop();
                }
                if self.stop.load(Ordering::SeqCst) {
                    return None;
                }
                if start.elapsed() > SPIN {
                    break;
                }
            }
            // Announce the sleep, then look once more: either this sees the new section or its opener sees the sleeper.
            self.asleep[me].store(true, Ordering::SeqCst);
            if open().is_none() && !self.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            self.asleep[me].store(false, Ordering::SeqCst);
        }
    }

    fn run_tasks(&self) {
        // SAFETY: called only inside an open section, while `job` is not written and its closure is alive.
        let Some((task, tasks)) = (unsafe { *self.job.get() }) else { return };
        let run = || {
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= tasks {
                    break;
                }
                // SAFETY: the closure outlives the section: `Section::drop` waits until nobody is inside.
                unsafe { (*task)(i) };
            }
        };
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            self.panicked.store(true, Ordering::SeqCst);
            self.next.store(tasks, Ordering::SeqCst);
        }
    }
}

/// An open section; closing it waits for the workers inside, also when the caller's own task panics.
struct Section<'a>(&'a Shared);

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while self.0.state.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins.is_multiple_of(4096) {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

impl Executor for Pool {
    fn width(&self) -> usize {
        self.workers.len() + 1
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let entry = match self.entry.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if entry.is_none() || tasks <= 1 || self.workers.is_empty() {
            drop(entry);
            (0..tasks).for_each(task);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased; `section` ends before this function returns, and with it all use.
        let erased = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Task>(task) };
        // SAFETY: the entry lock is held, the last section is closed and nobody is inside.
        unsafe { *shared.job.get() = Some((erased, tasks)) };
        shared.next.store(0, Ordering::Relaxed);
        shared.panicked.store(false, Ordering::Relaxed);
        let section = Section(shared);
        let closed = shared.state.load(Ordering::Relaxed) & !OPEN;
        shared.state.store(((closed / SECTION + 1) * SECTION) | OPEN, Ordering::SeqCst);
        self.wake();
        let own = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let i = shared.next.fetch_add(1, Ordering::Relaxed);
                if i >= tasks {
                    break;
                }
                task(i);
            }
        }));
        if own.is_err() {
            shared.next.store(tasks, Ordering::SeqCst);
        }
        drop(section);
        drop(entry);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!shared.panicked.load(Ordering::SeqCst), "a task panicked on a worker thread");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.threads.iter().for_each(Thread::unpark);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.width())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once_for_any_width() {
        for width in [1, 2, 3, 8] {
            let pool = Pool::new(width).unwrap();
            for round in 0..500 {
                let tasks = round % 37;
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "width {width}, {tasks} tasks");
            }
        }
    }

    #[test]
    fn a_pool_that_slept_wakes_up() {
        let pool = Pool::new(3).unwrap();
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(5));
            let sum = AtomicUsize::new(0);
            pool.run(100, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 4950);
        }
    }

    #[test]
    fn a_busy_pool_and_a_nested_call_run_on_the_callers_thread() {
        let pool = Pool::new(2).unwrap();
        let sum = AtomicUsize::new(0);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..200 {
                        pool.run(4, &|_| {
                            pool.run(3, &|_| {
                                sum.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 200 * 12);
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2).unwrap();
        for bad in 0..8 {
            let hit = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|i| assert!(i != bad))));
            assert!(hit.is_err());
            pool.run(8, &|_| {});
        }
    }
}
