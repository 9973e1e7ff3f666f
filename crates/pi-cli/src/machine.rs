//! What this machine is made of, as far as it can be known.

use pi_engine::{pi_core::Executor, pi_sparse_cpu::ReadTest};
use serde::Serialize;
use std::fs;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// Size that the last cache is taken to have where it is not known.
const USUAL_CACHE: u64 = 32 << 20;
/// Bytes that are read for a figure of the memory's speed, at least.
const READ: u64 = 256 << 20;

/// A cache of the first core.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u8,
    /// `data`, `instruction` or `unified`.
    pub kind: String,
    /// Its size.
    pub bytes: u64,
}

/// The CPU's name, as exact as possible: measurements are kept under it. `unknown` if the system does not say.
pub fn cpu_name() -> String {
    let name = known_name().unwrap_or_default();
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    if name.is_empty() { "unknown".into() } else { name }
}

/// Names of virtual CPUs may leave out the model, so its numbers are added.
#[cfg(target_arch = "x86_64")]
fn known_name() -> Option<String> {
    let id = raw_cpuid::CpuId::new();
    let brand = id.get_processor_brand_string().map(|b| b.as_str().to_string()).or_else(system_name)?;
    let model = id.get_feature_info().map_or_else(String::new, |f| {
        format!(" (family {}, model {}, stepping {})", f.family_id(), f.model_id(), f.stepping_id())
    });
    Some(brand + &model)
}

#[cfg(not(target_arch = "x86_64"))]
fn known_name() -> Option<String> {
    system_name()
}

fn system_name() -> Option<String> {
    let kind = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    System::new_with_specifics(kind).cpus().first().map(|c| c.brand().to_string())
}

/// Cores that this process may use.
pub fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Cores that are there, without the second threads of each.
pub fn physical_cores() -> Option<usize> {
    System::physical_core_count()
}

/// All memory and what of it is free, in bytes: of the machine, or of the container if that may use less.
pub fn memory() -> Option<(u64, u64)> {
    let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(kind);
    let machine = Some((system.total_memory(), system.available_memory())).filter(|(total, _)| *total > 0)?;
    // What the container holds of files can be let go, so only what cannot counts as used. (The limits must not be asked for
    // where the machine's memory is not known.)
    let container = system.cgroup_limits().map(|c| (c.total_memory, c.total_memory.saturating_sub(c.rss)));
    Some(bounded(machine, container))
}

/// All and free memory of a machine within the limits of a container. A limit larger than the machine is none.
fn bounded(machine: (u64, u64), container: Option<(u64, u64)>) -> (u64, u64) {
    let (total, free) = container.map_or(machine, |c| (machine.0.min(c.0), machine.1.min(c.1)));
    (total, free.min(total))
}

/// Instruction sets of the CPU that matter for kernels.
pub fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look {
        ($detected:ident, $($name:tt)*) => { $( if std::arch::$detected!($name) { found.push($name); } )* };
    }
    #[cfg(target_arch = "x86_64")]
    look!(is_x86_feature_detected, "sse4.2" "popcnt" "avx" "f16c" "fma" "bmi2" "avx2" "avxvnni" "avx512f" "avx512bw"
        "avx512dq" "avx512vl" "avx512vnni" "avx512vbmi" "avx512vpopcntdq" "avx512bf16");
    #[cfg(target_arch = "aarch64")]
    look!(is_aarch64_feature_detected, "neon" "fp16" "dotprod" "i8mm" "bf16" "sve" "sve2");
    found
}

/// The caches of the first core, the nearest first; empty if they are not known.
pub fn caches() -> Vec<Cache> {
    let mut found = from_system();
    if found.is_empty() {
        found = from_cpu();
    }
    found.sort();
    found
}

/// Linux lists them in files.
fn from_system() -> Vec<Cache> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/cpu0/cache") else { return Vec::new() };
    let one = |folder: std::path::PathBuf| {
        let text = |name| fs::read_to_string(folder.join(name)).ok().map(|t| t.trim().to_string());
        let size = text("size")?;
        let bytes = match size.strip_suffix('K') {
            Some(k) => k.parse::<u64>().ok()?.checked_mul(1024)?,
            None => size.strip_suffix('M')?.parse::<u64>().ok()?.checked_mul(1 << 20)?,
        };
        Some(Cache { level: text("level")?.parse().ok()?, kind: text("type")?.to_lowercase(), bytes })
    };
    entries.flatten().filter_map(|e| one(e.path())).collect()
}

#[cfg(target_arch = "x86_64")]
fn from_cpu() -> Vec<Cache> {
    let id = raw_cpuid::CpuId::new();
    let Some(parameters) = id.get_cache_parameters() else { return Vec::new() };
    let kind = |t| match t {
        raw_cpuid::CacheType::Data => Some("data"),
        raw_cpuid::CacheType::Instruction => Some("instruction"),
        raw_cpuid::CacheType::Unified => Some("unified"),
        _ => None,
    };
    let one = |c: raw_cpuid::CacheParameter| {
        let lines = c.associativity() * c.physical_line_partitions() * c.sets();
        let bytes = (lines * c.coherency_line_size()) as u64;
        Some(Cache { level: c.level(), kind: kind(c.cache_type())?.into(), bytes })
    };
    parameters.filter_map(one).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn from_cpu() -> Vec<Cache> {
    Vec::new()
}

/// Size of the last cache; a usual one if it is not known.
pub fn last_cache() -> u64 {
    caches().iter().filter(|c| c.kind != "instruction").map(|c| c.bytes).max().unwrap_or(USUAL_CACHE)
}

/// Bytes that have to be read until nothing older is left in a cache.
pub fn cold() -> u64 {
    4 * last_cache()
}

/// A buffer to measure the memory's speed with: much larger than the caches, and no more than a quarter of what is free.
/// `None` if there is no memory for it.
pub fn read_test() -> Option<ReadTest> {
    let wanted = READ.max(8 * last_cache());
    let free = memory().map_or(u64::MAX, |(_, free)| free / 4);
    ReadTest::new(usize::try_from(wanted.min(free)).ok()?).ok()
}

/// Bytes per second that the threads of `exec` read from memory: the best of several passes.
pub fn read_bandwidth(test: &ReadTest, exec: &dyn Executor) -> f64 {
    test.bytes_per_second(exec, 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_may_use_less_than_the_machine_sets_the_limit() {
        let machine = (64 << 30, 40 << 30);
        assert_eq!(bounded(machine, None), machine);
        assert_eq!(bounded(machine, Some((8 << 30, 6 << 30))), (8 << 30, 6 << 30));
        // no limit, as systems write it
        assert_eq!(bounded(machine, Some((u64::MAX, u64::MAX - 1))), machine);
        // room in the container that the machine does not have, and the other way round
        assert_eq!(bounded((64 << 30, 1 << 30), Some((8 << 30, 6 << 30))), (8 << 30, 1 << 30));
        assert_eq!(bounded(machine, Some((8 << 30, 0))), (8 << 30, 0));
        assert_eq!(bounded((4 << 30, 5 << 30), None), (4 << 30, 4 << 30));
    }

    #[test]
    fn what_is_not_known_is_left_out_and_never_nonsense() {
        assert!(!cpu_name().is_empty() && !cpu_name().contains("  "));
        assert!(caches().iter().all(|c| (1..=5).contains(&c.level) && c.bytes >= 1024), "{:?}", caches());
        assert!(memory().is_none_or(|(total, free)| free <= total && total > 1 << 20));
        assert!(last_cache() >= 1 << 16 && usable_cores() > 0);
    }
}
