//! `pi perplexity`: how well a model predicts a text, and how far it is from another model or mode.

use crate::{
    failure::{Failure, Result},
    flags::EngineFlags,
    interrupt::{INTERRUPTED, Interrupt},
    loading::{introduce, load, window, window_of},
    output::{self, Output, say, size},
    placing::PlacingFlags,
    predictor::PredictorFlags,
    progress::Progress,
    prompt,
};
use clap::{Args, ValueHint, value_parser};
use pi_engine::{
    Engine, SessionOptions, Sparsity,
    evaluate::{Comparison, EvaluateOptions, Evaluation, Windows, evaluate},
};
use serde::Serialize;
use std::{
    fmt::Write,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// The options of `pi perplexity`.
#[derive(Args, Debug)]
#[command(mut_arg("ctx_size", |arg| arg.help("Tokens of a window; 0: as many as the model was made for [default: 512]").help_heading("Windows")))]
pub struct PerplexityFlags {
    /// Model file: GGUF or PowerInfer; of a split model, any part
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    model: PathBuf,
    /// The text. All of its bytes count, also a line feed at its end
    #[arg(short = 'f', long, visible_alias = "file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    text: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,

    /// Windows overlap: each begins N tokens after the last, and its last N tokens count. With N one less than -c, nothing
    /// overlaps and every token counts [default: windows side by side, whose second halves count, as llama.cpp does]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..),
          help_heading = "Windows")]
    stride: Option<u32>,
    /// Most windows [default: all that the text has]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..), help_heading = "Windows")]
    chunks: Option<u32>,

    /// Compare with this model, which must have the same vocabulary [default: the same, if --against-sparsity is given]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Comparison")]
    against: Option<PathBuf>,
    /// Which neurons are left out of the model that is compared with [default: auto]
    #[arg(long, value_name = "auto|off|exact|predictor", help_heading = "Comparison")]
    against_sparsity: Option<Sparsity>,

    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    placing: PlacingFlags,
}

impl PerplexityFlags {
    /// Model and mode to compare with, if there is to be a comparison.
    fn base(&self) -> Option<(&Path, Sparsity)> {
        let wanted = self.against.is_some() || self.against_sparsity.is_some();
        let path = self.against.as_deref().unwrap_or(&self.model);
        wanted.then(|| (path, self.against_sparsity.unwrap_or_default()))
    }

    /// An engine of one side. Options of predictors are for the side that uses them.
    fn load(&self, path: &Path, sparsity: Sparsity, placing: &PlacingFlags) -> Result<Engine> {
        let mut flags = self.engine.clone();
        let modes = [Some(self.engine.sparsity), self.base().map(|b| b.1)];
        if sparsity != Sparsity::Predictor && modes.contains(&Some(Sparsity::Predictor)) {
            flags.predictor = PredictorFlags::default();
        }
        let batch = self.engine.batch_size as usize;
        let session = |made_for| {
            let context = Some(window_of(&self.engine, made_for));
            SessionOptions { context, batch, sequences: 1, logits: batch }
        };
        load(&flags, placing, sparsity, &session, path)
    }
}

/// Evaluates the text and prints what was found.
///
/// # Errors
/// Whatever keeps it from doing that.
pub fn perplexity(flags: &PerplexityFlags) -> Result {
    let text = prompt::read(&flags.text)?;
    let interrupt = Interrupt::watch()?;
    let failure = |e| Failure::text(&e, flags.text.display(), &flags.model);
    let engine = flags.load(&flags.model, flags.engine.sparsity, &flags.placing)?;
    introduce(&engine, &flags.model);
    let base = match flags.base() {
        None => None,
        Some((path, sparsity)) => {
            // one engine at a time may have the accelerator
            let base = flags.load(path, sparsity, &PlacingFlags::default())?;
            say("compared with:");
            introduce(&base, path);
            Some(base)
        }
    };
    let options = options(flags, &engine);
    let tokens = engine.encode_plain(&text).map_err(failure)?;
    drop(text);
    let (begun, mut bar) = (Instant::now(), None);
    let mut progress = |now: &Evaluation| {
        let bar = bar.get_or_insert_with(|| Progress::new(now.of as u64, "windows"));
        let so_far = if now.windows > 0 {
            format!("perplexity {}", output::perplexity(now.perplexity()))
        } else {
            String::new()
        };
        bar.show(now.windows as u64, &so_far);
        if interrupt.writing() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let found = evaluate(&engine, base.as_ref(), &tokens, &options, &mut progress).map_err(failure)?;
    drop(bar);
    let mut out = Output::new();
    match flags.json {
        true => out.json(&Found::new(flags, &found, &options))?,
        false => out.write(summary(flags, &found).as_bytes())?,
    }
    say(&speed(&found, begun.elapsed()));
    if found.is_complete() {
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!("interrupted after {} of {} windows", found.windows, found.of));
    Ok(ExitCode::from(INTERRUPTED))
}

fn options(flags: &PerplexityFlags, engine: &Engine) -> EvaluateOptions {
    let context = window(&flags.engine, engine);
    EvaluateOptions {
        context,
        windows: flags.stride.map_or(Windows::Halves, |n| Windows::Stride(n as usize)),
        batch: flags.engine.batch_size as usize,
        limit: flags.chunks.map(|n| n as usize),
    }
}

fn summary(flags: &PerplexityFlags, found: &Evaluation) -> String {
    let score = &found.score;
    let mut text = format!(
        "perplexity: {} ± {} ({} tokens of {} windows, mean negative log-likelihood {:.5})\n",
        output::perplexity(score.perplexity()),
        output::perplexity(score.perplexity_error()),
        score.tokens,
        found.windows,
        score.mean_nll(),
    );
    if let (Some(c), Some((path, sparsity))) = (&found.against, flags.base()) {
        let mode = format!("{sparsity:?}").to_lowercase();
        let [median, high, most] = c.kl_quantiles([0.5, 0.99, 1.0]);
        let _ = writeln!(
            text,
            "compared with {} ({mode}): perplexity {} ± {}, so {} ± {}\n\
             KL divergence: mean {:.6} ± {:.6}, median {median:.6}, 99 % {high:.6}, largest {most:.6}\n\
             same most likely token: {:.3} %",
            output::printable(&path.display().to_string()),
            output::perplexity(c.base.perplexity()),
            output::perplexity(c.base.perplexity_error()),
            output::growth(c.perplexity_increase()),
            output::growth(c.perplexity_increase_error()).trim_start_matches('+'),
            c.kl_mean(),
            c.kl_error(),
            100.0 * c.top1_agreement(),
        );
    }
    text
}

/// The line at the end: speed with the scoring, and the comparison if there is one.
fn speed(found: &Evaluation, time: Duration) -> String {
    let stats = &found.stats;
    let share = |share: Option<f32>| share.map_or("none".into(), |s| format!("{:.1} %", 100.0 * s));
    let predicted = match stats.marked_share().filter(|&s| s < 1.0) {
        Some(s) => format!(" | predicted: {:.1} %", 100.0 * s),
        None => String::new(),
    };
    format!(
        "{} tokens in {:.1} s, {:.1} tokens/s | active neurons: {}{predicted} | read per token: {}",
        stats.tokens,
        time.as_secs_f64(),
        stats.tokens as f64 / time.as_secs_f64().max(1e-9),
        share(stats.active_share()),
        stats.bytes_per_token().map_or("none".into(), size),
    )
}

/// The object of `pi perplexity --json`. What was not measured is null.
#[derive(Serialize)]
struct Found {
    model: String,
    text: String,
    ppl: f64,
    /// Standard error of `ppl`.
    ppl_error: f64,
    /// In nats.
    mean_nll: f64,
    /// Tokens that counted.
    tokens: u64,
    windows: usize,
    complete: bool,
    context: usize,
    stride: Option<u32>,
    active_share: Option<f32>,
    marked_share: Option<f32>,
    against: Option<String>,
    against_ppl: Option<f64>,
    /// `ppl / against_ppl - 1`, and its standard error.
    ppl_increase: Option<f64>,
    ppl_increase_error: Option<f64>,
    /// Of KL(against ‖ model), in nats.
    kl_mean: Option<f64>,
    kl_error: Option<f64>,
    kl_median: Option<f64>,
    kl_p99: Option<f64>,
    kl_max: Option<f64>,
    /// Share of tokens after which both find the same token most likely.
    top1_agreement: Option<f64>,
}

impl Found {
    fn new(flags: &PerplexityFlags, found: &Evaluation, options: &EvaluateOptions) -> Self {
        let (score, c) = (&found.score, found.against.as_ref());
        let shown = |path: &Path| path.display().to_string();
        let [median, high, most] = c.map_or([None; 3], |c| c.kl_quantiles([0.5, 0.99, 1.0]).map(Some));
        Self {
            model: shown(&flags.model),
            text: shown(&flags.text),
            ppl: score.perplexity(),
            ppl_error: score.perplexity_error(),
            mean_nll: score.mean_nll(),
            tokens: score.tokens,
            windows: found.windows,
            complete: found.is_complete(),
            context: options.context,
            stride: flags.stride,
            active_share: found.stats.active_share(),
            marked_share: found.stats.marked_share(),
            against: flags.base().map(|(path, _)| shown(path)),
            against_ppl: c.map(|c| c.base.perplexity()),
            ppl_increase: c.map(Comparison::perplexity_increase),
            ppl_increase_error: c.map(Comparison::perplexity_increase_error),
            kl_mean: c.map(Comparison::kl_mean),
            kl_error: c.map(Comparison::kl_error),
            kl_median: median,
            kl_p99: high,
            kl_max: most,
            top1_agreement: c.map(Comparison::top1_agreement),
        }
    }
}
