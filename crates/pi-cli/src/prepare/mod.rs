//! `pi prepare`: from a model and a text to a file that runs faster, in one go: other number types, down matrices neuron by
//! neuron, a profile, predictors; and what that did to speed, size and perplexity.

mod base;
mod count;
mod measure;

use crate::{
    failure::{Failure, Result},
    flags::EngineFlags,
    interrupt::{INTERRUPTED, Interrupt},
    loading::{introduce, load_as},
    output::{Output, printable, say},
    train::{
        flags::{CONTEXT, MEANINGLESS, TrainingFlags, refuse_meaningless},
        report,
        state::{self, State},
        work,
    },
    writing::quant_type,
};
use clap::{Args, ValueHint};
use pi_convert::FileType;
use pi_engine::{
    Engine, Error, Sparsity, arch,
    pi_core::{Activation, QuantType},
    pi_gguf::File,
    profile::{load, model_fingerprint, save},
};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

/// The options of `pi prepare`.
#[derive(Args, Debug)]
#[command(mut_arg("ctx_size", |arg| arg.help(CONTEXT)), mut_args(|arg| {
    let hide = arg.is_hide_set() || MEANINGLESS.contains(&arg.get_id().as_str());
    arg.hide(hide)
}))]
pub struct PrepareFlags {
    /// The model: GGUF or PowerInfer, with an activation that is exactly 0 for idle neurons
    #[arg(value_name = "MODEL", value_hint = ValueHint::FilePath)]
    model: PathBuf,
    /// The file to be written: the model with its predictors, for --sparsity predictor. Beside it, with .profile behind its
    /// name, how often each neuron fires, as pi profile writes it
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Quantise first, to this kind of file (pi quantize --help lists them) [default: number types stay]
    #[arg(long = "type", value_name = "TYPE", value_parser = file_type)]
    ty: Option<FileType>,
    /// With --type: quantise matrices that are quantised already, which loses more than starting from floats
    #[arg(long, requires = "ty")]
    allow_requantize: bool,
    /// Leave quantised down matrices as they are: nothing is lost then, and rows of neurons that do not fire are read, too.
    /// Without this they are stored neuron by neuron, which rounds them once more
    #[arg(long, conflicts_with = "ty")]
    keep_down: bool,
    /// Type of the predictors' numbers [default: q8_0, or f16 if the model's width is no multiple of 32]
    #[arg(long, value_name = "TYPE", value_parser = quant_type)]
    predictor_type: Option<QuantType>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    training: TrainingFlags,
    #[command(flatten)]
    engine: EngineFlags,
}

fn file_type(name: &str) -> std::result::Result<FileType, String> {
    name.parse().map_err(|e: pi_convert::Error| e.to_string())
}

impl PrepareFlags {
    /// Where the profile goes.
    fn profile(&self) -> PathBuf {
        let mut path = self.output.clone().into_os_string();
        path.push(".profile");
        path.into()
    }

    /// What can be said before any work.
    fn check(&self, source: &File) -> Result<()> {
        refuse_meaningless(&self.engine)?;
        self.training.check_output(&self.output, &self.model)?;
        self.training.check_output(&self.profile(), &self.model)?;
        let (_, config) = arch::detect(source).map_err(|e| Failure::engine(&e, &self.model))?;
        let act = self.engine.activation.unwrap_or(config.activation);
        if !act.is_sparse() {
            return Err(Failure::Work(format!(
                "{}: its activation is {act}, which is never exactly 0: no neuron can be left out, so there is nothing to \
                 prepare",
                self.model.display()
            )));
        }
        self.may_replace_profile(act)
    }

    /// A profile is replaced with the model that it belongs to, and no other.
    fn may_replace_profile(&self, act: Activation) -> Result<()> {
        let path = self.profile();
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        let refused = |what: &str| {
            Err(Failure::Work(format!(
                "{}: {what}, and is not replaced: give another -o, or remove it",
                path.display()
            )))
        };
        let Ok(old) = load(&path) else { return refused("it is there, and cannot be read as a profile") };
        let owner = File::open(&self.output).ok().map(|file| model_fingerprint(&file, act));
        match owner == Some(old.fingerprint) {
            true => Ok(()),
            false => refused(&format!(
                "it is a profile of another model ({}) than the one in {}",
                printable(&old.model),
                self.output.display()
            )),
        }
    }
}

/// Prepares a model, and prints what that did.
///
/// # Errors
/// Whatever keeps it from doing that.
pub fn prepare(flags: &PrepareFlags) -> Result {
    let done = steps(flags);
    let folder = state::folder(&flags.output);
    if matches!(done, Err(Failure::Work(_))) && folder.is_dir() {
        say(&format!("what is done lies in {}: the same command goes on from there, else remove it", folder.display()));
    }
    done
}

fn steps(flags: &PrepareFlags) -> Result {
    let failure = |e: Error| Failure::engine(&e, &flags.model);
    let source = File::open(&flags.model).map_err(|e| failure(e.into()))?;
    flags.check(&source)?;
    let (begun, interrupt) = (Instant::now(), Interrupt::watch()?);
    interrupt.writing(); // from here on there is something to go on with
    let stopped = || Ok(ExitCode::from(INTERRUPTED));

    let Some(base) = base::make(flags, &source, &interrupt)? else { return stopped() };
    let engine = load_as(&flags.engine, Sparsity::Exact, &base)?;
    introduce(&engine, &base);
    let file = File::open(&base).map_err(|e| failure(e.into()))?;
    let model = model_fingerprint(&file, engine.config().activation);
    let options = flags.training.options(&engine, &flags.engine, predictor_type(flags, &engine));
    let texts = flags.training.read(&engine, options.context)?;
    let state = State::new(&flags.output, model, flags.engine.kv_types(), &options, &texts.train);

    flags.training.check_texts(&engine, &options, &texts, &flags.model)?;

    let counted = count::count(flags, &engine, &options, &texts, model, &state, &interrupt)?;
    let Some(mut profile) = counted else { return stopped() };
    let done = work::work(&engine, &texts.train, &texts.kept, &options, &state, &interrupt, failure)?;
    let Some(trained) = done else { return stopped() };

    trained.write_model(&file, &flags.output).map_err(|e| Failure::engine(&e, &flags.output))?;
    let written = File::open(&flags.output).map_err(|e| Failure::engine(&e.into(), &flags.output))?;
    // the same neurons with the same weights; only the file is another
    profile.fingerprint = model_fingerprint(&written, engine.config().activation);
    save(&profile, &flags.profile()).map_err(failure)?;

    let measured = measure::measure(flags, &engine, &options, &trained, &texts.kept)?;
    drop(file);
    state.remove();
    let (mut out, seconds) = (Output::new(), begun.elapsed().as_secs_f64());
    let weights = engine.weight_bytes();
    match flags.json {
        true => {
            let layers = report::layers(&trained, &measured.timing, weights);
            out.json(&measured.json(flags, layers, seconds))?;
        }
        false => {
            let table = report::table(&trained, &measured.timing, weights);
            out.write(format!("{table}\n{}", measured.table(flags, seconds)).as_bytes())?;
        }
    }
    if trained.settled.trial.is_none() {
        say(&format!(
            "note: no predictors within {} % of the perplexity pay; the file is to be run as it is, without --sparsity predictor",
            flags.training.loss
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Predictors of eight bits choose the same neurons as those of sixteen, but for a handful, and are half as large.
fn predictor_type(flags: &PrepareFlags, engine: &Engine) -> QuantType {
    let fits = engine.config().dim.is_multiple_of(QuantType::Q8_0.info().block_len);
    flags.predictor_type.unwrap_or(if fits { QuantType::Q8_0 } else { QuantType::F16 })
}

/// A path for people.
fn shown(path: &Path) -> String {
    path.display().to_string()
}
