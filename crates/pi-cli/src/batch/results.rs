//! The output in the input's order, and beside it what was ready too early.
//!
//! An answer whose turn it is goes to the output at once. One that is ready before an earlier one goes to `OUTPUT.partial` and is
//! copied when its turn comes, so that neither memory nor a sudden end costs what was computed. That file begins with the
//! settings of the run, and is removed when all is there.

use super::{input::Inputs, settings::Settings};
use crate::failure::{Failure, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// The form of the file beside the output.
const VERSION: u64 = 1;
/// Bytes that are of no use any more in the file beside the output before it is written anew.
const WASTE: u64 = 1 << 20;

/// The two files of a run.
pub struct Results {
    out: File,
    path: PathBuf,
    beside: Beside,
    /// Lines that were begun and are not in the output, in order.
    due: VecDeque<u64>,
    /// Lines in the output.
    written: u64,
}

/// `OUTPUT.partial`.
struct Beside {
    path: PathBuf,
    file: File,
    header: Vec<u8>,
    /// Where the answers that wait for their turn are in the file: place and length.
    waiting: BTreeMap<u64, (u64, u64)>,
    end: u64,
    waste: u64,
}

/// What is read of a line of either file.
#[derive(Deserialize)]
struct Numbered {
    line: u64,
}

impl Results {
    /// Begins an output, or goes on with one that was interrupted: `inputs` then stands behind the lines that are in it.
    ///
    /// # Errors
    /// If the output is there and none of an interrupted run, or one of a run with other settings; if somebody else is
    /// writing it; if files cannot be read or written.
    pub fn open(path: &Path, settings: &Settings, overwrite: bool, inputs: &mut Inputs) -> Result<Self> {
        let beside = beside(path);
        let shown = path.display();
        let begun = beside.exists() && !overwrite;
        if path.exists() && !begun && !overwrite {
            let message =
                format!("{shown}: exists, and is not the output of an interrupted run (--overwrite replaces it)");
            return Err(Failure::Work(message));
        }
        let failed = |e: io::Error| Failure::Work(format!("{shown}: cannot write: {e}"));
        let out = exclusive(path)?;
        let mut results = match begun {
            true => {
                let beside = Beside::open(&beside, settings)?;
                Self { out, path: path.into(), beside, due: VecDeque::new(), written: 0 }
            }
            false => {
                // in this order, so that an output without its settings beside it is never taken for another's
                out.set_len(0).map_err(failed)?;
                let beside = Beside::create(&beside, settings)?;
                Self { out, path: path.into(), beside, due: VecDeque::new(), written: 0 }
            }
        };
        results.catch_up(inputs)?;
        Ok(results)
    }

    /// Reads as many lines of the input as there are answers in the output; a last answer that is torn is dropped.
    fn catch_up(&mut self, inputs: &mut Inputs) -> Result<()> {
        let failed = |e: io::Error| Failure::Work(format!("{}: {e}", self.path.display()));
        let (mut good, mut answer) = (0, Vec::new());
        let mut reader = BufReader::new(self.out.try_clone().map_err(failed)?);
        loop {
            answer.clear();
            let n = reader.read_until(b'\n', &mut answer).map_err(failed)?;
            if !answer.ends_with(b"\n") {
                break;
            }
            let damaged = |why: &str| {
                let (path, at) = (self.path.display(), self.written + 1);
                Failure::Work(format!(
                    "{path}: line {at}: {why}: it was changed, and cannot be gone on with (--overwrite begins anew)"
                ))
            };
            let Numbered { line } = serde_json::from_slice(&answer).map_err(|e| damaged(&e.to_string()))?;
            match inputs.next()? {
                Some(input) if input.number == line => {}
                Some(input) => {
                    return Err(damaged(&format!("expected the answer to line {}, got that to {line}", input.number)));
                }
                None => return Err(damaged("there is no such line of the input")),
            }
            good += n as u64;
            self.written += 1;
            self.beside.forget(line);
        }
        self.out.set_len(good).map_err(failed)?;
        self.out.seek(SeekFrom::Start(good)).map_err(failed)?;
        Ok(())
    }

    /// Lines that are answered: in the output, or waiting for their turn.
    pub fn ready(&self) -> u64 {
        self.written + self.beside.waiting.len() as u64
    }

    /// Lines that were begun and are not in the output.
    pub fn due(&self) -> usize {
        self.due.len()
    }

    /// A line has its turn behind all earlier ones. True if its answer is there already.
    ///
    /// # Errors
    /// If files cannot be written.
    pub fn begin(&mut self, line: u64) -> Result<bool> {
        self.due.push_back(line);
        let there = self.beside.waiting.contains_key(&line);
        if there {
            self.advance()?;
        }
        Ok(there)
    }

    /// The answer to a line that was begun. It is in a file when this returns.
    ///
    /// # Errors
    /// If files cannot be written.
    pub fn put(&mut self, line: u64, answer: &Value) -> Result<()> {
        let mut text = answer.to_string().into_bytes();
        text.push(b'\n');
        if self.due.front() != Some(&line) {
            return self.beside.put(line, &text);
        }
        self.write(&text)?;
        self.due.pop_front();
        self.advance()
    }

    /// Copies the answers whose turn has come.
    fn advance(&mut self) -> Result<()> {
        while let Some(&line) = self.due.front() {
            let Some(text) = self.beside.get(line)? else { break };
            self.write(&text)?;
            self.beside.forget(line);
            self.due.pop_front();
        }
        if self.beside.waste > WASTE.max(self.beside.end / 2) {
            // what is forgotten there must be safe here
            self.out.sync_data().map_err(|e| self.failed(&e))?;
            self.beside.rewrite()?;
        }
        Ok(())
    }

    fn write(&mut self, text: &[u8]) -> Result<()> {
        self.out.write_all(text).map_err(|e| self.failed(&e))?;
        self.written += 1;
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::Work(format!("{}: cannot write: {error}", self.path.display()))
    }

    /// Everything is in the output.
    ///
    /// # Errors
    /// If files cannot be written.
    pub fn finish(self) -> Result<()> {
        self.out.sync_all().map_err(|e| self.failed(&e))?;
        let Beside { path, file, .. } = self.beside;
        drop(file);
        fs::remove_file(&path).map_err(|e| Failure::Work(format!("{}: cannot remove: {e}", path.display())))
    }
}

/// A file that nobody else writes and others may read meanwhile.
fn exclusive(path: &Path) -> Result<File> {
    let shown = path.display();
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    // a lock would keep readers out there
    #[cfg(windows)]
    std::os::windows::fs::OpenOptionsExt::share_mode(&mut how, 1);
    let out = how.open(path).map_err(|e| Failure::Work(format!("{shown}: cannot write: {e}")))?;
    // an error is that of a file system without locks
    match cfg!(not(windows)) && matches!(out.try_lock(), Err(TryLockError::WouldBlock)) {
        true => Err(Failure::Work(format!("{shown}: another process is writing it"))),
        false => Ok(out),
    }
}

/// The path of the file beside an output.
pub fn beside(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

impl Beside {
    fn create(path: &Path, settings: &Settings) -> Result<Self> {
        let header = format!("{}\n", json!({"version": VERSION, "settings": settings.json()})).into_bytes();
        let mut new =
            Self { path: path.into(), file: temporary(path)?, header, waiting: BTreeMap::new(), end: 0, waste: 0 };
        new.rewrite()?;
        Ok(new)
    }

    fn open(path: &Path, settings: &Settings) -> Result<Self> {
        let failed = |e: io::Error| Failure::Work(format!("{}: {e}", path.display()));
        let wrong = |why: &str| Failure::Work(format!("{}: {why} (--overwrite begins anew)", path.display()));
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let mut reader = BufReader::new(file.try_clone().map_err(failed)?);
        let mut header = Vec::new();
        reader.read_until(b'\n', &mut header).map_err(failed)?;
        let about: Value = serde_json::from_slice(&header).map_err(|e| wrong(&format!("damaged: {e}")))?;
        if about["version"] != VERSION {
            return Err(wrong("of another version of this program"));
        }
        if let Some(difference) = settings.difference(&about["settings"]) {
            return Err(wrong(&format!("cannot go on: {difference}")));
        }
        let (mut waiting, mut end, mut answer) = (BTreeMap::new(), header.len() as u64, Vec::new());
        loop {
            answer.clear();
            let n = reader.read_until(b'\n', &mut answer).map_err(failed)? as u64;
            if !answer.ends_with(b"\n") {
                break;
            }
            let Numbered { line } = serde_json::from_slice(&answer).map_err(|e| wrong(&format!("damaged: {e}")))?;
            waiting.insert(line, (end, n));
            end += n;
        }
        file.set_len(end).map_err(failed)?;
        Ok(Self { path: path.into(), file, header, waiting, end, waste: 0 })
    }

    fn put(&mut self, line: u64, text: &[u8]) -> Result<()> {
        let written = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.write_all(text));
        written.map_err(|e| self.failed(&e))?;
        self.waiting.insert(line, (self.end, text.len() as u64));
        self.end += text.len() as u64;
        Ok(())
    }

    fn get(&mut self, line: u64) -> Result<Option<Vec<u8>>> {
        let Some(&(at, len)) = self.waiting.get(&line) else { return Ok(None) };
        let mut text = vec![0; len as usize];
        let read = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.read_exact(&mut text));
        read.map_err(|e| self.failed(&e))?;
        Ok(Some(text))
    }

    fn forget(&mut self, line: u64) {
        self.waste += self.waiting.remove(&line).map_or(0, |(_, len)| len);
    }

    /// Writes the file anew, with what is still of use.
    fn rewrite(&mut self) -> Result<()> {
        let mut new = temporary(&self.path)?;
        let (mut waiting, mut end) = (BTreeMap::new(), self.header.len() as u64);
        new.write_all(&self.header).map_err(|e| self.failed(&e))?;
        for line in self.waiting.keys().copied().collect::<Vec<_>>() {
            let text = self.get(line)?.unwrap_or_default();
            new.write_all(&text).map_err(|e| self.failed(&e))?;
            waiting.insert(line, (end, text.len() as u64));
            end += text.len() as u64;
        }
        new.sync_data().and_then(|()| fs::rename(new_path(&self.path), &self.path)).map_err(|e| self.failed(&e))?;
        (self.file, self.waiting, self.end, self.waste) = (new, waiting, end, 0);
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::Work(format!("{}: {error}", self.path.display()))
    }
}

fn new_path(path: &Path) -> PathBuf {
    path.with_extension("partial.new")
}

fn temporary(path: &Path) -> Result<File> {
    let new = new_path(path);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new);
    file.map_err(|e| Failure::Work(format!("{}: cannot write: {e}", new.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An input of five lines and a blank one, settings, and a place for the output.
    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("in"), "1\n2\n\n4\n5\n6\n").unwrap();
            Self { folder }
        }

        fn out(&self) -> PathBuf {
            self.folder.path().join("out.jsonl")
        }

        fn open(&self, setting: &str) -> Result<(Results, Inputs)> {
            let mut inputs = Inputs::open(&self.folder.path().join("in"))?;
            let results = Results::open(&self.out(), &Settings::of(setting), false, &mut inputs)?;
            Ok((results, inputs))
        }

        fn lines(&self) -> Vec<u64> {
            let text = fs::read_to_string(self.out()).unwrap();
            text.lines().map(|l| serde_json::from_str::<Numbered>(l).unwrap().line).collect()
        }
    }

    fn answer(line: u64) -> Value {
        json!({"line": line, "text": "é".repeat(line as usize)})
    }

    fn why<T>(result: Result<T>) -> String {
        match result {
            Err(Failure::Work(message)) => message,
            _ => panic!("refused"),
        }
    }

    #[test]
    fn the_output_has_the_inputs_order_whatever_is_ready_first() {
        let place = Place::new();
        let (mut results, _) = place.open("a").unwrap();
        for line in [1, 2, 4, 5, 6] {
            assert!(!results.begin(line).unwrap());
        }
        for (line, want) in [(4, vec![]), (2, vec![]), (1, vec![1, 2, 4]), (6, vec![1, 2, 4])] {
            results.put(line, &answer(line)).unwrap();
            assert_eq!(place.lines(), want);
        }
        assert_eq!((results.ready(), results.due()), (4, 2));
        results.put(5, &answer(5)).unwrap();
        results.finish().unwrap();
        assert_eq!(place.lines(), [1, 2, 4, 5, 6]);
        assert!(!beside(&place.out()).exists());
        assert!(why(place.open("a")).contains("--overwrite"), "a whole output is not touched");
    }

    #[test]
    fn torn_ends_are_dropped_and_everything_else_is_kept() {
        let place = Place::new();
        let (mut results, _) = place.open("a").unwrap();
        for line in [1, 2, 4, 5, 6] {
            results.begin(line).unwrap();
        }
        [1, 4, 6].into_iter().for_each(|line| results.put(line, &answer(line)).unwrap());
        drop(results);
        for path in [place.out(), beside(&place.out())] {
            let mut bytes = fs::read(&path).unwrap();
            bytes.extend(b"{\"line\":2,\"te");
            fs::write(&path, bytes).unwrap();
        }
        let (mut results, mut inputs) = place.open("a").unwrap();
        assert_eq!(results.ready(), 3);
        assert_eq!(inputs.next().unwrap().unwrap().number, 2, "the input stands behind what is in the output");
        assert!(!results.begin(2).unwrap() && results.begin(4).unwrap() && !results.begin(5).unwrap());
        results.put(2, &answer(2)).unwrap();
        assert_eq!(place.lines(), [1, 2, 4]);
        results.put(5, &answer(5)).unwrap();
        assert!(results.begin(6).unwrap());
        assert_eq!(place.lines(), [1, 2, 4, 5, 6]);
    }

    #[test]
    fn a_run_with_other_settings_or_a_changed_output_is_not_gone_on_with() {
        let place = Place::new();
        let (mut results, _) = place.open("a").unwrap();
        assert!(why(place.open("a")).contains("another process"));
        results.begin(1).unwrap();
        results.put(1, &answer(1)).unwrap();
        drop(results);
        assert!(why(place.open("b")).contains("setting changed (then a, now b)"));
        for wrong in ["{\"line\":2}\n", "{}\n", "x\n"] {
            fs::write(place.out(), wrong).unwrap();
            assert!(why(place.open("a")).contains("line 1: "));
        }
        fs::write(beside(&place.out()), "x").unwrap();
        assert!(why(place.open("a")).contains("damaged"));
    }

    #[test]
    fn the_file_beside_the_output_does_not_grow_with_the_number_of_lines() {
        let folder = tempfile::tempdir().unwrap();
        let (input, out) = (folder.path().join("in"), folder.path().join("out"));
        fs::write(&input, "x\n".repeat(400)).unwrap();
        let mut inputs = Inputs::open(&input).unwrap();
        let mut results = Results::open(&out, &Settings::of("a"), false, &mut inputs).unwrap();
        let text = "x".repeat(50_000);
        for pair in (1..400).step_by(2) {
            results.begin(pair).unwrap();
            results.begin(pair + 1).unwrap();
            for line in [pair + 1, pair] {
                results.put(line, &json!({"line": line, "text": text})).unwrap();
            }
        }
        assert!(fs::metadata(beside(&out)).unwrap().len() < 2 * WASTE);
        assert_eq!((results.ready(), fs::read_to_string(&out).unwrap().lines().count()), (400, 400));
    }
}
