//! What an operator is to compute: norms, positions, attention and FFN shapes.

use crate::{Activation, Error, Matrix, QuantType, Result};
use std::{fmt, str::FromStr, sync::Arc};

/// How gate and up make the hidden value of a neuron.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gating {
    /// `act(gate) · up` (ReGLU, SwiGLU).
    Gated,
    /// `act(gate) · act(up)` (dReLU of Bamboo).
    Symmetric,
    /// `act(up)`: there is no gate (OPT, Falcon).
    UpOnly,
}

/// The second half of an FFN, in one of two orders.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Down {
    /// `[neurons, dim]`: row `i` is what neuron `i` adds. Skipped neurons are not read.
    NeuronMajor(Matrix),
    /// `[dim, neurons]`: the usual order of files. Every row needs every neuron, so nothing can be skipped.
    OutputMajor(Matrix),
}

impl Down {
    /// The matrix, whatever its order.
    pub fn matrix(&self) -> &Matrix {
        match self {
            Self::NeuronMajor(m) | Self::OutputMajor(m) => m,
        }
    }
}

/// The weights of one FFN: `y = Σ_i h_i · down_i`, where `h_i` is made of neuron `i`'s gate and up rows (paper §2.1).
#[derive(Clone, Debug)]
pub struct FfnWeights {
    /// `[neurons, dim]`; absent for [`Gating::UpOnly`].
    pub gate: Option<Matrix>,
    /// `[neurons, dim]`.
    pub up: Matrix,
    /// Neuron- or output-major.
    pub down: Down,
    /// `[neurons]`, added to the gate before the activation.
    pub gate_bias: Option<Arc<[f32]>>,
    /// `[neurons]`.
    pub up_bias: Option<Arc<[f32]>>,
    /// `[dim]`, added once per token by whoever owns neuron 0.
    pub down_bias: Option<Arc<[f32]>>,
    /// How gate and up are combined.
    pub gating: Gating,
    /// The activation.
    pub act: Activation,
    /// Whether neurons whose activation is 0 are skipped (`exact` sparsity) or computed all the same (`off`).
    pub skip: bool,
}

impl FfnWeights {
    /// Neurons in the layer.
    pub fn neurons(&self) -> usize {
        self.up.rows()
    }

    /// Width of input and output.
    pub fn dim(&self) -> usize {
        self.up.cols()
    }

    /// Checks that all parts fit together.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Unsupported`] naming the tensor.
    pub fn check(&self) -> Result<()> {
        let (n, d) = (self.neurons(), self.dim());
        match (&self.gate, self.gating) {
            (Some(gate), Gating::Gated | Gating::Symmetric) => gate.expect_shape(n, d)?,
            (None, Gating::UpOnly) => {}
            (gate, gating) => {
                let got = if gate.is_some() { "one" } else { "none" };
                return Err(Error::shape(format!("gate beside {}", self.up.name()), format!("{gating:?}"), got));
            }
        }
        match &self.down {
            Down::NeuronMajor(m) => m.expect_shape(n, d)?,
            Down::OutputMajor(m) => m.expect_shape(d, n)?,
        }
        for (what, bias, len) in [("gate", &self.gate_bias, n), ("up", &self.up_bias, n), ("down", &self.down_bias, d)]
        {
            if let Some(bias) = bias.as_ref().filter(|b| b.len() != len) {
                return Err(Error::shape(format!("bias of ffn {what}"), len, bias.len()));
            }
        }
        if self.skip && !self.act.is_sparse() {
            return Err(Error::unsupported(
                format!("skipping neurons of {}", self.up.name()),
                format!("{} is never exactly 0", self.act),
            ));
        }
        Ok(())
    }
}

/// A normalisation over each row.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NormSpec {
    /// `x / sqrt(mean(x²) + eps) · weight`.
    Rms {
        /// `[dim]`.
        weight: Arc<[f32]>,
        /// Added to the mean square.
        eps: f32,
    },
    /// `(x − mean) / sqrt(var + eps) · weight + bias`.
    Layer {
        /// `[dim]`.
        weight: Arc<[f32]>,
        /// `[dim]`.
        bias: Option<Arc<[f32]>>,
        /// Added to the variance.
        eps: f32,
    },
}

/// Which numbers of a head form the rotated pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// Neighbours `(0, 1), (2, 3), …` (LLaMA as stored in GGUF).
    Interleaved,
    /// Halves `(0, n/2), (1, n/2 + 1), …` (GPT-NeoX, Qwen2, Falcon, Phi).
    SplitHalf,
}

/// How frequencies are stretched beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All positions divided by `factor`.
    Linear {
        /// Stretch.
        factor: f32,
    },
    /// YaRN (arXiv 2309.00071): high frequencies kept, low ones divided, a ramp between, attention sharpened.
    Yarn {
        /// Stretch.
        factor: f32,
        /// Context the model was trained with.
        original_context: u32,
        /// Share of the interpolation that the ramp replaces (1 = YaRN, 0 = linear).
        ext_factor: f32,
        /// Extra factor on the magnitude of rotated vectors.
        attn_factor: f32,
        /// Turns over the original context above which a frequency is kept.
        beta_fast: f32,
        /// Turns below which it is divided.
        beta_slow: f32,
    },
}

/// Rotary position embedding (arXiv 2104.09864).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Pairing.
    pub kind: RopeKind,
    /// Rotated numbers per head (even, at most the head size); the rest passes through.
    pub dims: usize,
    /// Base of the frequencies: pair `i` turns by `base^(−2i/dims)` per position.
    pub base: f32,
    /// Stretching.
    pub scaling: RopeScaling,
    /// `[dims / 2]`: divisors of the frequencies (`rope_freqs.weight`, LLaMA 3.1).
    pub factors: Option<Arc<[f32]>>,
}

/// How the keys or the values of a session are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum KvType {
    /// Exact, four bytes a number.
    F32,
    /// Two bytes a number.
    #[default]
    F16,
    /// Blocks of 32 numbers along the head in 34 bytes. Heads must be whole blocks.
    Q8_0,
}

impl KvType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8_0];

    /// How a row of numbers is laid out.
    pub fn quant(self) -> QuantType {
        match self {
            Self::F32 => QuantType::F32,
            Self::F16 => QuantType::F16,
            Self::Q8_0 => QuantType::Q8_0,
        }
    }

    /// Bytes of one head at one position; `None` if a head of `head_dim` numbers is not made of whole blocks.
    pub fn row_bytes(self, head_dim: usize) -> Option<usize> {
        self.quant().row_bytes(head_dim)
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        })
    }
}

impl FromStr for KvType {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes, in any case.
    fn from_str(s: &str) -> Result<Self> {
        let known = |ty: &Self| ty.to_string().eq_ignore_ascii_case(s);
        Self::ALL
            .into_iter()
            .find(known)
            .ok_or_else(|| Error::unsupported(format!("KV cache type {s:?}"), "known: f32, f16, q8_0"))
    }
}

/// How keys and values are kept. One [`KvType`] stands for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct KvTypes {
    /// Rotated keys.
    pub keys: KvType,
    /// Values.
    pub values: KvType,
}

impl From<KvType> for KvTypes {
    fn from(both: KvType) -> Self {
        Self { keys: both, values: both }
    }
}

/// A matrix with an optional bias: `y = W·x + b`.
#[derive(Clone, Debug)]
pub struct LinearSpec {
    /// `[outputs, inputs]`.
    pub weight: Matrix,
    /// `[outputs]`.
    pub bias: Option<Arc<[f32]>>,
}

impl LinearSpec {
    /// A matrix without a bias.
    pub fn new(weight: Matrix) -> Self {
        Self { weight, bias: None }
    }

    /// Checks the bias.
    ///
    /// # Errors
    /// [`Error::Shape`] if the bias has another length than the matrix has rows.
    pub fn check(&self) -> Result<()> {
        match &self.bias {
            Some(b) if b.len() != self.weight.rows() => {
                Err(Error::shape(format!("bias of {}", self.weight.name()), self.weight.rows(), b.len()))
            }
            _ => Ok(()),
        }
    }
}

/// Multi-head attention with grouped keys and values, projections included.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// `[heads · head_dim, dim]`.
    pub q: LinearSpec,
    /// `[kv_heads · head_dim, dim]`.
    pub k: LinearSpec,
    /// `[kv_heads · head_dim, dim]`.
    pub v: LinearSpec,
    /// `[dim, heads · head_dim]`.
    pub o: LinearSpec,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// Factor on the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Position embedding inside the attention, if any.
    pub rope: Option<RopeSpec>,
    /// How keys and values are kept.
    pub kv: KvTypes,
}

impl AttentionSpec {
    /// Checks that all parts fit together.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the tensor or number; [`Error::Unsupported`] if a head is not made of whole blocks of the type
    /// that keys or values are to be kept in.
    pub fn check(&self) -> Result<()> {
        let (h, kv, hd) = (self.heads, self.kv_heads, self.head_dim);
        if h == 0 || kv == 0 || hd == 0 || !h.is_multiple_of(kv) {
            return Err(Error::shape(
                "attention heads",
                "query heads that are a multiple of key/value heads, none 0",
                format!("{h} query and {kv} key/value heads of {hd}"),
            ));
        }
        let dim = self.q.weight.cols();
        self.q.weight.expect_shape(h * hd, dim)?;
        self.k.weight.expect_shape(kv * hd, dim)?;
        self.v.weight.expect_shape(kv * hd, dim)?;
        self.o.weight.expect_shape(dim, h * hd)?;
        [&self.q, &self.k, &self.v, &self.o].into_iter().try_for_each(LinearSpec::check)?;
        for (what, ty) in [("keys", self.kv.keys), ("values", self.kv.values)] {
            if ty.row_bytes(hd).is_none() {
                let block = ty.quant().info().block_len;
                let why = format!("heads of {hd} numbers are not whole blocks of {block}");
                return Err(Error::unsupported(format!("{what} kept as {ty}"), why));
            }
        }
        if let Some(rope) = &self.rope {
            if rope.dims % 2 != 0 || rope.dims > hd {
                return Err(Error::shape("rope dimensions", format!("even and at most {hd}"), rope.dims));
            }
            if let Some(f) = rope.factors.as_ref().filter(|f| f.len() != rope.dims / 2) {
                return Err(Error::shape("rope frequency factors", rope.dims / 2, f.len()));
            }
        }
        Ok(())
    }
}
