//! Ctrl-C: the first ends the text and lets the summary be written, the second ends the process.

use crate::failure::{Failure, Result};
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// Exit code of an interrupted command: 128 and the number of SIGINT.
pub const INTERRUPTED: u8 = 130;

/// No text yet: there is nothing to finish, and Ctrl-C ends the process.
const IDLE: u8 = 0;
/// Text is being written.
const WRITING: u8 = 1;
/// Ctrl-C came while it was.
const ASKED: u8 = 2;

/// Where the command is, shared with the handler.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Takes Ctrl-C over from the system.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn watch() -> Result<Self> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let seen = state.clone();
        ctrlc::set_handler(move || {
            if seen.compare_exchange(WRITING, ASKED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                std::process::exit(INTERRUPTED.into());
            }
        })
        .map_err(|e| Failure::Work(format!("cannot watch for Ctrl-C: {e}")))?;
        Ok(Self(state))
    }

    /// From now on there is text to finish. True if Ctrl-C came since this was first called.
    pub fn writing(&self) -> bool {
        let _ = self.0.compare_exchange(IDLE, WRITING, Ordering::SeqCst, Ordering::SeqCst);
        self.0.load(Ordering::SeqCst) == ASKED
    }
}
