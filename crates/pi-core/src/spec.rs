//! What an operator is to compute: activations, norms, positions, attention and FFN shapes.

use crate::{Error, Matrix, Result};
use std::{fmt, str::FromStr, sync::Arc};

/// The function between the two halves of an FFN.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// `x · sigmoid(x)` (also called swish).
    Silu,
    /// `x · Φ(x)` with the exact error function.
    Gelu,
    /// GELU by the usual tanh approximation (`gelu_new`, `gelu_pytorch_tanh`).
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
    /// `x` where `x ≥ threshold`, else 0 (ProSparse, arXiv 2402.13516). The threshold is not negative.
    FatRelu(f32),
}

impl Activation {
    /// The value at `x`.
    #[inline]
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::GeluTanh => 0.5 * x * (1.0 + (0.797_884_6 * x * (1.0 + 0.044715 * x * x)).tanh()),
            Self::Relu => relu(x, 0.0),
            Self::ReluSquared => {
                let r = relu(x, 0.0);
                r * r
            }
            Self::FatRelu(t) => relu(x, t),
        }
    }

    /// True if the value is exactly 0 for a whole range of inputs, so that neurons can be skipped.
    pub fn is_sparse(self) -> bool {
        matches!(self, Self::Relu | Self::ReluSquared | Self::FatRelu(_))
    }

    /// For sparse activations: whether the value at `x` differs from 0. NaN fires, so that it is not hidden.
    #[inline]
    pub fn fires(self, x: f32) -> bool {
        match self {
            Self::FatRelu(t) => !(x <= 0.0 || x < t),
            _ => x > 0.0 || x.is_nan(),
        }
    }
}

/// `f32::max` would turn NaN into 0 and so hide it.
#[inline]
fn relu(x: f32, threshold: f32) -> f32 {
    if x <= 0.0 || x < threshold { 0.0 } else { x }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silu => f.write_str("silu"),
            Self::Gelu => f.write_str("gelu"),
            Self::GeluTanh => f.write_str("gelu_tanh"),
            Self::Relu => f.write_str("relu"),
            Self::ReluSquared => f.write_str("relu2"),
            Self::FatRelu(t) => write!(f, "fatrelu({t})"),
        }
    }
}

impl FromStr for Activation {
    type Err = Error;

    /// Reads the names used by checkpoints and by [`Display`](fmt::Display): `silu`, `swish`, `gelu`, `gelu_new`,
    /// `gelu_pytorch_tanh`, `relu`, `relu2`, `fatrelu` (threshold 0), `fatrelu(0.01)`.
    fn from_str(s: &str) -> Result<Self> {
        Ok(match s.to_ascii_lowercase().as_str() {
            "silu" | "swish" => Self::Silu,
            "gelu" => Self::Gelu,
            "gelu_tanh" | "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Self::GeluTanh,
            "relu" => Self::Relu,
            "relu2" | "relu_squared" | "relu^2" | "squared_relu" => Self::ReluSquared,
            "fatrelu" => Self::FatRelu(0.0),
            other => other
                .strip_prefix("fatrelu(")
                .and_then(|t| t.strip_suffix(')'))
                .and_then(|t| t.trim().parse().ok())
                .filter(|t: &f32| t.is_finite() && *t >= 0.0)
                .map(Self::FatRelu)
                .ok_or_else(|| {
                    Error::unsupported(
                        format!("activation {s:?}"),
                        "known: silu, gelu, gelu_tanh, relu, relu2, fatrelu(THRESHOLD)",
                    )
                })?,
        })
    }
}

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
#[derive(Clone, Debug)]
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

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KvType {
    /// Exact, four bytes a number.
    F32,
    /// Half the memory.
    #[default]
    F16,
}

impl KvType {
    /// Bytes per number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

impl FromStr for KvType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s.to_ascii_lowercase().as_str() {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            _ => Err(Error::unsupported(format!("KV cache type {s:?}"), "known: f32, f16")),
        }
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
    pub kv: KvType,
}

impl AttentionSpec {
    /// Checks that all parts fit together.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the tensor or number.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_named_as_checkpoints_name_them() {
        for (name, act) in [
            ("silu", Activation::Silu),
            ("SwiSH", Activation::Silu),
            ("gelu_pytorch_tanh", Activation::GeluTanh),
            ("relu", Activation::Relu),
            ("fatrelu(0.25)", Activation::FatRelu(0.25)),
        ] {
            assert_eq!(name.parse::<Activation>().unwrap(), act);
            assert_eq!(act.to_string().parse::<Activation>().unwrap(), act);
        }
        for bad in ["", "tanhish", "fatrelu(-1)", "fatrelu(nan)", "fatrelu("] {
            assert!(bad.parse::<Activation>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_neuron_fires_exactly_where_its_activation_differs_from_zero() {
        for act in [Activation::Relu, Activation::ReluSquared, Activation::FatRelu(0.0), Activation::FatRelu(0.5)] {
            for x in [-2.0, -0.0, 0.0, 0.25, 0.5, 0.75, f32::INFINITY, f32::NEG_INFINITY] {
                assert_eq!(act.fires(x), act.apply(x) != 0.0, "{act} at {x}");
            }
            assert!(act.fires(f32::NAN) && act.apply(f32::NAN).is_nan(), "{act} hides NaN");
        }
    }

    #[test]
    fn activations_have_their_textbook_values() {
        assert!((Activation::Silu.apply(1.0) - 0.731_058_6).abs() < 1e-6);
        assert!((Activation::Gelu.apply(1.0) - 0.841_344_7).abs() < 1e-6);
        assert!((Activation::GeluTanh.apply(1.0) - 0.841_192).abs() < 1e-6);
        assert_eq!(Activation::ReluSquared.apply(3.0), 9.0);
    }
}
