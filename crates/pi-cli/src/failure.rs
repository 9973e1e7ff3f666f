//! Why a command could not do its work, and the exit code that says so.

use crate::output::say;
use pi_engine::Error;
use std::{io, path::Path, process::ExitCode};

/// Result of a command or a part of it.
pub type Result<T = ExitCode, E = Failure> = std::result::Result<T, E>;

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// It was called wrongly: exit code 2.
    Usage(String),
    /// It could not do its work: exit code 1.
    Work(String),
    /// Nobody reads the output any more: nothing is said, exit code 0.
    OutputClosed,
}

impl Failure {
    /// A value of an option that cannot be used.
    pub fn value(value: impl AsRef<str>, flag: &str, why: impl std::fmt::Display) -> Self {
        Self::Usage(format!("invalid value '{}' for '{flag}': {why}", value.as_ref()))
    }

    /// An error of the engine about the model at `path`. Every message says which file it is about.
    pub fn engine(error: &Error, path: &Path) -> Self {
        Self::Work(match error {
            Error::Gguf(_)
            | Error::Vocab { .. }
            | Error::Architecture { .. }
            | Error::Config { .. }
            | Error::Tensor { .. }
            | Error::Profile { .. } => error.to_string(),
            _ => format!("{}: {error}", path.display()),
        })
    }

    /// An error of the engine that is about the text `text`, if it says so, or else about the model at `path`.
    pub fn text(error: &Error, text: impl std::fmt::Display, path: &Path) -> Self {
        match error {
            Error::Text(_) | Error::Setting { name: "text" | "text to train on", .. } => {
                Self::Work(format!("{text}: {error}"))
            }
            _ => Self::engine(error, path),
        }
    }

    /// Writing to standard output failed.
    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Work(format!("cannot write to standard output: {error}")),
        }
    }

    /// Tells the user, and returns the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Self::Usage(message) => {
                say(&format!("error: {message}"));
                say("\nFor more information, try '--help'.");
                ExitCode::from(2)
            }
            Self::Work(message) => {
                say(&format!("error: {message}"));
                ExitCode::FAILURE
            }
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}
