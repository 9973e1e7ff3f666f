//! Ctrl-C: the first ends the text and lets the summary be written, the second ends the process.

use crate::failure::{Failure, Result};
use std::sync::{
    Mutex, PoisonError,
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

/// Where the command is, shared with the handler: there is one of each in a process.
static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// A process whose Ctrl-C is taken over from the system.
#[derive(Clone, Copy)]
pub struct Interrupt(());

impl Interrupt {
    /// Takes Ctrl-C over from the system, the first time it is called.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn watch() -> Result<Self> {
        static WATCHED: Mutex<bool> = Mutex::new(false);
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        if !*watched {
            let asked = || {
                if change(WRITING, ASKED).is_err() {
                    std::process::exit(INTERRUPTED.into());
                }
            };
            ctrlc::set_handler(asked).map_err(|e| Failure::Work(format!("cannot watch for Ctrl-C: {e}")))?;
            *watched = true;
        }
        Ok(Self(()))
    }

    /// From now on there is text to finish. True if Ctrl-C came since this was first called.
    pub fn writing(&self) -> bool {
        let _ = change(IDLE, WRITING);
        STATE.load(Ordering::SeqCst) == ASKED
    }

    /// There is nothing to finish any more: Ctrl-C ends the process again.
    pub fn idle(&self) {
        STATE.store(IDLE, Ordering::SeqCst);
    }

    /// Runs something short that leaves nothing behind only if it comes to its end: Ctrl-C ends the process after it.
    pub fn after<T>(&self, short: impl FnOnce() -> T) -> T {
        let begun = change(IDLE, WRITING).is_ok();
        let done = short();
        if begun && change(WRITING, IDLE).is_err() {
            std::process::exit(INTERRUPTED.into());
        }
        done
    }
}

fn change(from: u8, to: u8) -> Result<u8, u8> {
    STATE.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
}
