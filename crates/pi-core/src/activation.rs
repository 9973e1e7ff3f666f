//! Activation functions, and where they are exactly 0.

use crate::{Error, Result};
use std::{fmt, str::FromStr};

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
            Self::FatRelu(t) => x.is_nan() || (x > 0.0 && x >= t),
            _ => x.is_nan() || x > 0.0,
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
