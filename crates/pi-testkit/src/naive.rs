//! The LLaMA family computed in the most obvious way, in f64: what every optimisation must still give.

use pi_core::Activation;
use pi_gguf::{File, Kind};

/// All logits after every token of `ids`, for a file of the `llama` family.
///
/// # Panics
/// If the file is not one: it is made by tests.
pub fn logits(file: &File, ids: &[u32]) -> Vec<Vec<f64>> {
    let m = Naive { file };
    let (d, heads, kv) = (m.int("embedding_length"), m.int("attention.head_count"), m.int("attention.head_count_kv"));
    let (hd, eps) = (m.int("attention.key_length"), m.float("attention.layer_norm_rms_epsilon", 1e-5));
    let embedding = m.tensor("token_embd.weight").expect("an embedding");
    let mut hs: Vec<Vec<f64>> = ids.iter().map(|&id| embedding[id as usize * d..][..d].to_vec()).collect();
    for l in 0..m.int("block_count") {
        let w = |name: &str| m.tensor(&format!("blk.{l}.{name}"));
        let need = |name: &str| w(name).unwrap_or_else(|| panic!("blk.{l}.{name}"));
        let xs: Vec<_> = hs.iter().map(|h| rms_norm(h, &need("attn_norm.weight"), eps)).collect();
        let project = |name: &str, x: &[f64]| {
            let mut y = product(&need(&format!("{name}.weight")), x);
            if let Some(b) = w(&format!("{name}.bias")) {
                y.iter_mut().zip(b).for_each(|(y, b)| *y += b);
            }
            y
        };
        let rotated = |name: &str, pos: usize| {
            let mut y = project(name, &xs[pos]);
            y.chunks_exact_mut(hd).for_each(|head| m.rotate(head, pos));
            y
        };
        let q: Vec<_> = (0..ids.len()).map(|p| rotated("attn_q", p)).collect();
        let k: Vec<_> = (0..ids.len()).map(|p| rotated("attn_k", p)).collect();
        let v: Vec<_> = xs.iter().map(|x| project("attn_v", x)).collect();
        for p in 0..ids.len() {
            let mut mixed = Vec::new();
            for head in 0..heads {
                let part = |y: &Vec<f64>, head: usize| y[head * hd..(head + 1) * hd].to_vec();
                let (qh, group) = (part(&q[p], head), head / (heads / kv));
                let scores: Vec<f64> = (0..=p).map(|j| dot(&qh, &part(&k[j], group)) / (hd as f64).sqrt()).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for i in 0..hd {
                    mixed.push((0..=p).map(|j| weights[j] / sum * part(&v[j], group)[i]).sum());
                }
            }
            let o = project("attn_output", &mixed);
            hs[p].iter_mut().zip(o).for_each(|(h, o)| *h += o);
        }
        for h in &mut hs {
            let x = rms_norm(h, &need("ffn_norm.weight"), eps);
            let (gate, up) = (product(&need("ffn_gate.weight"), &x), product(&need("ffn_up.weight"), &x));
            let act = m.activation();
            let z: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| apply(act, *g) * u).collect();
            let y = match w("ffn_down_t.weight") {
                Some(t) => (0..d).map(|i| (0..z.len()).map(|n| z[n] * t[n * d + i]).sum()).collect(),
                None => product(&need("ffn_down.weight"), &z),
            };
            h.iter_mut().zip(y).for_each(|(h, y): (_, f64)| *h += y);
        }
    }
    let norm = m.tensor("output_norm.weight").expect("a norm");
    let head = m.tensor("output.weight").unwrap_or(embedding);
    hs.iter().map(|h| product(&head, &rms_norm(h, &norm, eps))).collect()
}

struct Naive<'a> {
    file: &'a File,
}

impl Naive<'_> {
    fn int(&self, key: &str) -> usize {
        self.file.metadata().require::<u32>(&format!("llama.{key}")).expect("a number") as usize
    }

    fn float(&self, key: &str, default: f64) -> f64 {
        self.file.metadata().get::<f32>(&format!("llama.{key}")).expect("a number").map_or(default, f64::from)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.file.metadata().get(&format!("llama.{key}")).expect("a text")
    }

    fn tensor(&self, name: &str) -> Option<Vec<f64>> {
        let t = self.file.tensor(name)?;
        let mut out = vec![0.0f32; t.rows() * t.cols()];
        (t.quant().expect("a quant type").info().decode)(t.data(), &mut out);
        Some(out.into_iter().map(f64::from).collect())
    }

    fn activation(&self) -> Activation {
        match (self.text("hidden_act"), self.file.kind()) {
            // ReLU with a threshold above 0 is FATReLU.
            (Some("fatrelu" | "relu"), _) => Activation::FatRelu(self.float("hidden_act_threshold", 0.0) as f32),
            (Some(name), _) => name.parse().expect("an activation"),
            (None, Kind::PowerInfer) => Activation::Relu,
            (None, _) => Activation::Silu,
        }
    }

    /// Rotates neighbours. YaRN by its paper, arXiv 2309.00071, section 3.
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
            let (x, y) = (head[2 * i], head[2 * i + 1]);
            head[2 * i] = magnitude * (x * cos - y * sin);
            head[2 * i + 1] = magnitude * (x * sin + y * cos);
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
