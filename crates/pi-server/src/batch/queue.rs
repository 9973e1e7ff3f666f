//! Who may wait.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

/// Counts requests that are waiting or running.
#[derive(Debug)]
pub(crate) struct Door {
    inside: AtomicUsize,
    most: usize,
}

/// A request's place. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Door>);

impl Door {
    /// A door for `most` requests.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { inside: AtomicUsize::new(0), most })
    }

    /// A place, if there is one.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Ticket> {
        let next = |n: usize| (n < self.most).then_some(n + 1);
        self.inside.fetch_update(SeqCst, SeqCst, next).ok().map(|_| Ticket(self.clone()))
    }

    /// Requests inside.
    pub(crate) fn inside(&self) -> usize {
        self.inside.load(SeqCst)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_there_are_places_come_in_and_who_leaves_makes_room() {
        let door = Door::new(2);
        let (a, b) = (door.enter(), door.enter());
        assert!(a.is_some() && b.is_some() && door.enter().is_none());
        assert_eq!(door.inside(), 2);
        drop(a);
        assert!(door.enter().is_some());
        drop(b);
        assert_eq!(door.inside(), 0);
    }
}
