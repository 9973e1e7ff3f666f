//! What was measured once and is kept for later runs: JSON files in the user's cache folder, each a list of entries. Whatever is wrong
//! with one costs speed at most, so it is said and passed over.

use crate::{machine, output::say};
use pi_engine::pi_sparse_cpu::Isa;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The variable that names another folder than the user's cache folder.
const VARIABLE: &str = "PI_CACHE_DIR";
/// A file larger than this is none of ours.
pub const MOST: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Contents<E> {
    version: u32,
    entries: Vec<E>,
}

/// What a measurement holds for. Kernels change with the program, so its version counts too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub program: String,
    pub cpu: String,
    pub isa: String,
    pub threads: usize,
}

impl Key {
    /// This machine and program, with these kernels and threads.
    pub fn here(isa: Isa, threads: usize) -> Self {
        let (program, cpu) = (env!("CARGO_PKG_VERSION").into(), machine::cpu_name());
        Self { program, cpu, isa: isa.to_string(), threads }
    }
}

/// The folder, whether it exists or not. `None` if the system has none.
pub fn folder() -> Option<PathBuf> {
    let given = env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    given.or_else(|| Some(dirs::cache_dir()?.join("pi")))
}

/// What `find` makes of a file; nothing, and that is said, if the file is damaged.
pub fn look<T>(path: &Path, find: impl FnOnce(&Path) -> Result<Option<T>, String>) -> Option<T> {
    find(path).unwrap_or_else(|why| {
        let path = path.display();
        say(&format!("note: {path} is ignored: {why} (`pi doctor` writes it anew)"));
        None
    })
}

/// The entries of a file of this version; `None` without a file.
///
/// # Errors
/// What is wrong with it.
pub fn read<E: DeserializeOwned>(path: &Path, expected: u32) -> Result<Option<Vec<E>>, String> {
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
        Ok(data) if !data.is_file() => return Err("it is no regular file".into()),
        Ok(data) if data.len() > MOST => return Err(format!("it has {} bytes", data.len())),
        Ok(_) => {}
    }
    let bytes = fs::read(path).map_err(|e| e.to_string())?;
    // The version first: a later one may have other fields.
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    if version != expected {
        return Err(format!("it is of version {version}, not {expected}"));
    }
    serde_json::from_slice(&bytes).map(|c: Contents<E>| Some(c.entries)).map_err(|e| e.to_string())
}

/// Puts an entry into a file, in the place of those that are `replaced`. A damaged file is written anew.
///
/// # Errors
/// If it cannot be written.
pub fn put<E: Serialize + DeserializeOwned>(
    path: &Path,
    version: u32,
    entry: E,
    replaced: impl Fn(&E) -> bool,
) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut entries = read(path, version).ok().flatten().unwrap_or_default();
    entries.retain(|e| !replaced(e));
    entries.push(entry);
    // Readers see the old file or the new one, never a part.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, &Contents { version, entries })?;
    file.write_all(b"\n")?;
    file.persist(path).map(drop).map_err(|e| e.error)
}
