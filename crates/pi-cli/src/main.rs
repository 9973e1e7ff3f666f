//! `pi`, the command line of the engine: runs, inspects and times language models in GGUF files.
//!
//! | file | what |
//! |---|---|
//! | `main` | the commands |
//! | `flags`, `values` | the options of `pi run`, and how single values are read |
//! | `loading` | from shared options to an engine |
//! | `chat` | `pi chat`: a conversation in the terminal |
//! | `run`, `result` | `pi run`: from flags to text, and what is said afterwards |
//! | `batch` | `pi run --prompts`: answers many prompts, several at a time |
//! | `form` | what its text must look like |
//! | `serve` | `pi serve`: an OpenAI-compatible server |
//! | `inspect` | `pi inspect`: what is in a file |
//! | `bench` | `pi bench`: how fast models and single operators are |
//! | `doctor` | `pi doctor`: what this machine can do |
//! | `perplexity` | `pi perplexity`: how well a model predicts a text |
//! | `profile` | `pi profile`: how often neurons fire |
//! | `progress` | how far a command is |
//! | `machine` | CPU, caches, memory |
//! | `cache`, `crossover`, `costs` | what was measured and is kept: in general, crossovers, figures for plans |
//! | `accelerator` | which accelerators there are |
//! | `placing`, `plan_cache` | what goes to an accelerator; where chosen neurons are kept |
//! | `plan` | `pi plan`: what would go there |
//! | `predictor` | which predictors are used |
//! | `repack` | how much of the weights is kept a second time |
//! | `train` | `pi train-predictor`: predictors for a model |
//! | `prepare` | `pi prepare`: types, profile and predictors in one go |
//! | `ablation` | `pi ablation`: what each part of the engine is worth |
//! | `synth` | `pi synth`: writes a model for measurements |
//! | `convert`, `quantize` | `pi convert`, `pi quantize`: write models from checkpoints, and with other number types |
//! | `writing` | what these two share: progress, and the summary |
//! | `demo` | where the demo model is |
//! | `kernels` | which kernels the environment asks for |
//! | `prompt` | the bytes of a prompt, and its tokens |
//! | `failure`, `output`, `interrupt` | errors and exit codes; standard output and error; Ctrl-C |
//!
//! Results go to standard output, everything else to standard error. A command that could not do its work ends with 1, one
//! that was called wrongly with 2, one that was interrupted with 130.

mod ablation;
mod accelerator;
mod backends;
mod batch;
mod bench;
mod cache;
mod chat;
mod convert;
mod costs;
mod crossover;
mod demo;
mod doctor;
mod failure;
mod flags;
mod form;
mod inspect;
mod interrupt;
mod kernels;
mod loading;
mod machine;
mod output;
mod perplexity;
mod placing;
mod plan;
mod plan_cache;
mod predictor;
mod prepare;
mod profile;
mod progress;
mod prompt;
mod quantize;
mod repack;
mod result;
mod run;
mod serve;
mod synth;
mod train;
mod values;
mod writing;

use clap::{Parser, Subcommand};
use std::{process::ExitCode, sync::LazyLock};

/// As in `0.1.0 (cpu: reference, avx2; cuda: no NVIDIA driver was found)`: the version, and the back ends with what this machine can
/// run of them. Looking for a driver takes its time, so that is done only for those who ask.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    if !std::env::args_os().any(|arg| arg == "--version" || arg == "-V") {
        return env!("CARGO_PKG_VERSION").into();
    }
    let cuda = backends::cuda().unwrap_or_else(|e| e.to_string());
    format!("{} (cpu: {}; cuda: {cuda})", env!("CARGO_PKG_VERSION"), kernels::available())
});

/// Runs language models, computing only the neurons that fire
#[derive(Parser)]
#[command(name = "pi", version = VERSION.as_str(), after_help = "Environment:\n  \
    PI_MODEL_DIR  folder in which the demo model is looked for first\n  \
    PI_ISA        forces the kernels of one instruction set (--version lists them)\n  \
    PI_CUDA       for comparisons on an NVIDIA GPU: no-graphs, no-tensor-cores, nvrtc (compiles kernels),\n                \
    crossover=READS (from where on steps of 16 tokens and more are dense)\n  \
    PI_CACHE_DIR  folder for what pi doctor measured and for chosen neurons, instead of the user's cache folder")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a text
    Run(Box<flags::RunFlags>),
    /// Talk with a model
    Chat(Box<chat::ChatFlags>),
    /// Answer OpenAI's clients over HTTP
    Serve(Box<serve::ServeFlags>),
    /// Show what is in a model file
    Inspect(inspect::InspectFlags),
    /// Time models, or single operators
    Bench(Box<bench::BenchFlags>),
    /// Measure how well a model predicts a text, and how far it is from another
    Perplexity(Box<perplexity::PerplexityFlags>),
    /// Count how often each neuron fires along texts
    Profile(Box<profile::ProfileFlags>),
    /// Show what this machine can do, and measure what is best for it
    Doctor(doctor::DoctorFlags),
    /// Show what each part of the engine is worth on a device: dense, sparse, divided, placed
    Ablation(Box<ablation::AblationFlags>),
    /// Show what of a model an accelerator would hold, and what that would bring
    Plan(Box<plan::PlanFlags>),
    /// Write a synthetic model whose neurons fire as often as asked
    Synth(Box<synth::SynthFlags>),
    /// Train predictors of active neurons for a model
    TrainPredictor(Box<train::TrainFlags>),
    /// Make a model faster: quantise, transpose, profile, train predictors, and measure what that did
    Prepare(Box<prepare::PrepareFlags>),
    /// Make a model file from a Hugging Face checkpoint
    Convert(convert::ConvertFlags),
    /// Write a model with other number types
    Quantize(quantize::QuantizeFlags),
}

fn main() -> ExitCode {
    let command = Cli::parse_from(flags::spelled_out(std::env::args_os())).command;
    if let Err(failure) = accelerator::check_environment() {
        return failure.report();
    }
    let done = match command {
        Command::Run(flags) => run::run(&flags),
        Command::Chat(flags) => chat::chat(&flags),
        Command::Serve(flags) => serve::serve(&flags),
        Command::Inspect(flags) => inspect::inspect(&flags),
        Command::Bench(flags) => bench::bench(&flags),
        Command::Perplexity(flags) => perplexity::perplexity(&flags),
        Command::Profile(flags) => profile::profile(&flags),
        Command::Doctor(flags) => doctor::doctor(&flags),
        Command::Ablation(flags) => ablation::ablation(&flags),
        Command::Plan(flags) => plan::run(&flags),
        Command::Synth(flags) => synth::synth(&flags),
        Command::TrainPredictor(flags) => train::run(&flags),
        Command::Prepare(flags) => prepare::prepare(&flags),
        Command::Convert(flags) => convert::convert(&flags),
        Command::Quantize(flags) => quantize::quantize(&flags),
    };
    accelerator::last_words();
    done.unwrap_or_else(|failure| failure.report())
}
