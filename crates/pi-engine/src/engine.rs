//! The loaded model.

use crate::{
    Error, Result, Session, SessionOptions,
    arch::{self, Architecture},
    config::ModelConfig,
    fallback::{self, Fallback, OnDeviceLoss},
    layer::Layer,
    load::{self, LoadOptions},
    model::Model,
    plan::Plan,
    predictors::{self, Predictors},
    schedule::Schedule,
    source::{Keeping, WeightSource},
    sparsity::{Sparsity, SparsityReport},
    stream::Streaming,
    tokenizer,
};
use pi_core::{
    Activation, Device, Executor, KvTypes, Predictor, Serial, SparseFfn,
    text::{EncodeOptions, TokenId, Tokenizer},
};
use pi_gguf::Source;
use pi_sparse_cpu::{CpuDevice, Crossover, Kernels, Pool};
use std::{path::Path, sync::Arc};

/// A model, ready to run. Immutable, `Send` and `Sync`; cloning shares it. What changes is in [`Session`]s.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub config: ModelConfig,
    pub arch: &'static dyn Architecture,
    pub model: Model,
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Where rows of numbers are made.
    pub device: Arc<dyn Device>,
    /// What computes on the [CPU's side](crate::Side::Cpu).
    pub cpu: Arc<dyn Device>,
    /// Runs what is no operator of the device.
    pub exec: Arc<dyn Executor>,
    pub check: bool,
    warnings: Vec<String>,
    /// What to do without the accelerator, if that is wanted.
    pub fallback: Option<Fallback>,
}

impl Inner {
    /// The same with another model on the CPU alone.
    pub(crate) fn on_cpu(&self, model: Model) -> Self {
        Self { device: self.cpu.clone(), fallback: None, ..self.with_model(model) }
    }

    fn with_model(&self, model: Model) -> Self {
        Self {
            config: self.config.clone(),
            arch: self.arch,
            model,
            tokenizer: self.tokenizer.clone(),
            device: self.device.clone(),
            cpu: self.cpu.clone(),
            exec: self.exec.clone(),
            check: self.check,
            warnings: self.warnings.clone(),
            fallback: None,
        }
    }
}

impl Engine {
    /// Loads a model file with the default settings.
    ///
    /// # Errors
    /// As [`EngineBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// Settings first.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// A session with caches of its own.
    ///
    /// # Errors
    /// If a setting is out of range, or there is no memory for the KV cache.
    pub fn session(&self, options: &SessionOptions) -> Result<Session> {
        Session::new(self.clone(), options)
    }

    /// The same model with other predictors, one per layer, or `None` for a layer that is to run exactly. Weights are shared.
    ///
    /// # Errors
    /// If the model does not leave out idle neurons, or predictors do not fit.
    pub fn with_predictors(&self, predictors: &[Option<Arc<dyn Predictor>>]) -> Result<Self> {
        let inner = &self.inner;
        if !self.sparsity().is_on() {
            return Err(Error::setting("a model for predictors", "one that leaves out idle neurons", self.sparsity()));
        }
        let mut model = inner.model.clone();
        predictors::put(&mut model.layers, predictors, &inner.config)?;
        model.sparsity.predictors = predictors.iter().map(|p| p.as_ref().map(|p| p.kind().to_string())).collect();
        let fallback = inner.fallback.as_ref().map(|f| f.with_predictors(predictors));
        let model = model.rescheduled(inner.arch);
        Ok(Self { inner: Arc::new(Inner { fallback, ..inner.with_model(model) }) })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.inner.config
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<dyn Tokenizer> {
        &self.inner.tokenizer
    }

    /// The tokens of a prompt as the model expects it: special tokens are added (BOS where the vocabulary says so), and such
    /// in the text are recognised. Text is bytes: it need not be UTF-8. For text of others that must not become control
    /// tokens, see [`EncodeOptions`].
    ///
    /// # Errors
    /// If the vocabulary has no tokens for a part of the text.
    pub fn encode_prompt(&self, text: impl AsRef<[u8]>) -> Result<Vec<TokenId>> {
        let options = EncodeOptions { add_special: true, parse_special: true };
        Ok(self.inner.tokenizer.encode(text.as_ref(), options)?)
    }

    /// The tokens of a text and nothing else: none is added, and none with a meaning is recognised. Text is bytes.
    ///
    /// # Errors
    /// If the vocabulary has no tokens for a part of the text.
    pub fn encode_plain(&self, text: impl AsRef<[u8]>) -> Result<Vec<TokenId>> {
        Ok(self.inner.tokenizer.encode(text.as_ref(), EncodeOptions::PLAIN)?)
    }

    /// Number of tokens that can be sampled: those of the tokenizer. (The model may have more rows; they have no text.)
    pub fn vocab(&self) -> usize {
        self.inner.tokenizer.len()
    }

    /// What is skipped, and why something is not.
    pub fn sparsity(&self) -> &SparsityReport {
        &self.inner.model.sparsity
    }

    /// Bytes of all weight matrices that a token can read.
    pub fn weight_bytes(&self) -> u64 {
        self.inner.model.weight_bytes
    }

    /// Per layer: the share of neurons that live on the accelerator, 0 to 1; 0 without one.
    pub fn hot_shares(&self) -> Vec<f32> {
        let share = |layer: &Layer| {
            let count = |part: &Option<Arc<dyn SparseFfn>>| part.as_ref().map_or(0, |ffn| ffn.neurons().len());
            let hot = if self.has_accelerator() { count(&layer.ffn.hot) } else { 0 };
            hot as f32 / (count(&layer.ffn.hot) + count(&layer.ffn.cold)).max(1) as f32
        };
        self.inner.model.layers.iter().map(share).collect()
    }

    fn has_accelerator(&self) -> bool {
        !Arc::ptr_eq(&self.inner.device, &self.inner.cpu)
    }

    /// What a step computes, where, and in which order.
    pub fn schedule(&self) -> &Schedule {
        &self.inner.model.schedule
    }

    /// The device that computes; with an accelerator beside the CPU, that one.
    pub fn device(&self) -> &dyn Device {
        &*self.inner.device
    }

    /// What was odd about the file but could be loaded all the same.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", self.config()).finish_non_exhaustive()
    }
}

/// How a model is to be loaded and run.
#[derive(Default)]
pub struct EngineBuilder {
    source: Source,
    threads: Option<usize>,
    kernels: Option<Kernels>,
    crossover: Crossover,
    repacking: u64,
    device: Option<Arc<dyn Device>>,
    accelerator: Option<(Arc<dyn Device>, Plan)>,
    streaming: Option<Streaming>,
    on_device_loss: OnDeviceLoss,
    sparsity: Sparsity,
    predictors: Predictors,
    activation: Option<Activation>,
    kv: KvTypes,
    check: bool,
}

impl EngineBuilder {
    /// Whether the file is mapped (the default) or read into memory.
    pub fn source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Threads of the CPU device. Default: as many as this process may use cores.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Kernels of the CPU device. Default: the fastest of this CPU.
    pub fn kernels(mut self, kernels: Kernels) -> Self {
        self.kernels = Some(kernels);
        self
    }

    /// Above which share of active neurons FFNs of the CPU device take their dense path. Only speed depends on it.
    pub fn crossover(mut self, crossover: Crossover) -> Self {
        self.crossover = crossover;
        self
    }

    /// How many bytes of weights the CPU device may keep a second time, in the layout that its kernels are fastest with.
    /// Default: none. Sums are added up in another order then, so results differ by roundings of f32.
    pub fn repacking(mut self, limit: u64) -> Self {
        self.repacking = limit;
        self
    }

    /// A device of your own instead of the CPU; threads, kernels, crossover and repacking then do not apply.
    pub fn device(mut self, device: Arc<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// A device beside the CPU (or what stands for it), and what of the model belongs there. Types of weights that it has no
    /// kernels for stay on the CPU all the same.
    pub fn accelerator(mut self, device: Arc<dyn Device>, plan: Plan) -> Self {
        self.accelerator = Some((device, plan));
        self
    }

    /// From how many tokens of a step on the neurons that the plan leaves on the CPU are sent to the [accelerator](Self::accelerator) for
    /// that step, one layer at a time, and computed there. Default: never. [`Planned::affordable_streaming`] says when it pays.
    ///
    /// [`Planned::affordable_streaming`]: crate::planner::Planned::affordable_streaming
    pub fn streaming(mut self, streaming: Option<Streaming>) -> Self {
        self.streaming = streaming;
        self
    }

    /// What sessions do when the [accelerator](Self::accelerator) fails in the middle of a step. Default: the step fails.
    pub fn on_device_loss(mut self, what: OnDeviceLoss) -> Self {
        self.on_device_loss = what;
        self
    }

    /// What is skipped. Default: whatever the activation allows.
    pub fn sparsity(mut self, sparsity: Sparsity) -> Self {
        self.sparsity = sparsity;
        self
    }

    /// Which predictors [`Sparsity::Predictor`] uses. Default: those of the file.
    pub fn predictors(mut self, predictors: Predictors) -> Self {
        self.predictors = predictors;
        self
    }

    /// Another activation than the file says.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = Some(activation);
        self
    }

    /// How keys and values are kept: a [`KvType`](pi_core::KvType) for both, or one for each. Default: F16.
    pub fn kv(mut self, kv: impl Into<KvTypes>) -> Self {
        self.kv = kv.into();
        self
    }

    /// Check mode: looks for non-finite numbers in every tensor while loading, and after every operator of a step, and
    /// names the first. Slow.
    pub fn check(mut self, check: bool) -> Self {
        self.check = check;
        self
    }

    /// Loads a GGUF or PowerInfer file (or any part of a split one).
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or is of an unsupported family; if a setting is out of range.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Engine> {
        let file = pi_gguf::File::open_with(path, self.source)?;
        self.load(&file)
    }

    /// Loads from a source of your own. Weights are shared with it, not copied.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn load(self, source: &dyn WeightSource) -> Result<Engine> {
        let (arch, mut config) = arch::detect(source)?;
        if let Some(act) = self.activation {
            config.activation = act;
        }
        let path = source.metadata().path().display().to_string();
        let loaded = tokenizer::load(source.metadata())
            .map_err(|source| Error::Vocab { path: path.clone(), source: Box::new(source) })?;
        let tokenizer = loaded.tokenizer;
        let mut warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        let (device, exec) = match self.device {
            Some(device) => (device, Arc::new(Serial) as Arc<dyn Executor>),
            None => cpu(self.threads, self.kernels, self.crossover, self.repacking)?,
        };
        if let Some((_, plan)) = &self.accelerator {
            plan.check(&config)?;
        }
        // of what nothing is planned for nothing is taken
        let mut accelerator = self.accelerator.filter(|(_, plan)| plan.uses_accelerator());
        let options = LoadOptions {
            device: &device,
            accelerator: accelerator.as_ref().map(|(device, plan)| (device, plan)),
            streaming: self.streaming,
            sparsity: self.sparsity,
            predictors: &self.predictors,
            exec: &exec,
            kv: self.kv,
            check: self.check,
        };
        let keeping = Keeping::new(source);
        let mut falls_back = accelerator.is_some() && self.on_device_loss == OnDeviceLoss::Cpu;
        let asked = if falls_back { &keeping as &dyn WeightSource } else { source };
        let model = match (load::load(asked, arch, &config, &options), &accelerator) {
            (Err(e), Some((lost, _))) if falls_back && fallback::is_lost(&**lost) => {
                warnings.push(format!("all of the model is on the CPU, as the accelerator was lost: {e}"));
                let options = LoadOptions { accelerator: None, streaming: None, ..options };
                let model = load::load(source, arch, &config, &options)?;
                (falls_back, accelerator) = (false, None);
                model
            }
            (loaded, _) => loaded?,
        };
        let fallback = falls_back.then(|| Fallback {
            source: Arc::new(keeping.kept()),
            sparsity: self.sparsity,
            predictors: self.predictors.clone(),
            own: None,
            kv: self.kv,
            made: Default::default(),
        });
        if let Some(positions) = &model.positions {
            // OPT's files count the rows of the table, not the positions
            config.context = config.context.min(positions.len());
        }
        warnings.extend(load::surplus(source, arch, &config));
        if tokenizer.len() > model.embedding.rows() {
            return Err(Error::Tensor {
                path,
                tensor: model.embedding.name().into(),
                message: format!(
                    "expected a row for each of {} tokens, got {}",
                    tokenizer.len(),
                    model.embedding.rows()
                ),
            });
        }
        // rows of numbers are made where most of the work on them is done; they are on the host as well
        let cpu = device.clone();
        let device = accelerator.map_or(device, |(accelerator, _)| accelerator);
        let inner = Inner { config, arch, model, tokenizer, device, cpu, exec, check: self.check, warnings, fallback };
        Ok(Engine { inner: Arc::new(inner) })
    }
}

fn cpu(
    threads: Option<usize>,
    kernels: Option<Kernels>,
    crossover: Crossover,
    repacking: u64,
) -> Result<(Arc<dyn Device>, Arc<dyn Executor>)> {
    let threads = threads.unwrap_or_else(Pool::default_width);
    if !(1..=1024).contains(&threads) {
        return Err(Error::setting("threads", "a number from 1 to 1024", threads));
    }
    let pool = Pool::new(threads).map_err(|source| Error::Threads { threads, source })?;
    let kernels = kernels.unwrap_or_else(Kernels::best);
    let pool: Arc<dyn Executor> = Arc::new(pool);
    let device = CpuDevice::new(kernels, pool.clone()).with_crossover(crossover).with_repacking(repacking);
    Ok((Arc::new(device), pool))
}
