//! What is wanted, and whether it can be had.

use super::{
    error::{Result, SynthError},
    shape::{Family, Preset, Shape},
    thresholds::Thresholds,
    vocab,
};
use pi_core::QuantType;
use pi_gguf::Kind;

/// Channels of the residual stream that hold a constant.
pub(super) const BIAS: usize = 32;
/// Largest number of a shape: the limit of model readers.
const MOST: usize = 1 << 24;

/// A synthetic model to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct SynthModel {
    /// The family.
    pub family: Family,
    /// The shape.
    pub shape: Shape,
    /// Type of all matrices. The predictors' is the same if it is a float type or Q4_0, and Q5_0 otherwise, as in
    /// PowerInfer's files.
    pub ty: QuantType,
    /// [`Kind::PowerInfer`]: with predictors, and with down matrices stored neuron by neuron. [`Kind::Gguf`]: without
    /// predictors, and with down matrices as usual.
    pub kind: Kind,
    /// Share of neurons that fire, 0.001 to 0.999: those with a positive gate (for families without a gate: with a positive
    /// up).
    pub active: f64,
    /// Share of neurons that give 80 % of the activations, or [what is usual](Family::usual_skew) (as far as `active`
    /// allows it).
    pub skew: Option<f64>,
    /// Width of the predictors, a multiple of 32; by default a quarter of the model's width.
    pub rank: Option<usize>,
    /// What predictors cannot see of a neuron's input, in standard deviations of what they can see.
    pub noise: f64,
    /// Of the random numbers.
    pub seed: u64,
}

impl SynthModel {
    /// A model of a published shape, in Q4_0, as ordinary GGUF, of which 10 % is active.
    pub fn of(preset: Preset) -> Self {
        Self {
            family: preset.family,
            shape: preset.shape(),
            ty: QuantType::Q4_0,
            kind: Kind::Gguf,
            active: 0.1,
            skew: None,
            rank: None,
            noise: 0.1,
            seed: 1,
        }
    }

    /// Width of the predictors.
    pub fn rank(&self) -> usize {
        self.rank.unwrap_or((self.shape.dim / 4).next_multiple_of(32))
    }

    /// The neurons' thresholds.
    ///
    /// # Errors
    /// As [`Thresholds::new`].
    pub fn thresholds(&self) -> Result<Thresholds> {
        Thresholds::new(self.active, self.skew, self.family.usual_skew())
    }

    /// Whether everything fits together.
    ///
    /// # Errors
    /// [`SynthError::Setting`] names the first number that does not, as the command line does.
    pub fn check(&self) -> Result<()> {
        let Shape { layers, dim, neurons, heads, kv_heads, vocab, context } = self.shape;
        let block = self.ty.info().block_len;
        let least_width = block.max(2 * BIAS);
        let ranges = [
            ("layers", layers, 1, 10_000),
            ("dim", dim, least_width, MOST),
            ("ffn", neurons, 32, MOST),
            ("heads", heads, 1, dim),
            ("kv-heads", kv_heads, 1, heads),
            ("vocab", vocab, vocab::LEAST, MOST),
            ("context", context, 1, MOST),
            ("rank", self.rank(), 32, MOST),
        ];
        for (name, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(SynthError::setting(name, format!("a number from {least} to {most}"), value));
            }
        }
        let of_blocks = |what: &str| format!("a multiple of {block} (a block of {} must divide {what})", self.ty);
        if !dim.is_multiple_of(block) {
            return Err(SynthError::setting("dim", of_blocks("a row"), dim));
        }
        if self.kind == Kind::Gguf && !neurons.is_multiple_of(block) {
            return Err(SynthError::setting("ffn", of_blocks("a row of ffn_down"), neurons));
        }
        if !dim.is_multiple_of(heads) || !(dim / heads).is_multiple_of(2) {
            let expected = format!("a divisor of the width {dim} that leaves an even width per head");
            return Err(SynthError::setting("heads", expected, heads));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(SynthError::setting("kv-heads", format!("a divisor of {heads} heads"), kv_heads));
        }
        if self.family == Family::Opt && kv_heads != heads {
            return Err(SynthError::setting("kv-heads", format!("{heads}, as many as heads, for opt"), kv_heads));
        }
        if !self.rank().is_multiple_of(32) {
            return Err(SynthError::setting("rank", "a multiple of 32", self.rank()));
        }
        if !(0.0..=10.0).contains(&self.noise) {
            return Err(SynthError::setting("noise", "a number from 0 to 10", self.noise));
        }
        self.thresholds().map(drop)
    }

    /// Numbers per head.
    pub(super) fn head_dim(&self) -> usize {
        self.shape.dim / self.shape.heads
    }

    /// Width of keys and values.
    pub(super) fn kv_dim(&self) -> usize {
        self.shape.kv_heads * self.head_dim()
    }

    pub(super) fn is_sparse(&self) -> bool {
        self.kind == Kind::PowerInfer
    }

    /// The predictors' type.
    pub(super) fn predictor_type(&self) -> QuantType {
        match self.ty {
            ty if ty.is_float() || ty == QuantType::Q4_0 => ty,
            _ => QuantType::Q5_0,
        }
    }

    /// Deviation of what the attention, or the FFN, of a layer adds to hidden states; the embedding's is 1. In deep models it is
    /// less, so that hidden states neither grow nor forget their token.
    pub(super) fn strength(&self) -> f32 {
        0.3 * (8.0 / self.shape.layers as f32).sqrt().min(1.0)
    }

    /// What the constant channels hold: together a quarter of the power of the others in the embedding.
    pub(super) fn constant(&self) -> f32 {
        (0.25 * self.shape.dim as f32 / BIAS as f32).sqrt()
    }
}
