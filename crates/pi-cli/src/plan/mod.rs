//! `pi plan`: what of a model an accelerator would hold within a budget, byte by byte, and what that would bring. Nothing is loaded.

mod json;
mod map;
mod text;

use crate::{
    accelerator::{Accelerator, KvFlags, Opened, note_of},
    failure::{Failure, Result},
    output::{Output, say},
    placing::{Asked, NeuronFlags, Setup, gib},
    predictor::PredictorFlags,
    writing::check_output,
};
use clap::{Args, ValueEnum, ValueHint, value_parser};
use pi_engine::{
    Error, Schedule, SessionOptions, Sparsity, arch,
    pi_core::{Activation, KvType, KvTypes},
    pi_gguf::{AtomicFile, File},
    planner::index_of_plan,
};
use pi_sparse_cuda::KvPlace;
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The options of `pi plan`.
#[derive(Args, Debug)]
pub struct PlanFlags {
    /// The model: GGUF or PowerInfer; of a split model, any part
    #[arg(value_name = "MODEL", value_hint = ValueHint::FilePath)]
    model: PathBuf,
    /// The accelerator: simulated (one that has kernels for every type), or as of pi run: cuda, cuda:N, auto
    #[arg(long, value_name = "simulated|cuda[:N]|auto", default_value_t = Accelerator::Simulated)]
    device: Accelerator,
    /// Memory of the accelerator to be used, in GiB: a limit over everything, weights, KV cache, scratch and the driver's own [default for a
    /// GPU: what is free, but for a 32nd of all and at most 1 GiB]
    #[arg(long, value_name = "GIB", allow_negative_numbers = true, value_parser = gib)]
    vram_budget: Option<u64>,
    #[command(flatten)]
    place: KvFlags,
    #[command(flatten)]
    neurons: NeuronFlags,
    /// Positions of the context; 0: as many as the model was made for [default: the same, but at most 4096]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(0..=1 << 24))]
    ctx_size: Option<u32>,
    /// Most tokens of the prompt computed at once
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = value_parser!(u32).range(1..=1 << 24))]
    batch_size: u32,
    /// Sequences at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=1 << 16))]
    sequences: u32,
    /// Which neurons are left out: auto, off, exact, predictor; see pi run
    #[arg(long, value_name = "auto|off|exact|predictor", default_value = "auto")]
    sparsity: Sparsity,
    #[command(flatten)]
    predictor: PredictorFlags,
    /// Another activation than the file says
    #[arg(long, value_name = "NAME")]
    activation: Option<Activation>,
    /// How keys and values are kept [default: f16]
    #[arg(long, value_name = "f16|f32|q8_0", conflicts_with_all = ["cache_type_k", "cache_type_v"])]
    kv: Option<KvType>,
    /// How keys are kept; also -ctk
    #[arg(long, value_name = "f16|f32|q8_0")]
    cache_type_k: Option<KvType>,
    /// How values are kept; also -ctv
    #[arg(long, value_name = "f16|f32|q8_0")]
    cache_type_v: Option<KvType>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the graph of operators instead: what is computed where, what needs what, and what is moved
    #[arg(long, value_enum, value_name = "mermaid|dot", conflicts_with = "json")]
    graph: Option<Graph>,
    /// Draw which neurons are where
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    map: Option<PathBuf>,
    /// Write the neurons that go to the accelerator as PowerInfer's index (.gpuidx)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    write_gpu_index: Option<PathBuf>,
}

/// A language for graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Graph {
    /// Mermaid.
    Mermaid,
    /// Graphviz.
    Dot,
}

/// Plans, and shows the plan.
///
/// # Errors
/// If the model or another file cannot be read, or something cannot be written.
pub fn run(flags: &PlanFlags) -> Result {
    let read = || {
        let of = |what, path: &Option<PathBuf>| path.clone().map(|path| (what, path));
        let files = [of("the profile", &flags.neurons.profile), of("an index that is read", &flags.neurons.gpu_index)];
        files.into_iter().flatten().chain([("the model", flags.model.clone())]).collect::<Vec<_>>()
    };
    for (output, other) in [(&flags.map, None), (&flags.write_gpu_index, flags.map.clone())] {
        let Some(output) = output else { continue };
        let mut kept = read();
        kept.extend(other.map(|map| ("the map", map)));
        check_output(output, kept.iter().map(|(what, path)| (*what, path.as_path())))?;
    }
    let failure = |e: Error| Failure::engine(&e, &flags.model);
    let file = File::open(&flags.model).map_err(|e| failure(e.into()))?;
    let (_, config) = arch::detect(&file).map_err(failure)?;
    let predictors = flags.predictor.predictors(flags.sparsity)?;
    let of = |one: Option<KvType>| one.or(flags.kv).unwrap_or_default();
    let context = match flags.ctx_size {
        Some(0) => Some(config.context),
        given => given.map(|n| n as usize),
    };
    let setup = Setup {
        session: SessionOptions {
            context,
            batch: flags.batch_size as usize,
            sequences: flags.sequences as usize,
            logits: 1,
        },
        kv: KvTypes { keys: of(flags.cache_type_k), values: of(flags.cache_type_v) },
        sparsity: flags.sparsity,
        predictors: &predictors,
        activation: flags.activation,
    };
    let asked = Asked::new(&flags.neurons, &file, &setup)?;
    let kv = flags.place.of(flags.device)?;
    let Opened { device, budget, .. } = open(flags, kv)?;
    let request = asked.request(&setup, &*device, budget, &flags.neurons);
    let mut planned = flags.neurons.plan(&file, &request).map_err(failure)?;
    planned.notes.extend(note_of(kv));
    // before anything is printed: who reads that may stop to listen
    if let Some(path) = &flags.map {
        write(path, map::draw(&flags.model, &planned).as_bytes())?;
    }
    if let Some(path) = &flags.write_gpu_index {
        let index = index_of_plan(&planned.plan, planned.budget).map_err(failure)?;
        index.save(path).map_err(|e| Failure::Work(e.to_string()))?;
        say(&format!("{}: {} hot neurons", path.display(), planned.hot()));
    }
    let mut out = Output::new();
    match flags.graph {
        Some(graph) => {
            let schedule = Schedule::of_file(&file, &planned.plan, flags.sparsity, &predictors, &*device);
            let schedule = schedule.map_err(failure)?;
            let text = if graph == Graph::Dot { schedule.dot() } else { schedule.mermaid() };
            out.write(text.as_bytes())?;
        }
        None if flags.json => out.json(&json::Document::new(&flags.model, &planned))?,
        None => out.write(text::page(&flags.model, &planned).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The device that is planned for.
fn open(flags: &PlanFlags, kv: KvPlace) -> Result<Opened> {
    let ordinal = match flags.device {
        Accelerator::Cuda(ordinal) => ordinal,
        Accelerator::Auto => 0,
        Accelerator::Simulated => match flags.vram_budget {
            Some(_) => return Opened::simulated(flags.vram_budget),
            None => {
                return Err(Failure::Usage(
                    "--vram-budget is needed: a simulated device has the memory that it is given".into(),
                ));
            }
        },
        Accelerator::None => return Err(Failure::value("none", "--device", "a plan is for a device")),
    };
    Opened::cuda(ordinal, flags.vram_budget, kv).map_err(|why| {
        Failure::Work(format!("--device {}: {why} (--device simulated plans without one)", flags.device))
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Failure::Work(format!("{}: {e}", path.display()));
    let mut file = AtomicFile::create(path).map_err(|e| Failure::Work(e.to_string()))?;
    file.write_all(bytes).map_err(|e| failed(&e))?;
    file.commit().map_err(|e| Failure::Work(e.to_string()))
}
