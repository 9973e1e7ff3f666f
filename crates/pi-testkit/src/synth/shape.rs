//! Families and shapes.

use std::{fmt, str::FromStr};

/// A model family of PowerInfer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// RMS norms, rotary positions, `relu(gate) · up`.
    Llama,
    /// As LLaMA, but `relu(gate) · relu(up)`.
    Bamboo,
    /// Layer norms, attention and FFN side by side, `relu(up)`. With several key/value heads, attention has a norm of its own,
    /// as in Falcon-40B.
    Falcon,
    /// Layer norms, learned positions, biases everywhere, `relu(up)`, head tied to the embedding.
    Opt,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Bamboo, Self::Falcon, Self::Opt];

    /// The name in `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Bamboo => "bamboo",
            Self::Falcon => "falcon",
            Self::Opt => "opt",
        }
    }

    /// Whether neurons have a gate beside up.
    pub fn has_gate(self) -> bool {
        matches!(self, Self::Llama | Self::Bamboo)
    }

    /// The share of neurons that give 80 % of the activations in models of the family, as PowerInfer's paper measured it for
    /// LLaMA and OPT (arXiv 2312.12456, section 3.1).
    pub fn usual_skew(self) -> f64 {
        if self.has_gate() { 0.43 } else { 0.26 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Family {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|f| f.name() == s);
        found.ok_or_else(|| format!("known: {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// The numbers of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// FFN neurons per layer.
    pub neurons: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Tokens.
    pub vocab: usize,
    /// Positions.
    pub context: usize,
}

/// The shape of a published model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// The family of the model.
    pub family: Family,
    shape: [usize; 7],
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 5] = [
        Self { name: "7b", family: Family::Llama, shape: [32, 4096, 11008, 32, 32, 32000, 4096] },
        Self { name: "13b", family: Family::Llama, shape: [40, 5120, 13824, 40, 40, 32000, 4096] },
        Self { name: "40b-falcon", family: Family::Falcon, shape: [60, 8192, 32768, 128, 8, 65024, 2048] },
        Self { name: "70b", family: Family::Llama, shape: [80, 8192, 28672, 64, 8, 32000, 4096] },
        Self { name: "opt-30b", family: Family::Opt, shape: [48, 7168, 28672, 56, 56, 50272, 2048] },
    ];

    /// The numbers.
    pub fn shape(self) -> Shape {
        let [layers, dim, neurons, heads, kv_heads, vocab, context] = self.shape;
        Shape { layers, dim, neurons, heads, kv_heads, vocab, context }
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|p| p.name == s);
        found.ok_or_else(|| format!("known: {}", Self::ALL.map(|p| p.name).join(", ")))
    }
}
