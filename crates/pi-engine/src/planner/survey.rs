//! How large a model's parts are, and which of them the device can hold.

use super::{Request, line::Line};
use crate::{
    Error, Plan, Predictors, Result, Sparsity,
    arch::{self, Architecture, Slot},
    config::{ModelConfig, NormKind},
    load,
    predictors::{self, Kind},
    source::{Reader, WeightSource},
    sparsity::{SparsityReport, skippable},
};
use pi_core::{
    Footprint, Gating, Limits, Matrix, QuantType,
    footprint::{AttentionShape, FfnShape, LinearShape, MatrixShape, MlpShape, NormShape, PartShape},
};
use std::sync::Arc;

/// What a plan is made of.
pub(crate) struct Survey {
    pub config: ModelConfig,
    pub path: String,
    /// Makes bytes of shapes, as the device does.
    pub footprint: Arc<dyn Footprint>,
    /// What the device's runtime takes for itself.
    pub runtime: u64,
    /// What the session is opened with.
    pub limits: Limits,
    /// Rows of logits.
    pub logits: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    pub layers: Vec<LayerSurvey>,
    pub head: HeadSurvey,
}

/// A layer's parts, in bytes of the device.
pub(crate) struct LayerSurvey {
    pub norms: u64,
    pub attention: u64,
    /// Keys and values of the session.
    pub kv: u64,
    /// The predictor's matrices, if the device takes them.
    pub predictor: u64,
    /// What attention and the predictor need for the largest step.
    pub scratch: u64,
    /// What both need, at most, of the room that operators use one after the other.
    pub shared: u64,
    /// What all attentions have in common.
    pub tables: u64,
    /// What the predictor takes while it marks.
    pub passing: u64,
    /// Bytes that the predictor reads per token, wherever it is.
    pub predictor_reads: u64,
    /// Why attention stays on the CPU, if it does.
    pub lacking: Option<QuantType>,
    pub ffn: FfnSurvey,
}

pub(crate) struct FfnSurvey {
    pub shape: FfnShape,
    pub neurons: usize,
    /// What some neurons take of the device at most.
    pub line: Line,
    /// A neuron's rows, with their types: gate and up, and down at last.
    pub rows: Vec<(QuantType, u64)>,
    /// Bytes of a neuron's biases.
    pub biases: u64,
    /// Whether single neurons can be taken out.
    pub divided: bool,
    pub down_name: String,
    /// Why the FFN stays on the CPU, if it does.
    pub lacking: Option<QuantType>,
    /// The share of a neuron's bytes that is read whether it fires or not.
    pub always: f64,
}

/// What gives logits.
pub(crate) struct HeadSurvey {
    pub bytes: u64,
    pub lacking: Option<QuantType>,
}

impl FfnSurvey {
    /// Bytes that the CPU has of a neuron: its rows and biases.
    pub fn neuron(&self) -> u64 {
        self.rows.iter().map(|(_, bytes)| bytes).sum::<u64>() + self.biases
    }
}

impl LayerSurvey {
    /// Bytes of what goes to the device together before any neurons.
    pub fn block(&self) -> u64 {
        // a cache may be of any size that somebody asks for
        self.kv.saturating_add(self.norms + self.attention + self.predictor).saturating_add(self.scratch)
    }
}

impl Survey {
    pub fn new(source: &dyn WeightSource, request: &Request<'_>) -> Result<Self> {
        let (arch, mut config) = arch::detect(source)?;
        if let Some(act) = request.activation {
            config.activation = act;
        }
        let reader = Reader { source, check: false };
        let sparsity = load::sparsity(source, arch, &config, request.sparsity)?;
        let footprint = request.device.footprint();
        let look = Look { reader, arch, config: &config, request, sparsity, footprint: footprint.clone() };
        let embedding = look.matrix(Slot::Embedding, 0)?;
        let positions = match config.position_offset {
            Some(offset) => look.matrix(Slot::PositionEmbedding, 0)?.rows().saturating_sub(offset),
            None => usize::MAX,
        };
        let s = &request.session;
        let context = s.context.unwrap_or(config.context.min(positions).min(4096));
        s.check(context, positions)?;
        let tokens = s.batch.min(context.saturating_mul(s.sequences));
        let limits = Limits { tokens, sequences: s.sequences, context };
        let layers = (0..config.layers).map(|i| look.layer(i, &limits)).collect::<Result<_>>()?;
        let head = look.find(Slot::Output, 0)?.unwrap_or_else(|| embedding.clone());
        let weight = LinearShape { weight: (&head).into(), bias: false };
        let head = HeadSurvey { bytes: footprint.linear(&weight) + look.norm_bytes(), lacking: look.lacking([&head]) };
        let (logits, vocab, path) = (s.logits.min(limits.tokens), embedding.rows(), look.reader.path());
        let runtime = request.runtime.unwrap_or_else(|| footprint.runtime());
        Ok(Self { path, footprint, runtime, limits, logits, vocab, layers, head, config })
    }

    /// Bytes of some neurons of a layer on the device: their weights, and what a session needs for them. Nothing for none.
    pub fn neurons(&self, layer: usize, part: PartShape) -> [u64; 2] {
        let shape = &self.layers[layer].ffn.shape;
        match part.neurons {
            0 => [0, 0],
            n => [self.footprint.sparse_ffn(shape, part), self.footprint.ffn_scratch(shape, n, &self.limits)],
        }
    }

    /// What some neurons of a layer need of the room that operators use one after the other.
    pub fn shared(&self, layer: usize, neurons: usize) -> u64 {
        match neurons {
            0 => 0,
            n => self.footprint.ffn_shared(&self.layers[layer].ffn.shape, n, &self.limits),
        }
    }

    /// What they take for themselves, weights and scratch together.
    pub fn taken(&self, layer: usize, part: PartShape) -> u64 {
        let [weights, scratch] = self.neurons(layer, part);
        weights.saturating_add(scratch)
    }

    /// Fails if single neurons are to be taken from a layer that cannot be divided.
    pub fn check_divided(&self, plan: &Plan) -> Result<()> {
        for (survey, layer) in self.layers.iter().zip(&plan.layers) {
            if !survey.ffn.divided && !layer.hot.is_all() && !layer.hot.is_empty() && survey.ffn.lacking.is_none() {
                return Err(load::undivided(&self.path, &survey.ffn.down_name, &layer.hot));
            }
        }
        Ok(())
    }

    /// What stays on the CPU for want of kernels.
    pub fn notes(&self, plan: &Plan) -> Vec<String> {
        let mut notes = Vec::new();
        let lacks = |what: &str, types: Vec<QuantType>| {
            let ty = types.first()?;
            Some(format!("{what} of {} layers stay on the CPU: the device has no kernels for {ty}", types.len()))
        };
        notes.extend(lacks("attention and norms", self.layers.iter().filter_map(|l| l.lacking).collect()));
        notes.extend(lacks("neurons", self.layers.iter().filter_map(|l| l.ffn.lacking).collect()));
        if let Some(ty) = self.head.lacking {
            notes.push(format!("the output stays on the CPU: the device has no kernels for {ty}"));
        }
        let whole = self.layers.iter().filter(|l| !l.ffn.divided && l.ffn.lacking.is_none()).count();
        if whole > 0 && plan.layers.iter().any(|l| !l.hot.is_all()) {
            notes.push(format!(
                "the neurons of {whole} layers go to the device all or none: their down matrices lie along the neurons (pi quantize \
                 and pi convert make them neuron-major)"
            ));
        }
        notes
    }
}

/// Looks at the tensors of a model, as the loader does.
struct Look<'a> {
    reader: Reader<'a>,
    arch: &'a dyn Architecture,
    config: &'a ModelConfig,
    request: &'a Request<'a>,
    sparsity: SparsityReport,
    footprint: Arc<dyn Footprint>,
}

impl Look<'_> {
    fn name(&self, slot: Slot, layer: usize) -> String {
        format!("{}.weight", self.arch.tensor(slot, layer))
    }

    fn find(&self, slot: Slot, layer: usize) -> Result<Option<Matrix>> {
        self.reader.find(&self.name(slot, layer))
    }

    fn matrix(&self, slot: Slot, layer: usize) -> Result<Matrix> {
        self.reader.matrix(&self.name(slot, layer))
    }

    fn has_bias(&self, slot: Slot, layer: usize) -> Result<bool> {
        Ok(self.reader.find(&format!("{}.bias", self.arch.tensor(slot, layer)))?.is_some())
    }

    fn linear(&self, slot: Slot, layer: usize) -> Result<LinearShape> {
        Ok(LinearShape { weight: (&self.matrix(slot, layer)?).into(), bias: self.has_bias(slot, layer)? })
    }

    fn lacking<'m>(&self, matrices: impl IntoIterator<Item = &'m Matrix>) -> Option<QuantType> {
        self.lacks(matrices.into_iter().map(Matrix::ty))
    }

    fn lacks(&self, types: impl IntoIterator<Item = QuantType>) -> Option<QuantType> {
        types.into_iter().find(|ty| !self.request.device.supports(*ty))
    }

    fn norm_bytes(&self) -> u64 {
        let bias = self.config.norm == NormKind::Layer;
        self.footprint.norm(&NormShape { dim: self.config.dim, bias })
    }

    fn layer(&self, i: usize, limits: &Limits) -> Result<LayerSurvey> {
        let c = self.config;
        let shape = self.attention(i)?;
        let types = shape.linears().map(|l| l.weight.ty);
        let norms = if c.parallel && self.find(Slot::AttentionNorm, i)?.is_none() { 1 } else { 2 };
        let predictor = self.predictor(i, limits)?;
        Ok(LayerSurvey {
            norms: norms * self.norm_bytes(),
            attention: self.footprint.attention(&shape),
            kv: self.footprint.kv_cache(&shape, limits),
            predictor: predictor.held,
            predictor_reads: predictor.reads,
            scratch: self.footprint.attention_scratch(&shape, limits).saturating_add(predictor.scratch),
            shared: self.footprint.attention_shared(&shape, limits).max(predictor.shared),
            tables: self.footprint.tables(&shape, limits),
            passing: predictor.passing,
            lacking: self.lacks(types),
            ffn: self.ffn(i, limits, predictor.reads > 0)?,
        })
    }

    /// Attention, as the loader makes it: where one matrix has queries, keys and values, of parts of its rows.
    fn attention(&self, i: usize) -> Result<AttentionShape> {
        let c = self.config;
        let [q, k, v] = match self.find(Slot::QueryKeyValue, i)? {
            None => [self.linear(Slot::Query, i)?, self.linear(Slot::Key, i)?, self.linear(Slot::Value, i)?],
            Some(all) => {
                let bias = self.has_bias(Slot::QueryKeyValue, i)?;
                let part = |heads: usize| {
                    let weight = MatrixShape { rows: heads * c.head_dim, ..(&all).into() };
                    LinearShape { weight, bias }
                };
                [part(c.heads), part(c.kv_heads), part(c.kv_heads)]
            }
        };
        Ok(AttentionShape {
            q,
            k,
            v,
            o: self.linear(Slot::AttentionOutput, i)?,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            rope_dims: c.rope.as_ref().map_or(0, |r| r.dims),
            kv: self.request.kv,
        })
    }

    fn ffn(&self, i: usize, limits: &Limits, predicted: bool) -> Result<FfnSurvey> {
        let c = self.config;
        let gate = if c.gating == Gating::UpOnly { None } else { Some(self.matrix(Slot::Gate, i)?) };
        let up = self.matrix(Slot::Up, i)?;
        up.expect_shape(c.neurons, c.dim)?;
        let sparsity = &self.sparsity;
        let (down, slot, divided) = match self.find(Slot::DownTransposed, i)? {
            Some(m) => (m, Slot::DownTransposed, true),
            None => {
                let m = self.matrix(Slot::Down, i)?;
                // As the loader does: float types are transposed if that lets something be skipped.
                let divided = sparsity.skips_down && skippable((m.ty(), false));
                (m, Slot::Down, divided)
            }
        };
        let mut rows: Vec<_> = gate.iter().chain([&up]).map(|m| (m.ty(), m.row_bytes() as u64)).collect();
        rows.push((down.ty(), down.size_bytes() as u64 / c.neurons.max(1) as u64));
        let mut always = 0.0;
        if !predicted {
            let total: u64 = rows.iter().map(|(_, bytes)| bytes).sum();
            let first = rows[0].1; // the gate, or up where there is none
            let up = if gate.is_some() && !sparsity.skips_up { rows[1].1 } else { 0 };
            let down = if sparsity.skips_down && divided { 0 } else { rows[rows.len() - 1].1 };
            always = (first + up + down) as f64 / total.max(1) as f64;
        }
        let lacking = self.lacking(gate.iter().chain([&up, &down]));
        let of = |m: &Matrix, slot| Ok::<_, Error>(LinearShape { weight: m.into(), bias: self.has_bias(slot, i)? });
        let mut shape = FfnShape {
            gate: gate.as_ref().map(|m| of(m, Slot::Gate)).transpose()?,
            up: of(&up, Slot::Up)?,
            down: of(&down, slot)?,
            neuron_major: divided,
        };
        if divided && slot == Slot::Down {
            shape.down.weight = MatrixShape { ty: down.ty(), rows: c.neurons, cols: c.dim };
        }
        let biases = shape.gate.iter().chain([&shape.up]).filter(|l| l.bias).count() as u64 * 4;
        let line = match lacking {
            Some(_) => Line::default(),
            None => Line::above(c.neurons, |neurons| {
                let weights = self.footprint.sparse_ffn(&shape, PartShape { neurons, has_first: true });
                weights.saturating_add(self.footprint.ffn_scratch(&shape, neurons, limits))
            }),
        };
        let (down_name, neurons) = (down.name().to_string(), c.neurons);
        Ok(FfnSurvey { shape, neurons, line, rows, biases, divided, down_name, lacking, always })
    }

    /// A layer's predictor.
    fn predictor(&self, i: usize, limits: &Limits) -> Result<PredictorSurvey> {
        let on_cpu = |reads: u64| PredictorSurvey { reads, ..PredictorSurvey::default() };
        if self.request.sparsity != Sparsity::Predictor {
            return Ok(on_cpu(0));
        }
        match self.request.predictors {
            Predictors::File { .. } => self.filed(self.reader.source, i, limits),
            Predictors::Beside { source, .. } => self.filed(&**source, i, limits),
            Predictors::Sign { .. } => Ok(on_cpu(signs(&self.matrix(self.gate(), i)?))),
            Predictors::Oracle => {
                let gate = self.matrix(self.gate(), i)?;
                if self.lacking([&gate]).is_some() {
                    return Ok(on_cpu(gate.size_bytes() as u64));
                }
                let held = self.footprint.linear(&self.linear(self.gate(), i)?);
                let passing = self.footprint.passing(limits.tokens, gate.rows());
                Ok(PredictorSurvey { held, reads: gate.size_bytes() as u64, scratch: 0, shared: 0, passing })
            }
            Predictors::Own(all) => Ok(on_cpu(all.get(i).and_then(Option::as_ref).map_or(0, |p| p.bytes()))),
        }
    }

    /// What says which neurons fire.
    fn gate(&self) -> Slot {
        if self.config.gating == Gating::UpOnly { Slot::Up } else { Slot::Gate }
    }

    fn filed(&self, source: &dyn WeightSource, i: usize, limits: &Limits) -> Result<PredictorSurvey> {
        let reader = Reader { source, check: false };
        let on_cpu = |reads: u64| PredictorSurvey { reads, ..PredictorSurvey::default() };
        match predictors::kind(source, i)? {
            Kind::Exact => Ok(on_cpu(0)),
            Kind::Sign { .. } => Ok(on_cpu(signs(&self.matrix(self.gate(), i)?))),
            Kind::Mlp => {
                let find = |slot| reader.find(&self.name(slot, i));
                let (Some(a), Some(b)) = (find(Slot::Predictor1)?, find(Slot::Predictor2)?) else {
                    return Ok(on_cpu(0));
                };
                let reads = (a.size_bytes() + b.size_bytes()) as u64;
                if self.lacking([&a, &b]).is_some() {
                    return Ok(on_cpu(reads));
                }
                let shape = MlpShape { fc1: (&a).into(), fc2: (&b).into() };
                let (held, scratch) = (self.footprint.mlp(&shape), self.footprint.mlp_scratch(&shape, limits));
                let shared = self.footprint.mlp_shared(&shape, limits);
                Ok(PredictorSurvey { held, reads, scratch, shared, passing: 0 })
            }
        }
    }
}

/// A layer's predictor: bytes on the device, if it is there, and what it reads per token, wherever it is.
#[derive(Default)]
struct PredictorSurvey {
    held: u64,
    reads: u64,
    scratch: u64,
    shared: u64,
    passing: u64,
}

/// Bytes of the signs of a matrix.
fn signs(m: &Matrix) -> u64 {
    (m.rows() * m.cols().div_ceil(8)) as u64
}
