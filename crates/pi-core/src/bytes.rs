//! Bytes that several owners share, such as a part of a mapped file.

use std::{fmt, ops::Range, sync::Arc};

/// A range of somebody's bytes, kept alive by shared ownership.
///
/// Cloning is cheap and copies nothing. It lets an operator keep the weights it needs "where they lie", without a lifetime.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// The same owner, if it can give memory back.
    reclaim: Option<Arc<dyn Reclaim>>,
    range: Range<usize>,
}

/// An owner of bytes that it can get again, such as a mapped file.
pub trait Reclaim: AsRef<[u8]> + Send + Sync {
    /// Gives the memory of whole pages within `range` back to the system. The bytes stay what they are: whoever reads them has them
    /// fetched again, which takes a while. Owners whose bytes would be lost do nothing.
    fn give_back(&self, range: Range<usize>);
}

impl SharedBytes {
    /// The part `range` of `owner`, or `None` if the owner has fewer bytes.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner, reclaim: None, range })
    }

    /// The same of an owner that can give memory back.
    pub fn reclaimable<T: Reclaim + 'static>(owner: Arc<T>, range: Range<usize>) -> Option<Self> {
        Some(Self { reclaim: Some(owner.clone()), ..Self::new(owner, range)? })
    }

    /// Says that nobody is going to read the part `range` soon; see [`Reclaim::give_back`]. What is beyond the end is left out, and
    /// nothing happens if the owner has no other place to get the bytes from.
    pub fn give_back(&self, range: Range<usize>) {
        let end = self.range.end.min(self.range.start.saturating_add(range.end));
        let start = self.range.start.saturating_add(range.start);
        if let Some(owner) = self.reclaim.as_ref().filter(|_| start < end) {
            owner.give_back(start..end);
        }
    }

    /// The part `range` of these bytes, or `None` if there are fewer.
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        let (from, to) = (self.range.start.checked_add(range.start)?, self.range.start.checked_add(range.end)?);
        (range.start <= range.end && to <= self.range.end).then(|| Self { range: from..to, ..self.clone() })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // The owner may answer differently each time it is asked; an empty slice then fails the length checks of the reader.
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or(&[])
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(bytes), reclaim: None, range }
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_outside_the_owner_is_refused() {
        let owner = Arc::new(vec![1u8, 2, 3]);
        assert!(SharedBytes::new(owner.clone(), 1..4).is_none());
        let part = SharedBytes::new(owner, 1..3).unwrap();
        assert_eq!(part.as_slice(), &[2, 3]);
        assert_eq!(part.part(1..2).unwrap().as_slice(), &[3]);
        assert_eq!(part.part(2..2).unwrap().as_slice(), &[0; 0]);
        for outside in [1..3, 3..3, usize::MAX..usize::MAX, Range { start: 2, end: 1 }] {
            assert!(part.part(outside.clone()).is_none(), "{outside:?}");
        }
    }

    #[test]
    fn memory_is_given_back_by_who_can_and_only_within_the_range() {
        use std::sync::Mutex;

        struct Owner(Vec<u8>, Mutex<Vec<Range<usize>>>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Reclaim for Owner {
            fn give_back(&self, range: Range<usize>) {
                self.1.lock().unwrap().push(range);
            }
        }
        let owner = Arc::new(Owner((0..10).collect(), Mutex::default()));
        let part = SharedBytes::reclaimable(owner.clone(), 2..9).unwrap().part(1..6).unwrap();
        for range in [0..2, 3..99, 5..7, 4..4, usize::MAX..usize::MAX] {
            part.give_back(range);
        }
        assert_eq!(*owner.1.lock().unwrap(), [3..5, 6..8]);
        let plain = SharedBytes::new(owner.clone(), 0..10).unwrap();
        plain.give_back(0..10);
        assert_eq!(owner.1.lock().unwrap().len(), 2, "nobody said that this one can");
    }
}
