//! What was used lately.

use std::collections::VecDeque;

/// Values by text: so many, and so many bytes. What was not used for the longest time goes first.
pub(crate) struct Cache<T> {
    most: usize,
    most_bytes: usize,
    bytes: usize,
    /// Last used first.
    all: VecDeque<Kept<T>>,
}

struct Kept<T> {
    key: String,
    bytes: usize,
    value: T,
}

impl<T> Cache<T> {
    pub(crate) fn new(most: usize, most_bytes: usize) -> Self {
        Self { most, most_bytes, bytes: 0, all: VecDeque::new() }
    }

    /// The value of this text.
    pub(crate) fn get(&mut self, key: &str) -> Option<&T> {
        let place = self.all.iter().position(|kept| kept.key == key)?;
        let found = self.all.remove(place)?;
        self.all.push_front(found);
        self.all.front().map(|kept| &kept.value)
    }

    /// Keeps a value of so many bytes, unless it is too large alone.
    pub(crate) fn put(&mut self, key: String, bytes: usize, value: T) {
        let bytes = bytes.saturating_add(key.len());
        if bytes > self.most_bytes || self.most == 0 || self.get(&key).is_some() {
            return;
        }
        while self.all.len() >= self.most || self.bytes + bytes > self.most_bytes {
            let Some(oldest) = self.all.pop_back() else { break };
            self.bytes -= oldest.bytes;
        }
        self.bytes += bytes;
        self.all.push_front(Kept { key, bytes, value });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_the_longest_time_goes_first() {
        let mut cache = Cache::new(3, 100);
        ["a", "b", "c"].iter().zip(1..).for_each(|(key, n)| cache.put(key.to_string(), 0, n));
        assert_eq!(cache.get("a"), Some(&1));
        cache.put("d".into(), 0, 4);
        assert_eq!(["a", "c", "d"].map(|key| cache.get(key).copied()), [Some(1), Some(3), Some(4)]);
        assert_eq!(cache.get("b"), None);
    }

    #[test]
    fn bytes_are_bounded_together_and_alone() {
        let mut cache = Cache::new(9, 10);
        cache.put("x".repeat(11), 0, 0);
        cache.put("x".into(), 10, 0);
        assert!(cache.all.is_empty());
        for n in 0..9 {
            cache.put(format!("{n}").repeat(2), 2, n);
            assert!(cache.all.len() <= 2 && cache.bytes == 4 * cache.all.len(), "{}", cache.bytes);
        }
        assert_eq!(["88", "77", "66"].map(|key| cache.get(key).copied()), [Some(8), Some(7), None]);
        cache.put("y".into(), 9, 10);
        assert_eq!((cache.all.len(), cache.bytes), (1, 10));
    }
}
