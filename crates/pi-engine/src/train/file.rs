//! Predictors in files: beside the model, in a PowerInfer file with the model, or one layer at a time for a run to be resumed.

use super::{Choice, Trained, settle::matrices};
use crate::{
    Engine, Error, Result, THRESHOLD, THRESHOLDS,
    predictors::{ARCHITECTURE, LIKENESS},
};
use ndarray::Array2;
use pi_core::{Matrix, QuantType};
use pi_gguf::{Builder, File, Kind};
use pi_predictor::train::{Curve, Fitted, Point};
use std::{path::Path, sync::Arc};

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

impl Trained {
    /// Writes the predictors to a file of their own, in GGUF: `blk.N.fc1.weight`, `blk.N.fc2.weight`, and a threshold per layer
    /// under [`THRESHOLDS`]. Layers that run exactly have none.
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
        let all = self.matrices()?;
        for m in &all {
            announce(&mut builder, m)?;
        }
        let mut writer = builder.create(path)?;
        for m in &all {
            writer.write(m.name(), m.view().bytes())?;
        }
        writer.finish()?.commit()?;
        Ok(())
    }

    /// Writes the model of `source` with these predictors to a PowerInfer file. Down matrices of float types are stored
    /// neuron-major; those that are so already stay, others are copied.
    ///
    /// # Errors
    /// If the file cannot be written, or has tensors of a type that is not known.
    pub fn write_model(&self, source: &File, path: impl AsRef<Path>) -> Result<()> {
        let mut builder = Builder::new(Kind::PowerInfer);
        for (key, value) in source.metadata().iter() {
            if key != THRESHOLD && !key.starts_with("pi.predictor.") && !key.starts_with("split.") {
                builder.set(key, value)?;
            }
        }
        self.keys(&mut builder)?;
        let all = self.matrices()?;
        let turned = |name: &str| -> Result<Option<Matrix>> {
            let Some(layer) = name.strip_suffix(".ffn_down.weight") else { return Ok(None) };
            let Some(m) = crate::WeightSource::matrix(source, name)? else { return Ok(None) };
            if !m.ty().is_float() {
                return Ok(None);
            }
            let t = m.transposed()?;
            Ok(Some(Matrix::new(
                format!("{layer}.ffn_down_t.weight"),
                t.ty(),
                t.rows(),
                t.cols(),
                t.view().bytes().to_vec(),
            )?))
        };
        let old = |name: &str| name.ends_with(".fc1.weight") || name.ends_with(".fc2.weight");
        let is_turned = |name: &str| -> Result<bool> {
            // a bias is named as its matrix
            let weight = name.replace(".ffn_down.bias", ".ffn_down.weight");
            Ok(weight.ends_with(".ffn_down.weight")
                && crate::WeightSource::matrix(source, &weight)?.is_some_and(|m| m.ty().is_float()))
        };
        for tensor in source.tensors().filter(|t| !old(t.name())) {
            if is_turned(tensor.name())? {
                let name = tensor.name().replace(".ffn_down.", ".ffn_down_t.");
                match name.ends_with(".bias") {
                    true => builder.tensor(&name, tensor.ty(), tensor.dims())?,
                    false => builder.tensor(&name, tensor.ty(), &[tensor.rows(), tensor.cols()])?,
                };
            } else {
                builder.tensor(tensor.name(), tensor.ty(), tensor.dims())?;
            }
        }
        for m in &all {
            announce(&mut builder, m)?;
        }
        let mut writer = builder.create(path)?;
        for tensor in source.tensors().filter(|t| !old(t.name())) {
            match turned(tensor.name())? {
                Some(m) => writer.write(m.name(), m.view().bytes())?,
                None if is_turned(tensor.name())? => {
                    writer.write(&tensor.name().replace(".ffn_down.", ".ffn_down_t."), tensor.data())?;
                }
                None => writer.write(tensor.name(), tensor.data())?,
            }
        }
        for m in &all {
            writer.write(m.name(), m.view().bytes())?;
        }
        writer.finish()?.commit()?;
        Ok(())
    }

    fn keys(&self, builder: &mut Builder) -> Result<()> {
        let thresholds: Vec<f32> = self.layers.iter().map(|l| l.point.map_or(0.0, |p| p.threshold)).collect();
        builder.set_array(THRESHOLDS, &thresholds)?;
        if let Some(trial) = &self.settled.trial {
            builder.set("pi.predictor.perplexity_growth", trial.growth() as f32)?;
        }
        Ok(())
    }

    fn matrices(&self) -> Result<Vec<Matrix>> {
        let with = self.layers.iter().filter(|l| l.point.is_some());
        Ok(with.map(|l| matrices(l, self.ty)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

fn announce(builder: &mut Builder, m: &Matrix) -> Result<()> {
    builder.tensor(m.name(), m.ty(), &[m.cols(), m.rows()])?;
    Ok(())
}

impl Choice {
    /// Writes a layer, so that an interrupted training can go on. `about` is any text that says what it belongs to.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>, about: &str) -> Result<()> {
        let mut builder = Builder::new(Kind::Gguf);
        builder.set("general.architecture", "pi.predictor.layer")?.set("about", about)?;
        builder.set("layer", self.layer as u32)?.set("active", self.active)?.set("size", self.size)?;
        builder.set("loss", self.fitted.loss)?;
        let points = self.curve.points();
        for (key, part) in PARTS {
            builder.set_array(key, &points.iter().map(part).collect::<Vec<f64>>())?;
        }
        builder.set_array("ranks", &self.tried.iter().map(|t| t.0 as u32).collect::<Vec<_>>())?;
        builder.set_array("costs", &self.tried.iter().map(|t| t.1).collect::<Vec<_>>())?;
        let all = matrices(self, QuantType::F32)?;
        for m in &all {
            announce(&mut builder, m)?;
        }
        let mut writer = builder.create(path)?;
        for m in &all {
            writer.write(m.name(), m.view().bytes())?;
        }
        writer.finish()?.commit()?;
        Ok(())
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
        let layer = meta.require::<u32>("layer")? as usize;
        let matrix = |name: &str| {
            let name = format!("blk.{layer}.{name}.weight");
            let m = crate::source::Reader { source: &file, check: true }.matrix(&name)?;
            let (rows, cols) = (m.rows(), m.cols());
            Array2::from_shape_vec((rows, cols), m.decode()).map_err(|e| broken(&path, &e.to_string()))
        };
        let fitted = Fitted { fc1: matrix("fc1")?, fc2: matrix("fc2")?, loss: meta.require("loss")? };
        let mut parts =
            PARTS.iter().map(|(key, _)| meta.require::<Vec<f64>>(key)).collect::<pi_gguf::Result<Vec<_>>>()?;
        let (magnitudes, recalls) = (parts.pop().unwrap_or_default(), parts.pop().unwrap_or_default());
        let (shares, thresholds) = (parts.pop().unwrap_or_default(), parts.pop().unwrap_or_default());
        let n = thresholds.len();
        if n == 0 || [&shares, &recalls, &magnitudes].iter().any(|p| p.len() != n) {
            return Err(broken(&path, "its curve is not whole"));
        }
        let point = |i: usize| Point {
            threshold: thresholds[i] as f32,
            share: shares[i],
            recall: recalls[i],
            magnitude: magnitudes[i],
        };
        let (ranks, costs) = (meta.require::<Vec<u32>>("ranks")?, meta.require::<Vec<f64>>("costs")?);
        Ok(Some(Self {
            layer,
            fitted,
            curve: Curve::from_points((0..n).map(point).collect()),
            point: None,
            active: meta.require("active")?,
            size: meta.require("size")?,
            tried: ranks.into_iter().map(|r| r as usize).zip(costs).collect(),
        }))
    }
}

type Part = fn(&Point) -> f64;
/// The columns of a curve.
const PARTS: [(&str, Part); 4] = [
    ("curve.threshold", |p| f64::from(p.threshold)),
    ("curve.share", |p| p.share),
    ("curve.recall", |p| p.recall),
    ("curve.magnitude", |p| p.magnitude),
];

fn broken(path: &impl AsRef<Path>, message: &str) -> Error {
    Error::Tensor { path: path.as_ref().display().to_string(), tensor: "predictor".into(), message: message.into() }
}
