//! Where the demo model is that the repository ships.

use crate::failure::{Failure, Result};
use std::{
    env,
    path::{Path, PathBuf},
};

/// The variable that names a folder to look in first.
const VARIABLE: &str = "PI_MODEL_DIR";
const FOLDER: &str = "tiny-reglu-6m";
const FILE: &str = "tiny-reglu-6m-f16.gguf";

/// The demo model: in `PI_MODEL_DIR`, or else in `models/` of the current folder or one above it, or else of the folder of
/// this program or one above that.
///
/// # Errors
/// If it is in none of them.
pub fn find() -> Result<PathBuf> {
    let given = env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    let here = env::current_dir().ok();
    let program = env::current_exe().ok();
    let real = program.as_ref().and_then(|p| p.canonicalize().ok()); // `pi` may be a link into the repository
    let above = [&here, &program, &real].into_iter().flatten().flat_map(|p| p.ancestors()).map(|p| p.join("models"));
    let folders = given.clone().into_iter().chain(above);
    folders.flat_map(|f| places(&f)).find(|p| p.is_file()).ok_or_else(|| {
        let given = given.map_or_else(
            || format!("{VARIABLE} is not set"),
            |g| format!("{VARIABLE}, which is {},", g.display()) + " does not hold it",
        );
        Failure::Work(format!(
            "no model was named, and the demo model models/{FOLDER}/{FILE} is neither in the current folder nor in one \
             above it or above this program, and {given}: name a model with -m FILE"
        ))
    })
}

/// In a folder of models, the demo model has a folder of its own, or not.
fn places(folder: &Path) -> [PathBuf; 2] {
    [folder.join(FOLDER).join(FILE), folder.join(FILE)]
}
