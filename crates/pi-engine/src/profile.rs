//! Counts which neurons fire while a model reads a text (paper §3.1, §7), and keeps the counts in a file.
//!
//! ```no_run
//! use pi_engine::{Engine, Sparsity, pi_predictor::profile::Profile, profile::Profiler};
//!
//! let engine = Engine::builder().sparsity(Sparsity::Exact).open("model.gguf")?;
//! let tokens = engine.encode_plain("Once upon a time")?;
//! let mut profiler = Profiler::new(&engine, 512, 512)?;
//! let mut profile = Profile::new("a model", 0, &profiler.shape());
//! let text = profile.begin("a text", 0, tokens.len() as u64);
//! for part in tokens.chunks(profiler.chunk()) {
//!     profiler.count(part, &mut profile.text_mut(text).unwrap().counts)?;
//! }
//! println!("{} of the neurons give 80 % of the activations", profile.merged().share_for(0.8));
//! # Ok::<(), pi_engine::Error>(())
//! ```

use crate::{Engine, Error, Observer, Result, Session, SessionOptions, StepToken};
use pi_core::{Activation, text::TokenId};
use pi_gguf::{AtomicFile, File};
use pi_predictor::profile::{Counts, MAGIC, Profile, fingerprint};
use std::{
    fs,
    io::{self, Read},
    path::Path,
};

/// Runs a model over chunks of a text and counts.
pub struct Profiler {
    session: Session,
    /// Begins every chunk, and is not counted: it is no part of the text.
    bos: Option<TokenId>,
    /// What the chunk in progress counted: it is added when the chunk is done, all or nothing.
    counted: Counts,
    step: Vec<StepToken>,
}

impl Profiler {
    /// For chunks of `context` tokens (the one that begins a text is among them), of which `batch` are computed at once.
    ///
    /// # Errors
    /// If the model's activation is never exactly 0, or neurons are left out by predictors: there is nothing to count then. Also
    /// if a setting is out of range.
    pub fn new(engine: &Engine, context: usize, batch: usize) -> Result<Self> {
        let (act, special) = (engine.config().activation, engine.tokenizer().special());
        if !act.is_sparse() {
            let expected = "relu, relu2 or fatrelu, with which neurons fire or do not";
            return Err(Error::setting(
                "activation",
                expected,
                format!("{act}, with which every neuron always counts"),
            ));
        }
        if engine.sparsity().predictors.iter().any(Option::is_some) {
            return Err(Error::setting("sparsity", "exact: predictors would hide neurons that fire", "predictor"));
        }
        if context < 2 {
            return Err(Error::setting("context", "a number from 2", context));
        }
        let bos = special.bos.filter(|_| special.add_bos);
        let options = SessionOptions { context: Some(context), batch, sequences: 1, logits: 1 };
        let session = engine.session(&options)?;
        let shape: Vec<_> = (0..).zip(shape(engine)).collect();
        Ok(Self { session, bos, counted: Counts::new(&shape), step: Vec::with_capacity(batch.min(context)) })
    }

    /// Neurons of each layer.
    pub fn shape(&self) -> Vec<u32> {
        shape(self.session.engine())
    }

    /// Positions of a chunk, that of the token that begins it among them.
    pub fn context(&self) -> usize {
        self.session.context()
    }

    /// Tokens of a text that make a chunk.
    pub fn chunk(&self) -> usize {
        self.session.context() - usize::from(self.bos.is_some())
    }

    /// Computes up to [`chunk`](Self::chunk) tokens from an empty context, and adds what fires to `into`.
    ///
    /// # Errors
    /// If there are more tokens, `into` has other layers, a neuron's value is not finite, or an operator fails. Nothing is added
    /// then.
    pub fn count(&mut self, tokens: &[TokenId], into: &mut Counts) -> Result<()> {
        self.counted.clear();
        self.session.truncate(0, 0);
        let batch = self.session.batch();
        let mut skip = usize::from(self.bos.is_some());
        let mut all = self.bos.iter().chain(tokens).copied().peekable();
        while all.peek().is_some() {
            self.step.clear();
            self.step.extend(all.by_ref().take(batch).map(|token| StepToken { token, seq: 0, logits: false }));
            self.session.step_with(&self.step, &mut Count { counts: &mut self.counted, skip })?;
            skip = 0;
        }
        self.counted.count_tokens(tokens.len() as u64);
        if let Some(layer) = self.counted.layers().iter().find(|l| l.sums().iter().any(|v| !v.is_finite())) {
            return Err(Error::NonFinite { what: "the FFN's neurons", layer: layer.layer() as usize });
        }
        let other = |source| Error::Profile { path: "the counts".into(), source };
        into.add(&self.counted).map_err(other)
    }
}

fn shape(engine: &Engine) -> Vec<u32> {
    let c = engine.config();
    vec![u32::try_from(c.neurons).unwrap_or(u32::MAX); c.layers]
}

/// Counts the values of a step's tokens after the first `skip`.
struct Count<'a> {
    counts: &'a mut Counts,
    skip: usize,
}

impl Observer for Count<'_> {
    fn inputs(&mut self, _: usize, _: &[f32], _: &[f32]) {}

    fn values(&mut self, layer: usize, values: &[f32]) {
        if let Some(layer) = self.counts.layer_mut(layer) {
            let skipped = self.skip * layer.fired().len();
            layer.count(values.get(skipped..).unwrap_or_default());
        }
    }
}

/// Tells models apart: by the tensors' names, shapes, types and the ends of their data, and by the activation in use.
pub fn model_fingerprint(file: &File, activation: Activation) -> u64 {
    const END: usize = 4096;
    let mut parts = vec![activation.to_string().into_bytes()];
    for t in file.tensors() {
        parts.push(format!("{} {:?} {:?}", t.name(), t.dims(), t.ty()).into_bytes());
        let data = t.data();
        parts.push(data[..data.len().min(END)].to_vec());
        parts.push(data[data.len().saturating_sub(END)..].to_vec());
    }
    fingerprint(parts.iter().map(Vec::as_slice))
}

/// Writes a profile to `path`, whole or not at all. An older file of that name is replaced.
///
/// # Errors
/// If it cannot be written.
pub fn save(profile: &Profile, path: &Path) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    profile.write(&mut file).map_err(|source| io_error(path, "write", source))?;
    Ok(file.commit()?)
}

/// Reads a profile.
///
/// # Errors
/// If the file cannot be read, is no profile, or is damaged.
pub fn load(path: &Path) -> Result<Profile> {
    let failed = |source| io_error(path, "read", source);
    let mut file = fs::File::open(path).map_err(|source| io_error(path, "open", source))?;
    let mut bytes = Vec::new();
    // What is no profile is not read to its end.
    (&mut file).take(8).read_to_end(&mut bytes).map_err(failed)?;
    if bytes == *MAGIC {
        file.read_to_end(&mut bytes).map_err(failed)?;
    }
    Profile::read(&bytes).map_err(|source| Error::Profile { path: path.display().to_string(), source })
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> Error {
    pi_gguf::Error::Io { path: path.to_owned(), action, source }.into()
}
