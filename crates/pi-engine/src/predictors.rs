//! Where predictors come from.

use crate::{
    Error, Result,
    config::ModelConfig,
    layer::Layer,
    plan::Side,
    schedule::Marking,
    source::{Reader, WeightSource},
};
use pi_core::{Device, Executor, FfnWeights, Gating, LinearSpec, MlpSpec, Predictor, QuantType};
use pi_gguf::FromValue;
use pi_predictor::{Oracle, Sign};
use std::{fmt, sync::Arc};

/// The predictors of a model: one per layer, or none for layers that run exactly.
#[derive(Clone)]
#[non_exhaustive]
pub enum Predictors {
    /// Those of the model's file: `blk.N.fc1.weight` and `blk.N.fc2.weight`, or what [`KINDS`] says.
    File {
        /// What an output of matrices has to reach. `None`: what the file says ([`THRESHOLDS`] for each layer, or [`THRESHOLD`]), or 0.
        threshold: Option<f32>,
    },
    /// Those of another file, as [`File`](Self::File) otherwise: predictors that were trained for a model lie beside it.
    Beside {
        /// The file.
        source: Arc<dyn WeightSource>,
        /// As of [`File`](Self::File).
        threshold: Option<f32>,
    },
    /// The signs of the gate's weights. See [`Sign`].
    Sign {
        /// Share of the products by which negative ones may outnumber half, −0.5 to 0.5: more finds more neurons and skips
        /// fewer.
        margin: f32,
    },
    /// The gates themselves: never wrong, and no gain. See [`Oracle`].
    Oracle,
    /// Predictors of your own; as many as there are layers.
    Own(Vec<Option<Arc<dyn Predictor>>>),
}

impl Default for Predictors {
    fn default() -> Self {
        Self::File { threshold: None }
    }
}

impl fmt::Debug for Predictors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { threshold } => write!(f, "File({threshold:?})"),
            Self::Beside { source, .. } => write!(f, "Beside({})", source.metadata().path().display()),
            Self::Sign { margin } => write!(f, "Sign({margin})"),
            Self::Oracle => write!(f, "Oracle"),
            Self::Own(all) => write!(f, "Own({} layers)", all.len()),
        }
    }
}

/// The key of a file's threshold for all layers (PowerInfer).
pub const THRESHOLD: &str = "powerinfer.sparse_threshold";
/// The key of a file's thresholds, one per layer.
pub const THRESHOLDS: &str = "pi.predictor.thresholds";
/// The key of the kinds of a file's predictors, one per layer: `mlp`, `sign`, or `exact` for none. Without it, layers that have
/// matrices have `mlp`.
pub const KINDS: &str = "pi.predictor.kinds";
/// The key of the margins of a file's predictors, one per layer; only those of `sign` ([`Sign::new`]) mean something.
pub const MARGINS: &str = "pi.predictor.margins";
/// `general.architecture` of a file of predictors.
pub(crate) const ARCHITECTURE: &str = "pi.predictor";
/// The key of what a file of predictors knows of its model's weights. See [`crate::likeness`].
pub(crate) const LIKENESS: &str = "pi.predictor.model_numbers";

/// What one layer's predictor is made of.
pub(crate) struct Parts<'a> {
    pub reader: &'a Reader<'a>,
    /// Names of the file's two matrices.
    pub names: [String; 2],
    pub ffn: &'a FfnWeights,
    /// Where the layer's other operators are.
    pub home: Side,
    pub device: &'a dyn Device,
    /// Where types are that it lacks.
    pub cpu: &'a dyn Device,
    pub exec: &'a Arc<dyn Executor>,
}

impl<'a> Parts<'a> {
    /// The device for matrices of these types.
    fn holder<const N: usize>(&self, types: [QuantType; N]) -> (&'a dyn Device, Side) {
        match types.iter().all(|ty| self.device.supports(*ty)) {
            true => (self.device, self.home),
            false => (self.cpu, Side::Cpu),
        }
    }
}

impl Predictors {
    /// The file that predictors are read from, if it is not the model's own.
    pub(crate) fn beside(&self) -> Option<&dyn WeightSource> {
        match self {
            Self::Beside { source, .. } => Some(&**source),
            _ => None,
        }
    }

    /// The predictor of a layer and where it is computed, `None` if it has none.
    ///
    /// # Errors
    /// If matrices do not fit the layer, or a setting is out of range.
    pub(crate) fn layer(&self, i: usize, parts: &Parts<'_>) -> Result<Option<(Arc<dyn Predictor>, Marking)>> {
        let (found, side): (Arc<dyn Predictor>, Side) = match self {
            Self::File { threshold } => match filed(parts.reader, *threshold, i, parts)? {
                Some(found) => found,
                None => return Ok(None),
            },
            Self::Beside { source, threshold } => {
                let reader = Reader { source: &**source, check: parts.reader.check };
                match filed(&reader, *threshold, i, parts)? {
                    Some(found) => found,
                    None => return Ok(None),
                }
            }
            Self::Sign { margin } => (Arc::new(sign(gate(parts.ffn).0, *margin, parts.device, parts.exec)?), Side::Cpu),
            Self::Oracle => {
                let (weight, bias) = gate(parts.ffn);
                let (device, side) = parts.holder([weight.ty()]);
                let linear = device.linear(&LinearSpec { weight: weight.clone(), bias })?;
                let (dim, neurons) = (parts.ffn.dim(), parts.ffn.neurons());
                (Arc::new(Oracle::new(linear, parts.ffn.act, dim, neurons, parts.exec.clone())), side)
            }
            Self::Own(all) => match all.get(i) {
                Some(Some(own)) => (own.clone(), Side::Cpu),
                Some(None) => return Ok(None),
                None => return Err(Error::setting("predictors", "one per layer", all.len())),
            },
        };
        fits(i, &*found, (parts.ffn.dim(), parts.ffn.neurons()))?;
        let marking = Marking { kind: found.kind().into(), side };
        Ok(Some((found, marking)))
    }
}

/// Gives layers their predictors.
pub(crate) fn put(layers: &mut [Layer], predictors: &[Option<Arc<dyn Predictor>>], config: &ModelConfig) -> Result<()> {
    if predictors.len() != layers.len() {
        return Err(Error::setting("predictors", format!("{}, one per layer", layers.len()), predictors.len()));
    }
    for (i, (layer, predictor)) in layers.iter_mut().zip(predictors).enumerate() {
        if let Some(p) = predictor {
            fits(i, &**p, (config.dim, config.neurons))?;
        }
        layer.predictor.clone_from(predictor);
        layer.shape.marking = predictor.as_ref().map(|p| Marking { kind: p.kind().into(), side: Side::Cpu });
    }
    Ok(())
}

fn fits(layer: usize, p: &dyn Predictor, want: (usize, usize)) -> Result<()> {
    let got = (p.dim(), p.neurons());
    if got == want {
        return Ok(());
    }
    let expected = format!("width {}, {} neurons, as layer {layer}", want.0, want.1);
    Err(Error::setting("predictor", expected, format!("width {}, {} neurons", got.0, got.1)))
}

/// The predictor of a file.
fn filed(
    reader: &Reader<'_>,
    threshold: Option<f32>,
    i: usize,
    parts: &Parts<'_>,
) -> Result<Option<(Arc<dyn Predictor>, Side)>> {
    match kind(reader.source, i)? {
        Kind::Mlp => mlp(reader, threshold, i, parts),
        Kind::Exact => Ok(None),
        Kind::Sign { margin } => {
            Ok(Some((Arc::new(sign(gate(parts.ffn).0, margin, parts.device, parts.exec)?), Side::Cpu)))
        }
    }
}

/// What a file says that a layer has.
pub(crate) enum Kind {
    Mlp,
    Sign { margin: f32 },
    Exact,
}

pub(crate) fn kind(source: &dyn WeightSource, layer: usize) -> Result<Kind> {
    match per_layer::<&str>(source, KINDS, layer)? {
        None | Some("mlp") => Ok(Kind::Mlp),
        Some("exact") => Ok(Kind::Exact),
        Some("sign") => Ok(Kind::Sign { margin: per_layer::<f32>(source, MARGINS, layer)?.unwrap_or(0.0) }),
        Some(other) => Err(config(source, KINDS, "mlp, sign or exact for each layer", format!("'{other}'"))),
    }
}

/// The matrices of a file.
fn mlp(
    reader: &Reader<'_>,
    threshold: Option<f32>,
    i: usize,
    parts: &Parts<'_>,
) -> Result<Option<(Arc<dyn Predictor>, Side)>> {
    let threshold = threshold.map_or_else(|| stated(reader.source, i), Ok)?;
    let [name1, name2] = &parts.names;
    let (fc1, fc2) = match (reader.find(name1)?, reader.find(name2)?) {
        (None, None) => return Ok(None),
        (Some(fc1), Some(fc2)) => (fc1, fc2),
        (fc1, _) => {
            let tensor = if fc1.is_none() { name1 } else { name2 }.clone();
            return Err(Error::Gguf(pi_gguf::Error::MissingTensor { path: reader.path().into(), tensor }));
        }
    };
    // Whichever file the matrices are in, it is named.
    let of_file = |name: &str| {
        let (path, tensor) = (reader.path(), name.to_string());
        |e: pi_core::Error| Error::Tensor { path, tensor, message: e.to_string() }
    };
    fc1.expect_shape(fc1.rows(), parts.ffn.dim()).map_err(of_file(name1))?;
    fc2.expect_shape(parts.ffn.neurons(), fc1.rows()).map_err(of_file(name2))?;
    let (device, side) = parts.holder([fc1.ty(), fc2.ty()]);
    Ok(Some((device.mlp(&MlpSpec { fc1, fc2, threshold }).map_err(of_file(name1))?, side)))
}

/// A predictor from signs that counts as the device does.
pub(crate) fn sign(gate: &pi_core::Matrix, margin: f32, device: &dyn Device, exec: &Arc<dyn Executor>) -> Result<Sign> {
    Ok(Sign::new(gate, margin, exec.clone())?.with_kernels(device.signs()))
}

/// The matrix whose sign decides whether a neuron fires, and its bias.
pub(crate) fn gate(ffn: &FfnWeights) -> (&pi_core::Matrix, Option<Arc<[f32]>>) {
    match &ffn.gate {
        Some(gate) if ffn.gating != Gating::UpOnly => (gate, ffn.gate_bias.clone()),
        _ => (&ffn.up, ffn.up_bias.clone()),
    }
}

/// The threshold that a file states for a layer.
fn stated(source: &dyn WeightSource, layer: usize) -> Result<f32> {
    let (key, threshold) = match per_layer(source, THRESHOLDS, layer)? {
        Some(threshold) => (THRESHOLDS, threshold),
        None => (THRESHOLD, source.metadata().get::<f32>(THRESHOLD)?.unwrap_or(0.0)),
    };
    // one without end would switch the layer off, or its predictor
    if !threshold.is_finite() {
        return Err(config(source, key, "finite numbers", format!("{threshold} for layer {layer}")));
    }
    Ok(threshold)
}

/// A layer's value of a key that has one for each.
fn per_layer<'a, T: FromValue<'a> + Copy>(
    source: &'a dyn WeightSource,
    key: &'static str,
    layer: usize,
) -> Result<Option<T>> {
    let Some(all) = source.metadata().get::<Vec<T>>(key)? else { return Ok(None) };
    match all.get(layer) {
        Some(one) => Ok(Some(*one)),
        None => Err(config(source, key, "a value for each layer", format!("{} values", all.len()))),
    }
}

fn config(source: &dyn WeightSource, key: &str, expected: &str, got: String) -> Error {
    let path = source.metadata().path().display().to_string();
    Error::Config { path, key: key.into(), expected: expected.into(), got }
}
