//! Files that appear whole or not at all.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// A new file that gets its name when it is complete.
///
/// It is written under another name beside its own; [`commit`](Self::commit) renames it. Until then a file that has the name
/// already stays as it is, and whoever has that one mapped is not disturbed by the change. Dropped without a commit, the
/// new file is removed.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    temporary: PathBuf,
    /// `None` once committed.
    out: Option<BufWriter<fs::File>>,
}

impl AtomicFile {
    /// A new file that is to become `path`, or what the link of that name points to. Its folder must exist.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be created, or if something has the name that is no file (a folder, a device).
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let path = path.as_ref();
        let linked = path.symlink_metadata().is_ok_and(|m| m.is_symlink());
        let path = if linked { fs::canonicalize(path).unwrap_or(path.to_owned()) } else { path.to_owned() };
        if let Ok(there) = path.metadata()
            && !there.is_file()
        {
            let kind = if there.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::InvalidInput };
            let source = io::Error::new(kind, "it exists and is no file");
            return Err(Error::Io { path, action: "create", source });
        }
        let io = |source| Error::Io { path: path.clone(), action: "create", source };
        let name = path.file_name().ok_or_else(|| io(io::ErrorKind::InvalidFilename.into()))?;
        // Names left behind by processes that were killed are skipped, and names in use by other processes as well.
        for _ in 0..1000 {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{}.tmp", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
            let temporary = path.with_file_name(hidden);
            match fs::File::create_new(&temporary) {
                Ok(file) => return Ok(Self { path, temporary, out: Some(BufWriter::with_capacity(1 << 18, file)) }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(io(e)),
            }
        }
        Err(io(io::ErrorKind::AlreadyExists.into()))
    }

    /// Gives the file its name, after all of it is on the disk.
    ///
    /// # Errors
    /// [`Error::Io`] if that fails; there is no new file then.
    pub fn commit(mut self) -> Result<()> {
        let path = self.path.clone();
        let io = |source| Error::Io { path: path.clone(), action: "write", source };
        let Some(out) = self.out.take() else { return Ok(()) };
        let done = out.into_inner().map_err(|e| e.into_error()).and_then(|file| file.sync_all());
        let done = done.and_then(|()| fs::rename(&self.temporary, &self.path));
        done.map_err(|e| {
            let _ = fs::remove_file(&self.temporary); // the first error is the one to tell
            io(e)
        })
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.as_mut().map_or(Ok(0), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(out) = self.out.take() {
            drop(out.into_parts()); // closes the file without writing what is still buffered
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_a_link_and_what_is_no_file_is_refused_at_once() {
        let dir = std::env::temp_dir().join(format!("pi-gguf-atomic-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (target, link) = (dir.join("target"), dir.join("link"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut file = AtomicFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        for no_file in [dir.as_path(), Path::new("/dev/null")] {
            let e = AtomicFile::create(no_file).unwrap_err().to_string();
            assert!(e.contains("no file"), "{e}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
