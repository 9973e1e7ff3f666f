//! Handing out the tasks of a section.
//!
//! Each thread has a run of tasks that follow each other, because neighbouring tasks usually read neighbouring memory: what
//! was asked for ahead at the end of one is the beginning of the next. Who is done with its own takes tasks from the ends of
//! others, so a slow core holds up the section by one task at most.

use std::sync::atomic::{AtomicU64, Ordering};

/// A cache line (or two, where they are fetched in pairs) of its own.
#[repr(align(128))]
pub(crate) struct Line<T>(pub T);

/// A run of tasks that are not yet taken: the first in the low half of a word, the end in the high half. One word, so that
/// the two ends cannot be taken past each other.
///
/// Which thread gets a task is all that is decided here, so any memory ordering will do.
pub(crate) struct Shares(Vec<Line<AtomicU64>>);

const LAST: u64 = 1 << 32;

impl Shares {
    /// For so many threads.
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Line(AtomicU64::new(0))).collect())
    }

    /// Gives the first `threads` threads about equally many of `tasks` tasks.
    pub fn deal(&self, tasks: u32, threads: usize) {
        let threads = threads.clamp(1, self.0.len().max(1)) as u64;
        let cut = |i: u64| u64::from(tasks) * i.min(threads) / threads;
        for (i, share) in (0..).zip(&self.0) {
            share.0.store(cut(i) | (cut(i + 1) * LAST), Ordering::Relaxed);
        }
    }

    /// Takes away what is left.
    pub fn clear(&self) {
        self.0.iter().for_each(|share| share.0.store(0, Ordering::Relaxed));
    }

    /// The next task for a thread: its own next one, or somebody else's last.
    pub fn take(&self, thread: usize) -> Option<usize> {
        let own = self.take_from(thread, 1).map(|word| word % LAST);
        let word = own.or_else(|| {
            let others = (thread + 1..self.0.len()).chain(0..thread);
            others.into_iter().find_map(|other| self.take_from(other, LAST)).map(|word| word / LAST - 1)
        });
        word.map(|task| task as usize)
    }

    /// Moves one end of a share, by `step`; the word before. `None` if nothing is left.
    fn take_from(&self, thread: usize, step: u64) -> Option<u64> {
        let share = &self.0[thread].0;
        let next = |word: u64| {
            let left = word % LAST < word / LAST;
            left.then(|| if step == LAST { word - LAST } else { word + step })
        };
        share.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_tasks_come_in_order_and_then_the_last_ones_of_others() {
        let shares = Shares::new(3);
        shares.deal(7, 2);
        let taken: Vec<_> = std::iter::from_fn(|| shares.take(0)).take(4).collect();
        assert_eq!(taken, [0, 1, 2, 6]);
        assert_eq!((shares.take(1), shares.take(2), shares.take(1)), (Some(3), Some(5), Some(4)));
        assert!((0..3).all(|thread| shares.take(thread).is_none()));
        shares.deal(u32::MAX, 3);
        assert_eq!(shares.take(2), Some((u64::from(u32::MAX) * 2 / 3) as usize));
        shares.clear();
        assert_eq!(shares.take(0), None);
    }

    #[test]
    fn every_task_is_taken_once_however_many_take() {
        let shares = Shares::new(4);
        for round in 0..200 {
            shares.deal(round, 1 + round as usize % 4);
            let taken: Vec<Vec<usize>> = std::thread::scope(|s| {
                let threads: Vec<_> = (0..4)
                    .map(|i| {
                        s.spawn({
                            let shares = &shares;
                            move || std::iter::from_fn(|| shares.take(i)).collect()
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            let mut all = taken.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..round as usize));
        }
    }
}
