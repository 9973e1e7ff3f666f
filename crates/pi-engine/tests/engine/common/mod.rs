//! What the tests with tiny models share.
#![allow(dead_code)] // each test file uses a part

pub mod cases;
pub mod placed;

use pi_core::KvType;
use pi_engine::{Engine, EngineBuilder, Error, Predictors, Session, SessionOptions, Sparsity, StepToken};
use pi_gguf::{File, Kind};
use pi_sparse_cpu::{Isa, Kernels};
use pi_testkit::{Random, TinyModel, synth::Family};

/// The engine on the exact path: reference kernels, keys and values in F32, one thread.
pub fn exact() -> EngineBuilder {
    Engine::builder().kernels(Kernels::reference()).threads(1).kv(KvType::F32)
}

/// The same with the kernels of `isa`.
pub fn with_isa(isa: Isa) -> EngineBuilder {
    exact().kernels(Kernels::for_isa(isa).expect("available"))
}

pub fn load(builder: EngineBuilder, file: &File) -> Engine {
    builder.load(file).unwrap_or_else(|e| panic!("{e}"))
}

/// Why a file cannot be loaded.
pub fn refusal(builder: EngineBuilder, file: &File) -> Error {
    builder.load(file).expect_err("the file should be refused")
}

/// Random tokens of a tiny model.
pub fn ids(n: usize, seed: u64) -> Vec<u32> {
    let mut rng = Random(seed);
    (0..n).map(|_| rng.below(288) as u32).collect()
}

pub fn step(seq: u32, ids: &[u32]) -> Vec<StepToken> {
    ids.iter().map(|&token| StepToken { token, seq, logits: true }).collect()
}

/// All logits of the last step.
pub fn rows(s: &mut Session, n: usize) -> Vec<Vec<f32>> {
    (0..n).map(|i| s.logits(i).expect("logits").to_vec()).collect()
}

/// Logits after every token, fed in steps of `batch`.
pub fn logits_in(engine: &Engine, ids: &[u32], batch: usize) -> Vec<Vec<f32>> {
    let options = SessionOptions { batch, logits: batch, ..Default::default() };
    let mut s = engine.session(&options).expect("a session");
    let mut all = Vec::new();
    for part in ids.chunks(batch) {
        s.step(&step(0, part)).expect("a step");
        all.extend(rows(&mut s, part.len()));
    }
    all
}

/// Logits after every token, computed in one step.
pub fn logits(engine: &Engine, ids: &[u32]) -> Vec<Vec<f32>> {
    logits_in(engine, ids, ids.len())
}

/// The same bits?
pub fn same_bits(a: &[Vec<f32>], b: &[Vec<f32>]) -> bool {
    let bits =
        |rows: &[Vec<f32>]| rows.iter().map(|r| r.iter().map(|v| v.to_bits()).collect()).collect::<Vec<Vec<_>>>();
    bits(a) == bits(b)
}

/// The largest difference, as a share of the largest number of `want`.
pub fn difference<T: Copy + Into<f64>>(got: &[Vec<f32>], want: &[Vec<T>]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (mut off, mut size) = (0.0f64, 0.0f64);
    for (g, w) in got.iter().zip(want) {
        assert_eq!(g.len(), w.len());
        for (&g, &w) in g.iter().zip(w) {
            let w: f64 = w.into();
            assert!(g.is_finite() && w.is_finite(), "{g} instead of {w}");
            off = off.max((f64::from(g) - w).abs());
            size = size.max(w.abs());
        }
    }
    off / size
}

/// The root of the mean squared difference, as a share of that of `want`.
pub fn rms_difference(got: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
    let (mut off, mut size) = (0.0f64, 0.0f64);
    for (g, w) in got.iter().flatten().zip(want.iter().flatten()) {
        off += f64::from(g - w).powi(2);
        size += f64::from(*w).powi(2);
    }
    assert!(off.is_finite() && size > 0.0);
    (off / size).sqrt()
}

/// PowerInfer's families as its files have them.
pub fn predicted_models() -> impl Iterator<Item = (&'static str, TinyModel)> {
    let base = TinyModel {
        kind: Kind::PowerInfer,
        neuron_major: true,
        hidden_act: None,
        rank: Some(32),
        gate_shift: -0.5,
        ..TinyModel::default()
    };
    let of = move |name, family, two_norms, tied| (name, TinyModel { family, two_norms, tied, ..base.clone() });
    [
        of("PowerInfer llama", Family::Llama, false, false),
        of("PowerInfer bamboo", Family::Bamboo, false, false),
        of("PowerInfer falcon", Family::Falcon, false, false),
        of("PowerInfer falcon, two norms", Family::Falcon, true, false),
        of("PowerInfer opt", Family::Opt, false, true),
    ]
    .into_iter()
}

/// With the predictors of the file, at another threshold than the file's if one is given.
pub fn predicting(isa: Isa, threshold: Option<f32>) -> EngineBuilder {
    with_isa(isa).sparsity(Sparsity::Predictor).predictors(Predictors::File { threshold })
}
