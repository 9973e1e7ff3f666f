//! Observers of steps that are repeated.

use crate::layer::Observer;

/// What an observer has seen of a step, so that it sees nothing twice when the step is repeated.
#[derive(Default)]
pub(crate) struct Watched {
    calls: usize,
}

impl Watched {
    pub(crate) fn by<'a>(&'a mut self, observer: &'a mut dyn Observer) -> impl Observer {
        Again { skip: self.calls, watched: self, observer }
    }
}

struct Again<'a> {
    skip: usize,
    watched: &'a mut Watched,
    observer: &'a mut dyn Observer,
}

impl Again<'_> {
    fn is_new(&mut self) -> bool {
        match self.skip.checked_sub(1) {
            Some(left) => {
                self.skip = left;
                false
            }
            None => {
                self.watched.calls += 1;
                true
            }
        }
    }
}

impl Observer for Again<'_> {
    fn inputs(&mut self, layer: usize, h: &[f32], x: &[f32]) {
        if self.is_new() {
            self.observer.inputs(layer, h, x);
        }
    }

    fn values(&mut self, layer: usize, values: &[f32]) {
        if self.is_new() {
            self.observer.values(layer, values);
        }
    }
}
