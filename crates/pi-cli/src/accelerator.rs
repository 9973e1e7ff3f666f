//! The accelerators that can be chosen, how each is opened, and how much of its memory may be used.

use crate::{
    costs::SIMULATED,
    failure::{Failure, Result},
    kernels,
    output::{say, size},
};
use clap::Args;
use pi_engine::{
    pi_core::{Device, DeviceInfo, Error, Serial},
    pi_sparse_cpu::{CpuDevice, Kernels},
};
use pi_sparse_cuda::{Cuda, CudaOptions, GraphUse, KernelSource, KvPlace, TensorCores, Unavailable};
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

/// Where keys and values of sequences are.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Accelerator")]
pub struct KvFlags {
    /// Where a GPU has keys and values: device, or host: in this machine's memory, which kernels read over the bus, so that the budget has
    /// room for more neurons, and attention is as slow as the bus [default: device]
    #[arg(long, value_name = "device|host", value_parser = kv_place)]
    pub kv_place: Option<KvPlace>,
}

impl KvFlags {
    /// The place, for this accelerator.
    ///
    /// # Errors
    /// If one is named where there is no choice.
    pub fn of(self, device: Accelerator) -> Result<KvPlace> {
        let why = match (self.kv_place, device) {
            (Some(_), Accelerator::None) => {
                "there is no accelerator, as --device names none (a GPU is needed: --device cuda)"
            }
            (Some(KvPlace::Host), Accelerator::Simulated) => {
                "a simulated device has keys and values in its own memory (a GPU is needed: --device cuda)"
            }
            (place, _) => return Ok(place.unwrap_or_default()),
        };
        Err(Failure::Usage(format!("--kv-place: {why}")))
    }
}

fn kv_place(text: &str) -> Result<KvPlace, String> {
    match text {
        "device" => Ok(KvPlace::Device),
        "host" => Ok(KvPlace::Host),
        _ => Err("expected device or host".into()),
    }
}

/// A place as the option has it.
pub fn name_of(kv: KvPlace) -> &'static str {
    if kv == KvPlace::Host { "host" } else { "device" }
}

/// Said of plans where keys and values are not on the device.
pub fn note_of(kv: KvPlace) -> Option<String> {
    let there =
        "keys and values are in this machine's memory: what reading them over the bus takes is not in the times";
    (kv == KvPlace::Host).then(|| there.into())
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

    /// A GPU of which `budget` bytes may be used: all that is free but for a reserve if nothing is said, and no more than is free. Keys and
    /// values are in `kv`.
    ///
    /// # Errors
    /// Why it cannot be used, and what can be done about it.
    pub fn cuda(ordinal: usize, budget: Option<u64>, kv: KvPlace) -> Result<Self, Refusal> {
        let cuda = open(ordinal, kv)?;
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

/// A GPU that was opened.
struct Gpu {
    ordinal: usize,
    kv: KvPlace,
    cuda: Cuda,
    /// What was asked for and is not there.
    note: Option<String>,
}

/// GPUs that were opened.
static OPEN: Mutex<Vec<Gpu>> = Mutex::new(Vec::new());

/// A GPU, which is opened once for each place of keys and values.
fn open(ordinal: usize, kv: KvPlace) -> Result<Cuda, Refusal> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = open.iter().find(|gpu| gpu.ordinal == ordinal && gpu.kv == kv) {
        return Ok(gpu.cuda.clone());
    }
    let options = from_environment().map_err(|text| Refusal { text, failed: false })?.kv(kv);
    let mut note = None;
    let opened = Cuda::open_with(ordinal, &options).or_else(|e| match e {
        // without a compiler there are kernels still
        Unavailable::NoCompiler | Unavailable::Compiler { .. } => {
            note = Some(format!("{e}, so shipped ones are used: {}", e.advice()));
            Cuda::open_with(ordinal, &options.clone().kernels(KernelSource::Shipped))
        }
        e => Err(e),
    });
    let cuda = opened
        .map_err(|e| Refusal { failed: matches!(e, Unavailable::Failed(_)), text: format!("{e}: {}", e.advice()) })?;
    open.push(Gpu { ordinal, kv, cuda: cuda.clone(), note });
    Ok(cuda)
}

/// What a GPU is to use and what not, and how it is to decide, for comparisons.
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
            "nvrtc" => options.kernels(KernelSource::Nvrtc),
            word => match word.strip_prefix("crossover=").map(str::parse) {
                Some(Ok(reads)) if reads >= 0.0 => options.crossover(reads),
                _ => {
                    let words = "no-graphs, no-tensor-cores, nvrtc, crossover=READS (0 or more, or inf), or several with commas";
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
    let each = open.iter().map(|gpu| gpu.cuda.launches());
    each.fold((0, 0), |(kernels, calls), l| (kernels + l.kernels, calls + l.calls))
}

/// Says what GPUs were not used as they could be, once all is done.
pub fn last_words() {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    for gpu in open.iter() {
        for note in gpu.note.iter().cloned().chain(gpu.cuda.note()) {
            say(&format!("note: cuda:{}: {note}", gpu.ordinal));
        }
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
    fn what_a_gpu_is_to_use_and_what_not_is_named() {
        let usual = CudaOptions::default();
        assert_eq!(options(""), Ok(usual.clone()));
        assert_eq!(options("no-graphs"), Ok(usual.clone().graphs(GraphUse::Off)));
        let neither = usual.graphs(GraphUse::Off).tensor_cores(TensorCores::Off);
        assert_eq!(options("no-tensor-cores, no-graphs"), Ok(neither.clone()));
        assert_eq!(options("no-graphs,nvrtc,no-tensor-cores"), Ok(neither.kernels(KernelSource::Nvrtc)));
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
