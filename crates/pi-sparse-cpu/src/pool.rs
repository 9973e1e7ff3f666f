//! Threads that wait for work by spinning a bounded while, then sleep.
//!
//! A decoded token passes hundreds of short parallel sections; waking a sleeping thread for each would cost more than the work.
//! So workers spin between sections, but only for a fraction of a millisecond: an idle pool uses no CPU. A worker joins a
//! section only while it is open; one that is late is not waited for.
//!
//! What cannot be helped within a section is a worker that loses its core to another process in the middle of a task: the
//! section has to wait until the system lets it go on, which takes milliseconds where the section would have taken
//! microseconds. Such a wait is noticed, and for a while there is one worker less: what is left then fits on the cores that
//! are free. From time to time it is tried again. For the same reason there are never more threads at work than the process
//! may use cores, however wide the pool is.
//!
//! # Why the orderings suffice
//!
//! - *A task's inputs reach the worker, and its outputs the caller.* `job` and everything before is written before the
//!   store that opens the section (release or stronger) and read after the compare-exchange that joins it (acquire). What a
//!   worker wrote comes before its `fetch_sub` (release), which the caller's last load of the state reads (acquire). All
//!   changes of the state between are read-modify-writes, so they carry on the release sequence.
//! - *Nobody reads `job` while it is written.* It is written while the section is closed and nobody is inside. The state holds
//!   both, so that joining is one compare-exchange against "open, this section": it fails after the closing `fetch_and`.
//! - *No wake-up is lost.* The opener stores the state, then loads `asleep`; the worker stores `asleep`, then loads the state.
//!   All four are sequentially consistent, so at least one sees the other; a token of `unpark` that comes before `park` is kept.
//! - `shares` only hand out numbers: any order will do, since `job` and the data come with the state. They are dealt while
//!   the section is closed.
#![allow(unsafe_code)]

use crate::shares::{Line, Shares};
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
/// Spins of a caller that waits for its workers before it also lets others have the core.
const SPINS_BEFORE_YIELD: u32 = 2048;

/// The state word: workers inside in the low bits, then the open flag, then the number of the section.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const SECTION: u64 = OPEN << 1;

type Task = dyn Fn(usize) + Sync;

struct Shared {
    state: Line<AtomicU64>,
    /// Of the caller and each worker.
    shares: Shares,
    job: UnsafeCell<Option<*const Task>>,
    /// Workers that take part: those with lower numbers.
    limit: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Workers that have started.
    started: AtomicUsize,
    asleep: Vec<AtomicBool>,
}

// SAFETY: `job` is written only by the thread that holds `Pool::entry`, while the section is closed and nobody is inside
// (`Section::close` waits for that), and read only by workers inside an open section. Everything else is atomic.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` refers to a `Sync` closure; see above for when it is read.
unsafe impl Send for Shared {}

/// A pool of threads. The calling thread works too, so a pool of width 1 has no threads of its own.
///
/// Several callers may share a pool. A caller that finds it busy does its tasks alone instead of waiting: results of this
/// crate's operators do not depend on who computes them. No more threads are at work than the process may use cores.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    threads: Vec<Thread>,
    entry: Mutex<Pace>,
}

/// How many workers are worth having.
#[derive(Debug)]
struct Pace {
    limit: usize,
    /// As many as there are cores for.
    most: usize,
    /// When the limit was last changed.
    changed: Option<Instant>,
    /// How long to wait before one more is tried.
    pause: Duration,
}

impl Pace {
    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_millis(320);
    /// A wait for workers that is worth noticing.
    const STALL: Duration = Duration::from_micros(400);

    fn new(most: usize) -> Self {
        Self { limit: most, most, changed: None, pause: Self::SHORT }
    }

    /// The workers to use from `now` on.
    fn limit(&mut self, now: impl FnOnce() -> Instant) -> usize {
        if self.limit < self.most {
            let now = now();
            if self.changed.is_none_or(|at| now.saturating_duration_since(at) > self.pause) {
                self.limit += 1;
                self.changed = Some(now);
            }
        }
        self.limit
    }

    /// After a section: the caller did `own` tasks in `busy`, then waited `idle` for a worker's last one. Tasks are about
    /// equal, so that a worker that has its core is not much longer about one than the caller.
    fn judge(&mut self, own: usize, busy: Duration, idle: Duration, now: Instant) {
        let task = busy / own.clamp(1, 1 << 20) as u32;
        if own == 0 || idle < Self::STALL.max(3 * task) || self.limit == 0 {
            return;
        }
        // Tried again, and it was still no good: wait longer next time.
        let soon = self.changed.is_some_and(|at| now.saturating_duration_since(at) < 2 * self.pause);
        self.pause = if soon { (2 * self.pause).min(Self::LONG) } else { Self::SHORT };
        self.limit -= 1;
        self.changed = Some(now);
    }
}

impl Pool {
    /// A pool that runs up to `width` tasks at a time (at least one, at most 1024), as far as there are cores.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn new(width: usize) -> std::io::Result<Self> {
        Self::with_cores(width, Self::default_width())
    }

    fn with_cores(width: usize, cores: usize) -> std::io::Result<Self> {
        let others = width.clamp(1, 1024) - 1;
        let most = others.min(cores.max(1) - 1);
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            shares: Shares::new(others + 1),
            job: UnsafeCell::new(None),
            limit: AtomicUsize::new(most),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            asleep: (0..others).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut pool = Self { shared, workers: Vec::new(), threads: Vec::new(), entry: Mutex::new(Pace::new(most)) };
        for i in 0..others {
            let shared = pool.shared.clone();
            let worker = thread::Builder::new().name(format!("pi-worker-{i}")).spawn(move || shared.work(i))?;
            pool.threads.push(worker.thread().clone());
            pool.workers.push(worker);
        }
        // A thread allocates when it starts: not in the middle of a decoded token.
        while pool.shared.started.load(Ordering::Acquire) < others {
            thread::yield_now();
        }
        Ok(pool)
    }

    /// As many threads as this process may use cores.
    pub fn default_width() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    /// Wakes the first `workers` of those that sleep.
    fn wake(&self, workers: usize) {
        for (asleep, thread) in self.shared.asleep.iter().zip(&self.threads).take(workers) {
            if asleep.load(Ordering::SeqCst) && asleep.swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }
}

impl Shared {
    fn work(&self, me: usize) {
        self.started.fetch_add(1, Ordering::Release);
        let mut done = u64::MAX;
        while let Some(section) = self.await_section(me, done) {
            done = section;
            // Join, unless the section has been closed meanwhile.
            let mut state = self.state.0.load(Ordering::Acquire);
            let joined = loop {
                if state & OPEN == 0 || state / SECTION != section {
                    break false;
                }
                match self.state.0.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break true,
                    Err(now) => state = now,
                }
            };
            if joined {
                self.run_tasks(me + 1);
                self.state.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Waits for an open section other than `done`; `None` when the pool is dropped.
    fn await_section(&self, me: usize, done: u64) -> Option<u64> {
        // A worker that takes no part sleeps at once. One that sees an old limit joins once more: no harm.
        let takes_part = || me < self.limit.load(Ordering::Relaxed);
        let open = || {
            let state = self.state.0.load(Ordering::SeqCst);
            (state & OPEN != 0 && state / SECTION != done && takes_part()).then_some(state / SECTION)
        };
        loop {
            let start = Instant::now();
            while takes_part() {
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
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
        }
    }

    fn run_tasks(&self, thread: usize) {
        // SAFETY: called only inside an open section, while `job` is not written and its closure is alive.
        let Some(task) = (unsafe { *self.job.get() }) else { return };
        let run = || {
            while let Some(i) = self.shares.take(thread) {
                // SAFETY: the closure outlives the section: `Section::close` waits until nobody is inside.
                unsafe { (*task)(i) };
            }
        };
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            self.panicked.store(true, Ordering::SeqCst);
            self.shares.clear();
        }
    }
}

/// An open section.
struct Section<'a>(&'a Shared);

impl Section<'_> {
    /// Lets nobody in any more and waits for the workers inside. Returns when the waiting began, if it took some time.
    fn close(&self) -> Option<Instant> {
        let state = &self.0.state.0;
        state.fetch_and(!OPEN, Ordering::AcqRel);
        let (mut spins, mut since) = (0u32, None);
        while state.load(Ordering::Acquire) & INSIDE != 0 {
            spins = spins.saturating_add(1);
            if spins.is_multiple_of(SPINS_PER_LOOK) {
                since.get_or_insert_with(Instant::now);
                if spins >= SPINS_BEFORE_YIELD {
                    thread::yield_now(); // the worker may be waiting for this very core
                }
            }
            std::hint::spin_loop();
        }
        since
    }
}

impl Drop for Section<'_> {
    /// A section must not be left open, whatever happens.
    fn drop(&mut self) {
        self.close();
    }
}

impl Executor for Pool {
    fn width(&self) -> usize {
        self.workers.len() + 1
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(task);
            return;
        }
        let Ok(tasks) = u32::try_from(tasks) else {
            // Too many to count in half a word: several make one.
            let each = tasks.div_ceil(u32::MAX as usize);
            return self.run(tasks.div_ceil(each), &|i| (i * each..tasks.min((i + 1) * each)).for_each(task));
        };
        let alone = || (0..tasks as usize).for_each(task);
        let mut pace = match self.entry.try_lock() {
            Ok(pace) => pace,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return alone(),
        };
        let shared = &*self.shared;
        let limit = pace.limit(Instant::now);
        shared.limit.store(limit, Ordering::Relaxed);
        if limit == 0 {
            return alone(); // with the lock kept, or nested calls would be sections
        }
        // SAFETY: only the lifetime is erased; `section` ends before this function returns, and with it all use.
        let erased = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Task>(task) };
        // SAFETY: the entry lock is held, the last section is closed and nobody is inside.
        unsafe { *shared.job.get() = Some(erased) };
        shared.shares.deal(tasks, limit + 1);
        shared.panicked.store(false, Ordering::Relaxed);
        let start = Instant::now();
        let section = Section(shared);
        let closed = shared.state.0.load(Ordering::Relaxed) & !OPEN;
        shared.state.0.store(((closed / SECTION + 1) * SECTION) | OPEN, Ordering::SeqCst);
        self.wake(limit.min(tasks as usize - 1));
        let mut count = 0;
        let own = catch_unwind(AssertUnwindSafe(|| {
            while let Some(i) = shared.shares.take(0) {
                task(i);
                count += 1;
            }
        }));
        if own.is_err() {
            shared.shares.clear();
        }
        if let Some(since) = section.close() {
            let now = Instant::now();
            pace.judge(count, since - start, now - since, now);
        }
        std::mem::forget(section); // it is closed
        // Before another caller may enter and clear it.
        let panicked = shared.panicked.load(Ordering::SeqCst);
        drop(pace);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!panicked, "a task panicked on a worker thread");
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
        for (width, cores) in [(1, 1), (2, 2), (3, 3), (8, 8), (8, 2), (5, 1)] {
            let pool = Pool::with_cores(width, cores).unwrap();
            assert_eq!(pool.width(), width);
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
        let pool = Pool::with_cores(3, 3).unwrap();
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
        let pool = Pool::with_cores(2, 2).unwrap();
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
        let pool = Pool::with_cores(2, 2).unwrap();
        for bad in 0..8 {
            let hit = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|i| assert!(i != bad))));
            assert!(hit.is_err());
            pool.run(8, &|_| {});
        }
    }

    /// Sections of all sizes in quick succession with pauses between, from callers that come and go; each task reads what the
    /// section before wrote, so that an ordering that is too weak or a task that runs in the wrong section is seen.
    #[test]
    fn sections_follow_each_other_without_mixing() {
        for (width, cores) in [(2, 2), (4, 4), (16, 16), (4, 2)] {
            let pool = Pool::with_cores(width, cores).unwrap();
            let cells: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
            let mut rng = 1u32;
            for round in 1..3000usize {
                rng = rng.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let tasks = 2 + (rng >> 16) as usize % 62;
                if rng.is_multiple_of(251) {
                    thread::sleep(Duration::from_micros(u64::from(rng >> 22)));
                }
                for c in &cells[tasks..] {
                    c.store(round, Ordering::Relaxed);
                }
                pool.run(tasks, &|i| {
                    assert_eq!(cells[i].load(Ordering::Relaxed), round - 1);
                    (0..rng % 100).for_each(|_| std::hint::spin_loop());
                    cells[i].store(round, Ordering::Relaxed);
                });
                assert!(cells.iter().all(|c| c.load(Ordering::Relaxed) == round), "width {width}, round {round}");
            }
        }
    }

    #[test]
    fn a_worker_that_stalls_is_left_out_and_tried_again_later() {
        let (mut pace, start) = (Pace::new(2), Instant::now());
        let ms = Duration::from_millis;
        let us = Duration::from_micros;
        // Waits that are in proportion to the tasks are no reason.
        pace.judge(4, us(80), us(20), start);
        pace.judge(2, ms(40), ms(30), start);
        pace.judge(0, ms(1), ms(5), start);
        assert_eq!(pace.limit(|| start), 2);
        pace.judge(4, us(80), ms(3), start);
        assert_eq!(pace.limit(|| start + ms(10)), 1);
        assert_eq!(pace.limit(|| start + ms(21)), 2);
        // No better: left out for twice as long.
        pace.judge(4, us(80), ms(3), start + ms(22));
        assert_eq!(pace.limit(|| start + ms(60)), 1);
        assert_eq!(pace.limit(|| start + ms(63)), 2);
        // Long after, a stall is a new one.
        pace.judge(4, us(80), ms(3), start + ms(1000));
        assert_eq!(pace.limit(|| start + ms(1021)), 2);
        for _ in 0..5 {
            pace.judge(4, us(80), ms(3), start + ms(1030));
        }
        assert_eq!((pace.limit(|| start + ms(1031)), pace.pause <= Pace::LONG), (0, true));
    }
}
