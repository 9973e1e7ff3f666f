//! Small random models, written as GGUF in memory.

use pi_core::{Matrix, QuantType, Result};
use pi_gguf::{Builder, File, Kind, Value};

/// A small LLaMA-like model with random weights. Change fields, then [`build`](Self::build).
#[derive(Clone, Debug)]
pub struct TinyModel {
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
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// No `output.weight`.
    pub tied: bool,
    /// `ffn_down_t` instead of `ffn_down`.
    pub neuron_major: bool,
    /// `llama.hidden_act`, if any.
    pub hidden_act: Option<&'static str>,
    /// `llama.hidden_act_threshold`, if any.
    pub threshold: Option<f32>,
    /// `llama.rope.scaling.type` with its factor and original context, if any.
    pub rope_scaling: Option<(&'static str, f32, u32)>,
    /// Factor on the gate weights' mean: negative makes neurons fire less.
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
        let mut int = |key: &str, v: usize| {
            b.set(&format!("llama.{key}"), v as u32).expect("a key");
        };
        int("context_length", self.context as usize);
        int("embedding_length", self.dim);
        int("block_count", self.layers);
        int("feed_forward_length", self.neurons);
        int("attention.head_count", self.heads);
        int("attention.head_count_kv", self.kv_heads);
        int("attention.key_length", self.head_dim);
        int("attention.value_length", self.head_dim);
        int("rope.dimension_count", self.head_dim);
        let words = (259..self.vocab).map(|i| format!("\u{2581}w{i}"));
        let tokens = ["<unk>", "<s>", "</s>"].map(String::from).into_iter();
        let tokens = tokens.chain((0..256).map(|i| format!("<0x{i:02X}>"))).chain(words);
        let types: Vec<i32> =
            (0..self.vocab).map(|i| [2, 3, 3].get(i).copied().unwrap_or(if i < 259 { 6 } else { 1 })).collect();
        let set = |b: &mut Builder| -> pi_gguf::Result<()> {
            b.set("general.architecture", "llama")?;
            b.set("general.name", "tiny")?;
            b.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32)?;
            if let Some(act) = self.hidden_act {
                b.set("llama.hidden_act", act)?;
            }
            if let Some(t) = self.threshold {
                b.set("llama.hidden_act_threshold", t)?;
            }
            if let Some((kind, factor, original)) = self.rope_scaling {
                b.set("llama.rope.scaling.type", kind)?;
                b.set("llama.rope.scaling.factor", factor)?;
                b.set("llama.rope.scaling.original_context_length", original)?;
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

    fn tensors(&self) -> Result<Vec<Matrix>> {
        let mut rng = Random(self.seed);
        let mut all = Vec::new();
        let mut add = |name: String, ty, rows: usize, cols: usize, scale: f32, shift: f32| {
            let data: Vec<f32> = (0..rows * cols).map(|_| rng.normal() * scale + shift).collect();
            all.push(Matrix::encode(name, ty, rows, cols, &data)?);
            Ok(())
        };
        let (d, n, q, kv) = (self.dim, self.neurons, self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (ty, f32) = (self.ty, QuantType::F32);
        let scale = |cols: usize| 1.0 / (cols as f32).sqrt();
        add("token_embd.weight".into(), ty, self.rows.unwrap_or(self.vocab), d, 1.0, 0.0)?;
        add("output_norm.weight".into(), f32, 1, d, 0.1, 1.0)?;
        if !self.tied {
            add("output.weight".into(), ty, self.rows.unwrap_or(self.vocab), d, 3.0 * scale(d), 0.0)?;
        }
        let factors = self.rope_factors.as_ref();
        let factors = factors.map(|f| Matrix::encode("rope_freqs.weight", f32, 1, f.len(), f)).transpose()?;
        for i in 0..self.layers {
            let name = |s: &str| format!("blk.{i}.{s}");
            add(name("attn_norm.weight"), f32, 1, d, 0.1, 1.0)?;
            add(name("ffn_norm.weight"), f32, 1, d, 0.1, 1.0)?;
            for (slot, rows) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                add(name(&format!("{slot}.weight")), ty, rows, d, scale(d), 0.0)?;
                if self.qkv_bias {
                    add(name(&format!("{slot}.bias")), f32, 1, rows, 0.5, 0.0)?;
                }
            }
            add(name("attn_output.weight"), ty, d, q, scale(q), 0.0)?;
            add(name("ffn_gate.weight"), ty, n, d, scale(d), self.gate_shift * scale(d))?;
            add(name("ffn_up.weight"), ty, n, d, scale(d) * self.up_scale, 0.0)?;
            if self.neuron_major {
                add(name("ffn_down_t.weight"), ty, n, d, scale(n), 0.0)?;
            } else {
                add(name("ffn_down.weight"), ty, d, n, scale(n), 0.0)?;
            }
        }
        all.extend(factors);
        Ok(all)
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
