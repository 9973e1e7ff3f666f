//! From a request to a file.

use super::{
    error::{Result, SynthError},
    layer,
    layout::POSITION_OFFSET,
    math::Source,
    model::{BIAS, SynthModel},
    shape::Family,
    stream::{Plan, Stream},
    text::{Text, embedding, positions},
    vocab::Vocab,
};
use pi_gguf::AtomicFile;
use std::{io::Write, ops::ControlFlow, path::Path};

/// Deviation of the logits, about.
const LOGITS: f32 = 3.0;

/// Is told how far it is; [`ControlFlow::Break`] stops.
pub type Watcher<'a> = dyn FnMut(&Progress<'_>) -> ControlFlow<()> + Send + 'a;

/// How a model is written.
#[derive(Default)]
pub struct Options<'a> {
    /// Threads; as many as rayon's pool has if not given. The file does not depend on it.
    pub threads: Option<usize>,
    /// Called before every few megabytes, and after every layer.
    pub progress: Option<&'a mut Watcher<'a>>,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The layer that is written, from 0; at the end as many as there are.
    pub layer: usize,
    /// How many there are.
    pub layers: usize,
    /// Bytes of tensors written.
    pub bytes: u64,
    /// What was measured in this layer, once: when it is complete.
    pub done: Option<&'a LayerReport>,
}

/// What was measured in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerReport {
    /// Share of neurons that fire, over tokens that had no part in the calibration.
    pub active: f64,
    /// Share of neurons that give 80 % of the activations. Rates of neurons are estimated from mean and deviation of their
    /// inputs.
    pub hot: f64,
    /// Share of firing neurons that the predictor finds, over the same tokens as `active`.
    pub recall: Option<f64>,
    /// Share of neurons found that fire.
    pub precision: Option<f64>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Bytes of tensors.
    pub bytes: u64,
    /// What was measured, layer by layer.
    pub layers: Vec<LayerReport>,
}

impl Report {
    /// The mean of a number over the layers.
    pub fn mean(&self, of: impl Fn(&LayerReport) -> f64) -> f64 {
        self.layers.iter().map(of).sum::<f64>() / self.layers.len() as f64
    }
}

impl SynthModel {
    /// Writes the model to a file, which appears when it is complete.
    ///
    /// # Errors
    /// As [`write`](Self::write), and if the file cannot be created or renamed.
    pub fn create(&self, path: &Path, options: Options<'_>) -> Result<Report> {
        self.check()?; // before anything is created
        let (file, report) = self.write(AtomicFile::create(path)?, options)?;
        file.commit()?;
        Ok(report)
    }

    /// Writes the model, and gives back what it was written to. It should be buffered.
    ///
    /// # Errors
    /// [`SynthError::Setting`] if the request is impossible, [`SynthError::Cancelled`], and whatever writing gives.
    pub fn write<W: Write + Send>(&self, out: W, options: Options<'_>) -> Result<(W, Report)> {
        self.check()?;
        let mut silent = |_: &Progress<'_>| ControlFlow::Continue(());
        let progress = options.progress.unwrap_or(&mut silent);
        let Some(threads) = options.threads else { return self.run(out, progress) };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.map_err(|e| SynthError::Threads(e.to_string()))?.install(|| self.run(out, progress))
    }

    fn run<'a, W: Write>(&self, out: W, progress: &'a mut Watcher<'a>) -> Result<(W, Report)> {
        let s = &self.shape;
        let mut stream = Stream::new(self.header()?.start(out)?, s.layers, progress);
        let rows = |name, rows| Plan { name, ty: self.ty, rows, cols: s.dim };
        stream.matrix(rows("token_embd.weight", s.vocab), embedding(self))?;
        if self.family == Family::Opt {
            stream.matrix(rows("position_embd.weight", s.context + POSITION_OFFSET), positions(self))?;
        }
        let text = Text::new(self);
        let thresholds = self.thresholds()?.of(s.neurons);
        let mut h = text.embedded(self);
        let mut layers = Vec::new();
        for i in 0..s.layers {
            stream.layer = i;
            let report = layer::write(self, &text, &mut stream, &thresholds, &mut h)?;
            stream.report(Some(&report))?;
            layers.push(report);
        }
        stream.layer = s.layers;
        let std = LOGITS / (s.dim as f32).sqrt();
        let is_tied = self.family == Family::Opt;
        layer::write_norm(self, &mut stream, "output_norm", &self.output_norm(is_tied, std))?;
        if !is_tied {
            let (source, special) = (Source::new(self.seed, "output"), Vocab::of(self.family).special);
            // Special tokens have no weights: their logits are 0, and there are always larger ones.
            stream.matrix(rows("output.weight", s.vocab), |id, row| {
                if id >= special {
                    source.row(id).fill(BIAS, &mut row[BIAS..], std);
                }
            })?;
        }
        let report = Report { bytes: stream.written, layers };
        Ok((stream.writer.finish()?, report))
    }

    /// The last norm's weights. With a tied head they are small and of random signs: otherwise the likeliest token after
    /// every token were the token itself.
    fn output_norm(&self, is_tied: bool, std: f32) -> Vec<f32> {
        let mut weight = vec![1.0; self.shape.dim];
        if is_tied {
            let random = Source::new(self.seed, "output_norm").row(0);
            for (i, w) in weight.iter_mut().enumerate() {
                *w = if i < BIAS { 0.0 } else { std.copysign(random.normal(i as u32)) };
            }
        }
        weight
    }
}
