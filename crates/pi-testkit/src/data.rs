//! Where test data that is too large for the repository lies.

use std::{io::Write, path::PathBuf};

/// A file or folder below the folder that the environment variable `variable` names.
///
/// If the variable is not set or the path does not exist, says so loudly and returns `None`: the test is skipped. In CI
/// (`CI` is set) a skip is a failure.
///
/// # Panics
/// In CI, if there is no such path.
pub fn find(variable: &str, path: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(|root| PathBuf::from(root).join(path));
    if let Some(p) = found.as_ref().filter(|p| p.exists()) {
        return Some(p.clone());
    }
    let why = match found {
        None => format!("{variable} is not set"),
        Some(p) => format!("{} does not exist", p.display()),
    };
    assert!(std::env::var_os("CI").is_none(), "a test would be skipped, which CI does not allow: {why} (needs {path})");
    // Not `eprintln!`, which the test runner holds back for tests that pass.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why} (this test needs {path})");
    None
}

/// A path below `PI_TEST_DATA`, the folder of golden data. See [`find`].
pub fn test_data(path: &str) -> Option<PathBuf> {
    find("PI_TEST_DATA", path)
}

/// A path below `PI_TEST_MODELS`, the folder of fetched models. See [`find`].
pub fn test_model(path: &str) -> Option<PathBuf> {
    find("PI_TEST_MODELS", path)
}
