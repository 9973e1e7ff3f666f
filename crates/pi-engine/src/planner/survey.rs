//! How large a model's parts are, and which of them the device can hold.

use super::Request;
use crate::{
    Error, Plan, Predictors, Result, Sparsity,
    arch::{self, Architecture, Slot},
    config::{ModelConfig, NormKind},
    load,
    predictors::{self, Kind},
    source::{Reader, WeightSource},
    sparsity::{SparsityReport, skippable},
};
use pi_core::{Gating, Limits, Matrix, NeuronSet, QuantType};

/// What a plan is made of.
pub(crate) struct Survey {
    pub config: ModelConfig,
    pub path: String,
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
    /// Bytes that the predictor reads per token, wherever it is.
    pub predictor_reads: u64,
    /// Why attention stays on the CPU, if it does.
    pub lacking: Option<QuantType>,
    pub ffn: FfnSurvey,
}

pub(crate) struct FfnSurvey {
    pub neurons: usize,
    /// A neuron's rows, with their types: gate and up, and down at last.
    pub rows: Vec<(QuantType, u64)>,
    /// Bytes of a neuron's biases.
    pub biases: u64,
    /// Bytes of the bias of the output; whoever has neuron 0 has it.
    pub down_bias: u64,
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
    /// Bytes of a neuron's rows and biases.
    pub fn neuron(&self) -> u64 {
        self.rows.iter().map(|(_, bytes)| bytes).sum::<u64>() + self.biases
    }

    /// Bytes of the weights of some neurons, not none.
    pub fn of(&self, set: &NeuronSet) -> u64 {
        let first = if !set.is_empty() && set.id(0) == 0 { self.down_bias } else { 0 };
        set.len() as u64 * self.neuron() + first
    }
}

impl LayerSurvey {
    /// Bytes of what goes to the device together before any neurons.
    pub fn block(&self) -> u64 {
        // a cache may be of any size that somebody asks for
        self.kv.saturating_add(self.norms + self.attention + self.predictor)
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
        let look = Look { reader, arch, config: &config, request, sparsity };
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
        let head = HeadSurvey { bytes: head.size_bytes() as u64 + look.norm_bytes(), lacking: look.lacking([&head]) };
        let (logits, vocab, path) = (s.logits.min(limits.tokens), embedding.rows(), look.reader.path());
        Ok(Self { path, runtime: request.runtime, limits, logits, vocab, layers, head, config })
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

    /// Bytes of a bias, 0 if there is none.
    fn bias(&self, slot: Slot, layer: usize) -> Result<u64> {
        let bias = self.reader.find(&format!("{}.bias", self.arch.tensor(slot, layer)))?;
        Ok(bias.map_or(0, |b| 4 * (b.rows() * b.cols()) as u64))
    }

    fn lacking<'m>(&self, matrices: impl IntoIterator<Item = &'m Matrix>) -> Option<QuantType> {
        matrices.into_iter().map(Matrix::ty).find(|ty| !self.request.device.supports(*ty))
    }

    fn norm_bytes(&self) -> u64 {
        let vectors = if self.config.norm == NormKind::Layer { 2 } else { 1 };
        4 * vectors * self.config.dim as u64
    }

    fn layer(&self, i: usize, limits: &Limits) -> Result<LayerSurvey> {
        let c = self.config;
        let mut slots = vec![Slot::AttentionOutput];
        match self.find(Slot::QueryKeyValue, i)? {
            Some(_) => slots.push(Slot::QueryKeyValue),
            None => slots.extend([Slot::Query, Slot::Key, Slot::Value]),
        }
        let (mut attention, mut matrices) = (0, Vec::new());
        for slot in slots {
            let m = self.matrix(slot, i)?;
            attention += m.size_bytes() as u64 + self.bias(slot, i)?;
            matrices.push(m);
        }
        let norms = if c.parallel && self.find(Slot::AttentionNorm, i)?.is_none() { 1 } else { 2 };
        let kv = self.request.kv;
        let heads = |ty: pi_core::KvType| (ty.row_bytes(c.head_dim).unwrap_or(0) * c.kv_heads) as u64;
        let positions = (limits.sequences as u64).saturating_mul(limits.context as u64);
        let (predictor, predictor_reads) = self.predictor(i)?;
        Ok(LayerSurvey {
            norms: norms * self.norm_bytes(),
            attention,
            kv: positions.saturating_mul(heads(kv.keys) + heads(kv.values)),
            predictor: predictor.unwrap_or(0),
            predictor_reads,
            lacking: self.lacking(&matrices),
            ffn: self.ffn(i, predictor_reads > 0)?,
        })
    }

    fn ffn(&self, i: usize, predicted: bool) -> Result<FfnSurvey> {
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
        let bias = |slot| Ok::<_, Error>(self.bias(slot, i)? / c.neurons.max(1) as u64);
        let biases = if gate.is_some() { bias(Slot::Gate)? } else { 0 } + bias(Slot::Up)?;
        let lacking = self.lacking(gate.iter().chain([&up, &down]));
        let (down_bias, down_name, neurons) = (self.bias(slot, i)?, down.name().to_string(), c.neurons);
        Ok(FfnSurvey { neurons, rows, biases, down_bias, divided, down_name, lacking, always })
    }

    /// Bytes of a layer's predictor on the device (`None`: it is on the CPU), and what it reads per token.
    fn predictor(&self, i: usize) -> Result<(Option<u64>, u64)> {
        if self.request.sparsity != Sparsity::Predictor {
            return Ok((None, 0));
        }
        let gate = || self.matrix(if self.config.gating == Gating::UpOnly { Slot::Up } else { Slot::Gate }, i);
        let signs = |m: &Matrix| (m.rows() * m.cols().div_ceil(8)) as u64;
        let held = |matrices: &[&Matrix], bytes: u64| self.lacking(matrices.iter().copied()).is_none().then_some(bytes);
        match self.request.predictors {
            Predictors::File { .. } => self.filed(self.reader.source, i),
            Predictors::Beside { source, .. } => self.filed(&**source, i),
            Predictors::Sign { .. } => Ok((None, signs(&gate()?))),
            Predictors::Oracle => {
                let slot = if self.config.gating == Gating::UpOnly { Slot::Up } else { Slot::Gate };
                let gate = gate()?;
                let bytes = gate.size_bytes() as u64;
                Ok((held(&[&gate], bytes + self.bias(slot, i)?), bytes))
            }
            Predictors::Own(all) => Ok((None, all.get(i).and_then(Option::as_ref).map_or(0, |p| p.bytes()))),
        }
    }

    fn filed(&self, source: &dyn WeightSource, i: usize) -> Result<(Option<u64>, u64)> {
        let reader = Reader { source, check: false };
        match predictors::kind(source, i)? {
            Kind::Exact => Ok((None, 0)),
            Kind::Sign { .. } => {
                let slot = if self.config.gating == Gating::UpOnly { Slot::Up } else { Slot::Gate };
                let gate = self.matrix(slot, i)?;
                Ok((None, (gate.rows() * gate.cols().div_ceil(8)) as u64))
            }
            Kind::Mlp => {
                let find = |slot| reader.find(&self.name(slot, i));
                let (Some(a), Some(b)) = (find(Slot::Predictor1)?, find(Slot::Predictor2)?) else {
                    return Ok((None, 0));
                };
                let bytes = (a.size_bytes() + b.size_bytes()) as u64;
                Ok((self.lacking([&a, &b]).is_none().then_some(bytes), bytes))
            }
        }
    }
}
