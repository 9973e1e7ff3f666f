//! Where measured crossovers are kept: a JSON file in the user's cache folder, an entry per CPU, instruction set, number of threads
//! and version of this program. `pi doctor` writes it, `pi run` and `pi bench` read it. Whatever is wrong with it costs speed
//! at most, so it is said and passed over.

use crate::{machine, output::say};
use pi_engine::{
    pi_core::QuantType,
    pi_sparse_cpu::{Crossover, Isa},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The variable that names another folder than the user's cache folder.
const VARIABLE: &str = "PI_CACHE_DIR";
const FILE: &str = "crossover.json";
const VERSION: u32 = 1;
/// A file larger than this is none of ours.
const MOST: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    entries: Vec<Entry>,
}

/// What a measurement holds for. Kernels change with the program, so its version counts too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    program: String,
    cpu: String,
    isa: String,
    threads: usize,
}

impl Key {
    /// This machine and program, with these kernels and threads.
    pub fn here(isa: Isa, threads: usize) -> Self {
        let (program, cpu) = (env!("CARGO_PKG_VERSION").into(), machine::cpu_name());
        Self { program, cpu, isa: isa.to_string(), threads }
    }
}

#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    key: Key,
    shares: BTreeMap<String, f32>,
}

impl Entry {
    fn new(key: &Key, crossover: &Crossover) -> Self {
        let shares = QuantType::ALL.iter().map(|&ty| (ty.name().to_string(), crossover.get(ty))).collect();
        Self { key: key.clone(), shares }
    }

    /// Types that are missing have the default; numbers that are no shares and names that are no types spoil the entry.
    fn crossover(&self) -> Result<Crossover, String> {
        self.shares.iter().try_fold(Crossover::default(), |c, (name, &share)| {
            let ty = QuantType::from_name(name).ok_or_else(|| format!("unknown type '{name}'"))?;
            let valid = (0.0..=1.0).contains(&share);
            if valid { Ok(c.with(ty, share)) } else { Err(format!("{name}: {share} is not a share")) }
        })
    }
}

/// The folder of what is kept between runs, whether it exists or not. `None` if the system has none.
pub fn folder() -> Option<PathBuf> {
    let given = env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    given.or_else(|| Some(dirs::cache_dir()?.join("pi")))
}

/// The file, whether it exists or not. `None` if the system has no cache folder.
pub fn path() -> Option<PathBuf> {
    folder().map(|folder| folder.join(FILE))
}

/// What was measured for these kernels and threads; `None` if nothing was. What is wrong with the file is said.
pub fn stored(isa: Isa, threads: usize) -> Option<Crossover> {
    let path = path()?;
    find(&path, &Key::here(isa, threads)).unwrap_or_else(|why| {
        let path = path.display();
        say(&format!("note: {path} is ignored: {why} (`pi doctor` writes it anew)"));
        None
    })
}

/// Keeps what was measured, beside what was measured for others.
///
/// # Errors
/// If it cannot be written.
pub fn store(path: &Path, key: &Key, crossover: &Crossover) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut entries = read(path).ok().flatten().unwrap_or_default();
    entries.retain(|e| e.key != *key);
    entries.push(Entry::new(key, crossover));
    // Readers see the old file or the new one, never a part.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, &Contents { version: VERSION, entries })?;
    file.write_all(b"\n")?;
    file.persist(path).map(drop).map_err(|e| e.error)
}

fn find(path: &Path, key: &Key) -> Result<Option<Crossover>, String> {
    let entries = read(path)?.unwrap_or_default();
    entries.iter().find(|e| e.key == *key).map(Entry::crossover).transpose()
}

/// The entries; `None` without a file.
fn read(path: &Path) -> Result<Option<Vec<Entry>>, String> {
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
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
    if version != VERSION {
        return Err(format!("it is of version {version}, not {VERSION}"));
    }
    serde_json::from_slice(&bytes).map(|c: Contents| Some(c.entries)).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(threads: usize) -> Key {
        Key::here(Isa::Reference, threads)
    }

    #[test]
    fn what_is_stored_is_found_again_under_its_own_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er").join(FILE);
        assert_eq!(find(&path, &key(1)), Ok(None));
        let (one, two) = (Crossover::uniform(0.25).with(QuantType::Q4_0, 1.0), Crossover::uniform(0.5));
        store(&path, &key(1), &Crossover::default()).unwrap();
        store(&path, &key(2), &two).unwrap();
        store(&path, &key(1), &one).unwrap();
        assert_eq!(find(&path, &key(1)), Ok(Some(one)));
        assert_eq!(find(&path, &key(2)), Ok(Some(two)));
        assert_eq!(find(&path, &key(3)), Ok(None));
        let other = Key { program: "0".into(), ..key(1) };
        assert_eq!(find(&path, &other), Ok(None));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn a_damaged_or_foreign_file_is_an_error_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let good = |shares: &str| {
            let key = serde_json::to_string(&key(1)).unwrap();
            format!("{{\"version\": 1, \"entries\": [{},\"shares\":{shares}}}]}}", key.strip_suffix('}').unwrap())
        };
        for bad in [
            "".into(),
            "not json".into(),
            "[]".into(),
            "{\"version\": 2}".into(),
            "{\"version\": 1}".into(),
            good("{\"Q4_0\": 1.5}"),
            good("{\"Q4_0\": null}"),
            good("{\"Q9_9\": 0.5}"),
            good("[]"),
            " ".repeat(MOST as usize + 1),
        ] {
            fs::write(&path, &bad).unwrap();
            assert!(find(&path, &key(1)).is_err(), "{bad:.100}");
        }
        fs::write(&path, good("{\"Q4_0\": 0.5}")).unwrap();
        assert_eq!(find(&path, &key(1)), Ok(Some(Crossover::default().with(QuantType::Q4_0, 0.5))));
        fs::write(&path, "not json").unwrap();
        store(&path, &key(1), &Crossover::uniform(0.75)).unwrap();
        assert_eq!(find(&path, &key(1)), Ok(Some(Crossover::uniform(0.75))));
    }
}
