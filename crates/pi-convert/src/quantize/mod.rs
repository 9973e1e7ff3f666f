//! GGUF to GGUF with other number types.

mod file_type;
mod rules;

use std::borrow::Cow;
use std::path::Path;

use pi_core::QuantType;
use pi_gguf::{Builder, File, Tensor, TensorType};

use crate::error::{Error, Result};
use crate::report::{self, Report, Transposed};
use crate::stream::{OnProgress, Order, Output, Source, Stored};
pub use file_type::FileType;
use rules::{Choice, Model, Shape};

/// What [`quantize`] may be told beside the kind of file. The default is llama.cpp's.
#[derive(Clone, Debug, Default)]
pub struct QuantizeOptions {
    /// Stores every `ffn_down` neuron by neuron, as `ffn_down_t`: what PowerInfer's files have, and what lets an engine skip
    /// the rows of neurons that do not fire.
    pub transpose_down: bool,
    /// The type of the predictors' matrices.
    pub predictor_type: Option<QuantType>,
    /// The type of `output.weight`.
    pub output_tensor_type: Option<QuantType>,
    /// The type of `token_embd.weight`.
    pub token_embedding_type: Option<QuantType>,
    /// The same type for all matrices.
    pub pure: bool,
    /// Leaves `output.weight` as it is.
    pub leave_output_tensor: bool,
    /// Matrices that are quantised already may be quantised anew, which loses more than starting from floats.
    pub allow_requantize: bool,
    /// Threads; as many as cores if not given.
    pub threads: Option<usize>,
}

/// A tensor, and what is to become of it.
struct Plan<'a> {
    tensor: Tensor<'a>,
    name: String,
    dims: Vec<usize>,
    ty: TensorType,
    transpose: bool,
}

/// Writes the model `input` to `output` with other number types: those of a kind of file, or, without one, those that it has.
/// The kind of container stays ([`pi_gguf::Kind`]), and `output` may be `input`.
///
/// # Errors
/// [`Error::Choice`] if a tensor is quantised already and may not be quantised anew, or `transpose_down` finds nothing to do;
/// [`Error::Tensor`] if a tensor is of a type that is not decoded here; [`Error::Key`] if the file is a neuron index;
/// [`Error::Cancelled`]; [`Error::Gguf`].
pub fn quantize(
    input: &File,
    output: impl AsRef<Path>,
    ty: Option<FileType>,
    options: &QuantizeOptions,
    progress: Option<OnProgress<'_>>,
) -> Result<Report> {
    const ARCHITECTURE: &str = "general.architecture";
    if input.metadata().get::<&str>(ARCHITECTURE).ok().flatten() == Some("generic.gpu_index") {
        let got = "a PowerInfer neuron index (.gpuidx), which belongs beside one";
        return Err(Error::key(input.path(), ARCHITECTURE, "a model", got));
    }
    let mut report = Report::default();
    let plans = plan(input, ty, options, &mut report)?;
    let mut builder = header(input, ty)?;
    let mut total = 0;
    for plan in &plans {
        builder.tensor(&plan.name, plan.ty, &plan.dims)?;
        let row = plan.dims[0] / plan.ty.block_len() * plan.ty.block_bytes();
        let bytes = (row * plan.dims[1..].iter().product::<usize>()) as u64;
        report.bytes_before += plan.tensor.data().len() as u64;
        report.count(plan.ty, bytes);
        total += bytes;
    }
    let threads = options.threads;
    report::write(builder, output.as_ref(), total, plans.len(), progress, threads, |out| {
        plans.iter().try_for_each(|plan| write(out, plan, &mut report))
    })?;
    Ok(report)
}

fn write(out: &mut Output<'_>, plan: &Plan<'_>, report: &mut Report) -> Result<()> {
    let tensor = plan.tensor;
    if tensor.ty() == plan.ty && !plan.transpose {
        return out.copy(&plan.name, tensor.data());
    }
    let (Some(from), Some(to)) = (tensor.quant(), plan.ty.quant()) else {
        return Err(Error::Choice(format!("tensor '{}': {} is not decoded here", plan.name, tensor.ty())));
    };
    let source = Source {
        stored: Stored::Quant(from),
        bytes: Cow::Borrowed(tensor.data()),
        rows: tensor.rows(),
        cols: tensor.cols(),
        order: if plan.transpose { Order::Transposed } else { Order::AsIs },
    };
    let loss = out.write(&plan.name, &source, to, plan.transpose)?;
    if loss.overflows > 0 {
        report.notes.push(format!("{}: {} numbers are too large for F16", plan.name, loss.overflows));
    }
    if plan.transpose {
        let (error, plain) = loss.relative();
        let plain = Some(if from == to { 0.0 } else { plain }).filter(|x| !x.is_nan());
        report.transposed.push(Transposed { tensor: plan.name.clone(), ty: to, error, plain });
    }
    Ok(())
}

fn plan<'a>(
    input: &'a File,
    ty: Option<FileType>,
    options: &QuantizeOptions,
    report: &mut Report,
) -> Result<Vec<Plan<'a>>> {
    let path = input.path();
    let mut plans: Vec<_> = input.tensors().map(|tensor| as_it_is(tensor, options.transpose_down)).collect();
    if options.transpose_down && !plans.iter().any(|plan| plan.transpose) {
        return Err(Error::Choice(format!("{}: there is no ffn_down.weight to transpose", path.display())));
    }
    for plan in &plans {
        if plan.transpose && plans.iter().any(|other| !other.transpose && other.name == plan.name) {
            return Err(Error::tensor(path, &plan.name, "ffn_down or ffn_down_t", "both"));
        }
    }
    let shapes: Vec<_> = plans.iter().map(|plan| Shape { name: plan.name.clone(), dims: plan.dims.clone() }).collect();
    let choices = match ty {
        Some(ty) => rules::choose(&shapes, &model(input)?, ty, options),
        // A copy: only what is transposed may have to change its type, if that does not divide the new rows.
        None => plans
            .iter()
            .map(|plan| match (plan.transpose, plan.ty.quant()) {
                (true, Some(ty)) => rules::kept(ty, plan.dims[0]),
                _ => Choice::Keep,
            })
            .collect(),
    };
    for (plan, choice) in plans.iter_mut().zip(choices) {
        let new = match choice {
            Choice::Keep => None,
            Choice::Type(new) => Some(new),
            Choice::Instead(wanted, new) => {
                let why = format!("{}: rows of {} do not divide into blocks of {wanted}", plan.name, plan.dims[0]);
                report.notes.push(format!("{why}, stored as {new}"));
                Some(new)
            }
        };
        let to = new.map_or(plan.ty, TensorType::from);
        if to == plan.tensor.ty() && !plan.transpose {
            continue;
        }
        let Some(from) = plan.tensor.quant().filter(|_| to.quant().is_some()) else {
            let got = plan.tensor.ty();
            return Err(Error::tensor(path, plan.tensor.name(), "a type that is decoded here", got));
        };
        if !from.is_float() && !options.allow_requantize {
            let name = plan.tensor.name();
            return Err(Error::Choice(format!(
                "{}: tensor '{name}' is quantised already ({from}); quantising it anew as {to} loses more than starting from \
                 a float file, and has to be allowed (--allow-requantize)",
                path.display()
            )));
        }
        plan.ty = to;
    }
    Ok(plans)
}

fn as_it_is(tensor: Tensor<'_>, transpose_down: bool) -> Plan<'_> {
    let (name, dims) = (tensor.name(), tensor.dims());
    let down = name.strip_suffix(".ffn_down.weight").filter(|_| transpose_down && dims.len() == 2);
    match (down, name.strip_suffix(".ffn_down.bias").filter(|_| transpose_down)) {
        (Some(layer), _) => {
            let (name, dims) = (format!("{layer}.ffn_down_t.weight"), vec![dims[1], dims[0]]);
            Plan { tensor, name, dims, ty: tensor.ty(), transpose: true }
        }
        // The bias goes by the matrix's name.
        (_, Some(layer)) => {
            let name = format!("{layer}.ffn_down_t.bias");
            Plan { tensor, name, dims: dims.to_vec(), ty: tensor.ty(), transpose: false }
        }
        _ => Plan { tensor, name: name.into(), dims: dims.to_vec(), ty: tensor.ty(), transpose: false },
    }
}

fn model(input: &File) -> Result<Model> {
    let meta = input.metadata();
    let architecture: &str = meta.require("general.architecture")?;
    let key = |name: &str| format!("{architecture}.{name}");
    let heads = meta.get::<u32>(&key("attention.head_count")).ok().flatten().unwrap_or(1);
    // Models whose layers differ have lists here; the rule is about those that do not.
    let kv_heads = meta.get::<u32>(&key("attention.head_count_kv")).ok().flatten().unwrap_or(heads);
    Ok(Model {
        kind: input.kind(),
        architecture: architecture.into(),
        layers: meta.require::<u32>(&key("block_count"))? as usize,
        group: (heads / kv_heads.max(1)) as usize,
        experts: meta.get::<u32>(&key("expert_count"))?.unwrap_or(0) as usize,
    })
}

/// The header of `input` with the kind of file changed, and without what says that it is in parts.
fn header(input: &File, ty: Option<FileType>) -> Result<Builder> {
    const FILE_TYPE: &str = "general.file_type";
    const VERSION: &str = "general.quantization_version";
    let mut builder = Builder::new(input.kind());
    for (key, value) in input.metadata().iter() {
        match (key, ty) {
            ("split.no" | "split.count" | "split.tensors.count", _) => {}
            (FILE_TYPE, Some(ty)) => drop(builder.set(key, ty.id())?),
            (VERSION, Some(_)) => drop(builder.set(key, 2u32)?),
            _ => drop(builder.set(key, value)?),
        }
    }
    if let Some(ty) = ty {
        for (key, value) in [(VERSION, 2), (FILE_TYPE, ty.id())] {
            if !input.metadata().contains(key) {
                builder.set(key, value)?;
            }
        }
    }
    Ok(builder)
}
