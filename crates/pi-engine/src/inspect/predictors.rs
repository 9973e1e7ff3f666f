//! What predictors a file has, layer by layer.

use crate::{
    Error, MARGINS, Result, THRESHOLD, THRESHOLDS,
    config::ModelConfig,
    predictors::{ARCHITECTURE, Kind, kind},
    source::WeightSource,
};
use pi_core::{Matrix, QuantType};

/// Layers without a predictor after which nothing more is looked for. (A damaged file may state millions.)
const GAP: usize = 1024;

/// The predictors in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictorReport {
    /// Layers of the model, as far as the file says: those that are not in [`found`](Self::found) have no predictor and run
    /// exactly.
    pub layers: Option<usize>,
    /// Width and neurons that the predictors are for.
    pub shape: (usize, usize),
    /// The predictors, in the order of layers.
    pub found: Vec<LayerPredictor>,
}

/// The predictor of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPredictor {
    /// The layer, from 0.
    pub layer: usize,
    /// What it is.
    pub form: PredictorForm,
    /// Its bytes in the file.
    pub bytes: u64,
}

/// What a predictor in a file is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PredictorForm {
    /// Two matrices, `fc1` and `fc2`.
    Mlp {
        /// Its width: rows of `fc1`.
        rank: usize,
        /// Number types of both.
        types: [QuantType; 2],
        /// What an output has to reach, if the file says so.
        threshold: Option<f32>,
    },
    /// The signs of the gate's weights, which are with the model.
    Sign {
        /// See [`Predictors::Sign`](crate::Predictors::Sign).
        margin: f32,
    },
}

impl LayerPredictor {
    /// Width of a predictor of two matrices.
    pub fn rank(&self) -> Option<usize> {
        match self.form {
            PredictorForm::Mlp { rank, .. } => Some(rank),
            PredictorForm::Sign { .. } => None,
        }
    }

    /// What an output of a predictor of two matrices has to reach, if the file says so.
    pub fn threshold(&self) -> Option<f32> {
        match self.form {
            PredictorForm::Mlp { threshold, .. } => threshold,
            PredictorForm::Sign { .. } => None,
        }
    }
}

impl PredictorReport {
    /// Layers without a predictor, ascending; empty if the file does not say how many layers there are, and not more than
    /// 1024 behind the last that has one.
    pub fn exact(&self) -> impl Iterator<Item = usize> {
        let end = self.found.last().map_or(0, |p| p.layer + 1) + GAP;
        (0..self.layers.unwrap_or(0).min(end)).filter(|i| self.found.binary_search_by_key(i, |p| p.layer).is_err())
    }

    /// Smallest and largest rank; `None` if no layer has matrices.
    pub fn ranks(&self) -> Option<(usize, usize)> {
        let ranks = || self.found.iter().filter_map(LayerPredictor::rank);
        Some((ranks().min()?, ranks().max()?))
    }

    /// Smallest and largest threshold; `None` if a layer with matrices has none.
    pub fn thresholds(&self) -> Option<(f32, f32)> {
        let mlps = self.found.iter().filter(|p| p.rank().is_some());
        let all: Vec<f32> = mlps.map(LayerPredictor::threshold).collect::<Option<_>>()?;
        Some((all.iter().copied().reduce(f32::min)?, all.iter().copied().reduce(f32::max)?))
    }

    /// Bytes of all matrices.
    pub fn bytes(&self) -> u64 {
        self.found.iter().map(|p| p.bytes).sum()
    }
}

/// Whether a file has predictors and no model, as training writes them.
pub fn is_predictors(source: &dyn WeightSource) -> bool {
    source.metadata().get::<&str>("general.architecture").ok().flatten() == Some(ARCHITECTURE)
}

/// The predictors of a model of this shape, or those of a file of predictors. What is wrong with them goes to `problems`.
pub(super) fn report(
    source: &dyn WeightSource,
    config: Option<&ModelConfig>,
    problems: &mut Vec<String>,
) -> Option<PredictorReport> {
    let mut stated = |key: &str| match source.metadata().get::<u32>(key) {
        Ok(found) => found.map(|v| v as usize),
        Err(e) => {
            problems.push(e.to_string());
            None
        }
    };
    let alone = is_predictors(source);
    let (layers, dim, neurons) = match config {
        Some(c) => (Some(c.layers), Some(c.dim), Some(c.neurons)),
        None if alone => (
            stated("pi.predictor.block_count"),
            stated("pi.predictor.embedding_length"),
            stated("pi.predictor.feed_forward_length"),
        ),
        None => (None, None, None),
    };
    let thresholds = Thresholds::read(source, layers, problems);
    let (mut found, mut empty) = (Vec::new(), 0);
    let mut shape = (dim, neurons);
    for layer in 0..layers.unwrap_or(usize::MAX) {
        match form(source, layer) {
            Err(e) => problems.push(e.to_string()),
            Ok(Form::None) => {
                empty += 1;
                if empty >= GAP {
                    break;
                }
                continue;
            }
            Ok(Form::Sign(margin)) => {
                if !(-0.5..=0.5).contains(&margin) {
                    problems.push(format!("key '{MARGINS}': expected -0.5 to 0.5 for layer {layer}, got {margin}"));
                }
                found.push(LayerPredictor { layer, form: PredictorForm::Sign { margin }, bytes: 0 });
            }
            Ok(Form::Mlp([fc1, fc2])) => {
                let (d, n) = (*shape.0.get_or_insert(fc1.cols()), *shape.1.get_or_insert(fc2.rows()));
                let fits = fc1.expect_shape(fc1.rows(), d).and_then(|()| fc2.expect_shape(n, fc1.rows()));
                problems.extend(fits.err().map(|e| e.to_string()));
                found.push(LayerPredictor {
                    layer,
                    form: PredictorForm::Mlp {
                        rank: fc1.rows(),
                        types: [fc1.ty(), fc2.ty()],
                        threshold: thresholds.of(layer),
                    },
                    bytes: (fc1.size_bytes() + fc2.size_bytes()) as u64,
                });
            }
        }
        empty = 0;
    }
    if found.is_empty() && !alone {
        return None;
    }
    if found.is_empty() {
        problems.push("no layer has a predictor".into());
    }
    Some(PredictorReport { layers, shape: (shape.0.unwrap_or(0), shape.1.unwrap_or(0)), found })
}

/// What a file has for a layer.
enum Form {
    None,
    Mlp([Matrix; 2]),
    Sign(f32),
}

fn form(source: &dyn WeightSource, layer: usize) -> Result<Form> {
    match kind(source, layer)? {
        Kind::Exact => Ok(Form::None),
        Kind::Sign { margin } => Ok(Form::Sign(margin)),
        Kind::Mlp => Ok(matrices(source, layer)?.map_or(Form::None, Form::Mlp)),
    }
}

/// Both matrices of a layer's predictor, `None` if it has none.
fn matrices(source: &dyn WeightSource, layer: usize) -> Result<Option<[Matrix; 2]>> {
    let names = ["fc1", "fc2"].map(|name| format!("blk.{layer}.{name}.weight"));
    match (source.matrix(&names[0])?, source.matrix(&names[1])?) {
        (None, None) => Ok(None),
        (Some(fc1), Some(fc2)) => Ok(Some([fc1, fc2])),
        (fc1, _) => {
            let path = source.metadata().path().into();
            let [one, two] = names;
            Err(Error::Gguf(pi_gguf::Error::MissingTensor { path, tensor: if fc1.is_none() { one } else { two } }))
        }
    }
}

/// What the file says that outputs have to reach.
#[derive(Default)]
struct Thresholds {
    each: Option<Vec<f32>>,
    all: Option<f32>,
}

impl Thresholds {
    fn read(source: &dyn WeightSource, layers: Option<usize>, problems: &mut Vec<String>) -> Self {
        let meta = source.metadata();
        let each = meta.get::<Vec<f32>>(THRESHOLDS).unwrap_or_else(|e| {
            problems.push(e.to_string());
            None
        });
        let all = meta.get::<f32>(THRESHOLD).unwrap_or_else(|e| {
            problems.push(e.to_string());
            None
        });
        if let (Some(each), Some(layers)) = (&each, layers)
            && each.len() != layers
        {
            problems.push(format!("key '{THRESHOLDS}': expected {layers} numbers, one per layer, got {}", each.len()));
        }
        if let Some((i, t)) = each.iter().flatten().enumerate().find(|(_, t)| !t.is_finite()) {
            problems.push(format!("key '{THRESHOLDS}': the number of layer {i} is {t}"));
        }
        if let Some(t) = all.filter(|t| !t.is_finite()) {
            problems.push(format!("key '{THRESHOLD}' is {t}"));
        }
        Self { each, all }
    }

    /// As the loader reads them: numbers for each layer go before the one for all.
    fn of(&self, layer: usize) -> Option<f32> {
        match &self.each {
            Some(each) => each.get(layer).copied(),
            None => self.all,
        }
    }
}
