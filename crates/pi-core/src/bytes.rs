//! Bytes that several owners share, such as a part of a mapped file.

use std::{fmt, ops::Range, sync::Arc};

/// A range of somebody's bytes, kept alive by shared ownership.
///
/// Cloning is cheap and copies nothing. It lets an operator keep the weights it needs "where they lie", without a lifetime.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// The part `range` of `owner`, or `None` if the owner has fewer bytes.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner, range })
    }

    /// The part `range` of these bytes, or `None` if there are fewer.
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        let (from, to) = (self.range.start.checked_add(range.start)?, self.range.start.checked_add(range.end)?);
        (range.start <= range.end && to <= self.range.end).then(|| Self { owner: self.owner.clone(), range: from..to })
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
        Self { owner: Arc::new(bytes), range }
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
}
