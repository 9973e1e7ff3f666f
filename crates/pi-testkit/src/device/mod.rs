//! Conformance of a whole [`Device`]: every operator against plain f64 arithmetic, on small cases of all kinds, and against
//! input that does not fit.
//!
//! A back end calls [`check`] in a test of its own. Tolerances, as a share of the largest number of the expected output: 2·10⁻⁵
//! with float weights, 2·10⁻³ with keys and values in F16, 2·10⁻² with one of them in Q8_0, 5·10⁻² with quantised weights, whose activations may be encoded to
//! 8 bits.

mod attention;
mod dense;
mod ffn;
mod predictor;

use crate::Random;
use pi_core::{Device, Error, Hidden, Matrix, QuantType};

/// Result of a check: the text says what differed.
pub type Checked = Result<(), String>;

/// Fails unless `device` computes norms, matrices, attention, FFNs and predictors as they are defined, and refuses what does not fit.
///
/// # Errors
/// What differed first, with the numbers.
pub fn check(device: &dyn Device) -> Checked {
    rooms(device)?;
    dense::check(device)?;
    attention::check(device)?;
    ffn::check(device)?;
    predictor::check(device)
}

fn rooms(device: &dyn Device) -> Checked {
    let mut h = device.hidden(3, 5).map_err(text)?;
    same("rows of a new hidden state", (h.tokens(), h.dim()), (3, 5))?;
    if h.host().map_err(text)?.iter().any(|v| *v != 0.0) {
        return Err("a new hidden state is not zero".into());
    }
    refused("more rows than there is room for", h.resize(4))?;
    same("rows after a refused change", h.tokens(), 3)?;
    refused("a hidden state larger than any memory", device.hidden(1 << 40, 1 << 40))
}

fn text(e: Error) -> String {
    e.to_string()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Checked {
    if got == want { Ok(()) } else { Err(format!("{what}: {got:?} instead of {want:?}")) }
}

/// Input that does not fit must end in an error (a panic fails the test anyway).
fn refused<T>(what: &str, result: Result<T, Error>) -> Checked {
    match result {
        Err(e) if !e.to_string().is_empty() => Ok(()),
        Err(_) => Err(format!("{what}: an error without a message")),
        Ok(_) => Err(format!("{what}: accepted")),
    }
}

/// Equal up to `tolerance` times the largest expected number (at least 1).
fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) -> Checked {
    same(&format!("{what}: numbers"), got.len(), want.len())?;
    let bound = want.iter().fold(1.0f64, |m, v| m.max(v.abs())) * tolerance;
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(g) - w).abs();
        if off.is_nan() || off > bound {
            return Err(format!("{what}: number {i} is {g} instead of {w} ± {bound:.1e}"));
        }
    }
    Ok(())
}

fn tolerance(ty: QuantType) -> f64 {
    if ty.is_float() { 2e-5 } else { 5e-2 }
}

fn random(rng: &mut Random, n: usize, size: f32) -> Vec<f32> {
    (0..n).map(|_| rng.normal() * size).collect()
}

fn matrix(rng: &mut Random, name: &str, ty: QuantType, rows: usize, cols: usize) -> Matrix {
    let data = random(rng, rows * cols, 1.0 / (cols as f32).sqrt());
    Matrix::encode(name, ty, rows, cols, &data).expect("a matrix of a case")
}

/// `rows` as a hidden state with room for two more.
fn hidden(device: &dyn Device, rows: &[f32], dim: usize) -> Result<Hidden, String> {
    let n = rows.len() / dim;
    let mut h = device.hidden(n + 2, dim).map_err(text)?;
    h.resize(n).map_err(text)?;
    h.host_overwrite().copy_from_slice(rows);
    Ok(h)
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `W·x + b` for every row of `x`, row-major.
fn linear(w: &Matrix, bias: Option<&[f32]>, x: &[f64]) -> Vec<f64> {
    let weights = wide(&w.decode());
    let mut y = Vec::new();
    for x in x.chunks_exact(w.cols()) {
        for (r, row) in weights.chunks_exact(w.cols()).enumerate() {
            y.push(dot(row, x) + bias.map_or(0.0, |b| f64::from(b[r])));
        }
    }
    y
}
