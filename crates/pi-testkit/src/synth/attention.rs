//! Attention: random weights, computed for the calibration's tokens.

use super::{
    error::Result,
    math::{Packed, Source, add_scaled, dot},
    model::{BIAS, SynthModel},
    shape::Family,
    stream::{Plan, Stream},
    text::{Text, transposed},
};
use rayon::prelude::*;
use std::io::Write;

/// Deviation of biases.
const BIASES: f32 = 0.05;
/// Base of the rotary frequencies where a file says nothing.
const BASE: f32 = 10_000.0;

/// Writes the attention of a layer, and returns what it adds to the hidden states.
pub(super) fn write<W: Write>(model: &SynthModel, text: &Text, s: &mut Stream<'_, W>, x: &[f32]) -> Result<Vec<f32>> {
    let (d, kv, tokens) = (model.shape.dim, model.kv_dim(), text.len());
    let x = Packed::new(x, d);
    let mut qkv = vec![0.0; (d + 2 * kv) * tokens];
    let mut rest = qkv.as_mut_slice();
    let all: &[(&str, usize)] = match model.family {
        Family::Falcon => &[("attn_qkv", d + 2 * kv)],
        _ => &[("attn_q", d), ("attn_k", kv), ("attn_v", kv)],
    };
    let std = 1.0 / (d as f32).sqrt();
    for &(name, rows) in all {
        let (part, behind) = rest.split_at_mut(rows * tokens);
        rest = behind;
        projection(model, s, name, tokens, &x, part, |source, r, row| source.row(r).fill(BIAS, &mut row[BIAS..], std))?;
    }
    let mixed = mix(model, text, transposed(&qkv, tokens));
    let mut added = vec![0.0; d * tokens];
    projection(model, s, "attn_output", tokens, &Packed::new(&mixed, d), &mut added, |source, r, row| {
        if r >= BIAS {
            source.row(r).fill(0, row, model.strength() * std);
        }
    })?;
    Ok(transposed(&added, tokens))
}

/// Writes a matrix and its bias, and computes them: `out[row][token]`.
fn projection<W: Write>(
    model: &SynthModel,
    s: &mut Stream<'_, W>,
    name: &str,
    tokens: usize,
    x: &Packed,
    out: &mut [f32],
    fill: impl Fn(Source, usize, &mut [f32]) + Sync,
) -> Result<()> {
    let d = model.shape.dim;
    let full = format!("blk.{}.{name}", s.layer);
    let source = Source::new(model.seed, &full);
    let weight = format!("{full}.weight");
    let plan = Plan { name: &weight, ty: model.ty, rows: out.len() / tokens, cols: d };
    s.panels(plan, out, |r, row| fill(source, r, row), |rows| x.products(rows.stored, rows.out), |_, _| {})?;
    if model.has_bias(name) {
        let bias = random_bias(model, &format!("{full}.bias"), plan.rows, name == "attn_output");
        for (out, b) in out.chunks_exact_mut(tokens).zip(&bias) {
            out.iter_mut().for_each(|o| *o += b);
        }
        s.vector(&format!("{full}.bias"), &bias)?;
    }
    Ok(())
}

/// A random bias; of one that is added to the residual stream, the constant channels are left alone.
pub(super) fn random_bias(model: &SynthModel, name: &str, len: usize, is_added: bool) -> Vec<f32> {
    let mut bias = vec![0.0; len];
    let first = if is_added { BIAS } else { 0 };
    Source::new(model.seed, name).row(0).fill(first, &mut bias[first..], BIASES);
    bias
}

/// Attention proper: `qkv[token]` holds queries, keys and values one behind the other.
fn mix(model: &SynthModel, text: &Text, mut qkv: Vec<f32>) -> Vec<f32> {
    let (d, kv, hd) = (model.shape.dim, model.kv_dim(), model.head_dim());
    let width = d + 2 * kv;
    if model.family != Family::Opt {
        for (t, all) in qkv.chunks_exact_mut(width).enumerate() {
            all[..d + kv].chunks_exact_mut(hd).for_each(|head| rotate(model, head, t - text.starts[t]));
        }
    }
    let token = |t: usize| &qkv[t * width..][..width];
    let group = model.shape.heads / model.shape.kv_heads;
    let mut mixed = vec![0.0; text.len() * d];
    mixed.par_chunks_exact_mut(d).enumerate().for_each(|(t, mixed)| {
        let mut weights = Vec::new();
        for (head, out) in mixed.chunks_exact_mut(hd).enumerate() {
            let (q, at) = (&token(t)[head * hd..][..hd], head / group * hd);
            weights.clear();
            weights.extend((text.starts[t]..=t).map(|j| dot(q, &token(j)[d + at..][..hd]) / (hd as f32).sqrt()));
            let most = weights.iter().copied().fold(f32::MIN, f32::max);
            weights.iter_mut().for_each(|w| *w = (*w - most).exp());
            let sum: f32 = weights.iter().sum();
            for (j, w) in (text.starts[t]..).zip(&weights) {
                add_scaled(out, w / sum, &token(j)[d + kv + at..][..hd]);
            }
        }
    });
    mixed
}

/// Rotates a head: Falcon's pairs are halves apart, the others' are neighbours.
fn rotate(model: &SynthModel, head: &mut [f32], position: usize) {
    let half = head.len() / 2;
    for i in 0..half {
        let (a, b) = if model.family == Family::Falcon { (i, i + half) } else { (2 * i, 2 * i + 1) };
        let angle = position as f32 * BASE.powf(-(i as f32) / half as f32);
        let (sin, cos) = angle.sin_cos();
        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
    }
}
