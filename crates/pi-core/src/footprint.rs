//! What operators and their runs take of a device's own memory, said before any of them is made.
//!
//! Whoever plans what goes to a device has shapes, not weights. A [`Footprint`] makes bytes of shapes, and a device's answers have to be
//! what it allocates, to the byte: a plan that keeps a budget is one that will not run out of memory later.

use crate::{
    AttentionSpec, Down, FfnWeights, KvType, KvTypes, Limits, LinearSpec, Matrix, MlpSpec, NeuronSet, NormSpec,
    QuantType,
};

/// A matrix: its type, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// The type of its numbers.
    pub ty: QuantType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

impl MatrixShape {
    /// Bytes of a row; 0 if its type has no such rows.
    pub fn row_bytes(&self) -> u64 {
        self.ty.row_bytes(self.cols).unwrap_or(0) as u64
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.row_bytes().saturating_mul(self.rows as u64)
    }
}

impl From<&Matrix> for MatrixShape {
    fn from(m: &Matrix) -> Self {
        Self { ty: m.ty(), rows: m.rows(), cols: m.cols() }
    }
}

/// A matrix, and whether it has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// The matrix.
    pub weight: MatrixShape,
    /// Whether a number per row is added.
    pub bias: bool,
}

impl From<&LinearSpec> for LinearShape {
    fn from(spec: &LinearSpec) -> Self {
        Self { weight: (&spec.weight).into(), bias: spec.bias.is_some() }
    }
}

/// A norm over rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormShape {
    /// Numbers of a row.
    pub dim: usize,
    /// Whether a bias is added.
    pub bias: bool,
}

impl From<&NormSpec> for NormShape {
    fn from(spec: &NormSpec) -> Self {
        match spec {
            NormSpec::Rms { weight, .. } => Self { dim: weight.len(), bias: false },
            NormSpec::Layer { weight, bias, .. } => Self { dim: weight.len(), bias: bias.is_some() },
        }
    }
}

/// Attention with its projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Queries.
    pub q: LinearShape,
    /// Keys.
    pub k: LinearShape,
    /// Values.
    pub v: LinearShape,
    /// The output.
    pub o: LinearShape,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// Numbers per head that are rotated; 0 without rotation.
    pub rope_dims: usize,
    /// How keys and values are kept.
    pub kv: KvTypes,
}

impl AttentionShape {
    /// Its four matrices.
    pub fn linears(&self) -> [LinearShape; 4] {
        [self.q, self.k, self.v, self.o]
    }
}

impl From<&AttentionSpec> for AttentionShape {
    fn from(s: &AttentionSpec) -> Self {
        Self {
            q: (&s.q).into(),
            k: (&s.k).into(),
            v: (&s.v).into(),
            o: (&s.o).into(),
            heads: s.heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            rope_dims: s.rope.as_ref().map_or(0, |r| r.dims),
            kv: s.kv,
        }
    }
}

/// An FFN, all of its neurons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FfnShape {
    /// `[neurons, dim]`, if there is one.
    pub gate: Option<LinearShape>,
    /// `[neurons, dim]`.
    pub up: LinearShape,
    /// `[neurons, dim]` or `[dim, neurons]`, as [`neuron_major`](Self::neuron_major) says; a bias has `dim` numbers.
    pub down: LinearShape,
    /// Whether down has a row per neuron.
    pub neuron_major: bool,
}

impl FfnShape {
    /// Neurons of the layer.
    pub fn neurons(&self) -> usize {
        self.up.weight.rows
    }

    /// Width of input and output.
    pub fn dim(&self) -> usize {
        self.up.weight.cols
    }
}

impl From<&FfnWeights> for FfnShape {
    fn from(w: &FfnWeights) -> Self {
        let of = |m: &Matrix, bias: bool| LinearShape { weight: m.into(), bias };
        Self {
            gate: w.gate.as_ref().map(|m| of(m, w.gate_bias.is_some())),
            up: of(&w.up, w.up_bias.is_some()),
            down: of(w.down.matrix(), w.down_bias.is_some()),
            neuron_major: matches!(w.down, Down::NeuronMajor(_)),
        }
    }
}

/// Some of an FFN's neurons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartShape {
    /// How many.
    pub neurons: usize,
    /// Whether neuron 0 is one of them: its owner has the bias of the output.
    pub has_first: bool,
}

impl From<&NeuronSet> for PartShape {
    fn from(set: &NeuronSet) -> Self {
        Self { neurons: set.len(), has_first: !set.is_empty() && set.id(0) == 0 }
    }
}

/// A predictor of two matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpShape {
    /// `[rank, dim]`.
    pub fc1: MatrixShape,
    /// `[neurons, rank]`.
    pub fc2: MatrixShape,
}

impl From<&MlpSpec> for MlpShape {
    fn from(spec: &MlpSpec) -> Self {
        Self { fc1: (&spec.fc1).into(), fc2: (&spec.fc2).into() }
    }
}

/// Bytes of a device's own memory that its operators take ([`Device::footprint`](crate::Device::footprint)). Each answer is what the
/// device's function of the same name allocates, and stays allocated as long as what that returned lives; `…_scratch` and
/// [`kv_cache`](Self::kv_cache) are what a run takes beside its operator, and of what is [`passing`](Self::passing) or `…_shared` the largest
/// counts, once for a session.
///
/// The answers given here are the bytes of the numbers themselves: those of a device whose memory has no pieces of a least size, that keeps
/// keys and values, what neurons come out as and their sum, and nothing else.
///
/// A device whose answers are wrong breaks budgets. So an answer stands beside the allocation it speaks of, and a test compares the two.
pub trait Footprint: Send + Sync {
    /// What the device takes as soon as it is used, whatever is computed there: a context, kernels, buffers of its own, and what its allocator
    /// may waste.
    fn runtime(&self) -> u64 {
        0
    }

    /// Room for hidden states.
    fn hidden(&self, max_tokens: usize, dim: usize) -> u64 {
        product([4, max_tokens, dim])
    }

    /// Room for marks of active neurons.
    fn active(&self, max_tokens: usize, neurons: usize) -> u64 {
        product([8, max_tokens, neurons.div_ceil(64)])
    }

    /// What an operator takes, while it is applied, for so many rows that lie elsewhere: one at a time.
    fn passing(&self, _tokens: usize, _dim: usize) -> u64 {
        0
    }

    /// A norm's weights.
    fn norm(&self, shape: &NormShape) -> u64 {
        product([4, shape.dim, if shape.bias { 2 } else { 1 }])
    }

    /// A matrix with its bias.
    fn linear(&self, shape: &LinearShape) -> u64 {
        let bias = if shape.bias { product([4, shape.weight.rows]) } else { 0 };
        shape.weight.bytes().saturating_add(bias)
    }

    /// The weights of attention.
    fn attention(&self, shape: &AttentionShape) -> u64 {
        sum(shape.linears().iter().map(|l| self.linear(l)))
    }

    /// Keys and values of a session.
    fn kv_cache(&self, shape: &AttentionShape, limits: &Limits) -> u64 {
        let row = |ty: KvType| ty.row_bytes(shape.head_dim).unwrap_or(0);
        let rows = product([limits.sequences, limits.context, shape.kv_heads]);
        rows.saturating_mul((row(shape.kv.keys) + row(shape.kv.values)) as u64)
    }

    /// What a session's attention needs beside that.
    fn attention_scratch(&self, _shape: &AttentionShape, _limits: &Limits) -> u64 {
        0
    }

    /// What attention needs of the room that operators use one after the other: a device keeps the largest.
    fn attention_shared(&self, _shape: &AttentionShape, _limits: &Limits) -> u64 {
        0
    }

    /// What all attentions of a session have in common, whichever they are: a device keeps the largest, beside the room above.
    fn tables(&self, _shape: &AttentionShape, _limits: &Limits) -> u64 {
        0
    }

    /// The weights of some neurons, at least one. Of an output-major down matrix all is taken.
    fn sparse_ffn(&self, shape: &FfnShape, part: PartShape) -> u64 {
        let n = part.neurons as u64;
        let rows =
            shape.gate.iter().chain([&shape.up]).map(|l| n * (l.weight.row_bytes() + if l.bias { 4 } else { 0 }));
        let down = match shape.neuron_major {
            true => n * shape.down.weight.row_bytes(),
            false => shape.down.weight.bytes(),
        };
        let bias = if shape.down.bias && part.has_first { product([4, shape.dim()]) } else { 0 };
        sum(rows.chain([down, bias]))
    }

    /// What a session's FFN of so many neurons needs beside their weights.
    fn ffn_scratch(&self, shape: &FfnShape, neurons: usize, limits: &Limits) -> u64 {
        product([4, limits.tokens, neurons.saturating_add(shape.dim())])
    }

    /// What the FFN of so many neurons needs of the room that operators use one after the other: a device keeps the largest. With more neurons
    /// it is not less.
    fn ffn_shared(&self, _shape: &FfnShape, _neurons: usize, _limits: &Limits) -> u64 {
        0
    }

    /// A predictor's matrices.
    fn mlp(&self, shape: &MlpShape) -> u64 {
        shape.fc1.bytes().saturating_add(shape.fc2.bytes())
    }

    /// What a session's predictor needs beside them.
    fn mlp_scratch(&self, _shape: &MlpShape, _limits: &Limits) -> u64 {
        0
    }

    /// What a predictor needs of the room that operators use one after the other: a device keeps the largest.
    fn mlp_shared(&self, _shape: &MlpShape, _limits: &Limits) -> u64 {
        0
    }
}

/// The answers that [`Footprint`] gives unless a device has others.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainFootprint;

impl Footprint for PlainFootprint {}

/// A size may be whatever somebody asks for: too much to be counted is too much for any device.
fn product<const N: usize>(factors: [usize; N]) -> u64 {
    factors.into_iter().fold(1, |all: u64, n| all.saturating_mul(n as u64))
}

fn sum(parts: impl IntoIterator<Item = u64>) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, Gating};

    fn linear(ty: QuantType, rows: usize, cols: usize, bias: bool) -> LinearShape {
        LinearShape { weight: MatrixShape { ty, rows, cols }, bias }
    }

    #[test]
    fn plain_answers_are_the_bytes_of_the_numbers() {
        let plain = PlainFootprint;
        let limits = Limits { tokens: 3, sequences: 2, context: 10 };
        assert_eq!((plain.runtime(), plain.hidden(3, 5), plain.active(3, 65), plain.passing(3, 5)), (0, 60, 48, 0));
        assert_eq!([false, true].map(|bias| plain.norm(&NormShape { dim: 5, bias })), [20, 40]);
        let square = linear(QuantType::Q4_0, 64, 64, true);
        assert_eq!(plain.linear(&square), 64 * 36 + 256);
        let kv = KvTypes { keys: KvType::F16, values: KvType::F32 };
        let (heads, kv_heads, head_dim, rope_dims) = (4, 2, 16, 16);
        let attention =
            AttentionShape { q: square, k: square, v: square, o: square, heads, kv_heads, head_dim, rope_dims, kv };
        assert_eq!(plain.attention(&attention), 4 * plain.linear(&square));
        assert_eq!(plain.kv_cache(&attention, &limits), 2 * 10 * 2 * 16 * (2 + 4));
        let huge = Limits { sequences: usize::MAX, ..limits };
        assert_eq!(plain.kv_cache(&attention, &huge), u64::MAX, "too much is no small number");
    }

    #[test]
    fn neurons_are_counted_with_their_rows_and_biases() {
        let m = |name, rows, cols| Matrix::encode(name, QuantType::F16, rows, cols, &vec![1.0; rows * cols]).unwrap();
        let vector = |n: usize| Some(vec![0.0f32; n].into());
        let weights = |down| FfnWeights {
            gate: Some(m("gate", 6, 4)),
            up: m("up", 6, 4),
            down,
            gate_bias: None,
            up_bias: vector(6),
            down_bias: vector(4),
            gating: Gating::Gated,
            act: Activation::Relu,
            skip: true,
        };
        let some = |ids: &[u32]| PartShape::from(&NeuronSet::some(6, ids.to_vec()).unwrap());
        let shape = FfnShape::from(&weights(Down::NeuronMajor(m("down", 6, 4))));
        assert_eq!((shape.neurons(), shape.dim(), shape.neuron_major), (6, 4, true));
        let plain = PlainFootprint;
        assert_eq!(plain.sparse_ffn(&shape, some(&[1, 2])), 2 * (3 * 8 + 4));
        assert_eq!(plain.sparse_ffn(&shape, some(&[0, 2])), 2 * (3 * 8 + 4) + 16, "the bias comes with neuron 0");
        let along = FfnShape::from(&weights(Down::OutputMajor(m("down", 4, 6))));
        let all = PartShape::from(&NeuronSet::all(6));
        assert_eq!(plain.sparse_ffn(&along, all), plain.sparse_ffn(&shape, all));
        let limits = Limits { tokens: 3, sequences: 1, context: 8 };
        assert_eq!(plain.ffn_scratch(&shape, 2, &limits), 4 * 3 * (2 + 4));
    }
}
