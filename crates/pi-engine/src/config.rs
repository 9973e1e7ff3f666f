//! The numbers of a model, read from its metadata and checked.

use crate::{Error, Result};
use pi_core::{Activation, Gating, RopeKind, RopeScaling};
use pi_gguf::{FromValue, Kind, Metadata};

/// What a model file says about its shape.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelConfig {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if any.
    pub name: Option<String>,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// FFN neurons per layer.
    pub neurons: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// Which norms.
    pub norm: NormKind,
    /// Added inside the norms.
    pub norm_eps: f32,
    /// The FFN's activation.
    pub activation: Activation,
    /// How gate and up are combined.
    pub gating: Gating,
    /// Rotary embedding: pairing, rotated numbers per head, base, scaling.
    pub rope: Option<RopeConfig>,
    /// Learned positions: which row of their table the first position has. `None` if there is no table.
    pub position_offset: Option<usize>,
    /// Attention and FFN both read the layer's input, instead of the FFN reading what attention made of it.
    pub parallel: bool,
}

/// Which norms a family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormKind {
    /// RMSNorm: a weight.
    Rms,
    /// LayerNorm: a weight and a bias.
    Layer,
}

/// Rotary embedding as far as metadata describes it.
#[derive(Clone, Debug)]
pub struct RopeConfig {
    /// Pairing.
    pub kind: RopeKind,
    /// Rotated numbers per head.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Stretching.
    pub scaling: RopeScaling,
}

/// Reads keys of one architecture: `{arch}.name`.
pub struct Keys<'a> {
    meta: &'a Metadata,
    arch: &'a str,
    kind: Kind,
}

/// Larger shapes are taken for damage: no model comes near, and products of such numbers stay far from overflow.
const MAX: u32 = 1 << 24;

impl<'a> Keys<'a> {
    /// Keys that start with `arch`.
    pub fn new(meta: &'a Metadata, arch: &'a str, kind: Kind) -> Self {
        Self { meta, arch, kind }
    }

    /// The architecture name in front of the keys.
    pub fn arch(&self) -> &str {
        self.arch
    }

    /// Whether the file is PowerInfer's.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The full key.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// An optional value of any type.
    ///
    /// # Errors
    /// If it has another type.
    pub fn get<T: FromValue<'a>>(&self, name: &str) -> Result<Option<T>> {
        Ok(self.meta.get(&self.key(name))?)
    }

    /// A number between 1 and 2²⁴.
    ///
    /// # Errors
    /// If it is missing, of another type or out of range.
    pub fn size(&self, name: &str) -> Result<usize> {
        let value: u32 = self.meta.require(&self.key(name))?;
        self.checked(name, value)
    }

    /// The same with a default.
    ///
    /// # Errors
    /// If it is of another type or out of range.
    pub fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        self.get(name)?.map_or(Ok(default), |v| self.checked(name, v))
    }

    /// A finite number above 0.
    ///
    /// # Errors
    /// If it is of another type or out of range.
    pub fn positive(&self, name: &str) -> Result<Option<f32>> {
        match self.get::<f32>(name)? {
            Some(v) if !(v.is_finite() && v > 0.0) => Err(self.error(name, "a finite number above 0", v)),
            v => Ok(v),
        }
    }

    /// An [`Error::Config`] about a key.
    pub fn error(&self, name: &str, expected: impl ToString, got: impl ToString) -> Error {
        Error::Config {
            path: self.meta.path().display().to_string(),
            key: self.key(name),
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    fn checked(&self, name: &str, value: u32) -> Result<usize> {
        if (1..=MAX).contains(&value) {
            return Ok(value as usize);
        }
        Err(self.error(name, format!("a number from 1 to {MAX}"), value))
    }

    /// `{arch}.hidden_act` with `{arch}.hidden_act_threshold`; a PowerInfer file without it means ReLU.
    ///
    /// # Errors
    /// If the name is unknown, or the threshold is negative or belongs to no threshold activation.
    pub fn activation(&self, default: Activation) -> Result<Activation> {
        let default = if self.kind == Kind::PowerInfer { Activation::Relu } else { default };
        let name: Option<&str> = self.get("hidden_act")?;
        let act = match name {
            Some(name) => name.parse().map_err(|_| {
                self.error("hidden_act", "silu, gelu, gelu_tanh, relu, relu2 or fatrelu", format!("{name:?}"))
            })?,
            None => default,
        };
        let Some(threshold) = self.get::<f32>("hidden_act_threshold")? else { return Ok(act) };
        if !(threshold.is_finite() && threshold >= 0.0) {
            return Err(self.error("hidden_act_threshold", "a finite number, not negative", threshold));
        }
        match act {
            Activation::FatRelu(_) => Ok(Activation::FatRelu(threshold)),
            Activation::Relu if threshold > 0.0 => Ok(Activation::FatRelu(threshold)),
            Activation::Relu => Ok(act),
            other => Err(self.error("hidden_act_threshold", format!("no threshold beside {other}"), threshold)),
        }
    }

    /// The numbers that all families have: `{arch}.block_count` and the like. Norms are RMSNorm, neurons have gates, layers are
    /// sequential, and there are neither rotary nor learned positions: what differs is for the family to change.
    ///
    /// # Errors
    /// If a key is missing, of another type or out of range, or the heads do not fit the width.
    pub fn config(&self, activation: Activation) -> Result<ModelConfig> {
        let (dim, heads) = (self.size("embedding_length")?, self.size("attention.head_count")?);
        let kv_heads = self.size_or("attention.head_count_kv", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(self.error("attention.head_count_kv", format!("a divisor of {heads} heads"), kv_heads));
        }
        if self.get::<u32>("attention.key_length")?.is_none() && !dim.is_multiple_of(heads) {
            return Err(self.error("attention.head_count", format!("a divisor of the width {dim}"), heads));
        }
        let head_dim = self.size_or("attention.key_length", dim / heads)?;
        let value_dim = self.size_or("attention.value_length", head_dim)?;
        if value_dim != head_dim {
            return Err(self.error("attention.value_length", format!("{head_dim}, as the keys"), value_dim));
        }
        Ok(ModelConfig {
            architecture: self.arch.into(),
            name: None,
            layers: self.size("block_count")?,
            dim,
            heads,
            kv_heads,
            head_dim,
            neurons: self.size("feed_forward_length")?,
            context: self.size("context_length")?,
            norm: NormKind::Rms,
            norm_eps: 1e-5,
            activation: self.activation(activation)?,
            gating: Gating::Gated,
            rope: None,
            position_offset: None,
            parallel: false,
        })
    }

    /// Refuses a variant of the family: the key must be absent or `expected`.
    ///
    /// # Errors
    /// If it is neither, or of another type.
    pub fn only<T: FromValue<'a> + PartialEq + std::fmt::Display>(
        &self,
        name: &str,
        expected: T,
        why: &str,
    ) -> Result<()> {
        match self.get::<T>(name)? {
            Some(got) if got != expected => Err(self.error(name, format!("{expected} ({why})"), got)),
            _ => Ok(()),
        }
    }

    /// `{arch}.rope.*`; `None` if no number is rotated.
    ///
    /// # Errors
    /// If a value is of another type, out of range, or asks for a scaling that is not built.
    pub fn rope(&self, kind: RopeKind, head_dim: usize) -> Result<Option<RopeConfig>> {
        let dims: u32 = self.get("rope.dimension_count")?.unwrap_or(head_dim as u32);
        if dims == 0 {
            return Ok(None);
        }
        if dims as usize > head_dim || !dims.is_multiple_of(2) {
            return Err(self.error("rope.dimension_count", format!("an even number up to {head_dim}"), dims));
        }
        let base = self.positive("rope.freq_base")?.unwrap_or(10_000.0);
        Ok(Some(RopeConfig { kind, dims: dims as usize, base, scaling: self.rope_scaling()? }))
    }

    fn rope_scaling(&self) -> Result<RopeScaling> {
        // Files of 2023 have only the last key.
        let factor = self.positive("rope.scaling.factor")?.or(self.positive("rope.scale_linear")?).unwrap_or(1.0);
        match self.get::<&str>("rope.scaling.type")? {
            Some("none") => Ok(RopeScaling::None),
            None | Some("linear") if factor == 1.0 => Ok(RopeScaling::None),
            None | Some("linear") => Ok(RopeScaling::Linear { factor }),
            Some("yarn") => {
                let default = self.size("context_length")?;
                Ok(RopeScaling::Yarn {
                    factor,
                    original_context: self.size_or("rope.scaling.original_context_length", default)? as u32,
                    ext_factor: self.get("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0),
                    attn_factor: self.positive("rope.scaling.yarn_attn_factor")?.unwrap_or(1.0)
                        * self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
                    beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                })
            }
            Some(other) => Err(self.error("rope.scaling.type", "none, linear or yarn", format!("{other:?}"))),
        }
    }
}
