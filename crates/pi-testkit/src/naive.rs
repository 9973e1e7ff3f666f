//! The forward pass of all families in the most obvious way, in f64: what every optimisation must still give.

use pi_core::Activation;
use pi_gguf::{File, Kind};

/// All logits after every token of `ids`, with every neuron computed.
///
/// # Panics
/// If the file is not a [tiny model](crate::TinyModel)'s: it is made by tests.
pub fn logits(file: &File, ids: &[u32]) -> Vec<Vec<f64>> {
    forward(file, ids, None)
}

/// The same, but only neurons count for which the file's predictor gives at least `threshold`.
///
/// # Panics
/// As [`logits`], and if the file has no predictors.
pub fn predicted_logits(file: &File, ids: &[u32], threshold: f32) -> Vec<Vec<f64>> {
    forward(file, ids, Some(threshold.into()))
}

fn forward(file: &File, ids: &[u32], threshold: Option<f64>) -> Vec<Vec<f64>> {
    let m = Naive { file, arch: file.metadata().require("general.architecture").expect("a family") };
    let d = m.int("embedding_length");
    let embedding = m.need("token_embd.weight");
    let mut hs: Vec<Vec<f64>> = ids.iter().map(|&id| embedding[id as usize * d..][..d].to_vec()).collect();
    if m.arch == "opt" {
        let positions = m.need("position_embd.weight");
        for (h, position) in hs.iter_mut().zip(positions.chunks_exact(d).skip(2)) {
            add(h, position);
        }
    }
    let parallel = m.arch == "falcon";
    for l in 0..m.int("block_count") {
        let name = |tensor: &str| format!("blk.{l}.{tensor}");
        let second = parallel && m.tensor(&name("attn_norm_2.weight")).is_some();
        let xs: Vec<_> =
            hs.iter().map(|h| m.norm(&name(if second { "attn_norm_2" } else { "attn_norm" }), h)).collect();
        for (h, attended) in hs.iter_mut().zip(m.attention(l, &xs)) {
            let input = h.clone();
            add(h, &attended);
            let seen = if parallel { input } else { h.clone() };
            let x = m.norm(&name(if parallel { "attn_norm" } else { "ffn_norm" }), &seen);
            let marks = threshold.map(|threshold| {
                let inner = product(&m.need(&name("fc1.weight")), &seen);
                let inner: Vec<f64> = inner.into_iter().map(|v| v.max(0.0)).collect();
                product(&m.need(&name("fc2.weight")), &inner).into_iter().map(|v| v >= threshold).collect()
            });
            add(h, &m.ffn(l, &x, marks));
        }
    }
    let head = m.tensor("output.weight").unwrap_or(embedding);
    hs.iter().map(|h| product(&head, &m.norm("output_norm", h))).collect()
}

struct Naive<'a> {
    file: &'a File,
    arch: &'a str,
}

impl Naive<'_> {
    fn int(&self, key: &str) -> usize {
        self.file.metadata().require::<u32>(&format!("{}.{key}", self.arch)).expect("a number") as usize
    }

    fn float(&self, key: &str, default: f64) -> f64 {
        self.file.metadata().get::<f32>(&format!("{}.{key}", self.arch)).expect("a number").map_or(default, f64::from)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.file.metadata().get(&format!("{}.{key}", self.arch)).expect("a text")
    }

    fn tensor(&self, name: &str) -> Option<Vec<f64>> {
        let t = self.file.tensor(name)?;
        let mut out = vec![0.0f32; t.rows() * t.cols()];
        (t.quant().expect("a quant type").info().decode)(t.data(), &mut out);
        Some(out.into_iter().map(f64::from).collect())
    }

    fn need(&self, name: &str) -> Vec<f64> {
        self.tensor(name).unwrap_or_else(|| panic!("{name}"))
    }

    fn activation(&self) -> Activation {
        match (self.text("hidden_act"), self.file.kind(), self.arch) {
            // ReLU with a threshold above 0 is FATReLU.
            (Some("fatrelu" | "relu"), ..) => Activation::FatRelu(self.float("hidden_act_threshold", 0.0) as f32),
            (Some(name), ..) => name.parse().expect("an activation"),
            (None, Kind::PowerInfer, _) | (None, _, "bamboo" | "opt") => Activation::Relu,
            (None, _, "falcon") => Activation::Gelu,
            (None, ..) => Activation::Silu,
        }
    }

    /// `W·x + b`, if there is a bias.
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mut y = product(&self.need(&format!("{name}.weight")), x);
        if let Some(b) = self.tensor(&format!("{name}.bias")) {
            add(&mut y, &b);
        }
        y
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = self.need(&format!("{name}.weight"));
        if !matches!(self.arch, "falcon" | "opt") {
            return rms_norm(x, &w, self.float("attention.layer_norm_rms_epsilon", 1e-5));
        }
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let centred: Vec<f64> = x.iter().map(|v| v - mean).collect();
        let mut y = rms_norm(&centred, &w, self.float("attention.layer_norm_epsilon", 1e-5));
        add(&mut y, &self.need(&format!("{name}.bias")));
        y
    }

    /// What attention adds for every token.
    fn attention(&self, l: usize, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (heads, kv) = (self.int("attention.head_count"), self.int("attention.head_count_kv"));
        let hd = self.int("attention.key_length");
        let project = |slot: &str, x: &[f64]| self.linear(&format!("blk.{l}.{slot}"), x);
        let projected = |x: &Vec<f64>| match self.arch {
            "falcon" => project("attn_qkv", x),
            _ => ["attn_q", "attn_k", "attn_v"].into_iter().flat_map(|slot| project(slot, x)).collect(),
        };
        let mut all: Vec<Vec<f64>> = xs.iter().map(projected).collect();
        if self.arch != "opt" {
            for (pos, token) in all.iter_mut().enumerate() {
                token[..(heads + kv) * hd].chunks_exact_mut(hd).for_each(|head| self.rotate(head, pos));
            }
        }
        let part = |pos: usize, head: usize| &all[pos][head * hd..(head + 1) * hd];
        let mix = |p: usize| {
            let mut mixed = Vec::new();
            for head in 0..heads {
                let (q, k) = (part(p, head), heads + head / (heads / kv));
                let scores: Vec<f64> = (0..=p).map(|j| dot(q, part(j, k)) / (hd as f64).sqrt()).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for i in 0..hd {
                    mixed.push((0..=p).map(|j| weights[j] / sum * part(j, k + kv)[i]).sum());
                }
            }
            project("attn_output", &mixed)
        };
        (0..xs.len()).map(mix).collect()
    }

    /// What the FFN adds for a token; neurons that are not marked, if there are marks, are left out.
    fn ffn(&self, l: usize, x: &[f64], marks: Option<Vec<bool>>) -> Vec<f64> {
        let (act, name) = (self.activation(), |slot: &str| format!("blk.{l}.{slot}"));
        let mut z = self.linear(&name("ffn_up"), x);
        if matches!(self.arch, "bamboo" | "falcon" | "opt") {
            z.iter_mut().for_each(|u| *u = apply(act, *u));
        }
        if matches!(self.arch, "llama" | "bamboo") {
            z.iter_mut().zip(self.linear(&name("ffn_gate"), x)).for_each(|(z, g)| *z *= apply(act, g));
        }
        if let Some(marks) = marks {
            z.iter_mut().zip(marks).filter(|(_, marked)| !marked).for_each(|(z, _)| *z = 0.0);
        }
        let Some(down) = self.tensor(&name("ffn_down_t.weight")) else { return self.linear(&name("ffn_down"), &z) };
        let d = x.len();
        let mut y: Vec<f64> = (0..d).map(|i| (0..z.len()).map(|n| z[n] * down[n * d + i]).sum()).collect();
        if let Some(b) = self.tensor(&name("ffn_down_t.bias")) {
            add(&mut y, &b);
        }
        y
    }

    /// Rotates neighbours, or Falcon's halves. YaRN by its paper, arXiv 2309.00071, section 3.
    fn rotate(&self, head: &mut [f64], pos: usize) {
        let n = self.int("rope.dimension_count");
        let base = self.float("rope.freq_base", 10000.0);
        let factors = self.tensor("rope_freqs.weight");
        let (scaling, factor) = (self.text("rope.scaling.type"), self.float("rope.scaling.factor", 1.0));
        for i in 0..n / 2 {
            let mut freq = base.powf(-2.0 * i as f64 / n as f64) / factors.as_ref().map_or(1.0, |f| f[i]);
            let mut magnitude = 1.0;
            match scaling {
                Some("linear") => freq /= factor,
                Some("yarn") => {
                    let original = self.int("rope.scaling.original_context_length") as f64;
                    let pair =
                        |turns: f64| n as f64 * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
                    let (low, high) = (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(n as f64 - 1.0));
                    let divided = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    freq = freq * (1.0 - divided) + freq / factor * divided;
                    magnitude = 1.0 + 0.1 * factor.ln();
                }
                _ => {}
            }
            let (sin, cos) = (pos as f64 * freq).sin_cos();
            let (a, b) = if self.arch == "falcon" { (i, i + n / 2) } else { (2 * i, 2 * i + 1) };
            let (x, y) = (head[a], head[b]);
            head[a] = magnitude * (x * cos - y * sin);
            head[b] = magnitude * (x * sin + y * cos);
        }
    }
}

fn apply(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::FatRelu(t) if x > 0.0 && x >= f64::from(t) => x,
        Activation::FatRelu(_) => 0.0,
        other => f64::from(other.apply(x as f32)),
    }
}

fn add(y: &mut [f64], x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
}

fn rms_norm(x: &[f64], w: &[f64], eps: f64) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().zip(w).map(|(x, w)| x * scale * w).collect()
}
