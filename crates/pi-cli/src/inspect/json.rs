//! The findings as an object for programs.

use super::{Content, Findings, InspectFlags, part_size};
use pi_engine::{
    ModelConfig, ModelReport, PredictorForm, PredictorReport, SparsityReport,
    pi_core::QuantType,
    pi_gguf::{Array, Kind, LayerIndex, Metadata, NeuronIndex, Value},
};
use serde::{Serialize, Serializer, ser::SerializeMap};

/// Arrays up to this length are written out in any case.
const SHORT: usize = 16;
/// Of longer ones, this many elements.
const FIRST: usize = 6;

/// The object of `pi inspect --json`.
#[derive(Serialize)]
pub struct Document<'a> {
    file: String,
    /// `gguf`, `powerinfer`, `predictors` or `neuron_index`.
    kind: &'static str,
    version: u32,
    alignment: usize,
    bytes: u64,
    parts: Vec<Part>,
    metadata: Keys<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<Row<'a>>>,
    types: Vec<Total>,
    model: Option<Model<'a>>,
    /// Of a file that has nothing else.
    predictors: Option<Predictors>,
    neuron_index: Option<Index>,
    problems: &'a [String],
}

#[derive(Serialize)]
struct Part {
    path: String,
    bytes: u64,
}

/// A tensor. The shape begins with the length of a row; the offset counts from the start of the tensor's part.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    ty: &'static str,
    shape: &'a [usize],
    bytes: usize,
    offset: usize,
    part: usize,
}

#[derive(Serialize)]
struct Total {
    #[serde(rename = "type")]
    ty: &'static str,
    supported: bool,
    tensors: usize,
    numbers: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Model<'a> {
    shape: Option<Shape<'a>>,
    sparsity: Option<Sparsity<'a>>,
    predictors: Option<Predictors>,
}

#[derive(Serialize)]
struct Shape<'a> {
    architecture: &'a str,
    name: Option<&'a str>,
    layers: usize,
    dim: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    neurons: usize,
    context: usize,
}

#[derive(Serialize)]
struct Sparsity<'a> {
    activation: String,
    skips_up: bool,
    skips_down: bool,
    reason: Option<&'a str>,
    summary: String,
}

#[derive(Serialize)]
struct Predictors {
    /// Layers that have one, and of how many.
    layers: usize,
    of: Option<usize>,
    /// Width and neurons that they are for.
    dim: usize,
    neurons: usize,
    /// Smallest and largest of those with matrices.
    rank: Option<[usize; 2]>,
    /// The one of all layers; null if there are several or none.
    threshold: Option<f32>,
    bytes: u64,
    exact_layers: Vec<usize>,
    by_layer: Vec<LayerPredictor>,
}

#[derive(Serialize)]
struct LayerPredictor {
    layer: usize,
    /// `mlp` or `sign`.
    kind: &'static str,
    rank: Option<usize>,
    types: Option<[&'static str; 2]>,
    threshold: Option<f32>,
    margin: Option<f32>,
    bytes: u64,
}

#[derive(Serialize)]
struct Index {
    vram_capacity: u64,
    layers: Vec<Layer>,
}

#[derive(Serialize)]
struct Layer {
    neurons: u32,
    hot: usize,
}

impl<'a> Document<'a> {
    /// The findings, as far as the options want them.
    pub fn new(findings: &'a Findings, flags: &InspectFlags) -> Self {
        let f = &findings.file;
        let part = |i| Part {
            path: f.part_path(i).map(|p| p.display().to_string()).unwrap_or_default(),
            bytes: part_size(f, i),
        };
        let rows = f.tensors().map(|t| Row {
            name: t.name(),
            ty: t.ty().name(),
            shape: t.dims(),
            bytes: t.data().len(),
            offset: t.range().start,
            part: t.part(),
        });
        let total = |t: &super::Total| Total {
            ty: t.ty.name(),
            supported: t.ty.quant().is_some(),
            tensors: t.tensors,
            numbers: t.numbers,
            bytes: t.bytes,
        };
        let (model, predictors, neuron_index) = match &findings.content {
            Content::Model(report) => (Some(model(report)), None, None),
            Content::Predictors(report) => (None, report.predictors.as_ref().map(predictors), None),
            Content::NeuronIndex(index) => (None, None, index.as_ref().ok().map(neuron_index)),
        };
        Self {
            file: f.path().display().to_string(),
            kind: match (f.kind(), &findings.content) {
                (_, Content::NeuronIndex(_)) => "neuron_index",
                (_, Content::Predictors(_)) => "predictors",
                (Kind::PowerInfer, _) => "powerinfer",
                (Kind::Gguf, _) => "gguf",
            },
            version: f.version(),
            alignment: f.alignment(),
            bytes: findings.size(),
            parts: (0..f.parts()).map(part).collect(),
            metadata: Keys { metadata: f.metadata(), full: flags.full },
            tensors: (!flags.no_tensors).then(|| rows.collect()),
            types: findings.totals.iter().map(total).collect(),
            model,
            predictors,
            neuron_index,
            problems: &findings.problems,
        }
    }
}

fn model(report: &ModelReport) -> Model<'_> {
    Model {
        shape: report.config.as_ref().map(shape),
        sparsity: report.sparsity.as_ref().map(sparsity),
        predictors: report.predictors.as_ref().map(predictors),
    }
}

fn predictors(report: &PredictorReport) -> Predictors {
    let layer = |p: &pi_engine::LayerPredictor| {
        let (kind, types, margin) = match &p.form {
            PredictorForm::Mlp { types, .. } => ("mlp", Some(types.map(QuantType::name)), None),
            PredictorForm::Sign { margin } => ("sign", None, Some(*margin)),
            _ => ("unknown", None, None),
        };
        let (layer, rank, threshold, bytes) = (p.layer, p.rank(), p.threshold(), p.bytes);
        LayerPredictor { layer, kind, rank, types, threshold, margin, bytes }
    };
    Predictors {
        layers: report.found.len(),
        of: report.layers,
        dim: report.shape.0,
        neurons: report.shape.1,
        rank: report.ranks().map(Into::into),
        threshold: report.thresholds().filter(|(from, to)| from == to).map(|t| t.0),
        bytes: report.bytes(),
        exact_layers: report.exact().collect(),
        by_layer: report.found.iter().map(layer).collect(),
    }
}

fn shape(c: &ModelConfig) -> Shape<'_> {
    Shape {
        architecture: &c.architecture,
        name: c.name.as_deref(),
        layers: c.layers,
        dim: c.dim,
        heads: c.heads,
        kv_heads: c.kv_heads,
        head_dim: c.head_dim,
        neurons: c.neurons,
        context: c.context,
    }
}

fn sparsity(s: &SparsityReport) -> Sparsity<'_> {
    Sparsity {
        activation: s.activation.to_string(),
        skips_up: s.skips_up,
        skips_down: s.skips_down,
        reason: s.reason.as_deref(),
        summary: s.to_string(),
    }
}

fn neuron_index(index: &NeuronIndex) -> Index {
    let layer = |l: &LayerIndex| Layer { neurons: l.neurons(), hot: l.hot().len() };
    Index { vram_capacity: index.vram_capacity, layers: index.layers.iter().map(layer).collect() }
}

/// Keys and values in the file's order.
struct Keys<'a> {
    metadata: &'a Metadata,
    full: bool,
}

impl Serialize for Keys<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.metadata.iter().map(|(key, value)| (key, Any { value, full: self.full })))
    }
}

/// A value. Strings that are not UTF-8 have U+FFFD there; numbers that are not finite are null; a long array is an object
/// with `array` (its elements' type), `length` and the `first` elements.
struct Any<'a> {
    value: Value<'a>,
    full: bool,
}

impl Serialize for Any<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::F32(x) => s.serialize_f32(x),
            Value::F64(x) => s.serialize_f64(x),
            Value::Bool(x) => s.serialize_bool(x),
            Value::String(text) => s.serialize_str(&text.to_string_lossy()),
            Value::Array(array) if self.full || array.len() <= SHORT => s.collect_seq(elements(array, usize::MAX)),
            Value::Array(array) => {
                let mut map = s.serialize_map(Some(3))?;
                map.serialize_entry("array", array.element_type().name())?;
                map.serialize_entry("length", &array.len())?;
                map.serialize_entry("first", &elements(array, FIRST).collect::<Vec<_>>())?;
                map.end()
            }
            other => match other.as_integer() {
                Some(x) if x < 0 => s.serialize_i64(x as i64),
                Some(x) => s.serialize_u64(x as u64),
                None => s.serialize_str(&other.to_string()),
            },
        }
    }
}

/// Elements are never arrays, so that nothing in them is abbreviated.
fn elements(array: Array<'_>, most: usize) -> impl Iterator<Item = Any<'_>> {
    array.iter().take(most).map(|value| Any { value, full: true })
}
