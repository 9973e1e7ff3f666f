//! Counts of firing neurons against numbers from elsewhere and against an observer's own.

use crate::common::{exact, ids, load};
use pi_engine::{
    Engine, Observer, SessionOptions, Sparsity, StepToken,
    pi_predictor::profile::{Counts, Profile},
    profile::{Profiler, load as load_profile, model_fingerprint, save},
};
use pi_gguf::File;
use pi_sparse_cpu::Kernels;
use pi_testkit::data::test_data;
use serde::Deserialize;
use std::{fs, path::Path};

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn demo(sparsity: Sparsity) -> Engine {
    let file = repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf");
    exact().threads(2).kernels(Kernels::best()).sparsity(sparsity).open(file).unwrap()
}

fn text(engine: &Engine, name: &str) -> Vec<u32> {
    engine.encode_plain(fs::read(repository(&format!("models/tiny-reglu-6m/text/{name}.txt"))).unwrap()).unwrap()
}

fn counts(engine: &Engine, tokens: &[u32], context: usize, batch: usize) -> Counts {
    let mut profiler = Profiler::new(engine, context, batch).unwrap();
    let mut profile = Profile::new("", 0, &profiler.shape());
    profile.begin("", 0, tokens.len() as u64);
    let counts = &mut profile.text_mut(0).unwrap().counts;
    for part in tokens.chunks(profiler.chunk()) {
        profiler.count(part, counts).unwrap();
    }
    counts.clone()
}

/// A layer of the demo model in float32, computed by a plain forward pass elsewhere: activations, neurons that never fire, sum of
/// absolute values, and the five most active neurons with their counts.
type Layer = (u64, usize, f64, [(usize, u64); 5]);

/// Over the first 40 chunks of 255 tokens of `text/eval.txt`, each behind the token that begins a text.
const ELSEWHERE: [Layer; 6] = [
    (1938503, 0, 2132599.74, [(309, 4400), (417, 4317), (55, 4313), (422, 4233), (335, 4193)]),
    (27900, 288, 25899.55, [(622, 643), (965, 586), (26, 459), (868, 453), (381, 422)]),
    (156278, 84, 131140.4, [(161, 1028), (783, 999), (913, 985), (650, 960), (568, 899)]),
    (346375, 32, 394357.14, [(695, 1776), (691, 1770), (169, 1703), (400, 1567), (48, 1501)]),
    (694891, 13, 886307.37, [(36, 2558), (66, 2456), (372, 2349), (936, 2248), (982, 2223)]),
    (1669867, 0, 3560877.73, [(227, 5036), (244, 4589), (221, 4435), (42, 4361), (646, 4040)]),
];

#[test]
fn counts_are_those_of_a_forward_pass_elsewhere() {
    // F16 weights close and open a few gates that are all but 0.
    let mut engines = vec![("f16", demo(Sparsity::Exact), 1e-3)];
    if let Some(file) = test_data("demo-model/tiny-reglu-6m-f32.gguf") {
        engines.push(("f32", exact().threads(2).open(file).unwrap(), 3e-5));
    }
    for (name, engine, error) in engines {
        let got = counts(&engine, &text(&engine, "eval")[..40 * 255], 256, 256);
        for (layer, (fired, idle, sum, top)) in got.layers().iter().zip(&ELSEWHERE) {
            let off = layer.activations() as f64 / *fired as f64 - 1.0;
            let total: f64 = layer.sums().iter().sum();
            println!("{name}, layer {}: {} ({fired}), sums {total} ({sum})", layer.layer(), layer.activations());
            assert!(off.abs() < error, "{name}, layer {}: {} for {fired}", layer.layer(), layer.activations());
            assert!((total / sum - 1.0).abs() < error, "{name}, layer {}: {total} for {sum}", layer.layer());
            assert!(layer.idle().abs_diff(*idle) <= 1, "{name}, layer {}: {} idle", layer.layer(), layer.idle());
            for &(neuron, fired) in top {
                let n = layer.fired()[neuron];
                assert!(n.abs_diff(fired) <= 4, "{name}, layer {}, neuron {neuron}: {n} for {fired}", layer.layer());
            }
        }
    }
}

#[derive(Deserialize)]
struct Summary {
    share_of_neurons_for_80pct_activations: Shares,
    share_of_neurons_for_90pct: f64,
    share_of_neurons_for_50pct: f64,
}

#[derive(Deserialize)]
struct Shares {
    per_layer: Vec<f64>,
    whole_model: f64,
}

/// They were counted over other text from the same two sources.
#[test]
fn the_demo_models_shares_are_those_of_its_statistics() {
    let Some(summary) = test_data("demo-model/stats/summary.json") else { return };
    let want: Summary = pi_testkit::golden::read(&summary);
    let engine = demo(Sparsity::Exact);
    let tokens = text(&engine, "profile");
    let got = counts(&engine, &tokens, 256, 256);
    assert_eq!(got.tokens(), tokens.len() as u64);
    for (layer, share) in got.layers().iter().zip(&want.share_of_neurons_for_80pct_activations.per_layer) {
        let for80 = layer.share_for(0.8);
        println!("layer {}: {for80:.3} ({share:.3}), {} idle", layer.layer(), layer.idle());
        assert!((for80 - share).abs() < 0.03, "layer {}: {for80} for {share}", layer.layer());
    }
    for (part, want) in [
        (0.5, want.share_of_neurons_for_50pct),
        (0.8, want.share_of_neurons_for_80pct_activations.whole_model),
        (0.9, want.share_of_neurons_for_90pct),
    ] {
        let share = got.share_for(part);
        println!("{part}: {share:.4} ({want:.4})");
        // other text: 0.289 instead of 0.277 at 0.8
        assert!((share - want).abs() < 0.02, "{part}: {share} for {want}");
    }
}

/// What an observer sees of all tokens in one step.
struct Seen(Vec<Vec<(u64, f64)>>);

impl Observer for Seen {
    fn inputs(&mut self, _: usize, _: &[f32], _: &[f32]) {}

    fn values(&mut self, layer: usize, values: &[f32]) {
        let n = self.0[layer].len();
        for (i, v) in values.iter().enumerate().skip(n).filter(|(_, v)| **v != 0.0) {
            let seen = &mut self.0[layer][i % n];
            *seen = (seen.0 + 1, seen.1 + f64::from(v.abs()));
        }
    }
}

#[test]
fn every_token_but_the_one_that_begins_a_text_is_counted_in_batches_of_any_size() {
    let engine = demo(Sparsity::Exact);
    let tokens = &text(&engine, "eval")[..150];
    let mut session = engine.session(&SessionOptions::default()).unwrap();
    let mut seen = Seen(vec![vec![(0, 0.0); 1024]; 6]);
    let step: Vec<_> = [0].iter().chain(tokens).map(|&token| StepToken { token, seq: 0, logits: false }).collect();
    session.step_with(&step, &mut seen).unwrap();
    let want: Vec<Vec<u64>> = seen.0.iter().map(|l| l.iter().map(|s| s.0).collect()).collect();
    for batch in [151, 64, 7, 1] {
        let got = counts(&engine, tokens, 151, batch);
        assert_eq!(got.tokens(), 150);
        for (layer, want) in got.layers().iter().zip(&want) {
            assert_eq!(layer.fired(), want, "layer {}, batch {batch}", layer.layer());
        }
        let (sum, want) = (got.layers()[2].sums(), &seen.0[2]);
        assert!(sum.iter().zip(want).all(|(a, b)| (a - b.1).abs() <= 1e-9 * b.1), "batch {batch}");
    }
    assert!(want.iter().flatten().sum::<u64>() > 0);
    // Chunks of the context begin anew; with one of them, nothing is cut.
    let cut = counts(&engine, tokens, 76, 76);
    assert_eq!(cut.tokens(), 150);
    assert_ne!(cut, counts(&engine, tokens, 151, 151));
    // The dense mode has the same neurons fire.
    assert_eq!(counts(&demo(Sparsity::Off), tokens, 151, 151).layers()[0].fired(), want[0]);
}

#[test]
fn models_whose_neurons_always_count_and_modes_that_hide_some_are_refused() {
    let silu = pi_testkit::TinyModel { hidden_act: None, ..Default::default() };
    let silu = load(exact(), &silu.file());
    let refusal = |engine: &Engine| Profiler::new(engine, 64, 64).err().expect("a refusal").to_string();
    assert!(refusal(&silu).contains("silu, with which every neuron always counts"), "{}", refusal(&silu));
    let file = repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf");
    let hiding = exact().sparsity(Sparsity::Predictor).predictors(pi_engine::Predictors::Oracle).open(file).unwrap();
    assert!(refusal(&hiding).contains("sparsity: expected exact"), "{}", refusal(&hiding));
    let mut profiler = Profiler::new(&demo(Sparsity::Exact), 16, 16).unwrap();
    let other = &mut Counts::new(&[(0, 5)]);
    assert!(profiler.count(&ids(4, 1), other).is_err() && profiler.count(&ids(17, 1), other).is_err());
    assert_eq!(*other, Counts::new(&[(0, 5)]));
}

#[test]
fn a_profile_keeps_its_model_and_texts_in_its_file() {
    let engine = demo(Sparsity::Exact);
    let tokens = &text(&engine, "eval")[..64];
    let gguf = File::open(repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf")).unwrap();
    let act = engine.config().activation;
    let model = model_fingerprint(&gguf, act);
    assert_ne!(model, model_fingerprint(&gguf, pi_core::Activation::ReluSquared));
    let mut profiler = Profiler::new(&engine, 65, 65).unwrap();
    let mut profile = Profile::new("demo", model, &profiler.shape());
    let i = profile.begin("eval.txt", 5, 64);
    profiler.count(tokens, &mut profile.text_mut(i).unwrap().counts).unwrap();
    profile.text_mut(i).unwrap().position = 64;

    let folder = std::env::temp_dir().join(format!("pi-engine-profile-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("demo.profile");
    save(&profile, &path).unwrap();
    save(&profile, &path).unwrap();
    let read = load_profile(&path).unwrap();
    assert_eq!(read, profile);
    assert!(read.expect_model(model, profile.shape()).is_ok() && read.texts()[0].is_complete());
    assert!(read.expect_model(model + 1, profile.shape()).is_err());
    let gguf = load_profile(&repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf")).unwrap_err().to_string();
    assert!(gguf.contains("tiny-reglu-6m-f16.gguf") && gguf.contains("expected a profile"), "{gguf}");
    assert!(load_profile(&folder.join("none")).unwrap_err().to_string().contains("none"));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    fs::remove_dir_all(&folder).unwrap();
}
