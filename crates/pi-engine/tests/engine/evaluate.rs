//! Perplexities against numbers from elsewhere, and what does not change them.

use crate::common::exact;
use pi_engine::{
    Engine, Sparsity,
    evaluate::{EvaluateOptions, Evaluation, Windows, evaluate},
};
use pi_sparse_cpu::Kernels;
use pi_testkit::{
    data::{test_data, test_model},
    golden::{self, ModelGolden},
};
use serde::Deserialize;
use std::{fs, ops::ControlFlow, path::Path};

#[derive(Deserialize)]
struct Demo {
    eval: Eval,
}

#[derive(Deserialize)]
struct Eval {
    tokens: usize,
    chunk: usize,
    scored_tokens: u64,
    nll_sum: f64,
    perplexity: f64,
    first_20k: Part,
}

#[derive(Deserialize)]
struct Part {
    scored_tokens: u64,
    perplexity: f64,
}

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn demo(sparsity: Sparsity) -> Engine {
    let file = repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf");
    exact().threads(2).kernels(Kernels::best()).sparsity(sparsity).open(file).unwrap()
}

fn demo_text(engine: &Engine) -> Vec<u32> {
    engine.encode_plain(fs::read(repository("models/tiny-reglu-6m/text/eval.txt")).unwrap()).unwrap()
}

fn run(engine: &Engine, base: Option<&Engine>, tokens: &[u32], options: &EvaluateOptions) -> Evaluation {
    let done = evaluate(engine, base, tokens, options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(done.is_complete());
    done
}

/// Chunks behind the token that begins a text, all of whose tokens count.
fn chunks(chunk: usize, limit: Option<usize>) -> EvaluateOptions {
    EvaluateOptions { context: chunk + 1, windows: Windows::Stride(chunk), limit, ..Default::default() }
}

#[test]
fn the_demo_models_perplexity_is_that_of_the_checkpoint() {
    let want = golden::read::<Demo>(&repository("models/tiny-reglu-6m/goldens/goldens.json")).eval;
    let part = want.first_20k.scored_tokens as usize / want.chunk;
    // F16 weights move logits by up to 7e-3; F32 ones leave roundings.
    let mut engines = vec![("f16", demo(Sparsity::Exact), Some(part), 1e-3)];
    if let Some(file) = test_data("demo-model/tiny-reglu-6m-f32.gguf") {
        engines.push(("f32", exact().threads(2).kernels(Kernels::best()).open(file).unwrap(), None, 1e-5));
    }
    for (name, engine, limit, error) in engines {
        let tokens = demo_text(&engine);
        assert_eq!(tokens.len(), want.tokens);
        let got = run(&engine, None, &tokens, &chunks(want.chunk, limit));
        let (scored, perplexity) = match limit {
            Some(_) => (want.first_20k.scored_tokens, want.first_20k.perplexity),
            None => (want.scored_tokens, want.perplexity),
        };
        println!("{name}: perplexity {} ± {} ({perplexity})", got.perplexity(), got.score.perplexity_error());
        assert_eq!(got.score.tokens, scored);
        assert!((got.perplexity() / perplexity - 1.0).abs() < error, "{name}: {} for {perplexity}", got.perplexity());
        if limit.is_none() {
            assert!((got.score.mean_nll() - want.nll_sum / scored as f64).abs() < error);
        }
    }
}

#[test]
fn smollms_perplexity_is_that_of_the_reference_engine() {
    let name = "SmolLM2-135M-Instruct.Q4_1";
    let Some(file) = test_model(&format!("{name}.gguf")) else { return };
    let Some(text) = test_data("goldens/text/alice.txt") else { return };
    let Some(golden) = test_data(&format!("goldens/model/{name}.json")) else { return };
    let want = golden::read::<ModelGolden>(&golden).ppl_kvf32;
    let engine = exact().threads(2).kernels(Kernels::best()).open(file).unwrap();
    let tokens = engine.encode_plain(fs::read(text).unwrap()).unwrap();
    assert_eq!(tokens.len(), want.n_tokens);
    let options = EvaluateOptions { context: want.window, ..Default::default() };
    let got = run(&engine, None, &tokens, &options);
    println!("{name}: perplexity {} ± {} ({})", got.perplexity(), got.score.perplexity_error(), want.ppl_half);
    assert_eq!((got.windows, got.score.tokens), (want.n_windows, 255 * want.n_windows as u64));
    // the reference rounds activations to 8 bits
    assert!((got.perplexity() / want.ppl_half - 1.0).abs() < 0.015);
}

#[test]
fn batches_do_not_change_a_perplexity_and_windows_do() {
    let engine = demo(Sparsity::Auto);
    let tokens = demo_text(&engine);
    let with = |context, batch, windows| {
        let options = EvaluateOptions { context, batch, windows, limit: Some(4) };
        run(&engine, None, &tokens, &options).score
    };
    let halves = with(128, 512, Windows::Halves);
    assert_eq!(halves.tokens, 4 * 63);
    for batch in [1, 7, 64, 127] {
        assert_eq!(with(128, batch, Windows::Halves), halves, "batch {batch}");
    }
    let strided = with(128, 512, Windows::Stride(32));
    assert_eq!(strided.tokens, 4 * 32);
    assert!((strided.mean_nll() - halves.mean_nll()).abs() > 1e-6);
}

#[test]
fn a_model_does_not_differ_from_itself_and_differs_a_little_from_a_rounded_one() {
    let (exact, off) = (demo(Sparsity::Exact), demo(Sparsity::Off));
    let tokens = demo_text(&exact);
    let options = EvaluateOptions { context: 128, limit: Some(6), ..Default::default() };
    let same = run(&exact, Some(&exact), &tokens, &options);
    let c = same.against.as_ref().unwrap();
    assert_eq!((c.kl_mean(), c.kl_quantiles([0.5, 1.0]), c.top1_agreement()), (0.0, [0.0; 2], 1.0));
    assert_eq!((c.base, c.perplexity_increase(), c.kl.len()), (same.score, 0.0, 6 * 63));
    // Modes differ by roundings only.
    let modes = run(&exact, Some(&off), &tokens, &options).against.unwrap();
    assert!(modes.kl_mean() < 1e-6 && modes.top1_agreement() == 1.0, "{}", modes.kl_mean());

    let Some(file) = test_data("demo-model/tiny-reglu-6m-q8_0.gguf") else { return };
    let rounded = run(&Engine::open(file).unwrap(), Some(&exact), &tokens, &options);
    let c = rounded.against.unwrap();
    let [median, high] = c.kl_quantiles([0.5, 0.99]);
    assert!(c.kl_mean() > 1e-6 && c.kl_mean() < 1e-3, "{}", c.kl_mean());
    assert!(median < c.kl_mean() && c.kl_mean() < high && high < 0.02, "{median} {high}");
    assert!(c.top1_agreement() > 0.97 && c.base == same.score);
    let ratio = rounded.score.perplexity() / c.base.perplexity() - 1.0;
    assert!((c.perplexity_increase() - ratio).abs() < 1e-9);
}

#[test]
fn an_evaluation_can_be_ended_early_and_says_so() {
    let engine = demo(Sparsity::Auto);
    let options = EvaluateOptions { context: 64, limit: Some(5), ..Default::default() };
    let mut seen = 0;
    let done = evaluate(&engine, None, &demo_text(&engine), &options, &mut |now| {
        assert_eq!((now.windows, now.of, now.score.tokens), (seen, 5, 31 * seen as u64));
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let done = done.unwrap();
    assert!(!done.is_complete() && done.windows == 2 && done.perplexity().is_finite());
}

#[test]
fn what_cannot_be_evaluated_is_refused() {
    let engine = demo(Sparsity::Auto);
    let refusal = |tokens: &[u32], base: Option<&Engine>| {
        evaluate(&engine, base, tokens, &EvaluateOptions::default(), &mut |_| ControlFlow::Continue(()))
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(&[1; 100], None).contains("at least 512 tokens"));
    assert!(refusal(&[4000; 600], None).contains("token: expected an id below 2048, got 4000"));
    let tiny = crate::common::load(exact(), &pi_testkit::TinyModel::default().file());
    assert!(refusal(&[1; 600], Some(&tiny)).contains("the other model: expected a vocabulary of 2048 tokens"));
}
