//! The figures that plans are made of: measured by `pi doctor` ([measure]), kept in a file of the [cache], read by whoever plans.

pub mod measure;

use crate::cache::{self, Key};
use measure::Link;
use pi_engine::{
    costs::{Costs, Figure, Origin, SideCosts},
    pi_core::QuantType,
    pi_sparse_cpu::Isa,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

const FILE: &str = "costs.json";
const VERSION: u32 = 1;

/// The name of the simulated accelerator, whatever its memory.
pub const SIMULATED: &str = "simulated";

/// What was measured of one side. What was not is null or left out.
#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    key: Key,
    /// The accelerator; null for the CPU.
    device: Option<String>,
    bytes_per_second: Option<f64>,
    neuron_bytes_per_second: BTreeMap<String, f64>,
    /// Multiply-adds of long prompts.
    prompt_per_second: Option<f64>,
    link_bytes_per_second: Option<f64>,
    sync_seconds: Option<f64>,
}

impl Entry {
    fn new(key: &Key, device: Option<&str>, side: &SideCosts, link: Option<Link>) -> Self {
        let measured = |f: Figure| (f.origin == Origin::Measured).then_some(f.value);
        let neurons = side.neurons.iter().filter_map(|(ty, f)| Some((ty.name().to_string(), measured(*f)?)));
        Self {
            key: key.clone(),
            device: device.map(Into::into),
            bytes_per_second: measured(side.bandwidth),
            neuron_bytes_per_second: neurons.collect(),
            prompt_per_second: measured(side.prompt),
            link_bytes_per_second: link.map(|l| l.bandwidth),
            sync_seconds: link.map(|l| l.sync),
        }
    }

    /// Takes the figures that it lacks.
    fn keep(&mut self, before: Self) {
        self.bytes_per_second = self.bytes_per_second.or(before.bytes_per_second);
        for (ty, value) in before.neuron_bytes_per_second {
            self.neuron_bytes_per_second.entry(ty).or_insert(value);
        }
        self.prompt_per_second = self.prompt_per_second.or(before.prompt_per_second);
        self.link_bytes_per_second = self.link_bytes_per_second.or(before.link_bytes_per_second);
        self.sync_seconds = self.sync_seconds.or(before.sync_seconds);
    }

    /// Puts its figures in the place of those of `side`.
    fn fill(&self, side: &mut SideCosts) -> Result<(), String> {
        if let Some(value) = self.bytes_per_second {
            side.bandwidth = figure("bytes_per_second", value)?;
        }
        if let Some(value) = self.prompt_per_second {
            side.prompt = figure("prompt_per_second", value)?;
        }
        for (name, &value) in &self.neuron_bytes_per_second {
            let ty = QuantType::from_name(name).ok_or_else(|| format!("unknown type '{name}'"))?;
            side.neurons.insert(ty, figure(name, value)?);
        }
        Ok(())
    }
}

/// Of a damaged file, figures may be anything.
fn figure(name: &str, value: f64) -> Result<Figure, String> {
    // seconds of a wait, and what is done in a second: no machine is outside
    let valid = (1e-12..=1e18).contains(&value);
    if valid { Ok(Figure::measured(value)) } else { Err(format!("{name}: {value} is no figure of a machine")) }
}

/// The file, whether it exists or not. `None` if the system has no cache folder.
pub fn path() -> Option<PathBuf> {
    Some(cache::folder()?.join(FILE))
}

/// What was measured for these kernels and threads, and for the accelerator of this name; what was not is the default, and each figure says which it
/// is. A damaged file is as good as none, and that is said.
pub fn stored(isa: Isa, threads: usize, device: Option<&str>) -> Costs {
    let found =
        path().and_then(|path| cache::look(&path, |path| find(path, &Key::here(isa, threads), device).map(Some)));
    found.unwrap_or_default()
}

/// Keeps what was measured of one side, beside what was measured of others: of the CPU, or with its link of an accelerator. What
/// there was no time for this time stays as it was measured earlier.
///
/// # Errors
/// If it cannot be written.
pub fn store(path: &Path, key: &Key, device: Option<&str>, side: &SideCosts, link: Option<Link>) -> io::Result<()> {
    let mut entry = Entry::new(key, device, side, link);
    let same = |e: &Entry| e.key == *key && e.device.as_deref() == device;
    // a damaged file has nothing to stay
    let before: Vec<Entry> = cache::read(path, VERSION).ok().flatten().unwrap_or_default();
    if let Some(before) = before.into_iter().find(same) {
        entry.keep(before);
    }
    cache::put(path, VERSION, entry, same)
}

/// Whether there are figures of the CPU, or of an accelerator.
pub fn has(path: &Path, key: &Key, device: Option<&str>) -> bool {
    let entries: Vec<Entry> = cache::read(path, VERSION).ok().flatten().unwrap_or_default();
    entries.iter().any(|e| e.key == *key && e.device.as_deref() == device)
}

fn find(path: &Path, key: &Key, device: Option<&str>) -> Result<Costs, String> {
    let entries: Vec<Entry> = cache::read(path, VERSION)?.unwrap_or_default();
    let of = |name: Option<String>| entries.iter().find(move |e| e.key == *key && e.device == name);
    let mut costs = Costs::default();
    if let Some(host) = of(None) {
        host.fill(&mut costs.host)?;
    }
    if let Some(entry) = device.and_then(|device| of(Some(device.into()))) {
        entry.fill(&mut costs.device)?;
        if let Some(value) = entry.link_bytes_per_second {
            costs.link = figure("link_bytes_per_second", value)?;
        }
        if let Some(value) = entry.sync_seconds {
            costs.sync = figure("sync_seconds", value)?;
        }
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::MOST;
    use std::fs;

    fn key(threads: usize) -> Key {
        Key::here(Isa::Reference, threads)
    }

    fn side(bandwidth: f64, ty: QuantType, neurons: f64) -> SideCosts {
        SideCosts {
            bandwidth: Figure::measured(bandwidth),
            neurons: BTreeMap::from([(ty, Figure::measured(neurons)), (QuantType::F32, Figure::assumed(1.0))]),
            prompt: Figure::measured(7.0 * bandwidth),
        }
    }

    #[test]
    fn what_is_stored_of_each_side_is_found_again_and_the_rest_is_assumed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join(FILE);
        let gpu = "gpu:0 of one kind";
        assert_eq!(find(&path, &key(1), Some(gpu)), Ok(Costs::default()));
        assert!(!has(&path, &key(1), None));
        store(&path, &key(1), None, &side(1e9, QuantType::Q4_0, 5e8), None).unwrap();
        store(&path, &key(1), None, &side(2e9, QuantType::Q4_0, 6e8), None).unwrap();
        store(&path, &key(3), None, &side(1e9, QuantType::Q4_0, 5e8), None).unwrap();
        store(&path, &key(3), None, &side(2e9, QuantType::Q6_K, 4e8), None).unwrap();
        let twice = find(&path, &key(3), None).unwrap().host;
        assert_eq!(twice.bandwidth, Figure::measured(2e9));
        for (ty, value) in [(QuantType::Q4_0, 5e8), (QuantType::Q6_K, 4e8)] {
            assert_eq!(twice.neurons(ty), Figure::measured(value), "a type that was not measured again stays");
        }
        let link = Link { bandwidth: 3e9, sync: 1e-5 };
        store(&path, &key(1), Some(gpu), &side(9e9, QuantType::F16, 8e9), Some(link)).unwrap();
        assert!(has(&path, &key(1), None) && !has(&path, &key(2), None));

        let alone = find(&path, &key(1), None).unwrap();
        assert_eq!(alone.host.bandwidth, Figure::measured(2e9));
        assert_eq!(alone.host.neurons(QuantType::Q4_0), Figure::measured(6e8));
        assert_eq!(alone.host.neurons(QuantType::F32), Figure::assumed(2e9), "assumed figures are not kept");
        assert_eq!((&alone.device, alone.sync), (&Costs::default().device, Costs::default().sync));
        let both = find(&path, &key(1), Some(gpu)).unwrap();
        assert_eq!((both.link, both.sync), (Figure::measured(3e9), Figure::measured(1e-5)));
        assert_eq!((both.host.prompt, both.device.prompt), (Figure::measured(14e9), Figure::measured(63e9)));
        assert_eq!(both.device.neurons(QuantType::F16), Figure::measured(8e9));
        assert_eq!(find(&path, &key(1), Some("gpu:0 of another")).unwrap(), alone);
        assert_eq!(find(&path, &key(2), Some(gpu)), Ok(Costs::default()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn a_damaged_file_is_an_error_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        store(&path, &key(1), None, &side(1e9, QuantType::Q4_0, 5e8), None).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        let with = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}: {good}");
            good.replace(from, to)
        };
        for bad in [
            String::new(),
            "[]".into(),
            "{\"version\": 2}".into(),
            with("1000000000.0", "-1"),
            with("1000000000.0", "0"),
            with("7000000000.0", "-7"),
            with("500000000.0", "1e999"),
            with("500000000.0", "null"),
            with("Q4_0", "Q9_9"),
            " ".repeat(MOST as usize + 1),
        ] {
            fs::write(&path, &bad).unwrap();
            assert!(find(&path, &key(1), None).is_err(), "{bad:.300}");
        }
        store(&path, &key(1), None, &side(4e9, QuantType::Q4_0, 5e8), None).unwrap();
        assert_eq!(find(&path, &key(1), None).unwrap().host.bandwidth, Figure::measured(4e9));
    }
}
