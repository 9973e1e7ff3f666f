//! What a plan allocates on the device, byte by byte.

use super::survey::Survey;
use crate::{Plan, Side};

/// A layer's bytes on the device, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerBytes {
    /// Weights of norms.
    pub norms: u64,
    /// Weights of attention's projections.
    pub attention: u64,
    /// Keys and values.
    pub kv: u64,
    /// The predictor's matrices.
    pub predictor: u64,
    /// Rows and biases of the hot neurons.
    pub neurons: u64,
    /// What attention, the predictor and the hot neurons need for the largest step.
    pub scratch: u64,
}

impl LayerBytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.norms + self.attention + self.kv + self.predictor + self.neurons + self.scratch
    }
}

impl std::ops::AddAssign for LayerBytes {
    fn add_assign(&mut self, o: Self) {
        self.norms += o.norms;
        self.attention += o.attention;
        self.kv += o.kv;
        self.predictor += o.predictor;
        self.neurons += o.neurons;
        self.scratch += o.scratch;
    }
}

/// Bytes on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// What the device's runtime takes for itself.
    pub runtime: u64,
    /// Hidden states, marks and logits of the session, and the room that operators use one after the other.
    pub hidden: u64,
    /// The last norm, and the matrix that gives logits.
    pub output: u64,
    /// The layers.
    pub layers: Vec<LayerBytes>,
}

impl MemoryUse {
    /// Everything.
    pub fn total(&self) -> u64 {
        self.runtime + self.hidden + self.output + self.layers().total()
    }

    /// All layers together.
    pub fn layers(&self) -> LayerBytes {
        let mut sum = LayerBytes::default();
        self.layers.iter().for_each(|l| sum += *l);
        sum
    }

    /// What loading the model allocates; a session takes the rest.
    pub fn weights(&self) -> u64 {
        let l = self.layers();
        self.output + l.norms + l.attention + l.predictor + l.neurons
    }

    pub(super) fn of(survey: &Survey, plan: &Plan) -> Self {
        let mut layers = vec![LayerBytes::default(); survey.layers.len()];
        if !plan.uses_accelerator() {
            return Self { layers, ..Self::default() };
        }
        for (i, ((bytes, s), l)) in layers.iter_mut().zip(&survey.layers).zip(&plan.layers).enumerate() {
            if l.dense == Side::Accelerator && s.lacking.is_none() {
                (bytes.norms, bytes.attention, bytes.kv, bytes.predictor) = (s.norms, s.attention, s.kv, s.predictor);
                bytes.scratch = s.scratch;
            }
            if s.ffn.lacking.is_none() {
                let [weights, scratch] = survey.neurons(i, (&l.hot).into());
                bytes.neurons = weights;
                bytes.scratch += scratch;
            }
        }
        let output = match plan.head {
            Side::Accelerator if survey.head.lacking.is_none() => survey.head.bytes,
            _ => 0,
        };
        Self { runtime: survey.runtime, hidden: survey.hidden() + survey.shared_by(plan), output, layers }
    }
}

impl Survey {
    /// What a session keeps near the device whatever is computed there: the residual stream, what operators take, what the CPU's neurons
    /// add; picked rows, their norms and logits; marks.
    fn hidden(&self) -> u64 {
        let (tokens, rows, dim) = (self.limits.tokens, self.logits, self.config.dim);
        let row = |rows: usize, dim: usize| self.footprint.hidden(rows, dim);
        let marks = self.footprint.active(tokens, self.config.neurons);
        3 * row(tokens, dim) + 2 * row(rows, dim) + row(rows, self.vocab) + marks
    }

    /// What operators use one after the other: of each kind as much as the largest of a plan needs.
    fn shared_by(&self, plan: &Plan) -> u64 {
        let mut most = [0; 3];
        for (i, (s, l)) in self.layers.iter().zip(&plan.layers).enumerate() {
            if l.dense == Side::Accelerator && s.lacking.is_none() {
                most = [most[0].max(s.shared), most[1].max(s.tables), most[2].max(s.passing)];
            }
            if s.ffn.lacking.is_none() {
                most[0] = most[0].max(self.shared(i, l.hot.len()));
            }
        }
        most.into_iter().fold(0, u64::saturating_add)
    }

    /// What any use of the device needs, and what operators may need together, whichever they will be.
    pub(super) fn base(&self) -> u64 {
        let shared = self.shared_by(&Plan::whole(&self.config, Side::Accelerator));
        self.runtime.saturating_add(self.hidden()).saturating_add(shared)
    }
}
