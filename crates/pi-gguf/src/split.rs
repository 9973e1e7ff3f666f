//! Models in several files. The keys `split.no` and `split.count` say that a file is a part of one, and its name, as in
//! `model-00001-of-00003.gguf`, says where the other parts are. (Names count from 1, keys from 0.)

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::file::Loaded;
use crate::header::{Kind, padding};
use crate::metadata::Metadata;
use crate::mmap::Source;

const NO_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// Length of the end of a part's name, `-00001-of-00003.gguf`. The numbers have five digits.
const SUFFIX_LEN: usize = 20;

/// What a part says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Split {
    /// Counted from 0.
    no: u16,
    /// At least 2.
    count: u16,
}

impl Split {
    /// `None` if the file is a whole model.
    fn declared(metadata: &Metadata) -> Result<Option<Self>> {
        let wrong = |expected: &str, got: String| Error::Split {
            path: metadata.path().to_owned(),
            expected: expected.to_owned(),
            got: got.to_string(),
        };
        let count = match metadata.get::<u16>(COUNT_KEY)? {
            None | Some(1) => return Ok(None),
            Some(0) => return Err(wrong("split.count of at least 1", "0".to_owned())),
            Some(count) => count,
        };
        let no: u16 = metadata.require(NO_KEY)?;
        if no >= count {
            return Err(wrong("split.no below split.count", format!("{no} of {count}")));
        }
        Ok(Some(Self { no, count }))
    }

    /// How the part's name ends.
    fn suffix(self) -> String {
        format!("-{:05}-of-{:05}.gguf", u32::from(self.no) + 1, self.count)
    }
}

/// All parts of the model that `named` is, or is a part of, in their order.
pub(crate) fn complete(named: Loaded, source: Source) -> Result<Vec<Loaded>> {
    let Some(split) = Split::declared(&named.header.metadata)? else { return Ok(vec![named]) };
    refuse_concatenated(&named, split)?;
    let wrong = |path: &Path, expected: String, got: String| Error::Split { path: path.to_owned(), expected, got };

    let prefix = prefix(&named.path, split).ok_or_else(|| {
        let name = named.path.file_name().unwrap_or_default().to_string_lossy();
        let expected = format!(
            "a name that ends in '{}' (split.no and split.count say so, and the other parts are found by it)",
            split.suffix()
        );
        wrong(&named.path, expected, format!("'{name}'"))
    })?;
    let paths: Vec<PathBuf> = (0..split.count).map(|no| sibling(&named.path, &prefix, Split { no, ..split })).collect();
    // Before anything else is opened: a part that is not there is the most usual trouble.
    for (missing, part) in paths.iter().zip(1u32..) {
        if fs::metadata(missing).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            let (path, count) = (named.path.to_path_buf(), split.count.into());
            return Err(Error::MissingPart { path, missing: missing.clone(), part, count });
        }
    }

    let kind = named.header.kind;
    let mut named = Some(named);
    let mut parts = Vec::new();
    for (path, no) in paths.iter().zip(0u16..) {
        let part = match named.take_if(|_| no == split.no) {
            Some(part) => part,
            None => Loaded::open(path, source)?,
        };
        let expected = Split { no, ..split };
        match Split::declared(&part.header.metadata)? {
            Some(found) if found == expected => {}
            Some(Split { no, count }) => {
                let expected = format!("split.no {} of {}, as the name says", expected.no, expected.count);
                return Err(wrong(&part.path, expected, format!("{no} of {count}")));
            }
            None => {
                return Err(wrong(
                    &part.path,
                    format!("part {} of {}", no + 1, split.count),
                    "a whole model".to_owned(),
                ));
            }
        }
        if part.header.kind != kind {
            let name = |kind: Kind| kind.magic().escape_ascii().to_string();
            return Err(wrong(
                &part.path,
                format!("magic {} as in the other parts", name(kind)),
                name(part.header.kind),
            ));
        }
        parts.push(part);
    }

    let tensors: usize = parts.iter().map(|part| part.header.tensors.len()).sum();
    for part in &parts {
        if let Some(stated) = part.header.metadata.get::<u64>(TENSORS_KEY)?.filter(|&n| n != tensors as u64) {
            return Err(wrong(
                &part.path,
                format!("{stated} tensors in all parts ({TENSORS_KEY})"),
                tensors.to_string(),
            ));
        }
    }
    Ok(parts)
}

/// Refuses a part where there are no files to find the others in.
pub(crate) fn refuse(loaded: &Loaded) -> Result<()> {
    let Some(split) = Split::declared(&loaded.header.metadata)? else { return Ok(()) };
    refuse_concatenated(loaded, split)?;
    Err(Error::Split {
        path: loaded.path.to_path_buf(),
        expected: "a whole model, as it is in memory".to_owned(),
        got: format!("part {} of {}", u32::from(split.no) + 1, split.count),
    })
}

/// Recognises parts that were joined with `cat`: where the tensors of the first end, another header begins.
fn refuse_concatenated(part: &Loaded, split: Split) -> Result<()> {
    let data: &[u8] = (*part.bytes).as_ref();
    let end = part.header.end;
    let is_header = |at: usize| {
        let head = data.get(at..at.saturating_add(8)).unwrap_or_default();
        [Kind::Gguf, Kind::PowerInfer].iter().any(|kind| head.starts_with(&kind.magic()))
            && matches!(head.get(4..), Some([2 | 3, 0, 0, 0]))
    };
    if is_header(end) || is_header(end + padding(end, part.header.alignment)) {
        return Err(Error::Concatenated { path: part.path.to_path_buf(), count: split.count.into() });
    }
    Ok(())
}

/// The name of a part without its [suffix](Split::suffix), or `None` if it does not have it.
fn prefix(path: &Path, split: Split) -> Option<OsString> {
    let name = path.file_name()?;
    let bytes = name.as_encoded_bytes();
    let (prefix, suffix) = bytes.split_at_checked(bytes.len().checked_sub(SUFFIX_LEN)?)?;
    if suffix != split.suffix().as_bytes() {
        return None;
    }
    start_of(name, prefix)
}

/// The start of `name` whose bytes are `prefix`. Names need not be UTF-8.
#[cfg(unix)]
fn start_of(_name: &OsStr, prefix: &[u8]) -> Option<OsString> {
    use std::os::unix::ffi::OsStrExt;
    Some(OsStr::from_bytes(prefix).to_owned())
}

/// The start of `name` whose bytes are `prefix`. Names that are not Unicode are not understood on this system.
#[cfg(not(unix))]
fn start_of(name: &OsStr, prefix: &[u8]) -> Option<OsString> {
    Some(name.to_str()?.get(..prefix.len())?.into())
}

fn sibling(path: &Path, prefix: &OsStr, split: Split) -> PathBuf {
    let mut name = prefix.to_owned();
    name.push(split.suffix());
    path.with_file_name(name)
}
