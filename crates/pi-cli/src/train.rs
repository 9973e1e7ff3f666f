//! `pi train-predictor`: predictors for a model, from what its neurons do in a text.

use crate::{
    failure::{Failure, Result},
    flags::EngineFlags,
    interrupt::{INTERRUPTED, Interrupt},
    loading::{introduce, load_as, window},
    output::{Output, say, size},
    values,
};
use clap::{Args, ValueEnum, ValueHint};
use pi_engine::{
    Engine, Error, Session, SessionOptions, Sparsity, StepToken,
    pi_core::QuantType,
    pi_gguf::File,
    profile::model_fingerprint,
    train::{Choice, Progress, TrainOptions, Trained, train},
};
use std::{
    fmt::Write as _,
    fs,
    io::{self, IsTerminal, Write as _},
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// The options of `pi train-predictor`.
#[derive(Args, Debug)]
pub struct TrainFlags {
    /// The model: GGUF or PowerInfer, with an activation that is exactly 0 for idle neurons
    #[arg(value_name = "MODEL", value_hint = ValueHint::FilePath)]
    pub model: PathBuf,
    /// Text to train on. May be given several times
    #[arg(long, required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text: Vec<PathBuf>,
    /// Text that perplexity is measured on [default: the last tenth of the text]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub eval_text: Option<PathBuf>,
    /// The file to be written
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// What is written: the predictors alone (beside), to be used with --predictor-file, or a PowerInfer file of model and
    /// predictors (pwri)
    #[arg(long, value_enum, value_name = "beside|pwri", default_value_t, hide_possible_values = true)]
    pub format: Format,
    /// Tokens to train each layer on
    #[arg(long, value_name = "N", default_value_t = TrainOptions::default().samples, allow_hyphen_values = true)]
    pub samples: usize,
    /// By how much perplexity may grow, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.1, allow_negative_numbers = true, value_parser = values::from_zero)]
    pub loss: f32,
    /// Widths of predictors to be tried [default: found for each layer, from its sparsity]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub rank: Vec<usize>,
    /// Times that every sample is seen
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub epochs: u32,
    /// Type of the predictors' numbers
    #[arg(long = "type", value_name = "TYPE", default_value = "f16", value_parser = quant_type)]
    pub ty: QuantType,
    /// Memory for samples, in MiB. If it does not suffice for all layers, the text is gone through several times
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub memory: u32,
    /// Of the first weights and the order of samples
    #[arg(short, long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub engine: EngineFlags,
}

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The predictors alone.
    #[default]
    Beside,
    /// Model and predictors.
    Pwri,
}

fn quant_type(text: &str) -> std::result::Result<QuantType, String> {
    QuantType::from_name(text).ok_or_else(|| format!("known are {}", QuantType::ALL.map(QuantType::name).join(", ")))
}

/// Trains predictors, writes them, and says what they cost and save.
///
/// # Errors
/// Whatever keeps it from doing that.
pub fn run(flags: &TrainFlags) -> Result {
    let failure = |e: Error| Failure::engine(&e, &flags.model);
    if flags.engine.sparsity != Sparsity::Auto {
        return Err(Failure::Usage("--sparsity means nothing here: predictors are trained on the exact model".into()));
    }
    check_output(flags)?;
    let engine = load_as(&flags.engine, Sparsity::Exact, &flags.model)?;
    introduce(&engine, &flags.model);
    let mut text = Vec::new();
    for path in &flags.text {
        text.extend(tokens(&engine, path)?);
    }
    let kept = match &flags.eval_text {
        Some(path) => tokens(&engine, path)?,
        None => text.split_off(text.len() - text.len() / 10),
    };
    let c = engine.config();
    let mut options = TrainOptions {
        samples: flags.samples,
        context: window(&flags.engine, &engine),
        batch: flags.engine.batch_size as usize,
        memory: u64::from(flags.memory) << 20,
        loss: f64::from(flags.loss) / 100.0,
        ranks: flags.rank.clone(),
        ty: flags.ty,
        ..TrainOptions::default()
    };
    (options.fit.epochs, options.fit.seed) = (flags.epochs as usize, flags.seed);
    let state = State::new(flags, &engine, &options, &text)?;
    let known = state.read()?;
    if !known.is_empty() {
        say(&format!("{} of {} layers are there from an earlier run", known.len(), c.layers));
    }
    let interrupt = Interrupt::watch()?;
    interrupt.writing(); // from here on there is something to go on with
    let (begun, mut line) = (Instant::now(), Line::new(c.layers));
    let mut failed = None;
    let mut progress = |now: Progress<'_>| {
        if let Progress::Fitted(choice) = &now {
            failed = state.write(choice).err();
        }
        line.show(&now);
        let goes_on = failed.is_none() && !interrupt.writing();
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let done = train(&engine, &text, &kept, &options, known, &mut progress);
    line.clear();
    if let Some(failure) = failed {
        return Err(failure);
    }
    if interrupt.writing() {
        let folder = state.folder.display();
        say(&match state.folder.is_dir() {
            true => format!("interrupted: what is done lies in {folder}, and the same command goes on from there"),
            false => "interrupted: nothing was done yet".into(),
        });
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let trained = done.map_err(failure)?;
    if trained.settled.trial.is_none() {
        return Err(Failure::Work(format!(
            "{}: no predictors within {} % of the perplexity pay; the model is best run with --sparsity exact",
            flags.model.display(),
            flags.loss
        )));
    }
    match flags.format {
        Format::Beside => trained.write(&flags.output),
        Format::Pwri => {
            File::open(&flags.model).map_err(Error::from).and_then(|f| trained.write_model(&f, &flags.output))
        }
    }
    .map_err(|e| Failure::engine(&e, &flags.output))?;
    state.remove();
    let speeds = speeds(&engine, &trained, &options).map_err(failure)?;
    let mut out = Output::new();
    match flags.json {
        true => out.json(&report(flags, &trained, &speeds, begun.elapsed()))?,
        false => out.write(table(flags, &trained, &speeds, begun.elapsed()).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What cannot be written is said before hours of work, and a model is not replaced by its predictors.
fn check_output(flags: &TrainFlags) -> Result<()> {
    let output = &flags.output;
    let refuse = |why: &str| Err(Failure::Work(format!("{}: {why}", output.display())));
    let parent = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return refuse("cannot be written: its folder is not there");
    }
    if output.is_dir() {
        return refuse("cannot be written: it is a folder");
    }
    for (what, path) in
        flags.text.iter().chain(&flags.eval_text).map(|p| ("a text", p)).chain([("the model", &flags.model)])
    {
        if let (Ok(a), Ok(b)) = (fs::canonicalize(path), fs::canonicalize(output))
            && a == b
        {
            return refuse(&format!("this is {what}, and is not replaced"));
        }
    }
    Ok(())
}

fn tokens(engine: &Engine, path: &Path) -> Result<Vec<u32>> {
    let text = fs::read(path).map_err(|e| Failure::Work(format!("{}: cannot be read: {e}", path.display())))?;
    engine.encode_plain(&text).map_err(|e| Failure::engine(&e, path))
}

/// Layers that are done, in a folder beside the output, until all are.
struct State {
    folder: PathBuf,
    /// What they belong to.
    about: String,
}

impl State {
    fn new(flags: &TrainFlags, engine: &Engine, options: &TrainOptions, text: &[u32]) -> Result<Self> {
        let mut folder = flags.output.clone().into_os_string();
        folder.push(".partial");
        let file = File::open(&flags.model).map_err(|e| Failure::engine(&e.into(), &flags.model))?;
        let model = model_fingerprint(&file, engine.config().activation);
        // FNV-1a over the tokens: another text is another training
        let hash =
            text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, t| (h ^ u64::from(*t)).wrapping_mul(0x100_0000_01b3));
        let TrainOptions { samples, context, ranks, fit, ty, .. } = options;
        let kv = flags.engine.kv_types();
        let about = format!("{model:016x} {kv:?} {hash:016x} {samples} {context} {ranks:?} {fit:?} {ty}");
        Ok(Self { folder: folder.into(), about })
    }

    fn path(&self, layer: usize) -> PathBuf {
        self.folder.join(format!("layer-{layer}.gguf"))
    }

    fn read(&self) -> Result<Vec<Choice>> {
        let mut known = Vec::new();
        let Ok(entries) = fs::read_dir(&self.folder) else { return Ok(known) };
        for path in entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "gguf")) {
            known.extend(Choice::read(&path, &self.about).map_err(|e| Failure::engine(&e, &path))?);
        }
        known.sort_by_key(|c| c.layer);
        Ok(known)
    }

    fn write(&self, choice: &Choice) -> Result<()> {
        let failure = |e: io::Error| Failure::Work(format!("{}: {e}", self.folder.display()));
        if !self.folder.is_dir() {
            fs::create_dir(&self.folder).map_err(failure)?;
        }
        let path = self.path(choice.layer);
        choice.write(&path, &self.about).map_err(|e| Failure::engine(&e, &path))
    }

    fn remove(&self) {
        // what else somebody put there stays
        if let Ok(known) = self.read() {
            known.iter().for_each(|c| drop(fs::remove_file(self.path(c.layer))));
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Tokens per second: exact, and with the predictors.
struct Speeds {
    exact: f64,
    predictor: f64,
}

/// Decodes in turns, and takes medians.
fn speeds(engine: &Engine, trained: &Trained, options: &TrainOptions) -> std::result::Result<Speeds, Error> {
    const TOKENS: usize = 32;
    let sparse = trained.engine(engine)?;
    let context = Some((TOKENS + 1).min(options.context));
    let open = |e: &Engine| e.session(&SessionOptions { context, batch: 1, ..SessionOptions::default() });
    let mut sessions = [open(engine)?, open(&sparse)?];
    let mut times = [Vec::new(), Vec::new()];
    let decode = |session: &mut Session| {
        session.truncate(0, 0);
        let start = Instant::now();
        for i in 0..TOKENS {
            let token = (i * 7919 % engine.vocab()) as u32;
            session.step(&[StepToken { token, seq: 0, logits: true }])?;
        }
        Ok::<_, Error>(start.elapsed().as_secs_f64())
    };
    for round in 0..6 {
        for (session, times) in sessions.iter_mut().zip(&mut times) {
            let time = decode(session)?;
            if round > 0 {
                times.push(time);
            }
        }
    }
    let [exact, predictor] = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        TOKENS as f64 / t[t.len() / 2].max(1e-9)
    });
    Ok(Speeds { exact, predictor })
}

fn table(flags: &TrainFlags, trained: &Trained, speeds: &Speeds, time: Duration) -> String {
    let mut text = String::from(
        "| layer | kind  | rank | threshold | recall | of magnitudes | predicted | fire    | predicted / fire | size of the gate |\n\
         | ----: | ----- | ---: | --------: | -----: | ------------: | --------: | ------: | ---------------: | ---------------: |\n",
    );
    for l in &trained.layers {
        let percent = |v: f64| format!("{:.2} %", 100.0 * v);
        let (kind, rank, cells) = match &l.point {
            Some(p) => {
                let ratio = p.share / l.active.max(1e-9);
                (
                    "mlp",
                    l.rank().to_string(),
                    [
                        format!("{:.2}", p.threshold),
                        percent(p.recall),
                        percent(p.magnitude),
                        percent(p.share),
                        format!("{ratio:.2}"),
                        percent(l.size),
                    ],
                )
            }
            None => ("exact", "-".into(), ["-", "-", "-", "-", "-", "-"].map(String::from)),
        };
        let [threshold, recall, magnitude, share, ratio, size] = cells;
        let active = percent(l.active);
        let _ = writeln!(
            text,
            "| {:>5} | {kind:<5} | {rank:>4} | {threshold:>9} | {recall:>6} | {magnitude:>13} | {share:>9} | {active:>7} | {ratio:>16} | {size:>16} |",
            l.layer
        );
    }
    if let Some(t) = &trained.settled.trial {
        let _ = writeln!(
            text,
            "perplexity: {:.4} exact, {:.4} with predictors ({:+.3} %); KL divergence {:.5}\nneurons looked at: {:.2} % on average\n\
             decoding: {:.1} tokens/s exact, {:.1} with predictors",
            t.exact,
            t.perplexity,
            100.0 * t.growth(),
            t.kl,
            100.0 * t.marked,
            speeds.exact,
            speeds.predictor,
        );
    }
    let bytes = fs::metadata(&flags.output).map_or(0, |m| m.len());
    let _ = writeln!(text, "{}: {}, {:.0} s", flags.output.display(), size(bytes), time.as_secs_f64());
    text
}

fn report(flags: &TrainFlags, trained: &Trained, speeds: &Speeds, time: Duration) -> serde_json::Value {
    let layers: Vec<_> = trained
        .layers
        .iter()
        .map(|l| {
            let p = l.point.as_ref();
            serde_json::json!({
                "layer": l.layer,
                "kind": if p.is_some() { "mlp" } else { "exact" },
                "rank": l.rank(),
                "threshold": p.map(|p| p.threshold).filter(|t| t.is_finite()),
                "recall": p.map(|p| p.recall),
                "magnitude_recall": p.map(|p| p.magnitude),
                "predicted_share": p.map(|p| p.share),
                "active_share": l.active,
                "size_of_gate": l.size,
                "tried": l.tried,
            })
        })
        .collect();
    let t = trained.settled.trial.as_ref();
    serde_json::json!({
        "model": flags.model.display().to_string(),
        "output": flags.output.display().to_string(),
        "layers": layers,
        "exact_ppl": t.map(|t| t.exact),
        "ppl": t.map(|t| t.perplexity),
        "ppl_growth": t.map(|t| t.growth()),
        "kl_mean": t.map(|t| t.kl),
        "marked_share": t.map(|t| t.marked),
        "exact_tps": speeds.exact,
        "predictor_tps": speeds.predictor,
        "seconds": time.as_secs_f64(),
    })
}

/// One line on standard error that is written anew; where that is not a terminal, a line per layer and trial.
struct Line {
    layers: usize,
    is_terminal: bool,
    shown: Option<Instant>,
}

impl Line {
    fn new(layers: usize) -> Self {
        Self { layers, is_terminal: io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, now: &Progress<'_>) {
        match now {
            Progress::Fitted(l) => {
                self.clear();
                let point = l.curve.with_recall(0.98);
                say(&format!(
                    "layer {} of {}: {:.2} % fire; rank {}: 98 % of the magnitudes in {:.2} % of the neurons",
                    l.layer + 1,
                    self.layers,
                    100.0 * l.active,
                    l.rank(),
                    100.0 * point.share
                ));
            }
            Progress::Tried(t) => {
                self.clear();
                say(&format!(
                    "{} layers with predictors, {:.2} % of the neurons: perplexity {:+.3} %",
                    t.layers,
                    100.0 * t.marked,
                    100.0 * t.growth()
                ));
            }
            _ if !self.is_terminal || self.shown.is_some_and(|t| t.elapsed() < Duration::from_millis(200)) => {}
            now => {
                let text = match now {
                    Progress::Collecting { layers, tokens, of } => {
                        format!("watching layers {} to {}: {tokens} of {of} tokens", layers.start + 1, layers.end)
                    }
                    Progress::Fitting { layer, rank, done } => {
                        format!("layer {}, rank {rank}: {:.0} %", layer + 1, 100.0 * done)
                    }
                    Progress::Evaluating { windows, of } => format!("measuring perplexity: {windows} of {of} windows"),
                    _ => return,
                };
                let _ = write!(io::stderr(), "\r{text:60}");
                self.shown = Some(Instant::now());
            }
        }
    }

    fn clear(&mut self) {
        if self.is_terminal && self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r{:60}\r", "");
        }
    }
}
