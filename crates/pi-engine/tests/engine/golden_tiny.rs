//! Tiny random models against the logits of a reference engine.

use pi_core::KvType;
use pi_engine::{Engine, GenerateOptions, SamplingParams, SessionOptions, StepToken};
use pi_sparse_cpu::{Isa, Kernels};
use pi_testkit::{
    data::test_data,
    golden::{self, TinyGolden},
};
use std::ops::ControlFlow;

fn engine(model: &str, isa: Isa) -> Option<Engine> {
    let path = test_data(&format!("tiny/{model}.gguf"))?;
    let kernels = Kernels::for_isa(isa).unwrap();
    Some(Engine::builder().kernels(kernels).threads(2).kv(KvType::F32).open(path).unwrap())
}

/// All logits after every token, computed in one step.
fn logits(engine: &Engine, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut s = engine.session(&SessionOptions { logits: ids.len(), ..Default::default() }).unwrap();
    let step: Vec<_> = ids.iter().map(|&token| StepToken { token, seq: 0, logits: true }).collect();
    s.step(&step).unwrap();
    (0..ids.len()).map(|i| s.logits(i).unwrap().to_vec()).collect()
}

fn greedy(engine: &Engine, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut s = engine.session(&SessionOptions::default()).unwrap();
    let options = GenerateOptions {
        max_tokens: Some(n),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..Default::default()
    };
    s.generate(0, prompt, &options, &mut |_: &str| ControlFlow::Continue(())).unwrap().tokens
}

/// Exact: every listed logit within `tolerance`, the same greedy text.
fn assert_exact(model: &str, golden: &str, tolerance: f32) {
    let Some(engine) = engine(model, Isa::Reference) else { return };
    let Some(golden) = test_data(&format!("goldens/tiny/{golden}.json")) else { return };
    let want: TinyGolden = golden::read(&golden);
    let got = logits(&engine, &want.ids);
    let close = |a: f32, b: f32, what: &str| assert!((a - b).abs() < tolerance, "{model}: {what}: {a} instead of {b}");
    for (i, (got, want)) in got.iter().zip(&want.positions).enumerate() {
        for &(id, logit) in &want.top {
            close(got[id as usize], logit, &format!("logit {id} after token {i}"));
        }
        close(pi_engine::sampler::log_sum_exp(got), want.logsumexp, &format!("log-sum-exp after token {i}"));
    }
    assert_eq!((got.len(), got[0].len()), (want.positions.len(), want.first_logits.len()));
    for (got, want) in [(&got[0], &want.first_logits), (&got[got.len() - 1], &want.last_logits)] {
        got.iter().zip(want).for_each(|(a, b)| close(*a, *b, "a logit"));
    }
    let tokens = greedy(&engine, &want.greedy.prompt_ids, want.greedy.gen_ids.len());
    golden::assert_greedy(model, &tokens, &want.greedy, 0.01);
}

#[test]
fn plain_models_equal_their_goldens() {
    for model in ["llama", "llama-tied", "llama-hd32", "llama-linear4", "llama-ropefreqs", "llama-256"] {
        assert_exact(model, model, 1e-3);
    }
}

/// The reference looks GELU up in a table of F16.
#[test]
fn falcon_with_one_norm_and_with_two_equals_its_goldens() {
    for model in ["falcon", "falcon-norm2"] {
        assert_exact(model, model, 5e-3);
    }
}

const TYPES: [&str; 11] = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"];

#[test]
fn quantised_models_on_the_exact_path_equal_their_dequantised_twins() {
    for ty in TYPES {
        assert_exact(&format!("llama-256-{ty}"), &format!("llama-256-{ty}.f32ref"), 1e-3);
    }
}

#[test]
fn integer_kernels_stay_close_to_the_exact_path() {
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Reference) {
        for ty in TYPES {
            let model = format!("llama-256-{ty}");
            let Some(fast) = engine(&model, isa) else { return };
            let Some(golden) = test_data(&format!("goldens/tiny/{model}.f32ref.json")) else { return };
            let want: TinyGolden = golden::read(&golden);
            let got = logits(&fast, &want.ids);
            // The logits of this random model have a standard deviation of 3; activations of 8 bits move them by hundredths.
            let last = want.last_logits.iter().zip(&got[got.len() - 1]).map(|(a, b)| (a - b).abs());
            let mean = last.sum::<f32>() / want.last_logits.len() as f32;
            assert!(mean < 2e-3, "{model} with {isa}: mean difference {mean}");
        }
    }
}
