//! The accelerators that can be chosen, how each is opened, and how much of its memory may be used.

use crate::{
    costs::SIMULATED,
    failure::{Failure, Result},
    kernels,
    output::{say, size},
};
use pi_engine::{
    pi_core::{Device, DeviceInfo, Error, Serial},
    pi_sparse_cpu::{CpuDevice, Kernels},
};
use pi_sparse_cuda::{Cuda, CudaOptions, GraphUse, TensorCores, Unavailable};
use pi_testkit::sim::{SimDevice, SimOptions};
use std::{
    env, fmt,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

/// An accelerator beside the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accelerator {
    /// The CPU alone.
    #[default]
    None,
    /// A simulated one.
    Simulated,
    /// An NVIDIA GPU, from 0.
    Cuda(usize),
    /// The first NVIDIA GPU if there is one, or else the CPU alone.
    Auto,
}

impl FromStr for Accelerator {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "none" => Ok(Self::None),
            "simulated" => Ok(Self::Simulated),
            "cuda" => Ok(Self::Cuda(0)),
            "auto" => Ok(Self::Auto),
            _ => match s.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Ok(Self::Cuda(ordinal)),
                Some(Err(_)) => Err("expected a number from 0 on after cuda:".into()),
                None => Err("expected none, simulated, cuda, cuda:N or auto".into()),
            },
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Simulated => f.write_str("simulated"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// A device that is there.
pub struct Opened {
    pub device: Arc<dyn Device>,
    /// The same, if it is a GPU.
    pub cuda: Option<Cuda>,
    /// Bytes of its memory that may be used.
    pub budget: u64,
}

impl Opened {
    /// A simulated device, which has as much memory as it may use: a gibibyte if nothing is said.
    ///
    /// # Errors
    /// If `PI_ISA` cannot be used, or the system refuses a thread.
    pub fn simulated(budget: Option<u64>) -> Result<Self> {
        let budget = budget.unwrap_or(1 << 30);
        let kernels = kernels::forced()?.unwrap_or_else(Kernels::best);
        let cpu = CpuDevice::new(kernels, Arc::new(Serial));
        let options = SimOptions { name: SIMULATED.into(), memory: budget, ..SimOptions::default() };
        let device =
            SimDevice::new(Arc::new(cpu), options).map_err(|e| Failure::Work(format!("simulated device: {e}")))?;
        Ok(Self { device: Arc::new(device), cuda: None, budget })
    }

    /// A GPU of which `budget` bytes may be used: all that is free but for a reserve if nothing is said, and no more than is free.
    ///
    /// # Errors
    /// Why it cannot be used, and what can be done about it.
    pub fn cuda(ordinal: usize, budget: Option<u64>) -> Result<Self, Refusal> {
        let cuda = open(ordinal)?;
        let failed = |e: Error| Refusal { text: e.to_string(), failed: true };
        let (reach, (_, total)) = (cuda.reach().map_err(failed)?, cuda.memory().map_err(failed)?);
        let most = usable(reach, total);
        let budget = match budget {
            None => most,
            Some(asked) if asked > reach => {
                say(&format!("note: {} of memory were allowed, and {} are free", size(asked), size(reach)));
                most
            }
            Some(asked) => asked,
        };
        Ok(Self { device: Arc::new(cuda.clone()), cuda: Some(cuda), budget })
    }
}

/// What is used of `reach` bytes if nothing is said: a 32nd of the memory, at most a gibibyte, stays free, for whoever else uses the device. Rounded,
/// so that a plan that is kept can be found again.
fn usable(reach: u64, total: u64) -> u64 {
    let reserve = (total / 32).min(1 << 30);
    let piece = (total / 64).clamp(1, 128 << 20);
    reach.saturating_sub(reserve) / piece * piece
}

/// Why a GPU is not used.
#[derive(Debug)]
pub struct Refusal {
    text: String,
    /// There is one, and it failed.
    pub failed: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// GPUs that were opened, with their numbers.
static OPEN: Mutex<Vec<(usize, Cuda)>> = Mutex::new(Vec::new());

/// A GPU, which is opened once.
fn open(ordinal: usize) -> Result<Cuda, Refusal> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, cuda)) = open.iter().find(|(n, _)| *n == ordinal) {
        return Ok(cuda.clone());
    }
    let options = from_environment().map_err(|text| Refusal { text, failed: false })?;
    let cuda = Cuda::open_with(ordinal, &options)
        .map_err(|e| Refusal { failed: matches!(e, Unavailable::Failed(_)), text: format!("{e}: {}", e.advice()) })?;
    open.push((ordinal, cuda.clone()));
    Ok(cuda)
}

/// What a GPU is not to use, and how it is to decide, for comparisons.
const VARIABLE: &str = "PI_CUDA";

/// What the environment says of GPUs.
///
/// # Errors
/// If it is misspelt: a comparison without what it was to compare would not be noticed.
pub fn check_environment() -> Result<()> {
    from_environment().map(|_| ()).map_err(Failure::Usage)
}

fn from_environment() -> Result<CudaOptions, String> {
    options(&env::var(VARIABLE).unwrap_or_default())
}

fn options(text: &str) -> Result<CudaOptions, String> {
    let mut options = CudaOptions::default();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        options = match word {
            "no-graphs" => options.graphs(GraphUse::Off),
            "no-tensor-cores" => options.tensor_cores(TensorCores::Off),
            word => match word.strip_prefix("crossover=").map(str::parse) {
                Some(Ok(reads)) if reads >= 0.0 => options.crossover(reads),
                _ => {
                    let words =
                        "no-graphs, no-tensor-cores, crossover=READS (0 or more, or inf), or several with commas";
                    return Err(format!("{VARIABLE}={text}: {word} is none of {words}"));
                }
            },
        };
    }
    Ok(options)
}

/// Kernels that GPUs were given so far, and calls of the driver that launched them.
pub fn launches() -> (u64, u64) {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let each = open.iter().map(|(_, cuda)| cuda.launches());
    each.fold((0, 0), |(kernels, calls), l| (kernels + l.kernels, calls + l.calls))
}

/// Says what GPUs were not used as they could be, once all is done.
pub fn last_words() {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    for (ordinal, note) in open.iter().filter_map(|(n, cuda)| Some((n, cuda.note()?))) {
        say(&format!("note: cuda:{ordinal}: {note}"));
    }
}

/// The name under which figures of a device are kept: of a GPU what it is, not its number.
pub fn kept_as(info: &DeviceInfo) -> &str {
    if info.name.starts_with("cuda:") { &info.detail } else { &info.name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gpu_is_not_to_use_is_named() {
        let usual = CudaOptions::default();
        assert_eq!(options(""), Ok(usual.clone()));
        assert_eq!(options("no-graphs"), Ok(usual.clone().graphs(GraphUse::Off)));
        let neither = usual.graphs(GraphUse::Off).tensor_cores(TensorCores::Off);
        assert_eq!(options("no-tensor-cores, no-graphs"), Ok(neither));
        let far = CudaOptions::default().crossover(f32::INFINITY).graphs(GraphUse::Off);
        assert_eq!(
            (options("crossover=inf,no-graphs"), options("crossover=2.5").map(|o| o.crossover)),
            (Ok(far), Ok(2.5))
        );
        for word in ["graphs", "crossover", "crossover=", "crossover=-1", "crossover=nan", "crossover=many"] {
            let error = options(&format!("no-graphs,{word}")).unwrap_err();
            assert!(error.contains(&format!("PI_CUDA=no-graphs,{word}: {word} is none of no-graphs")), "{error}");
        }
    }

    #[test]
    fn accelerators_are_chosen_by_name_and_number() {
        let read = |s: &str| s.parse::<Accelerator>();
        for (text, want) in [
            ("none", Accelerator::None),
            ("simulated", Accelerator::Simulated),
            ("cuda", Accelerator::Cuda(0)),
            ("cuda:0", Accelerator::Cuda(0)),
            ("cuda:13", Accelerator::Cuda(13)),
            ("auto", Accelerator::Auto),
        ] {
            assert_eq!(read(text), Ok(want), "{text}");
            assert_eq!(read(&want.to_string()), Ok(want), "{text}");
        }
        for bad in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999999999999", "CUDA"] {
            assert!(read(bad).unwrap_err().contains("expected"), "{bad}");
        }
    }

    #[test]
    fn a_reserve_stays_free() {
        let gib = 1u64 << 30;
        assert_eq!(usable(gib, gib) >> 20, 992);
        assert_eq!(usable(24 * gib, 24 * gib) >> 20, 23 * 1024 + 256);
        assert_eq!(usable(24 * gib - 1000, 24 * gib), usable(24 * gib - 2000, 24 * gib));
        assert_eq!(usable(80 * gib, 80 * gib), 79 * gib);
        assert_eq!((usable(0, gib), usable(0, 0)), (0, 0));
    }
}
