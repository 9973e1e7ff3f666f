//! Room for what templates nest. Reading an expression, and dropping a value, recurse as deep as a template nests them, which is its
//! author's choice; the text's length and the fuel bound it, and the stack has to be as large as these bounds.

use super::TemplateError;
use std::thread;

/// Bytes. Only what is used of it is ever taken from the system.
const SIZE: usize = 1 << 29;

/// Runs `work` where there is room, and waits for it.
///
/// # Errors
/// If the system gives no thread, or `work` panics.
pub(super) fn large<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("pi-template".into()).stack_size(SIZE).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| TemplateError::Refused(format!("there is no thread to write it: {e}")))?;
        thread.join().map_err(|_| TemplateError::Refused("writing it failed".into()))
    })
}
