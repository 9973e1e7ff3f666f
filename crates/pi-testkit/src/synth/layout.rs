//! Keys and the table of tensors.

use super::{error::Result, model::SynthModel, shape::Family, vocab};
use pi_core::QuantType;
use pi_gguf::Builder;

/// Added inside the norms.
pub(super) const EPS: f32 = 1e-5;
/// Rows of a learned embedding of positions that no position uses (OPT).
pub(super) const POSITION_OFFSET: usize = 2;

impl SynthModel {
    /// Keys and tensors, in the order in which they are written.
    pub(super) fn header(&self) -> Result<Builder> {
        let mut b = Builder::new(self.kind);
        self.keys(&mut b)?;
        let s = &self.shape;
        let (d, f32, opt) = (s.dim, QuantType::F32, self.family == Family::Opt);
        b.tensor("token_embd.weight", self.ty, &[d, s.vocab])?;
        if opt {
            b.tensor("position_embd.weight", self.ty, &[d, s.context + POSITION_OFFSET])?;
        }
        for i in 0..s.layers {
            self.layer(&mut b, i)?;
        }
        b.tensor("output_norm.weight", f32, &[d])?;
        if self.has_norm_bias() {
            b.tensor("output_norm.bias", f32, &[d])?;
        }
        if !opt {
            b.tensor("output.weight", self.ty, &[d, s.vocab])?;
        }
        Ok(b)
    }

    fn layer(&self, b: &mut Builder, i: usize) -> Result<()> {
        let (d, n, kv) = (self.shape.dim, self.shape.neurons, self.kv_dim());
        for norm in self.norms() {
            b.tensor(&format!("blk.{i}.{norm}.weight"), QuantType::F32, &[d])?;
            if self.has_norm_bias() {
                b.tensor(&format!("blk.{i}.{norm}.bias"), QuantType::F32, &[d])?;
            }
        }
        let mut matrix = |name: &str, ty, cols: usize, rows: usize| -> Result<()> {
            b.tensor(&format!("blk.{i}.{name}.weight"), ty, &[cols, rows])?;
            if self.has_bias(name) {
                let len = if name.starts_with("ffn_down") { d } else { rows };
                b.tensor(&format!("blk.{i}.{name}.bias"), QuantType::F32, &[len])?;
            }
            Ok(())
        };
        match self.family {
            Family::Falcon => matrix("attn_qkv", self.ty, d, d + 2 * kv)?,
            _ => {
                matrix("attn_q", self.ty, d, d)?;
                matrix("attn_k", self.ty, d, kv)?;
                matrix("attn_v", self.ty, d, kv)?;
            }
        }
        matrix("attn_output", self.ty, d, d)?;
        if self.family.has_gate() {
            matrix("ffn_gate", self.ty, d, n)?;
        }
        matrix("ffn_up", self.ty, d, n)?;
        if !self.is_sparse() {
            return matrix("ffn_down", self.ty, n, d);
        }
        matrix("ffn_down_t", self.ty, d, n)?;
        matrix("fc1", self.predictor_type(), d, self.rank())?;
        matrix("fc2", self.predictor_type(), self.rank(), n)
    }

    /// The norms of a layer.
    pub(super) fn norms(&self) -> &'static [&'static str] {
        match self.family {
            Family::Falcon if self.shape.kv_heads > 1 => &["attn_norm", "attn_norm_2"],
            Family::Falcon => &["attn_norm"],
            _ => &["attn_norm", "ffn_norm"],
        }
    }

    /// Layer norms have biases, RMS norms have not.
    pub(super) fn has_norm_bias(&self) -> bool {
        matches!(self.family, Family::Falcon | Family::Opt)
    }

    /// Whether a matrix of a layer has a bias.
    pub(super) fn has_bias(&self, matrix: &str) -> bool {
        self.family == Family::Opt && !matrix.starts_with("fc")
    }

    fn keys(&self, b: &mut Builder) -> Result<()> {
        let (s, arch) = (&self.shape, self.family.name());
        b.set("general.architecture", arch)?;
        b.set("general.name", &format!("synthetic {arch} {}x{}", s.layers, s.dim))?;
        let mut int = |key: &str, value: usize| b.set(&format!("{arch}.{key}"), value as u32).map(drop);
        int("context_length", s.context)?;
        int("embedding_length", s.dim)?;
        int("block_count", s.layers)?;
        int("feed_forward_length", s.neurons)?;
        int("attention.head_count", s.heads)?;
        int("attention.head_count_kv", s.kv_heads)?;
        if self.family.has_gate() {
            int("rope.dimension_count", self.head_dim())?;
        }
        let norm = if self.has_norm_bias() { "layer_norm_epsilon" } else { "layer_norm_rms_epsilon" };
        b.set(&format!("{arch}.attention.{norm}"), EPS)?;
        match self.is_sparse() {
            true => b.set("powerinfer.sparse_threshold", 0.0f32)?,
            // Readers take other activations for granted in ordinary files.
            false => b.set(&format!("{arch}.hidden_act"), "relu")?,
        };
        if let Some(number) = file_type(self.ty) {
            b.set("general.file_type", number)?;
        }
        if !self.ty.is_float() {
            b.set("general.quantization_version", 2u32)?;
        }
        vocab::set(b, self.family, s.vocab)
    }
}

/// The number in `general.file_type` for a file of this type, if there is one.
fn file_type(ty: QuantType) -> Option<u32> {
    Some(match ty {
        QuantType::F32 => 0,
        QuantType::F16 => 1,
        QuantType::Q4_0 => 2,
        QuantType::Q4_1 => 3,
        QuantType::Q8_0 => 7,
        QuantType::Q5_0 => 8,
        QuantType::Q5_1 => 9,
        QuantType::Q2_K => 10,
        QuantType::Q3_K => 11,
        QuantType::Q4_K => 14,
        QuantType::Q5_K => 16,
        QuantType::Q6_K => 18,
        QuantType::IQ4_NL => 25,
        QuantType::IQ4_XS => 30,
        QuantType::BF16 => 32,
        _ => return None,
    })
}
