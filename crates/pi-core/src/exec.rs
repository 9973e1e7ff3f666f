//! Who runs the tasks of an operator.

/// Runs tasks side by side. Implemented by thread pools; [`Serial`] runs them one after the other.
pub trait Executor: Send + Sync {
    /// How many tasks can run at the same time.
    fn width(&self) -> usize;
    /// Calls `task(0)`, …, `task(tasks - 1)`, each once, in any order and possibly at the same time; returns when all are done.
    ///
    /// # Panics
    /// If a task panics.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
}

/// The executor without threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

impl Executor for Serial {
    fn width(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }
}
