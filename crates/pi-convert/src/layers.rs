//! Files of which there is one per layer: predictors (`model_N.pt`) and activation counts (`activation_N.pt`).
//!
//! A layer's number is the number in the name. Names are never sorted as text, which would put layer 10 before layer 2.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use pi_gguf::AtomicFile;
use serde_json::Value as Json;

use crate::error::{Error, Result};
use crate::torch::{TorchFile, TorchTensor, torch_tensor};

/// The layers for which `dir` has files `{prefix}{N}.pt`, ascending.
fn found(dir: &Path, prefix: &str) -> Result<Vec<usize>> {
    let mut layers = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io(dir, "read"))? {
        let name = entry.map_err(Error::io(dir, "read"))?.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix(prefix)?.strip_suffix(".pt"));
        let number = number.filter(|n| *n == "0" || (!n.starts_with('0') && n.bytes().all(|b| b.is_ascii_digit())));
        layers.extend(number.and_then(|n| n.parse::<usize>().ok()));
    }
    layers.sort_unstable();
    Ok(layers)
}

/// The paths of `dir`'s files `{prefix}{N}.pt` in the order of layers, of which there must be `count`, or as many as the
/// highest number says.
fn paths(dir: &Path, prefix: &str, what: &'static str, count: Option<usize>) -> Result<Vec<PathBuf>> {
    let found = found(dir, prefix)?;
    if found.is_empty() {
        return Err(Error::MissingFile { path: dir.join(format!("{prefix}0.pt")), what: what.into() });
    }
    // A file with a huge number must not make a huge list of what is missing.
    let layers = count.unwrap_or(found[found.len() - 1] + 1);
    let missing: Vec<_> = (0..layers).filter(|i| found.binary_search(i).is_err()).take(100).collect();
    let extra: Vec<_> = found.iter().copied().filter(|&i| i >= layers).collect();
    if !missing.is_empty() || !extra.is_empty() {
        return Err(Error::Layers { path: dir.to_owned(), what, layers, missing, extra });
    }
    Ok((0..layers).map(|i| dir.join(format!("{prefix}{i}.pt"))).collect())
}

/// How often each neuron fired, per layer, from a folder of `activation_{N}.pt`: each one tensor of one dimension.
///
/// `layers` is how many there must be, `neurons` how long each must be; unless they are given, all files count from 0 on and
/// may be of any length.
///
/// # Errors
/// [`Error::Layers`] if a layer has no file or a file no layer, [`Error::Tensor`] if a file is not one such tensor, and as
/// [`TorchFile::open`].
pub fn read_activations(dir: impl AsRef<Path>, layers: Option<usize>, neurons: Option<usize>) -> Result<Vec<Vec<f32>>> {
    let paths = paths(dir.as_ref(), "activation_", "activations (activation_N.pt)", layers)?;
    paths.iter().map(|path| activations(&TorchFile::open(path)?, neurons)).collect()
}

/// The one tensor of an open activation file.
///
/// # Errors
/// As [`read_activations`].
pub fn activations(file: &TorchFile, neurons: Option<usize>) -> Result<Vec<f32>> {
    let mut tensors = file.tensors();
    let (Some((name, tensor)), None) = (tensors.next(), tensors.next()) else {
        return Err(Error::tensor(file.path(), "", "one tensor", file.tensors().len()));
    };
    let fits = tensor.shape.len() == 1 && neurons.is_none_or(|n| tensor.shape[0] == n);
    if !fits {
        let expected = neurons.map_or("one dimension".into(), |n| format!("shape [{n}]"));
        return Err(Error::tensor(file.path(), name, expected, format!("shape {:?}", tensor.shape)));
    }
    file.read(tensor)
}

/// Writes a folder of `activation_{N}.pt`, one for each layer, that PyTorch and [`read_activations`] read.
///
/// # Errors
/// [`Error::Io`] or [`Error::Gguf`] if a file cannot be written.
pub fn write_activations(dir: impl AsRef<Path>, layers: &[Vec<f32>]) -> Result<()> {
    let dir = dir.as_ref();
    fs::create_dir_all(dir).map_err(Error::io(dir, "create"))?;
    for (i, counts) in layers.iter().enumerate() {
        let name = format!("activation_{i}");
        let path = dir.join(format!("{name}.pt"));
        let bytes = torch_tensor(&name, TorchTensor { shape: &[counts.len()], data: counts })?;
        let mut file = AtomicFile::create(&path)?;
        file.write_all(&bytes).map_err(Error::io(&path, "write"))?;
        file.commit()?;
    }
    Ok(())
}

/// A folder of predictors: `model_{N}.pt` with `fc1.weight` (rank × width) and `fc2.weight` (neurons × rank), and perhaps a
/// `config.json` with `sparse_threshold`.
#[derive(Debug)]
pub struct PredictorDir {
    files: Vec<TorchFile>,
    threshold: Option<f32>,
}

impl PredictorDir {
    /// Opens a folder with predictors for so many layers, for a model so wide with so many neurons.
    ///
    /// # Errors
    /// [`Error::Layers`] if a layer has no predictor or a predictor no layer, [`Error::Tensor`] if its matrices do not fit,
    /// [`Error::Key`] if the threshold is no number, and as [`TorchFile::open`].
    pub fn open(dir: impl AsRef<Path>, layers: usize, dim: usize, neurons: usize) -> Result<Self> {
        let dir = dir.as_ref();
        let paths = paths(dir, "model_", "predictors (model_N.pt)", Some(layers))?;
        let files: Vec<_> = paths.iter().map(TorchFile::open).collect::<Result<_>>()?;
        for file in &files {
            let shape = |name: &str| -> Result<[usize; 2]> {
                let tensor = file.tensor(name);
                let shape = tensor.map(|t| t.shape.clone());
                let got = || shape.as_ref().map_or("none".into(), |shape| format!("shape {shape:?}"));
                let pair = shape.as_ref().and_then(|shape| <[usize; 2]>::try_from(&shape[..]).ok());
                pair.ok_or_else(|| Error::tensor(file.path(), name, "a matrix", got()))
            };
            let (fc1, fc2) = (shape("fc1.weight")?, shape("fc2.weight")?);
            let rank = fc1[0];
            for (name, got, expected) in [("fc1.weight", fc1, [rank, dim]), ("fc2.weight", fc2, [neurons, rank])] {
                if got != expected || rank == 0 {
                    let expected = format!("shape {expected:?}");
                    return Err(Error::tensor(file.path(), name, expected, format!("shape {got:?}")));
                }
            }
            if let Some((name, _)) = file.tensors().find(|(name, _)| !["fc1.weight", "fc2.weight"].contains(name)) {
                return Err(Error::tensor(file.path(), name, "fc1.weight and fc2.weight only", "it as well"));
            }
        }
        let config = dir.join("config.json");
        let mut threshold = None;
        if config.exists() {
            let text = fs::read(&config).map_err(Error::io(&config, "read"))?;
            let json: Json =
                serde_json::from_slice(&text).map_err(|source| Error::Json { path: config.clone(), source })?;
            threshold = match &json["sparse_threshold"] {
                Json::Null => None,
                value => {
                    let number = value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
                    Some(number.ok_or_else(|| Error::key(&config, "sparse_threshold", "a finite number", value))?)
                }
            };
        }
        Ok(Self { files, threshold })
    }

    /// What outputs have to reach, if the folder says so.
    pub fn threshold(&self) -> Option<f32> {
        self.threshold
    }

    /// How many layers there are.
    pub fn layers(&self) -> usize {
        self.files.len()
    }

    /// The rank of a layer's predictor, 0 for a layer that is not there.
    pub fn rank(&self, layer: usize) -> usize {
        self.files.get(layer).and_then(|file| file.tensor("fc1.weight")).map_or(0, |t| t.shape[0])
    }

    /// A matrix of a layer's predictor, `fc1` or `fc2`, row by row.
    ///
    /// # Errors
    /// As [`TorchFile::read`].
    pub fn read(&self, layer: usize, matrix: &str) -> Result<Vec<f32>> {
        let missing = || Error::Choice(format!("predictor of layer {layer} has no {matrix}"));
        let file = self.files.get(layer).ok_or_else(missing)?;
        file.read(file.tensor(&format!("{matrix}.weight")).ok_or_else(missing)?)
    }
}
