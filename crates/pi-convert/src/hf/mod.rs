//! Hugging Face checkpoints to model files.

mod bpe;
mod config;
mod families;
mod sentencepiece;
mod tokenizer;
mod weights;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use pi_core::QuantType;
use pi_gguf::{Builder, Kind, TensorType};

use crate::error::{Error, Result};
use crate::layers::PredictorDir;
use crate::report::{self, Report};
use crate::stream::{OnProgress, Order, Output, Source, Stored};
use config::Config;
use families::{Plan, Wanted};
use weights::{Weight, Weights};

/// What [`convert`] may be told.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// The type of matrices: F32, F16, BF16 or Q8_0. Without it F16, or BF16 where the checkpoint has that.
    pub matrices: Option<QuantType>,
    /// The container: without it PowerInfer's if there are predictors.
    pub kind: Option<Kind>,
    /// A folder of predictors, see [`PredictorDir`]. Only PowerInfer's container has room for them.
    pub predictors: Option<PathBuf>,
    /// Down matrices neuron by neuron (`ffn_down_t`), as PowerInfer's container always has them, in a GGUF file.
    pub transpose_down: bool,
    /// `general.name`; the folder's name if not given.
    pub name: Option<String>,
    /// `tokenizer.ggml.pre`, for a `tokenizer.json` whose way to split text is not recognised.
    pub pre: Option<String>,
    /// Threads; as many as cores if not given.
    pub threads: Option<usize>,
}

/// A tensor to be written, and where its numbers are.
struct Part<'a> {
    name: String,
    ty: QuantType,
    dims: Vec<usize>,
    numbers: Numbers<'a>,
}

enum Numbers<'a> {
    Weight { weight: Weight<'a>, order: Order },
    Values(Vec<f32>),
    Predictor { layer: usize, matrix: &'static str },
}

/// Makes a model file of the checkpoint in the folder `dir`: `config.json`, `*.safetensors` (or PyTorch files of weights,
/// `pytorch_model*.bin`), and the tokenizer's files. At no time are more than some rows of a tensor in memory, or one
/// predictor.
///
/// # Errors
/// [`Error::Architecture`] for a family that is not known; [`Error::Key`], [`Error::Tensor`], [`Error::MissingFile`],
/// [`Error::Layers`] and [`Error::Tokenizer`] name what is missing or does not fit; [`Error::Choice`] if options do not;
/// [`Error::Cancelled`].
pub fn convert(
    dir: impl AsRef<Path>,
    output: impl AsRef<Path>,
    options: &ConvertOptions,
    progress: Option<OnProgress<'_>>,
) -> Result<Report> {
    let dir = dir.as_ref();
    let kind = options.kind.unwrap_or(if options.predictors.is_some() { Kind::PowerInfer } else { Kind::Gguf });
    if kind == Kind::Gguf && options.predictors.is_some() {
        return Err(Error::Choice(
            "predictors need PowerInfer's container (pwri): a GGUF file has no room for them".into(),
        ));
    }
    let config = Config::open(dir)?;
    let weights = Weights::open(dir)?;
    let mut report = Report::default();
    let transpose = kind == Kind::PowerInfer || options.transpose_down;
    let plan = families::plan(&config, &weights, kind)?;
    let matrices = options.matrices.unwrap_or_else(|| automatic(&plan, &weights));
    let file_type = match matrices {
        QuantType::F32 => 0,
        QuantType::F16 => 1,
        QuantType::BF16 => 32,
        QuantType::Q8_0 => 7,
        other => return Err(Error::Choice(format!("matrices of {other}: F32, F16, BF16 or Q8_0 is possible"))),
    };
    let predictors = options.predictors.as_ref();
    let predictors = predictors.map(|dir| PredictorDir::open(dir, plan.layers, plan.dim, plan.neurons)).transpose()?;
    let vocabulary = tokenizer::read(&config, plan.vocab, options.pre.as_deref())?;

    let mut builder = Builder::new(kind);
    builder.set("general.architecture", plan.architecture)?;
    let folder = || std::path::absolute(dir).ok()?.file_name().map(|n| n.to_string_lossy().into_owned());
    builder.set("general.name", &options.name.clone().or_else(folder).unwrap_or_else(|| "model".into()))?;
    for (key, value) in &plan.keys {
        value.set(&mut builder, &format!("{}.{key}", plan.architecture))?;
    }
    builder.set("general.file_type", file_type as u32)?;
    if let Some(threshold) = predictors.as_ref().and_then(PredictorDir::threshold) {
        builder.set("powerinfer.sparse_threshold", threshold)?;
    }
    vocabulary.set(&mut builder)?;

    report.notes.extend(plan.notes.iter().cloned());
    let parts = parts(plan, &weights, predictors.as_ref(), matrices, transpose, &mut report)?;
    let mut total = 0;
    for part in &parts {
        builder.tensor(&part.name, part.ty, &part.dims)?;
        let row = part.ty.row_bytes(part.dims[0]).unwrap_or(0);
        let bytes = (row * part.dims[1..].iter().product::<usize>()) as u64;
        report.count(TensorType::from(part.ty), bytes);
        total += bytes;
    }
    report::write(builder, output.as_ref(), total, parts.len(), progress, options.threads, |out| {
        parts.iter().try_for_each(|part| write(out, part, predictors.as_ref(), &mut report))
    })?;
    Ok(report)
}

/// BF16 if the largest matrix is that, else F16.
fn automatic(plan: &Plan, weights: &Weights) -> QuantType {
    let stored = plan.tensors.iter().filter_map(|wanted| weights.get(&wanted.source)).find(|w| w.shape.len() == 2);
    match stored.map(|weight| weight.stored) {
        Some(Stored::Quant(QuantType::BF16)) => QuantType::BF16,
        _ => QuantType::F16,
    }
}

fn parts<'a>(
    plan: Plan,
    weights: &'a Weights,
    predictors: Option<&PredictorDir>,
    matrices: QuantType,
    transpose: bool,
    report: &mut Report,
) -> Result<Vec<Part<'a>>> {
    let mut parts = Vec::new();
    let mut used = std::collections::HashSet::new();
    let mut add = |name: String, dims: Vec<usize>, numbers: Numbers<'a>| {
        // What is no matrix is small and matters.
        let wanted = if dims.len() == 1 { QuantType::F32 } else { matrices };
        let fits = dims[0].is_multiple_of(wanted.info().block_len) && name != "position_embd.weight";
        let ty = if fits || wanted.is_float() { wanted } else { QuantType::F16 };
        if ty != wanted && name != "position_embd.weight" {
            report
                .notes
                .push(format!("{name}: rows of {} do not divide into blocks of {wanted}, stored as {ty}", dims[0]));
        }
        parts.push(Part { name, ty, dims, numbers });
    };
    for Wanted { name, source, shape, order, optional } in plan.tensors {
        let Some(weight) = weights.get(&source) else {
            if optional {
                continue;
            }
            return Err(Error::tensor(weights.path(), source, format!("shape {shape:?}"), "none"));
        };
        if weight.shape != shape {
            let got = format!("shape {:?}", weight.shape);
            return Err(Error::tensor(weight.path, source, format!("shape {shape:?}"), got));
        }
        used.insert(source);
        report.bytes_before += weight.bytes.len() as u64;
        let (mut name, mut order, mut dims) = (name, order, shape);
        dims.reverse(); // the format has the length of a row first
        if transpose && name.contains(".ffn_down.") {
            name = name.replace(".ffn_down.", ".ffn_down_t.");
            if dims.len() == 2 {
                dims.reverse();
                order = Order::Transposed;
            }
        }
        add(name, dims, Numbers::Weight { weight, order });
    }
    for (name, values) in plan.values {
        add(name, vec![values.len()], Numbers::Values(values));
    }
    let unknown =
        weights.names().find(|name| !used.contains(*name) && !plan.ignored.iter().any(|end| name.ends_with(end)));
    if let Some(name) = unknown {
        let expected = format!("the tensors of a model of family {}", plan.architecture);
        return Err(Error::tensor(weights.path(), name, expected, "it as well"));
    }
    for layer in 0..predictors.map_or(0, PredictorDir::layers) {
        let rank = predictors.map_or(0, |p| p.rank(layer));
        for (matrix, dims) in [("fc1", vec![plan.dim, rank]), ("fc2", vec![rank, plan.neurons])] {
            report.bytes_before += 4 * (dims[0] * dims[1]) as u64;
            add(format!("blk.{layer}.{matrix}.weight"), dims, Numbers::Predictor { layer, matrix });
        }
    }
    Ok(parts)
}

fn write(out: &mut Output<'_>, part: &Part<'_>, predictors: Option<&PredictorDir>, report: &mut Report) -> Result<()> {
    let owned = |numbers: &[f32]| Cow::Owned(numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let (stored, bytes, order) = match &part.numbers {
        Numbers::Weight { weight, order } => (weight.stored, Cow::Borrowed(weight.bytes), order.clone()),
        Numbers::Values(values) => (Stored::Quant(QuantType::F32), owned(values), Order::AsIs),
        Numbers::Predictor { layer, matrix } => {
            let missing = || Error::Choice(format!("{}: no predictors", part.name));
            let numbers = predictors.ok_or_else(missing)?.read(*layer, matrix)?;
            (Stored::Quant(QuantType::F32), owned(&numbers), Order::AsIs)
        }
    };
    let (mut cols, mut rows) = (part.dims[0], part.dims[1..].iter().product());
    // A bias has the order of its matrix's rows: each of its numbers is a row.
    let is_bias = part.dims.len() == 1 && matches!(order, Order::Rows(_));
    if matches!(order, Order::Transposed) || is_bias {
        (cols, rows) = (rows, cols);
    }
    let source = Source { stored, bytes, rows, cols, order };
    let loss = out.write(&part.name, &source, part.ty, false)?;
    if loss.overflows > 0 {
        report.notes.push(format!("{}: {} numbers are too large for F16", part.name, loss.overflows));
    }
    Ok(())
}
