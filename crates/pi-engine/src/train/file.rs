//! Predictors in files: beside the model, in one file with the model, or one layer at a time for a run to be resumed.

use super::{Candidate, Choice, Form, PredictorKind, Trained, settle::matrices};
use crate::{
    Engine, Error, KINDS, MARGINS, Result, THRESHOLD, THRESHOLDS, WeightSource,
    predictors::{ARCHITECTURE, LIKENESS},
    source::Reader,
};
use ndarray::Array2;
use pi_core::{Matrix, QuantType};
use pi_gguf::{Builder, File, Kind, Tensor, TensorType};
use pi_predictor::train::{Curve, Fitted, Point};
use std::{borrow::Cow, path::Path, sync::Arc};

/// What predictors belong to.
pub(super) struct About {
    dim: usize,
    neurons: usize,
    layers: usize,
    numbers: Arc<[f32]>,
}

impl About {
    pub(super) fn new(engine: &Engine) -> Self {
        let c = engine.config();
        Self { dim: c.dim, neurons: c.neurons, layers: c.layers, numbers: engine.inner.model.numbers.clone() }
    }
}

/// A tensor to be written.
struct Part<'a> {
    name: String,
    ty: TensorType,
    dims: Vec<usize>,
    data: Data<'a>,
}

enum Data<'a> {
    Bytes(&'a [u8]),
    Matrix(Matrix),
    /// Its rows become columns when it is written, so that no more than one such matrix is held.
    Turned(Matrix),
}

impl<'a> Part<'a> {
    fn copy(tensor: Tensor<'a>, name: String) -> Self {
        Self { name, ty: tensor.ty(), dims: tensor.dims().to_vec(), data: Data::Bytes(tensor.data()) }
    }

    fn matrix(m: Matrix) -> Self {
        Self { name: m.name().into(), ty: m.ty().into(), dims: vec![m.cols(), m.rows()], data: Data::Matrix(m) }
    }

    fn turned(m: Matrix, name: String) -> Self {
        Self { name, ty: m.ty().into(), dims: vec![m.rows(), m.cols()], data: Data::Turned(m) }
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        Ok(match &self.data {
            Data::Bytes(bytes) => Cow::Borrowed(bytes),
            Data::Matrix(m) => Cow::Borrowed(m.view().bytes()),
            Data::Turned(m) => Cow::Owned(m.transposed()?.view().bytes().to_vec()),
        })
    }
}

/// Writes a file of these keys and tensors, whole or not at all.
fn write(mut builder: Builder, parts: &[Part<'_>], path: &Path) -> Result<()> {
    for part in parts {
        builder.tensor(&part.name, part.ty, &part.dims)?;
    }
    let mut writer = builder.create(path)?;
    for part in parts {
        writer.write(&part.name, &part.bytes()?)?;
    }
    Ok(writer.finish()?.commit()?)
}

impl Trained {
    /// Writes the predictors to a file of their own, in GGUF: a kind per layer under [`KINDS`]; for `mlp` layers
    /// `blk.N.fc1.weight`, `blk.N.fc2.weight`, and a threshold under [`THRESHOLDS`]; for `sign` layers a margin under [`MARGINS`].
    ///
    /// # Errors
    /// If the file cannot be written. What was there stays then.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut builder = Builder::new(Kind::Gguf);
        builder.set("general.architecture", ARCHITECTURE)?;
        builder.set("pi.predictor.block_count", self.about.layers as u32)?;
        builder.set("pi.predictor.embedding_length", self.about.dim as u32)?;
        builder.set("pi.predictor.feed_forward_length", self.about.neurons as u32)?;
        builder.set_array(LIKENESS, &self.about.numbers[..])?;
        self.keys(&mut builder)?;
        write(builder, &self.parts()?, path.as_ref())
    }

    /// Writes the model of `source` with these predictors: to a PowerInfer file, or, if no layer has one, to a file of the kind
    /// that `source` is. Down matrices of float types are stored neuron-major; those that are so already stay, others are copied.
    ///
    /// # Errors
    /// If the file cannot be written, or has tensors of a type that is not known.
    pub fn write_model(&self, source: &File, path: impl AsRef<Path>) -> Result<()> {
        let any = self.layers.iter().any(|l| l.used.is_some());
        let mut builder = Builder::new(if any { Kind::PowerInfer } else { source.kind() });
        for (key, value) in source.metadata().iter() {
            if key != THRESHOLD && !key.starts_with("pi.predictor.") && !key.starts_with("split.") {
                builder.set(key, value)?;
            }
        }
        if any {
            self.keys(&mut builder)?;
        }
        let old = |name: &str| name.ends_with(".fc1.weight") || name.ends_with(".fc2.weight");
        let mut parts = Vec::new();
        for tensor in source.tensors().filter(|t| !old(t.name())) {
            parts.push(model_part(source, tensor)?);
        }
        parts.extend(self.parts()?);
        write(builder, &parts, path.as_ref())
    }

    fn keys(&self, builder: &mut Builder) -> Result<()> {
        builder.set_strings(KINDS, self.layers.iter().map(Choice::kind))?;
        let of = |kind: PredictorKind, value: fn(f32) -> f32| -> Vec<f32> {
            let one = |l: &Choice| l.in_use().filter(|(c, _)| c.kind() == kind).map(|(_, u)| value(u.point.threshold));
            self.layers.iter().map(|l| one(l).unwrap_or(0.0)).collect()
        };
        builder.set_array(THRESHOLDS, &of(PredictorKind::Mlp, |t| t))?;
        builder.set_array(MARGINS, &of(PredictorKind::Sign, |t| -t))?;
        if let Some(trial) = &self.settled.trial {
            builder.set("pi.predictor.perplexity_growth", trial.growth() as f32)?;
        }
        Ok(())
    }

    /// The matrices of layers that use some.
    fn parts(&self) -> Result<Vec<Part<'static>>> {
        let mut all = Vec::new();
        for layer in &self.layers {
            if let Some((Candidate { form: Form::Mlp(fitted), .. }, _)) = layer.in_use() {
                all.extend(matrices(layer.layer, fitted, self.ty)?.map(Part::matrix));
            }
        }
        Ok(all)
    }
}

/// A tensor of the model as it will be: float down matrices lie neuron by neuron, and their biases go by their names.
fn model_part<'a>(source: &'a File, tensor: Tensor<'a>) -> Result<Part<'a>> {
    let name = tensor.name();
    let weight = match name.strip_suffix(".ffn_down.bias") {
        Some(layer) => format!("{layer}.ffn_down.weight"),
        None => name.into(),
    };
    let turns = match source.tensor(&weight).filter(|_| weight.ends_with(".ffn_down.weight")) {
        Some(t) => t.quant().is_some_and(QuantType::is_float),
        None => false,
    };
    if !turns {
        return Ok(Part::copy(tensor, name.into()));
    }
    let new = name.replace(".ffn_down.", ".ffn_down_t.");
    match WeightSource::matrix(source, name)? {
        Some(m) if name == weight => Ok(Part::turned(m, new)),
        _ => Ok(Part::copy(tensor, new)),
    }
}

type Column = fn(&Point) -> f64;
/// The columns of a curve.
const COLUMNS: [(&str, Column); 4] = [
    ("threshold", |p| f64::from(p.threshold)),
    ("share", |p| p.share),
    ("recall", |p| p.recall),
    ("magnitude", |p| p.magnitude),
];

impl Choice {
    /// Writes a layer's candidates, so that an interrupted training can go on. `about` is any text that says what they belong to.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>, about: &str) -> Result<()> {
        let mut builder = Builder::new(Kind::Gguf);
        builder.set("general.architecture", "pi.predictor.layer")?.set("about", about)?;
        builder.set("layer", self.layer as u32)?.set("active", self.active)?;
        builder.set_strings("kinds", self.candidates.iter().map(|c| c.kind().name()))?;
        builder.set_array("ranks", &self.tried.iter().map(|t| t.0 as u32).collect::<Vec<_>>())?;
        builder.set_array("costs", &self.tried.iter().map(|t| t.1).collect::<Vec<_>>())?;
        let mut parts = Vec::new();
        for candidate in &self.candidates {
            let kind = candidate.kind().name();
            builder.set(&format!("{kind}.size"), candidate.size)?;
            for (name, column) in COLUMNS {
                let column: Vec<f64> = candidate.curve.points().iter().map(column).collect();
                builder.set_array(&format!("{kind}.{name}"), &column)?;
            }
            if let Form::Mlp(fitted) = &candidate.form {
                builder.set("loss", fitted.loss)?;
                parts.extend(matrices(self.layer, fitted, QuantType::F32)?.map(Part::matrix));
            }
        }
        write(builder, &parts, path.as_ref())
    }

    /// Reads what [`write`](Self::write) wrote; `None` if it belongs to something else.
    ///
    /// # Errors
    /// If the file cannot be read, or is none of these.
    pub fn read(path: impl AsRef<Path>, about: &str) -> Result<Option<Self>> {
        let file = File::open(&path)?;
        let meta = file.metadata();
        if meta.require::<&str>("about")? != about {
            return Ok(None);
        }
        let (ranks, costs) = (meta.require::<Vec<u32>>("ranks")?, meta.require::<Vec<f64>>("costs")?);
        let mut choice = Self {
            layer: meta.require::<u32>("layer")? as usize,
            candidates: Vec::new(),
            used: None,
            active: meta.require("active")?,
            tried: ranks.into_iter().map(|r| r as usize).zip(costs).collect(),
        };
        for kind in meta.require::<Vec<&str>>("kinds")? {
            let form = match kind.parse().map_err(|e: String| broken(&file, &e))? {
                PredictorKind::Mlp => Form::Mlp(fitted(&file, choice.layer)?),
                PredictorKind::Sign => Form::Sign,
            };
            let size = meta.require(&format!("{kind}.size"))?;
            choice.candidates.push(Candidate { form, curve: curve(&file, kind)?, size });
        }
        if choice.candidates.is_empty() {
            return Err(broken(&file, "it has no candidate"));
        }
        Ok(Some(choice))
    }
}

fn fitted(file: &File, layer: usize) -> Result<Fitted> {
    let matrix = |name: &str| {
        let m = Reader { source: file, check: true }.matrix(&format!("blk.{layer}.{name}.weight"))?;
        Array2::from_shape_vec((m.rows(), m.cols()), m.decode()).map_err(|e| broken(file, &e.to_string()))
    };
    Ok(Fitted { fc1: matrix("fc1")?, fc2: matrix("fc2")?, loss: file.metadata().require("loss")? })
}

fn curve(file: &File, kind: &str) -> Result<Curve> {
    let column = |(name, _): &(&str, Column)| file.metadata().require::<Vec<f64>>(&format!("{kind}.{name}"));
    let columns = COLUMNS.iter().map(column).collect::<pi_gguf::Result<Vec<_>>>()?;
    let [thresholds, shares, recalls, magnitudes] = &columns[..] else { return Err(broken(file, "it has no curve")) };
    let n = thresholds.len();
    if n == 0 || [shares, recalls, magnitudes].iter().any(|p| p.len() != n) {
        return Err(broken(file, "its curve is not whole"));
    }
    let point = |i: usize| Point {
        threshold: thresholds[i] as f32,
        share: shares[i],
        recall: recalls[i],
        magnitude: magnitudes[i],
    };
    Ok(Curve::from_points((0..n).map(point).collect()))
}

fn broken(file: &File, message: &str) -> Error {
    Error::Tensor { path: file.path().display().to_string(), tensor: "predictor".into(), message: message.into() }
}
