//! The bytes of one file, mapped or in memory. The only file of this crate with `unsafe` in it.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::error::{Error, Result};
use crate::identify::Format;

/// Start of the bytes of an in-memory file is a multiple of this, as that of a mapping is: a tensor is then as well aligned
/// in one as in the other.
const MEMORY_ALIGNMENT: usize = 64;

/// How the bytes of a file get into the address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Source {
    /// Mapped: opening is immediate, and the operating system reads what is touched and may drop it again.
    ///
    /// The file must not be changed while it is open. If another process *truncates* it, touching the part that is gone
    /// kills this process (`SIGBUS`), which no library can turn into an error; if it is overwritten in place, weights
    /// change under the reader. Replacing the file by renaming another over it, as [`AtomicFile`](crate::AtomicFile) does,
    /// is safe (Windows does not allow it while the file is mapped). Use [`InMemory`](Self::InMemory) where others may write
    /// to the file.
    #[default]
    Mapped,
    /// Read into memory when it is opened (`--no-mmap`), in large pages where the system has them, which are faster to read
    /// here and there. What happens to the file afterwards does not matter.
    InMemory,
}

/// The bytes of one file. Shared by everything that was read from it; the last owner unmaps or frees them.
pub struct FileBytes(Repr);

enum Repr {
    Mapped(memmap2::Mmap),
    /// A copy of the file.
    Read(memmap2::MmapMut),
    /// The bytes begin at `start`, where memory is aligned.
    InMemory {
        buffer: Vec<u8>,
        start: usize,
    },
}

impl FileBytes {
    /// The bytes of the file at `path`, of whatever format. Anything but a regular file is refused before it is opened (a pipe
    /// could block).
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::NotGguf`] if it is empty, a folder or a device, [`Error::Memory`] if it is to
    /// be read into memory and does not fit.
    pub fn open(path: &Path, source: Source) -> Result<Self> {
        let io = |action| move |source| Error::Io { path: path.to_owned(), action, source };
        let stat = fs::metadata(path).map_err(io("open"))?;
        let found = match () {
            () if stat.is_dir() => Some(Format::Directory),
            () if !stat.is_file() => Some(Format::SpecialFile),
            () if stat.len() == 0 => Some(Format::Empty),
            () => None,
        };
        if let Some(found) = found {
            return Err(Error::NotGguf { path: path.to_owned(), found });
        }
        let mut file = fs::File::open(path).map_err(io("open"))?;
        match source {
            Source::Mapped => {
                // SAFETY: the mapping is read-only, and `FileBytes` keeps it alive as long as any slice of it. That nobody
                // changes the file meanwhile cannot be checked here; it is the documented duty of the caller
                // (`Source::Mapped`). What was checked is kept in memory of our own (offsets, lengths, names), and slices are
                // taken with a bounds check, so that a changed file cannot lead out of the mapping.
                let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io("map"))?;
                Ok(Self(Repr::Mapped(map)))
            }
            Source::InMemory => {
                let memory = || Error::Memory { path: path.to_owned(), bytes: stat.len() };
                let len = usize::try_from(stat.len()).map_err(|_| memory())?;
                let mut bytes = memmap2::MmapMut::map_anon(len).map_err(|_| memory())?;
                // Rows that are read here and there mean a look-up of a page each, and large pages are found sooner. If the
                // system has none, nothing is lost.
                #[cfg(target_os = "linux")]
                let _ = bytes.advise(memmap2::Advice::HugePage);
                file.read_exact(&mut bytes).map_err(io("read"))?;
                Ok(Self(Repr::Read(bytes)))
            }
        }
    }

    /// Bytes that are in memory already, copied only if they are not aligned as they should be.
    pub(crate) fn from_vec(bytes: Vec<u8>) -> io::Result<Self> {
        if bytes.as_ptr().align_offset(MEMORY_ALIGNMENT) == 0 {
            return Ok(Self(Repr::InMemory { buffer: bytes, start: 0 }));
        }
        let (mut buffer, start) = aligned(bytes.len()).ok_or(io::ErrorKind::OutOfMemory)?;
        buffer.extend_from_slice(&bytes);
        Ok(Self(Repr::InMemory { buffer, start }))
    }

    /// True if the bytes are a mapping of the file, false if they are a copy.
    pub fn is_mapped(&self) -> bool {
        matches!(self.0, Repr::Mapped(_))
    }
}

/// A buffer with room for `len` more bytes, the first of them aligned, and where that is. `None` if there is no memory.
fn aligned(len: usize) -> Option<(Vec<u8>, usize)> {
    let mut buffer: Vec<u8> = Vec::new();
    buffer.try_reserve_exact(len.checked_add(MEMORY_ALIGNMENT)?).ok()?;
    // `align_offset` may decline to answer (it does not on real machines); alignment is then given up, nothing else.
    let start = Some(buffer.as_ptr().align_offset(MEMORY_ALIGNMENT)).filter(|&n| n < MEMORY_ALIGNMENT).unwrap_or(0);
    buffer.resize(start, 0);
    Some((buffer, start))
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Repr::Mapped(map) => map,
            Repr::Read(bytes) => bytes,
            Repr::InMemory { buffer, start } => &buffer[*start..],
        }
    }
}

/// A mapped file's pages are in the system's cache, or can be read again.
impl pi_core::Reclaim for FileBytes {
    fn give_back(&self, range: std::ops::Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Repr::Mapped(map) = &self.0 {
            // Only pages that are in the range as a whole: others hold what is still used. A map begins with a page. Other processors
            // than these have pages of up to 64 KiB, and multiples of that are whole pages whatever their size.
            const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };
            let from = range.start.div_ceil(PAGE).saturating_mul(PAGE);
            let to = range.end.min(map.len()) / PAGE * PAGE;
            if from < to {
                // SAFETY: the mapping is of a file and read-only, so nothing was written to pages that would be lost: whoever reads
                // them finds the file's bytes, as before. The range is within the map. If the system refuses, nothing happened.
                let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from) };
            }
        }
        let _ = range; // copies in memory would be lost, and other systems decide themselves
    }
}

impl std::fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_mapped() { "mapped" } else { "in memory" };
        write!(f, "FileBytes({kind}, {} bytes)", self.as_ref().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pi_core::Reclaim;

    #[test]
    fn bytes_are_what_they_were_after_their_memory_was_given_back() {
        let (folder, len) = (tempfile::tempdir().unwrap(), 300_001);
        let path = folder.path().join("bytes");
        let want: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        fs::write(&path, &want).unwrap();
        for source in [Source::Mapped, Source::InMemory] {
            let bytes = FileBytes::open(&path, source).unwrap();
            for range in [0..len, 5..70_000, 4096..8192, len - 1..len, 0..usize::MAX, 9..9] {
                bytes.give_back(range.clone());
                assert_eq!(bytes.as_ref(), want, "{source:?} {range:?}");
            }
        }
        let bytes = FileBytes::from_vec(want.clone()).unwrap();
        bytes.give_back(0..len);
        assert_eq!(bytes.as_ref(), want);
    }
}
