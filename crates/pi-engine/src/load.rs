//! From tensors to operators.

use crate::{
    Error, Result,
    arch::{Architecture, Slot},
    config::{ModelConfig, NormKind},
    hybrid,
    layer::Layer,
    likeness,
    model::Model,
    plan::{LayerPlan, Plan, Side},
    positions::Positions,
    predictors::{Parts, Predictors, gate},
    schedule::{self, LayerShape, Marking},
    source::{Reader, WeightSource},
    sparsity::{Sparsity, SparsityReport, skippable},
    stream::{Stream, Streaming},
};
use pi_core::{
    AttentionSpec, Dense, Device, Down, Executor, FfnWeights, KvTypes, LinearSpec, Matrix, NeuronSet, NormSpec,
    Predictor, RopeSpec, SparseFfn,
};
use rayon::prelude::*;
use std::sync::Arc;

/// What the loader needs to know beside the file.
pub(crate) struct LoadOptions<'a> {
    pub device: &'a Arc<dyn Device>,
    /// A device beside it, and what belongs there.
    pub accelerator: Option<(&'a Arc<dyn Device>, &'a Plan)>,
    /// When neurons of the CPU go there for a step.
    pub streaming: Option<Streaming>,
    pub sparsity: Sparsity,
    pub predictors: &'a Predictors,
    pub exec: &'a Arc<dyn Executor>,
    pub kv: KvTypes,
    pub check: bool,
}

struct Loader<'a> {
    reader: Reader<'a>,
    arch: &'a dyn Architecture,
    config: &'a ModelConfig,
    options: &'a LoadOptions<'a>,
    sparsity: SparsityReport,
    rope: Option<RopeSpec>,
}

pub(crate) fn load(
    source: &dyn WeightSource,
    arch: &dyn Architecture,
    config: &ModelConfig,
    options: &LoadOptions<'_>,
) -> Result<Model> {
    if is_bare(source, arch) {
        let path = source.metadata().path().display().to_string();
        let tensor = format!("{}.weight", arch.tensor(Slot::Embedding, 0));
        return Err(Error::Tensor { path, tensor, message: format!("is missing: {BARE}") });
    }
    if let Some((_, plan)) = options.accelerator {
        plan.check(config)?;
    }
    let reader = Reader { source, check: options.check };
    // A damaged layer count ends here, before there is a result for each of its millions.
    for i in 0..config.layers {
        reader.matrix(&format!("{}.weight", arch.tensor(Slot::Norm1, i)))?;
    }
    let mut sparsity = sparsity(source, arch, config, options.sparsity)?;
    let name = |slot| format!("{}.weight", arch.tensor(slot, 0));
    let rope = match &config.rope {
        None => None,
        Some(r) => Some(RopeSpec {
            kind: r.kind,
            dims: r.dims,
            base: r.base,
            scaling: r.scaling,
            factors: reader.vector(&name(Slot::RopeFactors), r.dims / 2)?,
        }),
    };
    let embedding = reader.matrix(&name(Slot::Embedding))?;
    embedding.expect_shape(embedding.rows().max(1), config.dim)?;
    let positions = match config.position_offset {
        Some(offset) => {
            let table = reader.matrix(&name(Slot::PositionEmbedding))?;
            Some(Positions::new(table, offset, config.dim, reader.path())?)
        }
        None => None,
    };
    let numbers = likeness::numbers(source, arch, config);
    let beside = options.predictors.beside().filter(|_| options.sparsity == Sparsity::Predictor);
    if let Some(predictors) = beside {
        likeness::check(predictors, config, &numbers)?;
    }
    let loader = Loader { reader, arch, config, options, sparsity: sparsity.clone(), rope };
    // The first error is reported, not whichever comes first.
    let layers: Vec<_> = (0..config.layers).into_par_iter().map(|i| loader.layer(i)).collect();
    let (layers, bytes): (Vec<Layer>, Vec<u64>) = layers.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip();
    // A file without a head ties it to the embedding.
    let head = reader.find(&name(Slot::Output))?.unwrap_or_else(|| embedding.clone());
    head.expect_shape(embedding.rows(), config.dim)?;
    if options.sparsity == Sparsity::Predictor {
        sparsity.predictors = layers.iter().map(|l| l.predictor.as_ref().map(|p| p.kind().to_string())).collect();
        if sparsity.predictors.iter().all(Option::is_none) {
            return Err(Error::Tensor {
                path: beside.unwrap_or(source).metadata().path().display().to_string(),
                tensor: format!("{}.weight", arch.tensor(Slot::Predictor1, 0)),
                message: "no layer has a predictor; choose another kind of predictor, or sparsity exact".into(),
            });
        }
    }
    let weight_bytes = bytes.iter().sum::<u64>() + head.size_bytes() as u64;
    let device = loader.device(options.accelerator.map_or(Side::Cpu, |(_, plan)| plan.head), [&head])?;
    let norm = loader.norm(Slot::OutputNorm, 0, &**device)?;
    // an embedding that is the head as well is looked up here for each token
    let apart = head.name() != embedding.name();
    let (operator, head_side) = (device.linear(&LinearSpec::new(head.clone()))?, loader.side(device));
    if apart && device.copies_weights() {
        head.give_back(0..head.rows());
    }
    let head = operator;
    let shapes: Vec<LayerShape> = layers.iter().map(|l| l.shape.clone()).collect();
    let names =
        [options.device, options.accelerator.map_or(options.device, |(device, _)| device)].map(|d| d.info().name);
    let schedule = Arc::new(schedule::build(&shapes, head_side, names, |order| arch.layer(order)));
    let numbers = numbers.into();
    Ok(Model { embedding, positions, layers, schedule, norm, head, sparsity, weight_bytes, numbers })
}

/// What a file allows to be skipped.
///
/// # Errors
/// If a down matrix is missing, or `wanted` is not possible.
pub(crate) fn sparsity(
    source: &dyn WeightSource,
    arch: &dyn Architecture,
    config: &ModelConfig,
    wanted: Sparsity,
) -> Result<SparsityReport> {
    let reader = Reader { source, check: false };
    let mut downs = Vec::new();
    for i in 0..config.layers {
        let name = |slot| format!("{}.weight", arch.tensor(slot, i));
        downs.push(match source.matrix(&name(Slot::DownTransposed))? {
            Some(m) => (m.ty(), true),
            None => (reader.matrix(&name(Slot::Down))?.ty(), false),
        });
    }
    let has_gate = config.gating != pi_core::Gating::UpOnly;
    Ok(SparsityReport::new(wanted, config.activation, has_gate, &downs)?)
}

/// True if not even the first tensors are there: the file is a vocabulary, and naming all that is missing would say less.
pub(crate) fn is_bare(source: &dyn WeightSource, arch: &dyn Architecture) -> bool {
    let first = [Slot::Embedding, Slot::Norm1, Slot::Query, Slot::QueryKeyValue, Slot::Up, Slot::OutputNorm];
    first.iter().all(|&slot| matches!(source.matrix(&format!("{}.weight", arch.tensor(slot, 0))), Ok(None)))
}

/// Said of a layer of which some neurons are to be taken that cannot be.
pub(crate) fn undivided(path: &str, down: &str, hot: &NeuronSet) -> Error {
    Error::Tensor {
        path: path.into(),
        tensor: down.into(),
        message: format!(
            "is stored along the neurons, so the {} hot ones of {} cannot be taken out of it; make it neuron-major (ffn_down_t), or \
             plan all or none of the layer's neurons on the accelerator",
            hot.len(),
            hot.total()
        ),
    }
}

/// Said of a file without weights.
pub(crate) const BARE: &str = "the file has no weights, only metadata (a vocabulary, perhaps)";

/// What is odd about the layers of a file that can be loaded all the same.
pub(crate) fn surplus(source: &dyn WeightSource, arch: &dyn Architecture, config: &ModelConfig) -> Option<String> {
    let next = format!("{}.weight", arch.tensor(Slot::Norm1, config.layers));
    let n = config.layers;
    matches!(source.matrix(&next), Ok(Some(_)))
        .then(|| format!("the file has more layers than the {n} that its metadata states; the others are not used"))
}

impl Loader<'_> {
    fn name(&self, slot: Slot, layer: usize) -> String {
        format!("{}.weight", self.arch.tensor(slot, layer))
    }

    fn matrix(&self, slot: Slot, layer: usize) -> Result<Matrix> {
        self.reader.matrix(&self.name(slot, layer))
    }

    /// The device for these matrices: the accelerator if they are planned there and it has kernels for all of their types, or the CPU.
    ///
    /// # Errors
    /// If the CPU has none either.
    fn device<'m>(&self, wanted: Side, matrices: impl IntoIterator<Item = &'m Matrix>) -> Result<&Arc<dyn Device>> {
        let matrices: Vec<&Matrix> = matrices.into_iter().collect();
        let supports = |device: &dyn Device, m: &Matrix| device.supports(m.ty());
        if let (Side::Accelerator, Some((device, _))) = (wanted, self.options.accelerator)
            && matrices.iter().all(|m| supports(&**device, m))
        {
            return Ok(device);
        }
        let device = self.options.device;
        match matrices.iter().find(|m| !supports(&**device, m)) {
            None => Ok(device),
            Some(m) => Err(Error::Tensor {
                path: self.reader.path(),
                tensor: m.name().into(),
                message: format!("type {} is not supported by {}", m.ty(), device.info().name),
            }),
        }
    }

    /// Which side a device of [`device`](Self::device) is.
    fn side(&self, device: &Arc<dyn Device>) -> Side {
        if Arc::ptr_eq(device, self.options.device) { Side::Cpu } else { Side::Accelerator }
    }

    /// What is planned for a layer.
    fn plan(&self, layer: usize) -> LayerPlan {
        match self.options.accelerator {
            Some((_, plan)) => plan.layers[layer].clone(),
            None => LayerPlan { dense: Side::Cpu, hot: NeuronSet::none(self.config.neurons) },
        }
    }

    fn bias(&self, slot: Slot, layer: usize, len: usize) -> Result<Option<Arc<[f32]>>> {
        self.reader.vector(&format!("{}.bias", self.arch.tensor(slot, layer)), len)
    }

    fn linear(&self, slot: Slot, layer: usize) -> Result<LinearSpec> {
        let weight = self.matrix(slot, layer)?;
        let bias = self.bias(slot, layer, weight.rows())?;
        Ok(LinearSpec { weight, bias })
    }

    /// A vector of the model's width that must be there.
    fn vector(&self, name: String) -> Result<Arc<[f32]>> {
        self.reader
            .vector(&name, self.config.dim)?
            .ok_or_else(|| Error::Gguf(pi_gguf::Error::MissingTensor { path: self.reader.path().into(), tensor: name }))
    }

    fn norm(&self, slot: Slot, layer: usize, device: &dyn Device) -> Result<Arc<dyn Dense>> {
        let (weight, eps) = (self.vector(self.name(slot, layer))?, self.config.norm_eps);
        let spec = match self.config.norm {
            NormKind::Rms => NormSpec::Rms { weight, eps },
            NormKind::Layer => {
                let bias = Some(self.vector(format!("{}.bias", self.arch.tensor(slot, layer)))?);
                NormSpec::Layer { weight, bias, eps }
            }
        };
        Ok(device.norm(&spec)?)
    }

    /// The norms before attention and before the FFN: one for both in parallel layers with one norm.
    fn norms(&self, i: usize, device: &dyn Device) -> Result<[Arc<dyn Dense>; 2]> {
        if !self.config.parallel {
            return Ok([self.norm(Slot::Norm1, i, device)?, self.norm(Slot::Norm2, i, device)?]);
        }
        let ffn = self.norm(Slot::Norm2, i, device)?;
        match self.reader.find(&self.name(Slot::AttentionNorm, i))? {
            Some(_) => Ok([self.norm(Slot::AttentionNorm, i, device)?, ffn]),
            None => Ok([ffn.clone(), ffn]),
        }
    }

    /// Query, key and value projections: each by itself, or rows of one matrix.
    fn projections(&self, i: usize) -> Result<[LinearSpec; 3]> {
        let c = self.config;
        if self.reader.find(&self.name(Slot::QueryKeyValue, i))?.is_none() {
            return Ok([self.linear(Slot::Query, i)?, self.linear(Slot::Key, i)?, self.linear(Slot::Value, i)?]);
        }
        let all = self.linear(Slot::QueryKeyValue, i)?;
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        all.weight.expect_shape(q + 2 * kv, c.dim)?;
        let part = |from: usize, len: usize| -> Result<LinearSpec> {
            let bias = all.bias.as_ref().map(|b| b[from..from + len].into());
            Ok(LinearSpec { weight: all.weight.rows_of(from..from + len)?, bias })
        };
        Ok([part(0, q)?, part(q, kv)?, part(q + kv, kv)?])
    }

    /// The layer's operators, and the bytes of its matrices.
    fn layer(&self, i: usize) -> Result<(Layer, u64)> {
        let (c, plan) = (self.config, self.plan(i));
        let [q, k, v] = self.projections(i)?;
        let attention = AttentionSpec {
            q,
            k,
            v,
            o: self.linear(Slot::AttentionOutput, i)?,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            scale: 1.0 / (c.head_dim as f32).sqrt(),
            rope: self.rope.clone(),
            kv: self.options.kv,
        };
        attention.q.weight.expect_shape(c.heads * c.head_dim, c.dim)?;
        let ffn = self.ffn(i)?;
        let matrices = [&attention.q.weight, &attention.k.weight, &attention.v.weight, &attention.o.weight];
        let device = self.device(plan.dense, matrices)?;
        let bytes = matrices.into_iter().chain(&ffn.gate).chain([&ffn.up, ffn.down.matrix()]);
        let bytes: u64 = bytes.map(|m| m.size_bytes() as u64).sum();
        let (predictor, marking) = self.predictor(i, &ffn, device)?.unzip();
        let bytes = bytes + predictor.as_ref().map_or(0, |p| p.bytes());
        let [norm1, norm2] = self.norms(i, &**device)?;
        let parts = self.split(&ffn, &plan.hot)?;
        // a predictor that looks at gates does so on the host
        let looked_at = marking.as_ref().is_some_and(|m| m.kind == "oracle");
        let hot = parts.hot.as_ref().map(|p| p.neurons());
        self.give_back_neurons(&ffn, hot, looked_at);
        let owned = |part: &Option<Arc<dyn SparseFfn>>| part.as_ref().map_or(0, |p| p.neurons().len());
        let shape = LayerShape {
            home: self.side(device),
            marking,
            hot: owned(&parts.hot),
            cold: owned(&parts.cold),
            shares_norm: Arc::ptr_eq(&norm1, &norm2),
        };
        let operator = device.attention(&attention)?;
        for m in matrices.into_iter().filter(|_| device.copies_weights()) {
            m.give_back(0..m.rows());
        }
        let layer =
            Layer { norm1, attention: operator, norm2, ffn: parts, predictor, shape, gate: gate(&ffn).0.clone() };
        Ok((layer, bytes))
    }

    /// The FFN's operators on both sides.
    fn split(&self, ffn: &FfnWeights, hot: &NeuronSet) -> Result<hybrid::Parts> {
        let cpu = self.options.device;
        let wanted = if hot.is_empty() { Side::Cpu } else { Side::Accelerator };
        let accelerator = self.device(wanted, ffn.gate.iter().chain([&ffn.up, ffn.down.matrix()]))?;
        if Arc::ptr_eq(accelerator, cpu) {
            let all = cpu.sparse_ffn(ffn, &NeuronSet::all(ffn.neurons()))?;
            return Ok(hybrid::Parts { hot: None, cold: Some(all), stream: self.stream(ffn, hot)? });
        }
        if hot.is_all() {
            return Ok(hybrid::Parts { hot: Some(accelerator.sparse_ffn(ffn, hot)?), cold: None, stream: None });
        }
        if let Down::OutputMajor(down) = &ffn.down {
            return Err(undivided(&self.reader.path(), down.name(), hot));
        }
        self.device(Side::Cpu, ffn.gate.iter().chain([&ffn.up, ffn.down.matrix()]))?;
        let stream = self.stream(ffn, hot)?;
        let (hot, cold) = (accelerator.sparse_ffn(ffn, hot)?, cpu.sparse_ffn(ffn, &hot.others())?);
        Ok(hybrid::Parts { hot: Some(hot), cold: Some(cold), stream })
    }

    /// Rows of neurons that are on a device with copies of its own need no memory here: nobody reads them again, except after a loss
    /// of that device, and then from the file.
    fn give_back_neurons(&self, ffn: &FfnWeights, hot: Option<&NeuronSet>, gates_looked_at: bool) {
        let copied = self.options.accelerator.is_some_and(|(device, _)| device.copies_weights());
        let Some(hot) = hot.filter(|_| copied) else { return };
        let decides = gate(ffn).0.name();
        for m in ffn.gate.iter().chain([&ffn.up, ffn.down.matrix()]) {
            match &ffn.down {
                _ if gates_looked_at && m.name() == decides => {}
                // all of it, or it could not be there
                Down::OutputMajor(down) if down.name() == m.name() => m.give_back(0..m.rows()),
                _ => hot.runs().for_each(|run| m.give_back(run)),
            }
        }
    }

    /// How the neurons that are not hot get to the accelerator, if they may and it has kernels for them.
    fn stream(&self, ffn: &FfnWeights, hot: &NeuronSet) -> Result<Option<Arc<Stream>>> {
        let Some(when) = self.options.streaming else { return Ok(None) };
        let device = self.device(Side::Accelerator, ffn.gate.iter().chain([&ffn.up, ffn.down.matrix()]))?;
        let there = self.side(device) == Side::Accelerator;
        let stream = || Stream { device: device.clone(), weights: ffn.clone(), neurons: hot.others(), when };
        Ok(there.then(|| Arc::new(stream())))
    }

    fn predictor(
        &self,
        i: usize,
        ffn: &FfnWeights,
        home: &Arc<dyn Device>,
    ) -> Result<Option<(Arc<dyn Predictor>, Marking)>> {
        if self.options.sparsity != Sparsity::Predictor {
            return Ok(None);
        }
        let parts = Parts {
            reader: &self.reader,
            names: [self.name(Slot::Predictor1, i), self.name(Slot::Predictor2, i)],
            ffn,
            home: self.side(home),
            device: &**home,
            cpu: &**self.options.device,
            exec: self.options.exec,
        };
        self.options.predictors.layer(i, &parts)
    }

    fn ffn(&self, i: usize) -> Result<FfnWeights> {
        let c = self.config;
        let has_gate = c.gating != pi_core::Gating::UpOnly;
        let gate = has_gate.then(|| self.matrix(Slot::Gate, i)).transpose()?;
        let up = self.matrix(Slot::Up, i)?;
        up.expect_shape(c.neurons, c.dim)?;
        let (down, down_slot) = match self.reader.find(&self.name(Slot::DownTransposed, i))? {
            Some(m) => (Down::NeuronMajor(m), Slot::DownTransposed),
            None => {
                let m = self.matrix(Slot::Down, i)?;
                m.expect_shape(c.dim, c.neurons)?;
                // Once, in memory: afterwards a neuron's outputs lie together and idle ones are not read.
                let transpose = self.sparsity.skips_down && skippable((m.ty(), false));
                let down = if transpose { Down::NeuronMajor(m.transposed()?) } else { Down::OutputMajor(m) };
                (down, Slot::Down)
            }
        };
        Ok(FfnWeights {
            gate_bias: if has_gate { self.bias(Slot::Gate, i, c.neurons)? } else { None },
            up_bias: self.bias(Slot::Up, i, c.neurons)?,
            down_bias: self.bias(down_slot, i, c.dim)?,
            gate,
            up,
            down,
            gating: c.gating,
            act: c.activation,
            skip: self.sparsity.is_on(),
        })
    }
}
