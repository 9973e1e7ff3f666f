//! `pi inspect`: what is in a model file, and what the engine makes of it. Nothing is loaded.

mod json;
mod text;

use crate::{
    failure::{Failure, Result},
    output::{Output, printable, size},
    profile::report::Report,
};
use clap::{Args, ValueHint};
use pi_engine::{
    ModelReport, is_predictors,
    pi_gguf::{File, NeuronIndex, Tensor, TensorType},
    pi_predictor::profile::MAGIC,
    profile::load,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The options of `pi inspect`.
#[derive(Args, Debug)]
pub struct InspectFlags {
    /// The file: GGUF, PowerInfer model or neuron index, predictors, profile; of a split model, any part
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Leave out the table of tensors (their totals remain)
    #[arg(long)]
    no_tensors: bool,
    /// Do not abbreviate long arrays and strings
    #[arg(long)]
    full: bool,
}

/// What is known about a file.
struct Findings {
    file: File,
    content: Content,
    totals: Vec<Total>,
    /// What would keep the file from being used, or is odd about it.
    problems: Vec<String>,
}

/// What kind of file it is.
enum Content {
    /// A model, or something like one.
    Model(Box<ModelReport>),
    /// Predictors without a model.
    Predictors(Box<ModelReport>),
    /// PowerInfer's list of hot neurons, or what is wrong with it.
    NeuronIndex(Result<NeuronIndex, String>),
}

/// All tensors of one type.
struct Total {
    ty: TensorType,
    tensors: usize,
    numbers: u64,
    bytes: u64,
}

/// Prints what is in a file.
///
/// # Errors
/// If it cannot be read as a GGUF file: the message says what it is instead.
pub fn inspect(flags: &InspectFlags) -> Result {
    if is_profile(&flags.file) {
        return profile(flags);
    }
    let file = File::open(&flags.file).map_err(|e| Failure::Work(e.to_string()))?;
    let findings = Findings::of(file);
    let mut out = Output::new();
    match flags.json {
        true => out.json(&json::Document::new(&findings, flags))?,
        false => out.write(text::page(&findings, flags).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a file begins as profiles do. What cannot be read is left to others to be named.
fn is_profile(path: &Path) -> bool {
    let mut head = [0; MAGIC.len()];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head == *MAGIC
}

/// Prints what is in a profile: what `pi profile` printed when it was counted.
fn profile(flags: &InspectFlags) -> Result {
    /// The object of `pi inspect --json` for a profile.
    #[derive(Serialize)]
    struct Document {
        file: String,
        kind: &'static str,
        bytes: u64,
        #[serde(flatten)]
        report: Report,
    }
    let path = &flags.file;
    let found = load(path).map_err(|e| Failure::engine(&e, path))?;
    let bytes = fs::metadata(path).map_or(0, |m| m.len());
    let (file, report) = (path.display().to_string(), Report::new(&found));
    let mut out = Output::new();
    match flags.json {
        true => out.json(&Document { file, kind: "profile", bytes, report })?,
        false => {
            let head = format!("profile of pi, {}, model {}", size(bytes), report.fingerprint);
            let rest = if report.complete { "" } else { "\nnot complete: pi profile --resume goes on with it" };
            out.write(format!("{}\n{head}{rest}\n\n{}", printable(&file), report.printable()).as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Findings {
    fn of(file: File) -> Self {
        let architecture = file.metadata().get::<&str>("general.architecture").ok().flatten();
        let content = match architecture {
            Some("generic.gpu_index") => Content::NeuronIndex(NeuronIndex::from_file(&file).map_err(|e| e.to_string())),
            _ if is_predictors(&file) => Content::Predictors(Box::new(pi_engine::inspect(&file))),
            _ => Content::Model(Box::new(pi_engine::inspect(&file))),
        };
        let problems = match &content {
            Content::Model(report) | Content::Predictors(report) => report.problems.as_slice(),
            Content::NeuronIndex(Err(problem)) => std::slice::from_ref(problem),
            Content::NeuronIndex(Ok(_)) => &[],
        };
        // Errors begin with the file's name, which the page does too.
        let name = format!("{}: ", file.path().display());
        let problems = problems.iter().map(|p| p.strip_prefix(&name).unwrap_or(p).to_string()).collect();
        Self { totals: totals(&file), problems, content, file }
    }

    /// The bytes of all its parts.
    fn size(&self) -> u64 {
        (0..self.file.parts()).map(|i| part_size(&self.file, i)).sum()
    }
}

fn part_size(file: &File, part: usize) -> u64 {
    file.bytes(part).map_or(0, |bytes| (**bytes).as_ref().len() as u64)
}

/// How many numbers a tensor has.
fn numbers(tensor: &Tensor<'_>) -> u64 {
    tensor.cols() as u64 * tensor.rows() as u64
}

/// Totals per type, the largest first.
fn totals(file: &File) -> Vec<Total> {
    let mut totals = BTreeMap::new();
    for tensor in file.tensors() {
        let total =
            totals.entry(tensor.ty().id()).or_insert(Total { ty: tensor.ty(), tensors: 0, numbers: 0, bytes: 0 });
        total.tensors += 1;
        total.numbers += numbers(&tensor);
        total.bytes += tensor.data().len() as u64;
    }
    let mut totals: Vec<_> = totals.into_values().collect();
    totals.sort_by_key(|total| std::cmp::Reverse(total.bytes));
    totals
}
