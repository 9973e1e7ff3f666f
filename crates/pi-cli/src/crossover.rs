//! Where measured crossovers are kept: a file of the [cache], an entry per CPU, instruction set, number of threads and version of
//! this program. `pi doctor` writes it, `pi run` and `pi bench` read it.

use crate::cache::{self, Key};
use pi_engine::{
    pi_core::QuantType,
    pi_sparse_cpu::{Crossover, Isa},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

const FILE: &str = "crossover.json";
const VERSION: u32 = 1;

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

/// The file, whether it exists or not. `None` if the system has no cache folder.
pub fn path() -> Option<PathBuf> {
    Some(cache::folder()?.join(FILE))
}

/// What was measured for these kernels and threads; `None` if nothing was. What is wrong with the file is said.
pub fn stored(isa: Isa, threads: usize) -> Option<Crossover> {
    cache::look(&path()?, |path| find(path, &Key::here(isa, threads)))
}

/// Keeps what was measured, beside what was measured for others.
///
/// # Errors
/// If it cannot be written.
pub fn store(path: &Path, key: &Key, crossover: &Crossover) -> io::Result<()> {
    cache::put(path, VERSION, Entry::new(key, crossover), |e| e.key == *key)
}

fn find(path: &Path, key: &Key) -> Result<Option<Crossover>, String> {
    let entries: Vec<Entry> = cache::read(path, VERSION)?.unwrap_or_default();
    entries.iter().find(|e| e.key == *key).map(Entry::crossover).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::MOST;
    use std::fs;

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
