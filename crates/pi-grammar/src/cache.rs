//! What was used lately.

use std::collections::VecDeque;

/// Values by text: so many, and so many bytes of text. What was not used for the longest time goes first.
pub(crate) struct Cache<T> {
    most: usize,
    most_bytes: usize,
    bytes: usize,
    /// Last used first.
    all: VecDeque<(String, T)>,
}

impl<T> Cache<T> {
    pub(crate) fn new(most: usize, most_bytes: usize) -> Self {
        Self { most, most_bytes, bytes: 0, all: VecDeque::new() }
    }

    /// The value of this text.
    pub(crate) fn get(&mut self, key: &str) -> Option<&T> {
        let place = self.all.iter().position(|(known, _)| known == key)?;
        let found = self.all.remove(place)?;
        self.all.push_front(found);
        self.all.front().map(|(_, value)| value)
    }

    /// Keeps a value, unless its text alone is too long.
    pub(crate) fn put(&mut self, key: String, value: T) {
        if key.len() > self.most_bytes || self.most == 0 || self.get(&key).is_some() {
            return;
        }
        self.bytes += key.len();
        self.all.push_front((key, value));
        while self.all.len() > self.most || self.bytes > self.most_bytes {
            let Some((key, _)) = self.all.pop_back() else { return };
            self.bytes -= key.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_the_longest_time_goes_first() {
        let mut cache = Cache::new(3, 100);
        ["a", "b", "c"].iter().zip(1..).for_each(|(key, n)| cache.put(key.to_string(), n));
        assert_eq!(cache.get("a"), Some(&1));
        cache.put("d".into(), 4);
        assert_eq!(["a", "c", "d"].map(|key| cache.get(key).copied()), [Some(1), Some(3), Some(4)]);
        assert_eq!(cache.get("b"), None);
    }

    #[test]
    fn texts_are_bounded_together_and_alone() {
        let mut cache = Cache::new(9, 10);
        cache.put("x".repeat(11), 0);
        assert!(cache.all.is_empty());
        for n in 0..9 {
            cache.put(format!("{n}").repeat(4), n);
            assert!(cache.all.len() <= 2 && cache.bytes == 4 * cache.all.len(), "{}", cache.bytes);
        }
        assert_eq!(["8888", "7777", "6666"].map(|key| cache.get(key).copied()), [Some(8), Some(7), None]);
        cache.put("y".repeat(10), 10);
        assert_eq!((cache.all.len(), cache.bytes), (1, 10));
    }
}
