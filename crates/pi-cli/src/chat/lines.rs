//! What the user types.

use crate::{
    failure::{Failure, Result},
    output::say,
};
use rustyline::{DefaultEditor, error::ReadlineError};
use std::{
    io::{self, BufRead, IsTerminal},
    path::{Path, PathBuf},
};

/// Most bytes of one message.
const LONGEST: usize = 1 << 22;

/// What came.
pub enum Line {
    /// A message or command.
    Text(String),
    /// An empty line, or one that was taken back with Ctrl-C.
    Nothing,
    /// No more will come.
    End,
}

/// Lines with editing and history from a terminal, as they are from anything else. A line that ends with a backslash goes on in the next.
pub struct Lines {
    editor: Option<DefaultEditor>,
    history: Option<PathBuf>,
}

impl Lines {
    /// Standard input.
    ///
    /// # Errors
    /// If the terminal cannot be used, or the history not be read.
    pub fn new(history: Option<&Path>) -> Result<Self> {
        let failed = |e: ReadlineError| Failure::Work(format!("cannot use the terminal: {e}"));
        let mut editor = match io::stdin().is_terminal() && io::stderr().is_terminal() {
            true => Some(DefaultEditor::new().map_err(failed)?),
            false => None,
        };
        if let (Some(editor), Some(path)) = (&mut editor, history)
            && path.exists()
        {
            let wrong = |e| Failure::Work(format!("{}: cannot be read as a history: {e}", path.display()));
            editor.load_history(path).map_err(wrong)?;
        }
        Ok(Self { editor, history: history.map(Path::to_path_buf) })
    }

    /// The next message.
    ///
    /// # Errors
    /// If standard input fails.
    pub fn next(&mut self) -> Result<Line> {
        let mut text = String::new();
        loop {
            let Some(line) = self.line(if text.is_empty() { "> " } else { "… " })? else {
                return Ok(if text.is_empty() { Line::End } else { Line::Text(text) });
            };
            let Some(line) = line else { return Ok(Line::Nothing) };
            if text.len() + line.len() > LONGEST {
                say(&format!("a message of more than {LONGEST} bytes is not taken"));
                return Ok(Line::Nothing);
            }
            match line.strip_suffix('\\') {
                Some(line) => text.extend([line, "\n"]),
                None => {
                    text.push_str(&line);
                    break;
                }
            }
        }
        if text.trim().is_empty() {
            return Ok(Line::Nothing);
        }
        if let Some(editor) = &mut self.editor {
            let _ = editor.add_history_entry(&text); // it is only for convenience
        }
        Ok(Line::Text(text))
    }

    /// A line; `Some(None)` if it was taken back, `None` at the end.
    fn line(&mut self, prompt: &str) -> Result<Option<Option<String>>> {
        let failed = |e: &dyn std::fmt::Display| Failure::Work(format!("cannot read standard input: {e}"));
        match &mut self.editor {
            Some(editor) => match editor.readline(prompt) {
                Ok(line) => Ok(Some(Some(line))),
                Err(ReadlineError::Interrupted) => Ok(Some(None)),
                Err(ReadlineError::Eof) => Ok(None),
                Err(e) => Err(failed(&e)),
            },
            None => {
                let (mut input, mut bytes) = (io::stdin().lock(), Vec::new());
                let limit = LONGEST as u64 + 1;
                if io::Read::take(&mut input, limit).read_until(b'\n', &mut bytes).map_err(|e| failed(&e))? == 0 {
                    return Ok(None);
                }
                if bytes.len() > LONGEST && bytes.last() != Some(&b'\n') {
                    // the rest of it is no message of its own
                    input.skip_until(b'\n').map_err(|e| failed(&e))?;
                    say(&format!("a message of more than {LONGEST} bytes is not taken"));
                    return Ok(Some(None));
                }
                let Ok(line) = String::from_utf8(bytes) else {
                    say("a message that is not UTF-8 is not taken");
                    return Ok(Some(None));
                };
                let line = line.strip_suffix('\n').unwrap_or(&line);
                Ok(Some(Some(line.strip_suffix('\r').unwrap_or(line).to_string())))
            }
        }
    }

    /// Keeps the history, if that was asked for.
    pub fn keep(&mut self) {
        if let (Some(editor), Some(path)) = (&mut self.editor, &self.history)
            && let Err(e) = editor.save_history(path)
        {
            say(&format!("{}: the history is not kept: {e}", path.display()));
        }
    }
}
