//! The speed of this machine's memory, with which results are compared.

use crate::{
    failure::{Failure, Result},
    machine,
    output::say,
};
use pi_engine::pi_sparse_cpu::Pool;

/// Bytes per second by number of threads, each measured once.
pub struct MachineSpeed {
    given: Option<f64>,
    known: Vec<(usize, Option<f64>)>,
}

impl MachineSpeed {
    /// Measures when it is asked, unless a figure (in GB/s) is given; 0 leaves it unknown.
    pub fn new(given: Option<f32>) -> Self {
        Self { given: given.map(|g| f64::from(g) * 1e9), known: Vec::new() }
    }

    /// Bytes per second that `threads` threads read from memory; `None` if that is not known.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn of(&mut self, threads: usize) -> Result<Option<f64>> {
        if let Some(given) = self.given {
            return Ok(Some(given).filter(|g| *g > 0.0));
        }
        if let Some((_, speed)) = self.known.iter().find(|(t, _)| *t == threads) {
            return Ok(*speed);
        }
        let pool = pool(threads)?;
        let speed = machine::read_test().map(|test| machine::read_bandwidth(&test, &pool));
        match speed {
            Some(speed) => say(&format!("memory: {:.1} GB/s with {threads} threads", speed / 1e9)),
            None => say("memory: no room for a buffer to measure its speed with"),
        }
        self.known.push((threads, speed));
        Ok(speed)
    }
}

/// A pool of this many threads.
///
/// # Errors
/// If they cannot be started.
pub fn pool(threads: usize) -> Result<Pool> {
    let cores = machine::usable_cores();
    if threads > cores {
        say(&format!("warning: {threads} threads on the {cores} cores that this process may use"));
    }
    Pool::new(threads).map_err(|e| Failure::Work(format!("{threads} threads: {e}")))
}
