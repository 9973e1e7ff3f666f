//! Whole models: prompts (`pp512`) and single tokens (`tg128`), as llama-bench does it.
//!
//! Loading is not timed. Every test is run once to warm up; the sequence is emptied before each run.

use super::{
    list::{Numbers, Pair},
    machine_speed::MachineSpeed,
    model_row::{About, Line, Setting, Shown, columns},
    table::{Format, Table},
};
use crate::{
    accelerator::launches,
    crossover, demo,
    failure::{Failure, Result},
    kernels, machine,
    output::say,
    placing::{PlacingFlags, Setup},
    predictor::PredictorFlags,
    repack::Repack,
    values,
};
use clap::{Args, ValueHint};
use pi_engine::{
    Engine, Error, Session, SessionOptions, Sparsity, StepToken,
    pi_core::{Activation, KvType, KvTypes},
    pi_gguf::{File, Source},
    pi_sparse_cpu::{Crossover, Kernels},
    sampler::argmax,
};
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Instant, SystemTime},
};

/// Tokens of the run that warms up a test of single tokens.
const WARM_TOKENS: usize = 8;

/// The options of `pi bench` for models. Names, defaults and lists are llama-bench's.
#[derive(Args, Debug)]
pub struct ModelFlags {
    /// Model files, with commas between them or the option several times [default: the demo model of the repository]
    #[arg(short, long, value_name = "FILE,…", value_hint = ValueHint::FilePath)]
    model: Vec<PathBuf>,
    /// Lengths of prompts to time, as in 128,512 or 128-1024*2; 0 for none [default: 512]. Numbers go up to 16777216, and a
    /// range may stand for 1000 of them
    #[arg(short = 'p', long, value_name = "N,…", allow_hyphen_values = true)]
    n_prompt: Vec<Numbers>,
    /// Numbers of generated tokens to time; 0 for none [default: 128]
    #[arg(short = 'n', long, value_name = "N,…", allow_hyphen_values = true)]
    n_gen: Vec<Numbers>,
    /// A prompt and then tokens generated, timed together; also -pg. May be given several times
    #[arg(long, value_name = "PP,TG")]
    pg: Vec<Pair>,
    /// Tokens that are in the context before a test [default: 0]
    #[arg(short = 'd', long, value_name = "N,…", allow_hyphen_values = true)]
    n_depth: Vec<Numbers>,
    /// Most tokens that are handed over at once [default: 2048]
    #[arg(short, long, value_name = "N,…", allow_hyphen_values = true)]
    batch_size: Vec<Numbers>,
    /// Most tokens computed at once, also -ub; never more than --batch-size [default: 512]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    ubatch_size: Vec<Numbers>,
    /// Threads [default: the cores this process may use]
    #[arg(short, long, value_name = "N,…", allow_hyphen_values = true)]
    threads: Vec<Numbers>,
    /// Runs of every test
    #[arg(short, long, value_name = "N", default_value_t = 5, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Form of the results
    #[arg(short, long, value_name = "FORM", default_value = "md")]
    output: Format,
    /// Which neurons are left out: auto, off, exact, predictor; see pi run
    #[arg(long, value_name = "auto|off|exact|predictor", default_value = "auto")]
    pub(super) sparsity: Sparsity,
    #[command(flatten)]
    predictor: PredictorFlags,
    #[command(flatten)]
    pub(super) placing: PlacingFlags,
    /// Share of active neurons from which every neuron is computed [default: what pi doctor measured, or 0.9]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = values::share)]
    crossover: Option<f32>,
    /// Keep weights a second time in the layout that the CPU is fastest with: auto (as far as half of the free memory goes),
    /// on, off. Texts may differ between the two where two tokens are all but equally likely
    #[arg(long, value_enum, value_name = "auto|on|off", default_value_t)]
    repack: Repack,
    /// Another activation than the file says
    #[arg(long, value_name = "NAME")]
    activation: Option<Activation>,
    /// How keys and values are kept [default: f16]
    #[arg(long, value_name = "f32|f16|q8_0,…", value_delimiter = ',', conflicts_with_all = ["cache_type_k", "cache_type_v"])]
    kv: Vec<KvType>,
    /// How keys are kept, with every type of values; also -ctk [default: f16]
    #[arg(long, value_name = "f32|f16|q8_0,…", value_delimiter = ',')]
    cache_type_k: Vec<KvType>,
    /// How values are kept, with every type of keys; also -ctv [default: f16]
    #[arg(long, value_name = "f32|f16|q8_0,…", value_delimiter = ',')]
    cache_type_v: Vec<KvType>,
    /// Read the file into memory instead of mapping it
    #[arg(long)]
    pub(super) no_mmap: bool,
    /// The memory's speed in GB/s, instead of measuring it; 0: do not compare with it
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true, value_parser = values::from_zero)]
    bandwidth: Option<f32>,
}

/// One line of the table to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    pub(super) prompt: usize,
    pub(super) generated: usize,
    pub(super) depth: usize,
}

impl Test {
    /// As in `pp512`, `tg128`, `pp512+tg128`, `tg128 @ d1024`.
    pub(super) fn name(&self) -> String {
        let parts = [("pp", self.prompt), ("tg", self.generated)];
        let parts: Vec<_> = parts.iter().filter(|(_, n)| *n > 0).map(|(word, n)| format!("{word}{n}")).collect();
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        parts.join("+") + &depth
    }

    pub(super) fn tokens(&self) -> usize {
        self.prompt + self.generated
    }
}

/// Times every model with every combination of settings.
///
/// # Errors
/// Wrong flags; a model that cannot be loaded, or whose logits are not finite.
pub fn bench(flags: &ModelFlags) -> Result {
    let tests = tests(flags)?;
    let threads = in_range("--threads", &Numbers::all(&flags.threads, &[machine::usable_cores()]), 1..=1024)?;
    let batches = in_range("--batch-size", &Numbers::all(&flags.batch_size, &[2048]), 1..=1 << 24)?;
    let ubatches = in_range("--ubatch-size", &Numbers::all(&flags.ubatch_size, &[512]), 1..=1 << 24)?;
    let kernels = kernels::forced()?.unwrap_or_else(Kernels::best);
    let models = models(flags)?;
    // A file that cannot be read is told before others are timed for minutes.
    for path in &models {
        File::open(path).map_err(|e| Failure::engine(&e.into(), path))?;
    }
    let step = |of: &[usize]| of.iter().copied().max().unwrap_or(1);
    let largest = SessionOptions {
        context: tests.iter().map(|t| t.depth + t.tokens()).max(),
        batch: step(&batches).min(step(&ubatches)),
        ..SessionOptions::default()
    };
    let mut speed = MachineSpeed::new(flags.bandwidth);
    let kvs = kv_types(flags);
    let shown = Shown { batches: batches != [2048] || ubatches != [512], kv: kvs != [KvTypes::default()] };
    let mut table = Table::new(flags.output, columns(shown));
    for path in &models {
        let failure = |e: Error| Failure::engine(&e, path);
        let source = if flags.no_mmap { Source::InMemory } else { Source::Mapped };
        let file = File::open_with(path, source).map_err(|e| failure(e.into()))?;
        for (&threads, &kv) in threads.iter().flat_map(|t| kvs.iter().map(move |kv| (t, kv))) {
            let bandwidth = speed.of(threads)?;
            let engine = load(flags, &kernels, &file, threads, kv, &largest)?;
            let about = About::new(&engine, &file, path);
            for (&batch, &ubatch) in batches.iter().flat_map(|b| ubatches.iter().map(move |u| (b, u))) {
                for test in &tests {
                    let samples = run(&engine, test, batch.min(ubatch), flags.repetitions).map_err(failure)?;
                    if samples.kernels > 0 {
                        let per_token = |n: u64| n as f64 / samples.tokens.max(1) as f64;
                        let (kernels, calls) = (per_token(samples.kernels), per_token(samples.launches));
                        say(&format!("{}: {kernels:.1} kernels per token, launched by {calls:.1} calls", test.name()));
                    }
                    let setting = Setting { flags, isa: kernels.isa(), threads, kv, batch, ubatch, bandwidth, shown };
                    table.row(&Line { about: &about, setting, test: *test, samples, at: SystemTime::now() })?;
                }
            }
        }
    }
    table.end()?;
    Ok(ExitCode::SUCCESS)
}

/// Every type of keys with every type of values, or what is asked for as both.
fn kv_types(flags: &ModelFlags) -> Vec<KvTypes> {
    if !flags.kv.is_empty() {
        return flags.kv.iter().map(|&both| both.into()).collect();
    }
    let or_usual = |types: &[KvType]| if types.is_empty() { vec![KvType::default()] } else { types.to_vec() };
    let (keys, values) = (or_usual(&flags.cache_type_k), or_usual(&flags.cache_type_v));
    keys.iter().flat_map(|&keys| values.iter().map(move |&values| KvTypes { keys, values })).collect()
}

fn tests(flags: &ModelFlags) -> Result<Vec<Test>> {
    let prompts = Numbers::all(&flags.n_prompt, &[512]);
    // As llama-bench: what is asked for with --pg is timed beside the default tests unless those are set to 0.
    let generated = Numbers::all(&flags.n_gen, &[128]);
    let mut tests = Vec::new();
    for depth in Numbers::all(&flags.n_depth, &[0]) {
        let single = |(prompt, generated)| Test { prompt, generated, depth };
        tests.extend(prompts.iter().filter(|n| **n > 0).map(|&n| single((n, 0))));
        tests.extend(generated.iter().filter(|n| **n > 0).map(|&n| single((0, n))));
        tests.extend(flags.pg.iter().filter(|p| p.0 + p.1 > 0).map(|p| single((p.0, p.1))));
    }
    if tests.is_empty() {
        return Err(Failure::Usage("there is nothing to time: --n-prompt, --n-gen and --pg are all 0".into()));
    }
    Ok(tests)
}

/// The same numbers, all within `range`.
///
/// # Errors
/// If one is not, naming the option.
pub fn in_range(flag: &str, numbers: &[usize], range: std::ops::RangeInclusive<usize>) -> Result<Vec<usize>> {
    let (first, last) = (range.start(), range.end());
    match numbers.iter().find(|n| !range.contains(n)) {
        Some(n) => Err(Failure::value(n.to_string(), flag, format!("expected numbers from {first} to {last}"))),
        None => Ok(numbers.to_vec()),
    }
}

fn models(flags: &ModelFlags) -> Result<Vec<PathBuf>> {
    if flags.model.is_empty() {
        let path = demo::find()?;
        say(&format!("no model was named (-m): this is the demo model, {}", path.display()));
        return Ok(vec![path]);
    }
    // llama-bench takes a list with commas, too; but a file's name may have one.
    let split = |path: &PathBuf| match path.to_str() {
        Some(text) if text.contains(',') && !path.exists() => text.split(',').map(PathBuf::from).collect(),
        _ => vec![path.clone()],
    };
    Ok(flags.model.iter().flat_map(split).collect())
}

fn load(
    flags: &ModelFlags,
    kernels: &Kernels,
    file: &File,
    threads: usize,
    kv: KvTypes,
    session: &SessionOptions,
) -> Result<Engine> {
    let crossover = match flags.crossover {
        Some(share) => Crossover::uniform(share),
        None => crossover::stored(kernels.isa(), threads).unwrap_or_default(),
    };
    let cores = machine::usable_cores();
    if threads > cores {
        say(&format!("warning: {threads} threads on the {cores} cores that this process may use"));
    }
    let builder = Engine::builder()
        .kernels(kernels.clone())
        .threads(threads)
        .crossover(crossover)
        .repacking(flags.repack.limit());
    let predictors = flags.predictor.predictors(flags.sparsity)?;
    let mut builder = builder.kv(kv).sparsity(flags.sparsity).predictors(predictors.clone());
    if let Some(activation) = flags.activation {
        builder = builder.activation(activation);
    }
    if flags.placing.is_asked() {
        let (sparsity, activation) = (flags.sparsity, flags.activation);
        let setup = Setup { session: session.clone(), kv, sparsity, predictors: &predictors, activation };
        builder = flags.placing.apply(file, &setup, builder)?;
    }
    builder.load(file).map_err(|e| Failure::engine(&e, file.path()))
}

/// What the runs of a test showed.
#[derive(Default)]
pub(super) struct Samples {
    pub(super) seconds: Vec<f64>,
    pub(super) bytes: u64,
    pub(super) tokens: u64,
    /// Of a GPU, and calls of its driver that launched them.
    pub(super) kernels: u64,
    pub(super) launches: u64,
    pub(super) active: Vec<f64>,
    pub(super) marked: Vec<f64>,
    pub(super) dense: Vec<f64>,
}

/// Runs a test once to warm up, then `repetitions` times.
fn run(engine: &Engine, test: &Test, batch: usize, repetitions: u32) -> Result<Samples, Error> {
    let context = test.depth + test.tokens();
    let options = SessionOptions { context: Some(context), batch: batch.min(context), ..SessionOptions::default() };
    let mut session = engine.session(&options)?;
    let mut samples = Samples::default();
    for i in 0..=repetitions {
        let generated = if i == 0 { test.generated.min(WARM_TOKENS) } else { test.generated };
        // The same tokens in every run: which neurons are active depends on them.
        let mut tokens = Tokens::new(engine);
        session.truncate(0, 0);
        if test.depth > 0 {
            let depth: Vec<_> = (0..test.depth).map(|_| tokens.next()).collect();
            session.feed(0, &depth)?;
        }
        session.reset_stats();
        let prompt: Vec<_> = (0..test.prompt).map(|_| tokens.next()).collect();
        let before = launches();
        let start = Instant::now();
        if !prompt.is_empty() {
            session.feed(0, &prompt)?;
        }
        for _ in 0..generated {
            session.step(&[StepToken { token: tokens.next(), seq: 0, logits: true }])?;
        }
        let seconds = start.elapsed().as_secs_f64();
        finite(&mut session)?;
        if i > 0 {
            let stats = session.stats();
            samples.seconds.push(seconds);
            samples.bytes += stats.bytes;
            samples.tokens += stats.tokens;
            let after = launches();
            samples.kernels += after.0 - before.0;
            samples.launches += after.1 - before.1;
            samples.active.extend(stats.active_share().map(f64::from));
            samples.marked.extend(stats.marked_share().map(f64::from));
            samples.dense.extend(stats.dense_share().map(f64::from));
        }
    }
    Ok(samples)
}

/// The speed of a computation that went wrong is of no interest.
fn finite(session: &mut Session) -> Result<(), Error> {
    argmax(session.logits(0)?).map(drop)
}

/// Synthetic tokens, none of them special by intent.
struct Tokens {
    state: u64,
    vocab: u64,
}

impl Tokens {
    fn new(engine: &Engine) -> Self {
        Self { state: 1, vocab: engine.vocab().max(1) as u64 }
    }

    fn next(&mut self) -> u32 {
        // A linear congruential generator (Knuth's MMIX constants): its high bits are random enough for this.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) % self.vocab) as u32
    }
}
