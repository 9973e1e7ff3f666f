//! `pi ablation`: what each part of the engine is worth (paper §8.3): one model on one device, first layer by layer and dense, then with
//! one part more in each row.
//!
//! | file | what |
//! |---|---|
//! | `machine` | the machine that is simulated, in slow motion, or this one |
//! | `plans` | the rows, and where each has what |
//! | `reference` | the tokens, and what the CPU alone makes of them |
//! | `measure` | checks rows, and runs them in turns |
//! | `report` | the table |

mod machine;
mod measure;
mod plans;
mod reference;
mod report;

use crate::{
    accelerator::{Accelerator, KvFlags, Opened},
    failure::{Failure, Result},
    kernels, machine as here,
    output::{Output, say},
    predictor::PredictorFlags,
    values,
};
use clap::{Args, ValueHint, value_parser};
use machine::{Machine, MachineFlags, Simulated};
use pi_engine::{
    Engine, EngineBuilder, Error, Sparsity,
    pi_core::{Activation, Device},
    pi_gguf::File,
    pi_predictor::profile::Profile,
    pi_sparse_cpu::{CpuDevice, Kernels, Pool},
    profile,
};
use reference::Reference;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// The options of `pi ablation`.
#[derive(Args, Debug)]
pub struct AblationFlags {
    /// The model: GGUF or PowerInfer, with down matrices stored neuron by neuron, or of a float type
    #[arg(value_name = "MODEL", value_hint = ValueHint::FilePath)]
    model: PathBuf,
    /// How often neurons fire, as pi profile writes it [default: all equally often, so that policies know nothing]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    profile: Option<PathBuf>,
    /// Memory of the device in GiB
    #[arg(long, value_name = "GIB", allow_negative_numbers = true, value_parser = values::from_zero)]
    vram_budget: f32,
    /// The device: one that is simulated, like the CPU beside it, or cuda, cuda:N, auto as of pi run, beside this CPU
    #[arg(long, value_name = "simulated|cuda[:N]|auto", default_value_t = Accelerator::Simulated)]
    device: Accelerator,
    #[command(flatten)]
    place: KvFlags,
    /// Text whose tokens are decoded [default: what the model itself writes, the most likely token each time]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    text: Option<PathBuf>,
    /// Tokens that each row decodes, one by one, in each run
    #[arg(short = 'n', long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u32).range(2..=4096))]
    tokens: u32,
    /// Runs of each row, in turns
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Threads that compute what the simulated machine is said to compute [default: the cores this process may use]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Another activation than the file says
    #[arg(long, value_name = "NAME")]
    activation: Option<Activation>,
    #[command(flatten)]
    predictor: PredictorFlags,
    #[command(flatten)]
    machine: MachineFlags,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// What all rows share.
struct Setting<'a> {
    flags: &'a AblationFlags,
    file: File,
    profile: Option<Profile>,
    /// Computes what the simulated devices show.
    cpu: Arc<dyn Device>,
    /// What leaves neurons out, in all rows but the first.
    sparse: Sparsity,
    budget: u64,
}

impl Setting<'_> {
    /// The model's settings, but for where it is.
    fn builder(&self, sparsity: Sparsity) -> Result<EngineBuilder> {
        let mut builder = Engine::builder();
        builder = match sparsity {
            Sparsity::Predictor => builder.sparsity(sparsity).predictors(self.flags.predictor.predictors(sparsity)?),
            other => builder.sparsity(other),
        };
        Ok(match self.flags.activation {
            Some(activation) => builder.activation(activation),
            None => builder,
        })
    }

    fn path(&self) -> &Path {
        &self.flags.model
    }

    fn failure(&self, e: &Error) -> Failure {
        Failure::engine(e, self.path())
    }
}

/// Runs all rows and prints the table.
///
/// # Errors
/// Whatever keeps it from doing that; also if a row computes something else than it should.
pub fn ablation(flags: &AblationFlags) -> Result {
    let mut setting = setting(flags)?;
    let machine = machine(flags, &mut setting)?;
    let reference = Reference::new(&setting)?;
    let rows = plans::rows(&setting, &machine, &reference)?;
    let factor = machine.slow_motion(&rows, &reference);
    match machine.simulated() {
        Some(_) => say(&format!(
            "the machine is simulated, and so is its CPU, {factor:.0} times slower than it is to be: {}",
            machine.shown()
        )),
        None => say(&format!("the machine is this one, with {}", machine.shown())),
    }
    let measured = measure::measure(&setting, &machine, factor, &rows, &reference)?;
    let report = report::Report::new(&setting, &machine, factor, &reference, &measured);
    let mut out = Output::new();
    match flags.json {
        true => out.json(&report)?,
        false => out.write(report.text().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The machine that the rows run on, whose accelerator's memory limits the budget.
fn machine(flags: &AblationFlags, setting: &mut Setting<'_>) -> Result<Machine> {
    let kv = flags.place.of(flags.device)?;
    let ordinal = match flags.device {
        Accelerator::Simulated => {
            return Ok(Machine::Simulated(Simulated { flags: flags.machine.clone(), memory: setting.budget }));
        }
        Accelerator::Cuda(ordinal) => ordinal,
        Accelerator::Auto => 0,
        Accelerator::None => return Err(Failure::value("none", "--device", "the table is of what a device is worth")),
    };
    if flags.machine != MachineFlags::default() {
        return Err(Failure::Usage(
            "--sim-… and --slow-motion are of a simulated machine, and --device says another".into(),
        ));
    }
    let opened = Opened::cuda(ordinal, Some(setting.budget), kv);
    let opened = opened.map_err(|why| Failure::Work(format!("--device {}: {why}", flags.device)))?;
    setting.budget = opened.budget;
    Ok(Machine::Real(opened))
}

fn setting(flags: &AblationFlags) -> Result<Setting<'_>> {
    let failure = |e: Error| Failure::engine(&e, &flags.model);
    let file = File::open(&flags.model).map_err(|e| failure(e.into()))?;
    let profile = match &flags.profile {
        None => {
            say("note: without --profile all neurons are taken to fire equally often, and policies choose blindly");
            None
        }
        Some(path) => Some(profile::load(path).map_err(|e| Failure::engine(&e, path))?),
    };
    let has_predictors = pi_engine::inspect(&file).predictors.is_some();
    let p = &flags.predictor;
    let wanted = p.predictor.is_some() || p.predictor_file.is_some() || p.threshold.is_some() || p.margin.is_some();
    let sparse = if has_predictors || wanted { Sparsity::Predictor } else { Sparsity::Exact };
    if sparse == Sparsity::Exact {
        say(
            "note: the model has no predictors (--predictor, --predictor-file): gates are read, and rows behind closed ones are not",
        );
    }
    let threads = flags.threads.map_or_else(here::usable_cores, |n| (n as usize).min(here::usable_cores()));
    let pool = Pool::new(threads).map_err(|e| Failure::Work(format!("{threads} threads: {e}")))?;
    let kernels = kernels::forced()?.unwrap_or_else(Kernels::best);
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(kernels, Arc::new(pool)));
    let budget = (f64::from(flags.vram_budget) * (1u64 << 30) as f64) as u64;
    Ok(Setting { flags, file, profile, cpu, sparse, budget })
}
