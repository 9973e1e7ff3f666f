//! Arrays that know where their newest copy is and move only when the other side asks.

use crate::{Error, Result};
use std::{any::Any, fmt};

/// A copy of an array in another memory, implemented by a device.
pub trait Mirror<T>: Send {
    /// Copies `from` (the part of the host's array that is in use) to the beginning of the device's.
    ///
    /// # Errors
    /// If the device fails.
    fn upload(&mut self, from: &[T]) -> Result<()>;
    /// Begins to copy the first `len` elements of the device's array to where [`download`](Self::download) finds it, behind what is queued so far; what is queued afterwards
    /// does not hold it up. For devices that copy while they compute; others have nothing to begin.
    ///
    /// # Errors
    /// If the device fails.
    fn begin_download(&mut self, _len: usize) -> Result<()> {
        Ok(())
    }
    /// Copies the beginning of the device's array to `to`, after everything queued before has written it.
    ///
    /// # Errors
    /// If the device fails.
    fn download(&mut self, to: &mut [T]) -> Result<()>;
    /// The device's own view of the copy.
    fn as_any(&mut self) -> &mut dyn Any;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newest {
    Host,
    Mirror,
    Both,
}

/// How often an array moved, for statistics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Copies from the host to a device.
    pub up: u64,
    /// Copies from a device to the host.
    pub down: u64,
}

/// An array with a copy on the host and possibly one on a device.
///
/// Reading on one side fetches the newest copy first, if it is on the other; writing makes the other copy stale.
/// Nothing is copied twice and nothing is copied that nobody reads.
pub struct Resident<T> {
    host: Vec<T>,
    mirror: Option<Box<dyn Mirror<T>>>,
    newest: Newest,
    /// Elements that are moved.
    used: usize,
    moves: Moves,
}

impl<T: Copy + Default> Resident<T> {
    /// `len` zeros on the host.
    pub fn new(len: usize) -> Self {
        Self { host: vec![T::default(); len], mirror: None, newest: Newest::Host, used: len, moves: Moves::default() }
    }

    /// The same, but an error instead of an abort when there is no memory.
    ///
    /// # Errors
    /// [`Error::Device`] naming the bytes that were asked for.
    pub fn try_new(len: usize) -> Result<Self> {
        // `vec![0; n]` asks the system for zeroed pages but aborts on failure: try the reservation first.
        Vec::<T>::new().try_reserve_exact(len).map_err(|_| Error::Device {
            device: "host".into(),
            message: format!("no memory for {} bytes", len as u128 * size_of::<T>() as u128),
        })?;
        Ok(Self::new(len))
    }

    /// The same with a copy on a device. The device's copy starts stale.
    pub fn with_mirror(len: usize, mirror: Box<dyn Mirror<T>>) -> Self {
        Self { mirror: Some(mirror), ..Self::new(len) }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.host.len()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.host.is_empty()
    }

    /// Only the first `used` elements are moved from now on (all of them, if there are fewer). The others keep whatever they were.
    pub fn set_used(&mut self, used: usize) {
        self.used = used.min(self.host.len());
    }

    /// How often the array moved so far.
    pub fn moves(&self) -> Moves {
        self.moves
    }

    /// True if a device has a copy.
    pub fn has_mirror(&self) -> bool {
        self.mirror.is_some()
    }

    /// The host's copy, made current.
    ///
    /// # Errors
    /// If it must be fetched and the device fails.
    pub fn host(&mut self) -> Result<&[T]> {
        self.fetch()?;
        Ok(&self.host)
    }

    /// Begins to fetch the newest copy if it is on the device: [`host`](Self::host) then waits for what was queued before this call, and
    /// not for what is queued after it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn prefetch(&mut self) -> Result<()> {
        match (self.newest, &mut self.mirror) {
            (Newest::Mirror, Some(mirror)) => mirror.begin_download(self.used),
            _ => Ok(()),
        }
    }

    /// The host's copy if it is current.
    pub fn peek(&self) -> Option<&[T]> {
        (self.newest != Newest::Mirror).then_some(&self.host[..])
    }

    /// The host's copy, made current, to be changed. The device's becomes stale.
    ///
    /// # Errors
    /// If it must be fetched and the device fails.
    pub fn host_mut(&mut self) -> Result<&mut [T]> {
        self.fetch()?;
        self.newest = Newest::Host;
        Ok(&mut self.host)
    }

    /// The host's copy, to be overwritten entirely: nothing is fetched. The device's becomes stale.
    pub fn host_overwrite(&mut self) -> &mut [T] {
        self.newest = Newest::Host;
        &mut self.host
    }

    /// The device's copy as it is, current or not: for a device that asks whether it is its own. Nothing moves.
    pub fn mirror_as_it_is(&mut self) -> Option<&mut dyn Any> {
        self.mirror.as_deref_mut().map(Mirror::as_any)
    }

    /// The device's copy, made current; `None` if there is none.
    ///
    /// # Errors
    /// If it must be sent and the device fails.
    pub fn mirror(&mut self) -> Result<Option<&mut dyn Mirror<T>>> {
        let Some(mirror) = &mut self.mirror else { return Ok(None) };
        if self.newest == Newest::Host {
            mirror.upload(&self.host[..self.used])?;
            self.moves.up += 1;
            self.newest = Newest::Both;
        }
        Ok(Some(&mut **mirror))
    }

    /// The device's copy, made current, to be changed. The host's becomes stale.
    ///
    /// # Errors
    /// If it must be sent and the device fails.
    pub fn mirror_mut(&mut self) -> Result<Option<&mut dyn Mirror<T>>> {
        self.mirror()?;
        Ok(self.mirror_overwrite())
    }

    /// The device's copy, to be overwritten entirely: nothing is sent. The host's becomes stale.
    pub fn mirror_overwrite(&mut self) -> Option<&mut dyn Mirror<T>> {
        let mirror = self.mirror.as_deref_mut()?;
        self.newest = Newest::Mirror;
        Some(mirror)
    }

    fn fetch(&mut self) -> Result<()> {
        if let (Newest::Mirror, Some(mirror)) = (self.newest, &mut self.mirror) {
            mirror.download(&mut self.host[..self.used])?;
            self.moves.down += 1;
            self.newest = Newest::Both;
        }
        Ok(())
    }
}

impl<T> fmt::Debug for Resident<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resident")
            .field("len", &self.host.len())
            .field("mirror", &self.mirror.is_some())
            .field("newest", &self.newest)
            .field("moves", &self.moves)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Other(Vec<f32>);

    impl Mirror<f32> for Other {
        fn upload(&mut self, from: &[f32]) -> Result<()> {
            self.0.copy_from_slice(from);
            Ok(())
        }
        fn download(&mut self, to: &mut [f32]) -> Result<()> {
            to.copy_from_slice(&self.0);
            Ok(())
        }
        fn as_any(&mut self) -> &mut dyn Any {
            self
        }
    }

    fn on_device(r: &mut Resident<f32>) -> &mut [f32] {
        let other = r.mirror_mut().unwrap().unwrap().as_any().downcast_mut::<Other>().unwrap();
        &mut other.0
    }

    #[test]
    fn an_array_moves_only_when_the_other_side_asks() {
        let mut r = Resident::with_mirror(2, Box::new(Other(vec![f32::NAN; 2])));
        r.host_mut().unwrap()[0] = 1.0;
        assert_eq!(r.moves(), Moves::default());
        on_device(&mut r)[1] = 2.0;
        assert_eq!(r.moves(), Moves { up: 1, down: 0 });
        on_device(&mut r)[1] += 1.0;
        assert_eq!(r.moves(), Moves { up: 1, down: 0 });
        assert_eq!(r.host().unwrap(), [1.0, 3.0]);
        assert_eq!(r.host().unwrap(), [1.0, 3.0]);
        assert_eq!(r.moves(), Moves { up: 1, down: 1 });
        r.mirror().unwrap();
        assert_eq!(r.moves(), Moves { up: 1, down: 1 }, "both copies were current");
    }

    #[test]
    fn more_memory_than_there_can_be_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
            assert!(matches!(Resident::<f32>::try_new(len), Err(Error::Device { .. })), "{len}");
        }
        assert_eq!(Resident::<f32>::try_new(3).unwrap().len(), 3);
    }

    #[test]
    fn overwriting_fetches_nothing() {
        let mut r = Resident::with_mirror(1, Box::new(Other(vec![0.0])));
        r.mirror_overwrite().unwrap();
        r.host_overwrite()[0] = 5.0;
        assert_eq!(r.host().unwrap(), [5.0]);
        assert_eq!(r.moves(), Moves::default());
    }
}
