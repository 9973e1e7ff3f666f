//! A kernel of your own in place of one of the engine's: `cargo run --release -p examples --example own_kernel [MODEL.gguf]`
//!
//! Here the scalar product of F16 rows, written plainly and counted. Everything else stays as it was, and so does the text.

use half::f16;
use pi_engine::{
    Engine, GenerateOptions, SamplingParams, SessionOptions,
    pi_core::QuantType,
    pi_sparse_cpu::{Kernels, TypeKernels},
};
use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicU64, Ordering},
};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// `w` holds F16 numbers, `x` as many F32 numbers, both as little-endian bytes.
fn dot(w: &[u8], x: &[u8]) -> f32 {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let pairs = w.as_chunks::<2>().0.iter().zip(x.as_chunks::<4>().0);
    pairs.map(|(w, x)| f16::from_le_bytes(*w).to_f32() * f32::from_le_bytes(*x)).sum()
}

fn text(model: &std::ffi::OsStr, kernels: Kernels) -> Result<String, pi_engine::Error> {
    let engine = Engine::builder().kernels(kernels).open(model)?;
    let mut session = engine.session(&SessionOptions::default())?;
    let prompt = engine.encode_prompt("Once upon a time")?;
    let options = GenerateOptions { max_tokens: Some(40), sampling: SamplingParams::greedy(), ..Default::default() };
    Ok(session.generate(0, &prompt, &options, &mut |_: &str| ControlFlow::Continue(()))?.text)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args_os().nth(1).unwrap_or("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf".into());
    let best = Kernels::best();
    let theirs = text(&model, best.clone())?;

    let mine = TypeKernels { dot, dot4: |w, _, x| w.map(|row| dot(row, x)), tile: None, ..*best.get(QuantType::F16) };
    let ours = text(&model, best.with(QuantType::F16, mine))?;

    println!(
        "{ours}\n[own kernel: {} calls; same text as with the engine's: {}]",
        CALLS.load(Ordering::Relaxed),
        ours == theirs
    );
    Ok(())
}
