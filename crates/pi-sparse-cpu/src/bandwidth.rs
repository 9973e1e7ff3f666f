//! How fast this machine reads memory: the yardstick of everything that is bound by bytes.

use pi_core::{Error, Executor, Result};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

/// Numbers that a task reads: small enough to even out a slow core, large enough for the hardware to read ahead.
const TASK: usize = 1 << 18;

/// A buffer to be read through, much larger than the caches.
///
/// ```
/// use pi_core::Serial;
/// let memory = pi_sparse_cpu::ReadTest::new(8 << 20)?;
/// assert!(memory.bytes_per_second(&Serial, 2) > 0.0);
/// # Ok::<(), pi_core::Error>(())
/// ```
pub struct ReadTest {
    data: Vec<u64>,
    sum: u64,
}

impl ReadTest {
    /// A buffer of about `bytes` (at least 8 KiB). A fair figure needs many times the last cache, 256 MiB at least.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no memory.
    pub fn new(bytes: usize) -> Result<Self> {
        let len = (bytes / 8).max(1024);
        let mut data = Vec::new();
        data.try_reserve_exact(len)
            .map_err(|e| Error::Device { device: "cpu".into(), message: format!("{bytes} bytes to read: {e}") })?;
        // Every page gets contents of its own, or the system may back all of them with one page of zeros.
        data.extend((0..len as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let sum = data.iter().fold(0, |a: u64, b| a.wrapping_add(*b));
        Ok(Self { data, sum })
    }

    /// Bytes of the buffer.
    pub fn len_bytes(&self) -> usize {
        8 * self.data.len()
    }

    /// Bytes per second of the fastest of `passes` passes (at least one) by the threads of `exec`.
    ///
    /// # Panics
    /// If the executor left out a part or took one twice: the sum of what was read is checked.
    pub fn bytes_per_second(&self, exec: &dyn Executor, passes: usize) -> f64 {
        let tasks = self.data.len().div_ceil(TASK);
        let mut best = f64::INFINITY;
        for _ in 0..passes.max(1) {
            let total = AtomicU64::new(0);
            let start = Instant::now();
            exec.run(tasks, &|i| {
                let part = &self.data[i * TASK..((i + 1) * TASK).min(self.data.len())];
                total.fetch_add(sum(part), Relaxed);
            });
            best = best.min(start.elapsed().as_secs_f64());
            assert_eq!(total.into_inner(), self.sum, "the executor did not run every task once");
        }
        self.len_bytes() as f64 / best.max(1e-9)
    }
}

/// The sum, wrapping. Four places are read side by side: one stream alone does not keep memory busy.
fn sum(data: &[u64]) -> u64 {
    const LANES: usize = 8;
    let quarter = data.len() / 4 / LANES * LANES;
    let (four, rest) = data.split_at(4 * quarter);
    let stream = |i: usize| four[i * quarter..(i + 1) * quarter].as_chunks::<LANES>().0;
    let mut acc = [[0u64; LANES]; 4];
    for (((a, b), c), d) in stream(0).iter().zip(stream(1)).zip(stream(2)).zip(stream(3)) {
        for (acc, block) in acc.iter_mut().zip([a, b, c, d]) {
            for i in 0..LANES {
                acc[i] = acc[i].wrapping_add(block[i]);
            }
        }
    }
    acc.as_flattened().iter().chain(rest).fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use pi_core::Serial;

    #[test]
    fn every_number_is_read_whatever_the_threads() {
        let test = ReadTest::new(8 * (3 * TASK + 17)).unwrap();
        for speed in [test.bytes_per_second(&Serial, 1), test.bytes_per_second(&Pool::new(3).unwrap(), 2)] {
            assert!(speed.is_finite() && speed > 0.0);
        }
    }

    #[test]
    #[should_panic(expected = "every task once")]
    fn an_executor_that_leaves_work_undone_is_found_out() {
        struct Lazy;
        impl Executor for Lazy {
            fn width(&self) -> usize {
                1
            }
            fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
                (1..tasks).for_each(task);
            }
        }
        ReadTest::new(16 * TASK).unwrap().bytes_per_second(&Lazy, 1);
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        assert!(ReadTest::new(usize::MAX).is_err());
    }
}
