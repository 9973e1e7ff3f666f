//! `pi train-predictor`: predictors for a model, from what its neurons do in a text.

pub mod flags;
mod line;
pub mod report;
pub mod state;
pub mod work;

use crate::{
    failure::{Failure, Result},
    flags::EngineFlags,
    interrupt::{INTERRUPTED, Interrupt},
    loading::{introduce, load_as},
    output::{self, Output, size},
    writing::quant_type,
};
use clap::{Args, ValueEnum, ValueHint};
use flags::{CONTEXT, MEANINGLESS, TrainingFlags, refuse_meaningless};
use pi_engine::{
    Engine, Error, Sparsity,
    pi_core::QuantType,
    pi_gguf::File,
    profile::model_fingerprint,
    train::{Timing, Trained},
};
use state::State;
use std::{fmt::Write, fs, path::PathBuf, process::ExitCode, time::Instant};

/// The options of `pi train-predictor`.
#[derive(Args, Debug)]
#[command(mut_arg("ctx_size", |arg| arg.help(CONTEXT)), mut_args(|arg| {
    let hide = arg.is_hide_set() || MEANINGLESS.contains(&arg.get_id().as_str());
    arg.hide(hide)
}))]
pub struct TrainFlags {
    /// The model: GGUF or PowerInfer, with an activation that is exactly 0 for idle neurons
    #[arg(value_name = "MODEL", value_hint = ValueHint::FilePath)]
    pub model: PathBuf,
    /// The file to be written
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// What is written: the predictors alone (beside), to be used with --predictor-file, or a PowerInfer file of model and
    /// predictors (pwri)
    #[arg(long, value_enum, value_name = "beside|pwri", default_value_t, hide_possible_values = true)]
    pub format: Format,
    /// Type of the predictors' numbers
    #[arg(long = "type", value_name = "TYPE", default_value = "f16", value_parser = quant_type)]
    pub ty: QuantType,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub training: TrainingFlags,
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

/// Trains predictors, writes them, and says what they cost and save.
///
/// # Errors
/// Whatever keeps it from doing that.
pub fn run(flags: &TrainFlags) -> Result {
    let failure = |e: Error| Failure::engine(&e, &flags.model);
    refuse_meaningless(&flags.engine)?;
    flags.training.check_output(&flags.output, &flags.model)?;
    let engine = load_as(&flags.engine, Sparsity::Exact, &flags.model)?;
    introduce(&engine, &flags.model);
    let options = flags.training.options(&engine, &flags.engine, flags.ty);
    let texts = flags.training.read(&engine, options.context)?;
    flags.training.check_texts(&engine, &options, &texts, &flags.model)?;
    let file = File::open(&flags.model).map_err(|e| failure(e.into()))?;
    let model = model_fingerprint(&file, engine.config().activation);
    let state = State::new(&flags.output, model, flags.engine.kv_types(), &options, &texts.train);
    let interrupt = Interrupt::watch()?;
    interrupt.writing(); // from here on there is something to go on with
    let begun = Instant::now();
    let done = work::work(&engine, &texts.train, &texts.kept, &options, &state, &interrupt, failure)?;
    let Some(trained) = done else { return Ok(ExitCode::from(INTERRUPTED)) };
    if trained.settled.trial.is_none() {
        return Err(Failure::Work(format!(
            "{}: no predictors within {} % of the perplexity pay; the model is best run with --sparsity exact\n\
             what was trained lies in {}: the same command with a higher --loss goes on from there, else remove it",
            flags.model.display(),
            flags.training.loss,
            state.folder().display()
        )));
    }
    match flags.format {
        Format::Beside => trained.write(&flags.output),
        Format::Pwri => trained.write_model(&file, &flags.output),
    }
    .map_err(|e| Failure::engine(&e, &flags.output))?;
    state.remove();
    let timing = trained.time(&engine, &texts.kept).map_err(failure)?;
    let (mut out, seconds) = (Output::new(), begun.elapsed().as_secs_f64());
    match flags.json {
        true => out.json(&json(flags, &engine, &trained, &timing, seconds))?,
        false => out.write(text(flags, &engine, &trained, &timing, seconds).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(flags: &TrainFlags, engine: &Engine, trained: &Trained, timing: &Timing, seconds: f64) -> String {
    let mut text = report::table(trained, timing, engine.weight_bytes());
    if let Some(t) = &trained.settled.trial {
        let _ = writeln!(
            text,
            "perplexity: {} exact, {} with predictors ({}); KL divergence {:.5}\n\
             decoding: {:.1} tokens/s exact, {:.1} with predictors",
            output::perplexity(t.exact),
            output::perplexity(t.perplexity),
            output::growth(t.growth()),
            t.kl,
            timing.exact,
            timing.predictor,
        );
    }
    let bytes = fs::metadata(&flags.output).map_or(0, |m| m.len());
    let _ = writeln!(text, "{}: {}, {seconds:.0} s", flags.output.display(), size(bytes));
    text
}

fn json(flags: &TrainFlags, engine: &Engine, trained: &Trained, timing: &Timing, seconds: f64) -> serde_json::Value {
    let t = trained.settled.trial.as_ref();
    serde_json::json!({
        "model": flags.model.display().to_string(),
        "output": flags.output.display().to_string(),
        "layers": report::layers(trained, timing, engine.weight_bytes()),
        "exact_ppl": t.map(|t| t.exact),
        "ppl": t.map(|t| t.perplexity),
        "ppl_growth": t.map(|t| t.growth()),
        "kl_mean": t.map(|t| t.kl),
        "marked_share": t.map(|t| t.marked),
        "exact_tps": timing.exact,
        "predictor_tps": timing.predictor,
        "seconds": seconds,
    })
}
