//! Whole models: prompts (`pp512`) and single tokens (`tg128`), as llama-bench does it.
//!
//! Loading is not timed. Every test is run once to warm up; the sequence is emptied before each run.

use super::{
    list::{Numbers, Pair},
    machine_speed::MachineSpeed,
    table::{Align, Column, Format, Row, Table, spread},
};
use crate::{
    crossover, demo,
    failure::{Failure, Result},
    kernels, machine,
    output::say,
    values,
};
use clap::{Args, ValueHint};
use pi_engine::{
    Engine, Error, Session, SessionOptions, Sparsity, StepToken,
    pi_core::{Activation, KvType},
    pi_gguf::{File, Source},
    pi_sparse_cpu::{Crossover, Isa, Kernels},
    sampler::argmax,
};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
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
    /// Lengths of prompts to time, as in 128,512 or 128-1024*2; 0 for none [default: 512]
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
    /// Which neurons are left out: auto, off, exact; see pi run
    #[arg(long, value_name = "auto|off|exact", default_value = "auto")]
    sparsity: Sparsity,
    /// Share of active neurons from which every neuron is computed [default: what pi doctor measured, or 0.9]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = values::share)]
    crossover: Option<f32>,
    /// Another activation than the file says
    #[arg(long, value_name = "NAME")]
    activation: Option<Activation>,
    /// How keys and values are kept
    #[arg(long, value_name = "f16|f32", default_value = "f16")]
    kv: KvType,
    /// Read the file into memory instead of mapping it
    #[arg(long)]
    no_mmap: bool,
    /// The memory's speed in GB/s, instead of measuring it; 0: do not compare with it
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true, value_parser = values::from_zero)]
    bandwidth: Option<f32>,
}

/// One line of the table to be.
#[derive(Clone, Copy, Debug)]
struct Test {
    prompt: usize,
    generated: usize,
    depth: usize,
}

impl Test {
    /// As in `pp512`, `tg128`, `pp512+tg128`, `tg128 @ d1024`.
    fn name(&self) -> String {
        let parts = [("pp", self.prompt), ("tg", self.generated)];
        let parts: Vec<_> = parts.iter().filter(|(_, n)| *n > 0).map(|(word, n)| format!("{word}{n}")).collect();
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        parts.join("+") + &depth
    }

    fn tokens(&self) -> usize {
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
    let mut speed = MachineSpeed::new(flags.bandwidth);
    let usual = batches == [2048] && ubatches == [512];
    let mut table = Table::new(flags.output, columns(usual));
    for path in &models {
        let failure = |e: Error| Failure::engine(&e, path);
        let source = if flags.no_mmap { Source::InMemory } else { Source::Mapped };
        let file = File::open_with(path, source).map_err(|e| failure(e.into()))?;
        for &threads in &threads {
            let bandwidth = speed.of(threads)?;
            let engine = load(flags, &kernels, &file, threads).map_err(failure)?;
            let about = About::new(&engine, &file, path);
            for (&batch, &ubatch) in batches.iter().flat_map(|b| ubatches.iter().map(move |u| (b, u))) {
                for test in &tests {
                    let samples = run(&engine, test, batch.min(ubatch), flags.repetitions).map_err(failure)?;
                    let setting = Setting { flags, isa: kernels.isa(), threads, batch, ubatch, bandwidth, usual };
                    table.row(&Line { about: &about, setting, test: *test, samples, at: SystemTime::now() })?;
                }
            }
        }
    }
    table.end()?;
    Ok(ExitCode::SUCCESS)
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

fn load(flags: &ModelFlags, kernels: &Kernels, file: &File, threads: usize) -> Result<Engine, Error> {
    let crossover = match flags.crossover {
        Some(share) => Crossover::uniform(share),
        None => crossover::stored(kernels.isa(), threads).unwrap_or_default(),
    };
    let cores = machine::usable_cores();
    if threads > cores {
        say(&format!("warning: {threads} threads on the {cores} cores that this process may use"));
    }
    let builder = Engine::builder().kernels(kernels.clone()).threads(threads).crossover(crossover);
    let mut builder = builder.sparsity(flags.sparsity).kv(flags.kv);
    if let Some(activation) = flags.activation {
        builder = builder.activation(activation);
    }
    builder.load(file)
}

/// What the runs of a test showed.
#[derive(Default)]
struct Samples {
    seconds: Vec<f64>,
    bytes: u64,
    tokens: u64,
    active: Vec<f64>,
    dense: Vec<f64>,
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
            samples.active.extend(stats.active_share().map(f64::from));
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

/// What is the same for all tests of a model.
struct About {
    path: String,
    name: String,
    bytes: u64,
    numbers: u64,
    device: String,
    cpu: String,
}

impl About {
    fn new(engine: &Engine, file: &File, path: &Path) -> Self {
        let (mut bytes, mut numbers, mut by_type) = (0, 0, Vec::<(String, u64)>::new());
        for tensor in file.tensors() {
            let (size, name) = (tensor.data().len() as u64, tensor.ty().to_string());
            bytes += size;
            numbers += (tensor.rows() * tensor.cols()) as u64;
            match by_type.iter_mut().find(|(n, _)| *n == name) {
                Some((_, sum)) => *sum += size,
                None => by_type.push((name, size)),
            }
        }
        // The type of most weights: files of mixed types are named after their layers', not the embedding's.
        let most = by_type.into_iter().max_by_key(|(_, size)| *size).map_or_else(String::new, |(name, _)| name);
        let name = format!("{} {} {most}", engine.config().architecture, count(numbers));
        let info = engine.device().info();
        Self { path: path.display().to_string(), name, bytes, numbers, device: info.name, cpu: machine::cpu_name() }
    }
}

/// As in `134.52 M`, llama-bench's way to write numbers of parameters.
fn count(n: u64) -> String {
    let n = n as f64;
    if n >= 1e9 { format!("{:.2} B", n / 1e9) } else { format!("{:.2} M", n / 1e6) }
}

/// As in `87.48 MiB`.
fn binary_size(bytes: u64) -> String {
    let (mib, gib) = (f64::from(1 << 20), f64::from(1 << 30));
    let bytes = bytes as f64;
    if bytes >= gib { format!("{:.2} GiB", bytes / gib) } else { format!("{:.2} MiB", bytes / mib) }
}

#[derive(Clone, Copy)]
struct Setting<'a> {
    flags: &'a ModelFlags,
    isa: Isa,
    threads: usize,
    batch: usize,
    ubatch: usize,
    bandwidth: Option<f64>,
    usual: bool,
}

struct Line<'a> {
    about: &'a About,
    setting: Setting<'a>,
    test: Test,
    samples: Samples,
    at: SystemTime,
}

/// llama-bench's columns (with batch sizes only if they are not the usual ones), then our own.
fn columns(usual: bool) -> Vec<Column> {
    use Align::{Left, Right};
    let mut columns = vec![
        ("model", 24, Left),
        ("size", 10, Right),
        ("params", 10, Right),
        ("backend", 10, Left),
        ("threads", 7, Right),
    ];
    if !usual {
        columns.extend([("n_batch", 7, Right), ("n_ubatch", 8, Right)]);
    }
    columns.extend([
        ("test", 15, Right),
        ("t/s", 20, Right),
        ("active", 8, Right),
        ("dense path", 10, Right),
        ("MB/token", 8, Right),
        ("GB/s", 6, Right),
        ("of memory", 9, Right),
    ]);
    columns
}

impl Line<'_> {
    fn per_second(&self) -> Vec<f64> {
        self.samples.seconds.iter().map(|s| self.test.tokens() as f64 / s.max(1e-9)).collect()
    }

    fn bytes_per_token(&self) -> f64 {
        self.samples.bytes as f64 / self.samples.tokens.max(1) as f64
    }

    /// Bytes of weights and caches per second.
    fn read_per_second(&self) -> f64 {
        self.samples.bytes as f64 / self.samples.seconds.iter().sum::<f64>().max(1e-9)
    }
}

impl Row for Line<'_> {
    fn fields(&self) -> Vec<(&'static str, Value)> {
        let (about, set, test) = (self.about, &self.setting, &self.test);
        let nanoseconds: Vec<_> = self.samples.seconds.iter().map(|s| (s * 1e9).round()).collect();
        let (per_second, read) = (self.per_second(), self.read_per_second());
        let (time, tps) = (spread(&nanoseconds), spread(&per_second));
        let kv = format!("{:?}", set.flags.kv).to_lowercase();
        let whole = |v: f64| Value::from(v.round() as u64);
        vec![
            ("build_version", env!("CARGO_PKG_VERSION").into()),
            ("cpu_info", about.cpu.as_str().into()),
            ("backends", about.device.to_uppercase().into()),
            ("isa", set.isa.to_string().into()),
            ("model_filename", about.path.as_str().into()),
            ("model_type", about.name.as_str().into()),
            ("model_size", about.bytes.into()),
            ("model_n_params", about.numbers.into()),
            ("n_batch", set.batch.into()),
            ("n_ubatch", set.ubatch.into()),
            ("n_threads", set.threads.into()),
            ("type_k", kv.as_str().into()),
            ("type_v", kv.as_str().into()),
            ("use_mmap", (!set.flags.no_mmap).into()),
            ("sparsity", format!("{:?}", set.flags.sparsity).to_lowercase().into()),
            ("test", test.name().into()),
            ("n_prompt", test.prompt.into()),
            ("n_gen", test.generated.into()),
            ("n_depth", test.depth.into()),
            ("test_time", humantime::format_rfc3339_seconds(self.at).to_string().into()),
            ("avg_ns", whole(time.mean)),
            ("stddev_ns", whole(time.deviation)),
            ("avg_ts", tps.mean.into()),
            ("stddev_ts", tps.deviation.into()),
            ("active_share", mean(&self.samples.active).into()),
            ("dense_share", mean(&self.samples.dense).into()),
            ("bytes_per_token", whole(self.bytes_per_token())),
            ("read_bytes_per_second", whole(read)),
            ("memory_bytes_per_second", set.bandwidth.map(f64::round).into()),
            ("memory_share", set.bandwidth.map(|b| read / b).into()),
            ("samples_ns", nanoseconds.iter().map(|&n| whole(n)).collect()),
            ("samples_ts", per_second.into()),
        ]
    }

    fn cells(&self) -> Vec<String> {
        let (about, set) = (self.about, &self.setting);
        let (tps, read) = (spread(&self.per_second()), self.read_per_second());
        let percent = |share: Option<f64>| share.map_or_else(|| "-".into(), |s| format!("{:.1} %", 100.0 * s));
        let mut cells = vec![
            about.name.clone(),
            binary_size(about.bytes),
            count(about.numbers),
            format!("{} {}", about.device.to_uppercase(), set.isa),
            set.threads.to_string(),
        ];
        if !set.usual {
            cells.extend([set.batch.to_string(), set.ubatch.to_string()]);
        }
        cells.extend([
            self.test.name(),
            format!("{:.2} ± {:.2}", tps.mean, tps.deviation),
            percent(mean(&self.samples.active)),
            percent(mean(&self.samples.dense)),
            format!("{:.2}", self.bytes_per_token() / 1e6),
            format!("{:.2}", read / 1e9),
            percent(set.bandwidth.map(|b| read / b)),
        ]);
        cells
    }
}

fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| spread(samples).mean)
}
