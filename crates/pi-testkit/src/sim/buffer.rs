//! Memory of a simulated device.

use super::{Shared, Taken};
use pi_core::{Mirror, Result};
use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Numbers that memory can be full of before something is written there.
pub(super) trait Poison: Copy + Default + Send + 'static {
    const POISON: Self;
}

impl Poison for f32 {
    const POISON: Self = f32::NAN;
}

impl Poison for u64 {
    const POISON: Self = 0xdead_beef_dead_beef;
}

/// An array in a device's memory.
pub(super) struct Buffer<T> {
    /// What the device will have there when it has done what is queued.
    truth: Vec<T>,
    /// What is there now.
    seen: Arc<Mutex<Vec<T>>>,
    /// A copy for the host that was begun, and the job that makes it; until the array is written again.
    begun: Option<(Arc<Mutex<Vec<T>>>, u64)>,
    pub(super) shared: Arc<Shared>,
    _taken: Taken,
}

impl<T: Poison> Buffer<T> {
    pub(super) fn new(shared: &Arc<Shared>, len: usize) -> Result<Self> {
        let taken = Taken::new(shared, len.saturating_mul(size_of::<T>()) as u64)?;
        Ok(Self {
            truth: vec![T::POISON; len],
            seen: Arc::new(Mutex::new(vec![T::POISON; len])),
            begun: None,
            shared: shared.clone(),
            _taken: taken,
        })
    }

    pub(super) fn truth(&self) -> &[T] {
        &self.truth
    }

    /// Changes the array's beginning, as work that takes `cost`.
    pub(super) fn change(&mut self, cost: Duration, len: usize, change: impl FnOnce(&mut [T])) {
        self.begun = None;
        change(&mut self.truth[..len]);
        let (new, seen) = (self.truth[..len].to_vec(), self.seen.clone());
        self.shared.queue.push(cost, move || lock(&seen)[..len].copy_from_slice(&new));
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Poison> Mirror<T> for Buffer<T> {
    fn upload(&mut self, from: &[T]) -> Result<()> {
        self.shared.alive()?;
        self.shared.count(|c| c.uploads += 1);
        let cost = self.shared.transfer(size_of_val(from));
        self.change(cost, from.len(), |to| to.copy_from_slice(from));
        Ok(())
    }

    fn begin_download(&mut self, len: usize) -> Result<()> {
        self.shared.alive()?;
        if self.begun.is_none() {
            self.shared.count(|c| c.downloads += 1);
            let (seen, copy) = (self.seen.clone(), Arc::new(Mutex::new(Vec::new())));
            let to = copy.clone();
            let cost = self.shared.transfer(len * size_of::<T>());
            let job = self.shared.queue.push(cost, move || *lock(&to) = lock(&seen)[..len].to_vec());
            self.begun = Some((copy, job));
        }
        Ok(())
    }

    fn download(&mut self, to: &mut [T]) -> Result<()> {
        self.begin_download(to.len())?;
        if let Some((copy, job)) = self.begun.take() {
            if self.shared.queue.wait(job) {
                self.shared.count(|c| c.waits += 1);
            }
            let copy = lock(&copy);
            let n = to.len().min(copy.len());
            to[..n].copy_from_slice(&copy[..n]);
        }
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
