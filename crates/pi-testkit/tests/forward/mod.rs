//! Files of PowerInfer's four families computed in the most obvious way, to see which neurons fire and which are predicted.
//! Everything that is known here of a model is in its file.

use pi_gguf::File;

/// What happened in a layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layer {
    /// Share of neurons that fire.
    pub active: f64,
    /// Share of the firing neurons that are predicted, and of the predicted ones that fire; 0 without a predictor.
    pub recall: f64,
    pub precision: f64,
}

/// Computes a text: what happened in every layer, and the logits after every token.
pub fn compute(file: &File, ids: &[u32]) -> (Vec<Layer>, Vec<Vec<f32>>) {
    let m = Model { file, arch: file.metadata().require("general.architecture").unwrap() };
    let (d, layers) = (m.int("embedding_length"), m.int("block_count"));
    let embedding = m.get("token_embd.weight").unwrap();
    let mut h: Vec<Vec<f32>> = ids.iter().map(|&id| embedding[id as usize * d..][..d].to_vec()).collect();
    if let Some(positions) = m.get("position_embd.weight") {
        // OPT leaves the first two rows out.
        for (p, h) in h.iter_mut().enumerate() {
            add(h, &positions[(p + 2) * d..][..d]);
        }
    }
    let reports = (0..layers).map(|i| m.layer(i, &mut h)).collect();
    let head = m.get("output.weight").unwrap_or(embedding);
    let logits = h.iter().map(|h| product(&head, &m.norm("output_norm", h))).collect();
    (reports, logits)
}

struct Model<'a> {
    file: &'a File,
    arch: &'a str,
}

impl Model<'_> {
    fn int(&self, key: &str) -> usize {
        self.file.metadata().require::<u32>(&format!("{}.{key}", self.arch)).unwrap() as usize
    }

    fn get(&self, name: &str) -> Option<Vec<f32>> {
        let t = self.file.tensor(name)?;
        let mut out = vec![0.0; t.rows() * t.cols()];
        (t.quant().unwrap().info().decode)(t.data(), &mut out);
        Some(out)
    }

    /// Layer norm if there is a bias, RMS norm if not.
    fn norm(&self, name: &str, h: &[f32]) -> Vec<f32> {
        let weight = self.get(&format!("{name}.weight")).unwrap();
        let bias = self.get(&format!("{name}.bias"));
        let n = h.len() as f64;
        let mean = if bias.is_some() { h.iter().map(|&v| f64::from(v)).sum::<f64>() / n } else { 0.0 };
        let square = h.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (square + 1e-5).sqrt();
        let mut x: Vec<f32> =
            h.iter().zip(&weight).map(|(&v, &w)| ((f64::from(v) - mean) * scale) as f32 * w).collect();
        bias.iter().for_each(|b| add(&mut x, b));
        x
    }

    /// A matrix of a layer and its bias, if any, applied to every token.
    fn linear(&self, name: &str, xs: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let weight = self.get(&format!("{name}.weight")).unwrap();
        let bias = self.get(&format!("{name}.bias"));
        let apply = |x: &Vec<f32>| {
            let mut y = product(&weight, x);
            bias.iter().for_each(|b| add(&mut y, b));
            y
        };
        xs.iter().map(apply).collect()
    }

    fn layer(&self, i: usize, h: &mut [Vec<f32>]) -> Layer {
        let name = |s: &str| format!("blk.{i}.{s}");
        let falcon = self.arch == "falcon";
        let norm = |s: &str, h: &[Vec<f32>]| h.iter().map(|h| self.norm(&name(s), h)).collect::<Vec<_>>();
        let begin = h.to_vec();
        let second = falcon && self.get(&name("attn_norm_2.weight")).is_some();
        let attended = self.attention(i, &norm(if second { "attn_norm_2" } else { "attn_norm" }, h));
        h.iter_mut().zip(&attended).for_each(|(h, a)| add(h, a));
        // Falcon's FFN and predictor see the layer's input.
        let seen = if falcon { begin } else { h.to_vec() };
        let x = norm(if falcon { "attn_norm" } else { "ffn_norm" }, &seen);
        let up = self.linear(&name("ffn_up"), &x);
        let has_gate = self.get(&name("ffn_gate.weight")).is_some();
        let gate = if has_gate { self.linear(&name("ffn_gate"), &x) } else { up.clone() };
        let value = |g: f32, u: f32| match self.arch {
            "llama" => g.max(0.0) * u,
            "bamboo" => g.max(0.0) * u.max(0.0),
            _ => g.max(0.0),
        };
        let values = gate.iter().zip(&up).map(|(g, u)| g.iter().zip(u).map(|(&g, &u)| value(g, u)).collect());
        let values: Vec<Vec<f32>> = values.collect();
        let added = match self.get(&name("ffn_down_t.weight")) {
            None => self.linear(&name("ffn_down"), &values),
            Some(rows) => {
                let bias = self.get(&name("ffn_down_t.bias"));
                let sum = |values: &Vec<f32>| {
                    let mut y = bias.clone().unwrap_or(vec![0.0; h[0].len()]);
                    for (value, row) in values.iter().zip(rows.chunks_exact(y.len())) {
                        y.iter_mut().zip(row).for_each(|(y, w)| *y += value * w);
                    }
                    y
                };
                values.iter().map(sum).collect()
            }
        };
        h.iter_mut().zip(&added).for_each(|(h, a)| add(h, a));
        let predicted = self.get(&name("fc1.weight")).map(|_| {
            let mut units = self.linear(&name("fc1"), &seen);
            units.iter_mut().flatten().for_each(|u| *u = u.max(0.0));
            self.linear(&name("fc2"), &units)
        });
        report(&gate, predicted.as_deref())
    }

    fn attention(&self, i: usize, x: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let (d, heads, kv_heads) = (x[0].len(), self.int("attention.head_count"), self.int("attention.head_count_kv"));
        let hd = d / heads;
        let (mut q, mut k, v);
        if self.arch == "falcon" {
            let all = self.linear(&format!("blk.{i}.attn_qkv"), x);
            let part = |from: usize, len: usize| all.iter().map(|y| y[from..from + len].to_vec()).collect::<Vec<_>>();
            (q, k, v) = (part(0, d), part(d, kv_heads * hd), part(d + kv_heads * hd, kv_heads * hd));
        } else {
            let project = |s: &str| self.linear(&format!("blk.{i}.attn_{s}"), x);
            (q, k, v) = (project("q"), project("k"), project("v"));
        }
        if self.arch != "opt" {
            for y in [&mut q, &mut k] {
                for (p, y) in y.iter_mut().enumerate() {
                    y.chunks_exact_mut(hd).for_each(|head| rotate(head, p, self.arch == "falcon"));
                }
            }
        }
        let mut mixed = vec![vec![0.0; d]; x.len()];
        for (p, mixed) in mixed.iter_mut().enumerate() {
            for head in 0..heads {
                let at = head / (heads / kv_heads) * hd;
                let score = |j: usize| dot(&q[p][head * hd..][..hd], &k[j][at..][..hd]) / (hd as f64).sqrt();
                let weights: Vec<f64> = (0..=p).map(|j| score(j).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for c in 0..hd {
                    let value: f64 = (0..=p).map(|j| weights[j] / sum * f64::from(v[j][at + c])).sum();
                    mixed[head * hd + c] = value as f32;
                }
            }
        }
        self.linear(&format!("blk.{i}.attn_output"), &mixed)
    }
}

fn report(gate: &[Vec<f32>], predicted: Option<&[Vec<f32>]>) -> Layer {
    let (mut all, mut fired, mut found, mut both) = (0.0, 0.0, 0.0, 0.0);
    for (t, gate) in gate.iter().enumerate() {
        for (i, &g) in gate.iter().enumerate() {
            let hit = predicted.is_some_and(|p| p[t][i] >= 0.0);
            all += 1.0;
            fired += f64::from(g > 0.0);
            found += f64::from(hit);
            both += f64::from(hit && g > 0.0);
        }
    }
    Layer { active: fired / all, recall: both / fired, precision: if found > 0.0 { both / found } else { 0.0 } }
}

fn rotate(head: &mut [f32], p: usize, halves: bool) {
    let n = head.len() / 2;
    for i in 0..n {
        let (a, b) = if halves { (i, i + n) } else { (2 * i, 2 * i + 1) };
        let (sin, cos) = (p as f64 * 10_000f64.powf(-(i as f64) / n as f64)).sin_cos();
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        head[a] = (x * cos - y * sin) as f32;
        head[b] = (x * sin + y * cos) as f32;
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn product(w: &[f32], x: &[f32]) -> Vec<f32> {
    w.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}
