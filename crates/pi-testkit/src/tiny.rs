//! Small random models, written as GGUF in memory.

use crate::synth::Family;
use pi_core::{Matrix, QuantType, Result};
use pi_gguf::{Builder, File, Kind, Value};

/// A small model with random weights. Change fields, then [`build`](Self::build).
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// The family.
    pub family: Family,
    /// The magic.
    pub kind: Kind,
    /// Width.
    pub dim: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// FFN neurons.
    pub neurons: usize,
    /// Tokens, at least 259: unknown, begin, end, 256 bytes, then words.
    pub vocab: usize,
    /// Rows of the embedding; `vocab` if absent.
    pub rows: Option<usize>,
    /// Type of the matrices.
    pub ty: QuantType,
    /// Biases on q, k and v (OPT has biases everywhere).
    pub qkv_bias: bool,
    /// A norm for each branch of Falcon's layers.
    pub two_norms: bool,
    /// `fc1` and `fc2` of this rank, if any, and `powerinfer.sparse_threshold` 0. They are as random as everything else: half
    /// of the neurons are marked, whether they fire or not.
    pub rank: Option<usize>,
    /// No `output.weight`.
    pub tied: bool,
    /// `ffn_down_t` instead of `ffn_down`.
    pub neuron_major: bool,
    /// `{family}.hidden_act`, if any.
    pub hidden_act: Option<&'static str>,
    /// `{family}.hidden_act_threshold`, if any.
    pub threshold: Option<f32>,
    /// `{family}.rope.scaling.type` with its factor and original context, if any.
    pub rope_scaling: Option<(&'static str, f32, u32)>,
    /// Factor on the mean of the gate's weights, or of up's where there is no gate: negative makes neurons fire less.
    pub gate_shift: f32,
    /// Factor on the up weights, to test large values.
    pub up_scale: f32,
    /// `rope_freqs.weight`, if any: divisors of the frequencies, `head_dim / 2` of them.
    pub rope_factors: Option<Vec<f32>>,
    /// Positions.
    pub context: u32,
    /// Of the random weights.
    pub seed: u64,
}

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            family: Family::Llama,
            kind: Kind::Gguf,
            dim: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            neurons: 96,
            vocab: 288,
            rows: None,
            ty: QuantType::F32,
            qkv_bias: false,
            two_norms: false,
            rank: None,
            tied: false,
            neuron_major: false,
            hidden_act: Some("relu"),
            threshold: None,
            rope_scaling: None,
            gate_shift: 0.0,
            up_scale: 1.0,
            rope_factors: None,
            context: 256,
            seed: 1,
        }
    }
}

impl TinyModel {
    /// The same model with widths of 256, so that every quant type divides its rows.
    pub fn wide(ty: QuantType) -> Self {
        Self { dim: 256, heads: 4, kv_heads: 2, head_dim: 64, neurons: 512, ty, ..Self::default() }
    }

    /// The whole file, opened.
    ///
    /// # Panics
    /// If it cannot be built: it is made by tests.
    pub fn file(&self) -> File {
        File::from_bytes(self.build().expect("a tiny model"), "tiny.gguf").expect("a tiny model's file")
    }

    /// The metadata and the tensors' table, for tests that want to spoil something before it is written.
    ///
    /// # Errors
    /// If `ty`'s blocks do not divide a row.
    pub fn parts(&self) -> Result<(Builder, Vec<Matrix>)> {
        let mut b = Builder::new(self.kind);
        self.metadata(&mut b);
        let tensors = self.tensors()?;
        for m in &tensors {
            let dims = if m.rows() == 1 { vec![m.cols()] } else { vec![m.cols(), m.rows()] };
            b.tensor(m.name(), m.ty(), &dims).expect("a tiny model's tensor");
        }
        Ok((b, tensors))
    }

    /// The whole file.
    ///
    /// # Errors
    /// As [`parts`](Self::parts).
    pub fn build(&self) -> Result<Vec<u8>> {
        let (b, tensors) = self.parts()?;
        Ok(write(b, &tensors))
    }

    fn metadata(&self, b: &mut Builder) {
        let arch = self.family.name();
        let mut int = |key: &str, v: usize| {
            b.set(&format!("{arch}.{key}"), v as u32).expect("a key");
        };
        int("context_length", self.context as usize);
        int("embedding_length", self.dim);
        int("block_count", self.layers);
        int("feed_forward_length", self.neurons);
        int("attention.head_count", self.heads);
        int("attention.head_count_kv", self.kv_heads);
        int("attention.key_length", self.head_dim);
        int("attention.value_length", self.head_dim);
        if self.family != Family::Opt {
            int("rope.dimension_count", self.head_dim);
        }
        let words = (259..self.vocab).map(|i| format!("\u{2581}w{i}"));
        let tokens = ["<unk>", "<s>", "</s>"].map(String::from).into_iter();
        let tokens = tokens.chain((0..256).map(|i| format!("<0x{i:02X}>"))).chain(words);
        let types: Vec<i32> =
            (0..self.vocab).map(|i| [2, 3, 3].get(i).copied().unwrap_or(if i < 259 { 6 } else { 1 })).collect();
        let set = |b: &mut Builder| -> pi_gguf::Result<()> {
            b.set("general.architecture", arch)?;
            b.set("general.name", "tiny")?;
            let norm = if self.has_layer_norm() { "layer_norm_epsilon" } else { "layer_norm_rms_epsilon" };
            b.set(&format!("{arch}.attention.{norm}"), 1e-5f32)?;
            if self.rank.is_some() {
                b.set("powerinfer.sparse_threshold", 0.0f32)?;
            }
            if let Some(act) = self.hidden_act {
                b.set(&format!("{arch}.hidden_act"), act)?;
            }
            if let Some(t) = self.threshold {
                b.set(&format!("{arch}.hidden_act_threshold"), t)?;
            }
            if let Some((kind, factor, original)) = self.rope_scaling {
                b.set(&format!("{arch}.rope.scaling.type"), kind)?;
                b.set(&format!("{arch}.rope.scaling.factor"), factor)?;
                b.set(&format!("{arch}.rope.scaling.original_context_length"), original)?;
            }
            b.set("tokenizer.ggml.model", "llama")?;
            b.set_strings("tokenizer.ggml.tokens", tokens)?;
            b.set_array("tokenizer.ggml.scores", &vec![0.0f32; self.vocab])?;
            b.set_array("tokenizer.ggml.token_type", &types)?;
            b.set("tokenizer.ggml.bos_token_id", 1u32)?;
            b.set("tokenizer.ggml.eos_token_id", 2u32)?;
            b.set("tokenizer.ggml.unknown_token_id", 0u32)?;
            Ok(())
        };
        set(b).expect("a tiny model's metadata");
    }

    fn has_layer_norm(&self) -> bool {
        matches!(self.family, Family::Falcon | Family::Opt)
    }

    fn tensors(&self) -> Result<Vec<Matrix>> {
        let mut made = Made { rng: Random(self.seed), all: Vec::new() };
        let (d, ty, rows) = (self.dim, self.ty, self.rows.unwrap_or(self.vocab));
        made.add("token_embd.weight", ty, rows, d, 1.0, 0.0)?;
        made.norm("output_norm", d, self.has_layer_norm())?;
        if !self.tied {
            made.add("output.weight", ty, rows, d, 3.0 * scale(d), 0.0)?;
        }
        if self.family == Family::Opt {
            // two rows that no position has
            made.add("position_embd.weight", ty, self.context as usize + 2, d, 1.0, 0.0)?;
        }
        for i in 0..self.layers {
            self.layer(&mut made, i)?;
        }
        if let Some(f) = &self.rope_factors {
            made.all.push(Matrix::encode("rope_freqs.weight", QuantType::F32, 1, f.len(), f)?);
        }
        Ok(made.all)
    }

    fn layer(&self, made: &mut Made, i: usize) -> Result<()> {
        let (d, n, q, kv) = (self.dim, self.neurons, self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (ty, is_opt) = (self.ty, self.family == Family::Opt);
        let name = |s: &str| format!("blk.{i}.{s}");
        let second = match self.family {
            Family::Falcon => self.two_norms.then_some("attn_norm_2"),
            _ => Some("ffn_norm"),
        };
        for norm in ["attn_norm"].into_iter().chain(second) {
            made.norm(&name(norm), d, self.has_layer_norm())?;
        }
        let projections: &[(&str, usize)] = match self.family {
            Family::Falcon => &[("attn_qkv", q + 2 * kv)],
            _ => &[("attn_q", q), ("attn_k", kv), ("attn_v", kv)],
        };
        for &(slot, rows) in projections {
            made.matrix(&name(slot), ty, [rows, d], [1.0, 0.0], (self.qkv_bias || is_opt).then_some(rows))?;
        }
        made.matrix(&name("attn_output"), ty, [d, q], [1.0, 0.0], is_opt.then_some(d))?;
        if self.family.has_gate() {
            made.matrix(&name("ffn_gate"), ty, [n, d], [1.0, self.gate_shift], None)?;
        }
        let shift = if self.family.has_gate() { 0.0 } else { self.gate_shift };
        made.matrix(&name("ffn_up"), ty, [n, d], [self.up_scale, shift], is_opt.then_some(n))?;
        let bias = is_opt.then_some(d);
        if self.neuron_major {
            made.add(&name("ffn_down_t.weight"), ty, n, d, scale(n), 0.0)?;
            made.bias(&name("ffn_down_t"), bias)?;
        } else {
            made.matrix(&name("ffn_down"), ty, [d, n], [1.0, 0.0], bias)?;
        }
        if let Some(rank) = self.rank {
            made.matrix(&name("fc1"), ty, [rank, d], [1.0, 0.0], None)?;
            made.matrix(&name("fc2"), ty, [n, rank], [1.0, 0.0], None)?;
        }
        Ok(())
    }
}

/// Deviation of a row's weights such that its product with ordinary inputs is about 1.
fn scale(cols: usize) -> f32 {
    1.0 / (cols as f32).sqrt()
}

/// The tensors so far.
struct Made {
    rng: Random,
    all: Vec<Matrix>,
}

impl Made {
    fn numbers(&mut self, n: usize, scale: f32, shift: f32) -> Vec<f32> {
        (0..n).map(|_| self.rng.normal() * scale + shift).collect()
    }

    fn add(&mut self, name: &str, ty: QuantType, rows: usize, cols: usize, scale: f32, shift: f32) -> Result<()> {
        let data = self.numbers(rows * cols, scale, shift);
        self.all.push(Matrix::encode(name, ty, rows, cols, &data)?);
        Ok(())
    }

    fn norm(&mut self, name: &str, dim: usize, has_bias: bool) -> Result<()> {
        self.add(&format!("{name}.weight"), QuantType::F32, 1, dim, 0.1, 1.0)?;
        if has_bias {
            self.add(&format!("{name}.bias"), QuantType::F32, 1, dim, 0.1, 0.0)?;
        }
        Ok(())
    }

    /// A matrix of a layer; `factors` are those of its deviation and its mean.
    fn matrix(
        &mut self,
        name: &str,
        ty: QuantType,
        [rows, cols]: [usize; 2],
        factors: [f32; 2],
        bias: Option<usize>,
    ) -> Result<()> {
        let [deviation, mean] = factors.map(|f| f * scale(cols));
        self.add(&format!("{name}.weight"), ty, rows, cols, deviation, mean)?;
        self.bias(name, bias)
    }

    fn bias(&mut self, name: &str, len: Option<usize>) -> Result<()> {
        match len {
            Some(len) => self.add(&format!("{name}.bias"), QuantType::F32, 1, len, 0.5, 0.0),
            None => Ok(()),
        }
    }
}

/// Writes a file from its parts.
///
/// # Panics
/// If the table and the tensors do not fit together: they are made by tests.
pub fn write(b: Builder, tensors: &[Matrix]) -> Vec<u8> {
    let mut w = b.start(Vec::new()).expect("a tiny model's header");
    for m in tensors {
        w.write(m.name(), m.view().bytes()).expect("a tiny model's tensor");
    }
    w.finish().expect("a tiny model's end")
}

/// The file again with other contents. `keys` replaces values, takes out keys (`None`) and adds new ones; `tensor` gets every
/// tensor's name and bytes, may change the bytes, and says whether the tensor stays.
///
/// # Panics
/// If the result could not be written: it is made by tests.
pub fn rewrite(
    file: &File,
    keys: &[(&str, Option<Value<'_>>)],
    mut tensor: impl FnMut(&str, &mut Vec<u8>) -> bool,
) -> Vec<u8> {
    let mut b = Builder::new(file.kind());
    let old = file.metadata();
    for (key, value) in old.iter() {
        match keys.iter().find(|(k, _)| *k == key) {
            Some((_, None)) => {}
            Some((_, Some(v))) => drop(b.set(key, *v).expect("a key")),
            None => drop(b.set(key, value).expect("a key")),
        }
    }
    for (key, value) in keys.iter().filter(|(k, _)| !old.contains(k)) {
        if let Some(v) = value {
            b.set(key, *v).expect("a new key");
        }
    }
    let mut kept = Vec::new();
    for t in file.tensors() {
        let mut bytes = t.data().to_vec();
        if tensor(t.name(), &mut bytes) {
            b.tensor(t.name(), t.ty(), t.dims()).expect("a tensor");
            kept.push((t.name(), bytes));
        }
    }
    let mut w = b.start(Vec::new()).expect("a header");
    for (name, bytes) in &kept {
        w.write(name, bytes).expect("a tensor's bytes");
    }
    w.finish().expect("an end")
}

/// A small generator of random numbers, the same everywhere (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Uniform in −1 … 1.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Roughly normal, standard deviation 1.
    pub fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.uniform()).sum::<f32>() / 2f32.sqrt()
    }
}
