//! The lines of the input, one by one: the file may be larger than memory.

use crate::failure::{Failure, Result};
use pi_engine::pi_predictor::profile::fingerprint;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

/// Most bytes of a line. No context holds as much text.
const LONGEST: u64 = 16 << 20;

/// Lines that are not blank, each with its number in the file, and a checksum of all that was read.
pub struct Inputs {
    reader: BufReader<File>,
    path: PathBuf,
    number: u64,
    sum: u64,
}

/// A line: its number, counted from 1, and its bytes; or why they are not there.
pub struct Line {
    pub number: u64,
    pub bytes: Result<Vec<u8>, String>,
}

/// What is in an input.
#[derive(Debug, PartialEq)]
pub struct Survey {
    /// Lines that are not blank.
    pub lines: u64,
    /// Tells the contents from others.
    pub sum: u64,
}

/// Reads an input once, for what has to be known before it is answered.
///
/// # Errors
/// If it cannot be read, or is no file that can be read twice.
pub fn survey(path: &Path) -> Result<Survey> {
    let mut inputs = Inputs::open(path)?;
    let mut lines = 0;
    while inputs.next()?.is_some() {
        lines += 1;
    }
    Ok(Survey { lines, sum: inputs.sum })
}

impl Inputs {
    /// The beginning of a file.
    ///
    /// # Errors
    /// As [`survey`].
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |e: io::Error| Failure::Work(format!("{}: cannot read: {e}", path.display()));
        let file = File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            let path = path.display();
            return Err(Failure::Work(format!(
                "{path}: expected a regular file, since it is read twice and again to go on"
            )));
        }
        Ok(Self { reader: BufReader::with_capacity(1 << 16, file), path: path.into(), number: 0, sum: 0 })
    }

    /// The next line that is not blank.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn next(&mut self) -> Result<Option<Line>> {
        loop {
            let mut bytes = Vec::new();
            let whole = self
                .read(&mut bytes)
                .map_err(|e| Failure::Work(format!("{}: cannot read: {e}", self.path.display())))?;
            if bytes.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            // some editors mark UTF-8 so
            let text = bytes.strip_prefix(b"\xef\xbb\xbf").filter(|_| self.number == 1).unwrap_or(&bytes).trim_ascii();
            if whole && text.is_empty() {
                continue;
            }
            let bytes = match whole {
                true => Ok(text.to_vec()),
                false => Err(format!("expected a line of at most {LONGEST} bytes, got more")),
            };
            return Ok(Some(Line { number: self.number, bytes }));
        }
    }

    /// A line with its end; of one that is too long the beginning, and false.
    fn read(&mut self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        (&mut self.reader).take(LONGEST + 1).read_until(b'\n', bytes)?;
        self.sum = fingerprint([&self.sum.to_le_bytes()[..], bytes]);
        if bytes.len() as u64 <= LONGEST || bytes.ends_with(b"\n") {
            return Ok(true);
        }
        loop {
            let more = self.reader.fill_buf()?;
            let end = more.iter().position(|&b| b == b'\n').map(|at| at + 1);
            let n = end.unwrap_or(more.len());
            self.sum = fingerprint([&self.sum.to_le_bytes()[..], &more[..n]]);
            self.reader.consume(n);
            if end.is_some() || n == 0 {
                return Ok(false);
            }
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checksum of what was read.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn lines_have_their_numbers_and_blank_ones_are_passed_over() {
        let file = file(b"\xef\xbb\xbfa\n\n  \r\nb\r\n\xff\nlast");
        let mut inputs = Inputs::open(file.path()).unwrap();
        let mut all = Vec::new();
        while let Some(line) = inputs.next().unwrap() {
            all.push((line.number, line.bytes.unwrap()));
        }
        let want: [(u64, &[u8]); 4] = [(1, b"a"), (4, b"b"), (5, b"\xff"), (6, b"last")];
        assert_eq!(all, want.map(|(n, text)| (n, text.to_vec())));
        assert_eq!(survey(file.path()).unwrap(), Survey { lines: 4, sum: inputs.sum() });
    }

    #[test]
    fn a_line_without_end_is_named_and_the_next_one_is_read() {
        let mut bytes = vec![b'x'; LONGEST as usize + 70_000];
        bytes.extend(b"\nnext\n");
        let long = file(&bytes);
        let mut inputs = Inputs::open(long.path()).unwrap();
        let (first, second) = (inputs.next().unwrap().unwrap(), inputs.next().unwrap().unwrap());
        assert!(first.number == 1 && first.bytes.unwrap_err().contains("at most"));
        assert_eq!((second.number, second.bytes.unwrap()), (2, b"next".to_vec()));
        assert!(inputs.next().unwrap().is_none());
        let sum = inputs.sum();
        bytes[LONGEST as usize + 60_000] = b'y';
        assert_ne!(survey(file(&bytes).path()).unwrap().sum, sum, "what was passed over counts as well");
    }
}
