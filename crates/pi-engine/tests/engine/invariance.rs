//! The law of this engine: whatever is skipped, whoever computes and however tokens are grouped, the logits are the same.
//!
//! "The same" means the same bits wherever only the grouping or the number of threads differs; where sums run in another
//! order, a stated share of the largest logit.

use crate::common::{
    difference, exact, ids, load, logits, logits_in, predicted_models, rms_difference, rows, same_bits, step, with_isa,
};
use pi_core::{Executor, KvType, QuantType};
use pi_engine::{Session, SessionOptions, Sparsity, StepToken};
use pi_gguf::{File, Kind};
use pi_sparse_cpu::{CpuDevice, Crossover, Isa, Kernels};
use pi_testkit::{Random, TinyModel, naive, synth::Family, tiny};
use proptest::prelude::*;
use std::sync::Arc;

/// Sums in f32 against sums in f64, over two layers of width 64: measured 5e-7.
const F32: f64 = 1e-5;
/// Keys and values rounded to 11 bits: measured 3e-4.
const F16_KV: f64 = 2e-3;
/// Activations rounded to 15 bits, root mean square.
const FIFTEEN_BITS: f64 = 5e-4;
/// Sums in another order, so that some activations are rounded to another of 15 bits: measured 3e-5.
const FLIPS: f64 = 1e-4;

fn types() -> impl Iterator<Item = QuantType> {
    QuantType::ALL.into_iter()
}

/// Models of all shapes that the naive forward pass knows.
fn models() -> Vec<(&'static str, TinyModel)> {
    let base = TinyModel::default();
    let act = |name, act| (name, TinyModel { hidden_act: Some(act), ..base.clone() });
    let model = |name, change: &dyn Fn(&mut TinyModel)| {
        let mut m = base.clone();
        change(&mut m);
        (name, m)
    };
    vec![
        act("relu", "relu"),
        act("relu2", "relu2"),
        act("silu", "silu"),
        act("gelu", "gelu"),
        act("gelu_tanh", "gelu_pytorch_tanh"),
        model("fatrelu", &|m| (m.hidden_act, m.threshold) = (Some("fatrelu"), Some(0.3))),
        model("relu with a threshold", &|m| m.threshold = Some(0.3)),
        model("no hidden_act", &|m| m.hidden_act = None),
        model("f16", &|m| m.ty = QuantType::F16),
        model("bf16", &|m| m.ty = QuantType::BF16),
        model("biases", &|m| m.qkv_bias = true),
        model("tied head", &|m| m.tied = true),
        model("rows beyond the vocabulary", &|m| m.rows = Some(301)),
        model("neuron-major", &|m| m.neuron_major = true),
        model("PowerInfer", &|m| (m.kind, m.neuron_major, m.hidden_act) = (Kind::PowerInfer, true, None)),
        model("PowerInfer, output-major", &|m| (m.kind, m.hidden_act) = (Kind::PowerInfer, None)),
        model("linear rope", &|m| m.rope_scaling = Some(("linear", 4.0, 64))),
        model("yarn", &|m| m.rope_scaling = Some(("yarn", 4.0, 64))),
        model("rope factors", &|m| m.rope_factors = Some((0..8).map(|i| 1.0 + i as f32 * 3.0).collect())),
        model("every head its own keys", &|m| m.kv_heads = 4),
        model("one head of keys", &|m| (m.kv_heads, m.heads) = (1, 3)),
        model("heads wider than the stream", &|m| m.head_dim = 32),
        model("odd widths", &|m| (m.dim, m.neurons, m.head_dim) = (36, 53, 6)),
        model("few neurons fire", &|m| m.gate_shift = -3.0),
        model("bamboo relu", &|m| m.family = Family::Bamboo),
        model("bamboo", &|m| (m.family, m.hidden_act, m.neuron_major) = (Family::Bamboo, None, true)),
        model("falcon relu", &|m| m.family = Family::Falcon),
        model("falcon, one head of keys", &|m| (m.family, m.hidden_act, m.kv_heads) = (Family::Falcon, None, 1)),
        model("falcon relu, two norms", &|m| (m.family, m.two_norms) = (Family::Falcon, true)),
        model("falcon with biases", &|m| (m.family, m.qkv_bias, m.tied) = (Family::Falcon, true, true)),
        model("opt relu", &|m| (m.family, m.kv_heads, m.tied) = (Family::Opt, 4, true)),
        model("opt, few neurons fire", &|m| (m.family, m.hidden_act, m.gate_shift) = (Family::Opt, None, -3.0)),
        model("opt gelu", &|m| (m.family, m.hidden_act, m.kv_heads) = (Family::Opt, Some("gelu"), 4)),
    ]
    .into_iter()
    .chain(predicted_models())
    .collect()
}

#[test]
fn the_crossover_to_the_dense_path_changes_no_bit_and_is_seen_in_the_statistics() {
    let tokens = ids(40, 6);
    for (name, model) in models().into_iter().filter(|(name, _)| name.contains("relu") || name.contains("PowerInfer")) {
        for isa in Isa::available() {
            let run = |share: f32| {
                let engine = load(with_isa(isa).crossover(Crossover::uniform(share)), &model.file());
                let (sparse, single) = (engine.sparsity().is_on(), logits_in(&engine, &tokens, 1));
                let mut session = engine.session(&SessionOptions::default()).unwrap();
                session.feed(0, &tokens[..20]).unwrap();
                session.feed(0, &tokens[20..]).unwrap();
                (sparse, single, session.stats())
            };
            let ((on, never, sparse), (_, always, dense)) = (run(1.0), run(0.0));
            assert!(same_bits(&never, &always), "{name}, {isa}");
            assert_eq!((sparse.active_share(), on), (dense.active_share(), true), "{name}, {isa}");
            // The first of the two steps could not know.
            assert_eq!((sparse.dense_share(), dense.dense_share()), (Some(0.0), Some(0.5)), "{name}, {isa}");
        }
    }
}

// C09: that pass keeps nothing from one token to the next
#[test]
fn logits_equal_those_of_the_naive_forward_pass() {
    let tokens = ids(40, 5);
    for (name, model) in models() {
        let file = model.file();
        let mut want = naive::logits(&file, &tokens);
        want.iter_mut().for_each(|row| row.truncate(model.vocab));
        for isa in Isa::available() {
            for sparsity in [Sparsity::Auto, Sparsity::Off] {
                let got = logits(&load(with_isa(isa).sparsity(sparsity), &file), &tokens);
                let off = difference(&got, &want);
                println!("{name}, {isa}, {sparsity:?}: {off:.1e}");
                assert!(off < F32, "{name}, {isa}, {sparsity:?}: {off:e}");
            }
            let got = logits(&load(with_isa(isa).kv(KvType::F16), &file), &tokens);
            let off = difference(&got, &want);
            println!("{name}, {isa}, F16 keys: {off:.1e}");
            assert!(off < F16_KV, "{name}, {isa}, keys and values in F16: {off:e}");
        }
    }
}

#[test]
fn exact_and_off_are_equal_for_every_type() {
    let tokens = ids(12, 6);
    for ty in types() {
        for neuron_major in [false, true] {
            let model = TinyModel { neuron_major, gate_shift: -0.5, layers: 1, ..TinyModel::wide(ty) };
            let file = model.file();
            let mut sets = Vec::new();
            for isa in Isa::available() {
                let engine = |sparsity| load(with_isa(isa).sparsity(sparsity), &file);
                let (off, skip) = (logits(&engine(Sparsity::Off), &tokens), logits(&engine(Sparsity::Exact), &tokens));
                // Down rows of float types are summed in the order of neurons when skipping, along rows otherwise.
                let tolerance = if ty.is_float() && !neuron_major { F32 } else { 0.0 };
                let apart = difference(&skip, &off);
                assert!(apart <= tolerance, "{ty}, {isa}, neuron-major {neuron_major}: {apart:e}");
                sets.push(skip);
            }
            if let [reference, fast] = &sets[..] {
                let apart = rms_difference(fast, reference);
                println!("{ty}, neuron-major {neuron_major}: fast kernels differ by {apart:.1e}");
                let tolerance = if ty.is_float() { F32 } else { FIFTEEN_BITS };
                assert!(apart <= tolerance, "{ty}: fast kernels differ from the reference by {apart:e}");
            }
        }
    }
}

#[test]
fn repacked_weights_give_the_same_numbers_but_for_roundings() {
    use QuantType::{IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    let tokens = ids(12, 6);
    for (ty, neuron_major) in
        [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL].into_iter().flat_map(|ty| [(ty, false), (ty, true)])
    {
        let file = TinyModel { neuron_major, gate_shift: -0.5, layers: 1, ..TinyModel::wide(ty) }.file();
        for isa in Isa::available() {
            let name = format!("{ty}, {isa}, neuron-major {neuron_major}");
            let engine = |limit, threads, sparsity| {
                load(with_isa(isa).repacking(limit).threads(threads).sparsity(sparsity), &file)
            };
            let repacked = engine(u64::MAX, 1, Sparsity::Exact);
            let detail = repacked.device().info().detail;
            assert_eq!(detail.contains("repacked"), isa != Isa::Reference, "{name}: {detail}");
            let plain = engine(0, 1, Sparsity::Exact);
            assert!(!plain.device().info().detail.contains("repacked"));
            let (got, plain) = (logits(&repacked, &tokens), logits(&plain, &tokens));
            let apart = rms_difference(&got, &plain);
            println!("{name}: {apart:.1e} apart");
            assert!(apart <= FLIPS, "{name}: {apart:e}");
            assert!(same_bits(&logits_in(&repacked, &tokens, 1), &got), "{name}, one at a time");
            assert!(same_bits(&logits(&engine(u64::MAX, 3, Sparsity::Exact), &tokens), &got), "{name}, 3 threads");
            assert!(difference(&logits(&engine(u64::MAX, 2, Sparsity::Off), &tokens), &got) == 0.0, "{name}, off");
            // Room for the first matrix and not for the others.
            let few = logits(&engine(20_000, 2, Sparsity::Exact), &tokens);
            assert!(rms_difference(&few, &plain) <= FLIPS, "{name}, little room");
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let tokens = ids(33, 7);
    for ty in [QuantType::F32, QuantType::F16, QuantType::Q4_0, QuantType::Q4_1, QuantType::Q4_K, QuantType::Q6_K] {
        let file = TinyModel::wide(ty).file();
        for isa in Isa::available() {
            for sparsity in [Sparsity::Off, Sparsity::Exact] {
                let of = |threads| load(with_isa(isa).threads(threads).sparsity(sparsity), &file);
                let one = logits(&of(1), &tokens);
                for threads in [2, 3] {
                    let engine = of(threads);
                    let (step, single) = (logits(&engine, &tokens), logits_in(&engine, &tokens[..5], 1));
                    assert!(same_bits(&step, &one), "{ty}, {isa}, {sparsity:?}, {threads} threads");
                    assert!(
                        same_bits(&single, &one[..5]),
                        "{ty}, {isa}, {sparsity:?}, {threads} threads, one at a time"
                    );
                }
            }
        }
    }
}

#[test]
fn steps_of_any_size_give_the_bits_of_one_token_at_a_time() {
    let tokens = ids(70, 8);
    for ty in [QuantType::F32, QuantType::Q4_0, QuantType::Q4_K] {
        let model = TinyModel { layers: 1, ..TinyModel::wide(ty) };
        let file = model.file();
        for isa in Isa::available() {
            let engine = load(with_isa(isa).kv(KvType::F16).threads(2), &file);
            let want = logits_in(&engine, &tokens, 1);
            for batch in 2..=8 {
                let got = logits_in(&engine, &tokens, batch);
                assert!(same_bits(&got, &want), "{ty}, {isa}, steps of {batch}");
            }
            for n in (1..=70).filter(|n| ty == QuantType::F32 || n % 13 == 0) {
                let got = logits(&engine, &tokens[..n]);
                assert!(same_bits(&got, &want[..n]), "{ty}, {isa}, a prompt of {n}");
            }
        }
    }
}

/// Sequences of different lengths, fed in random pieces in a random mixture, each as if it were alone (N05, P05).
#[test]
fn sequences_in_one_step_do_not_see_each_other() {
    let dense = TinyModel { hidden_act: Some("relu"), gate_shift: -1.0, ..TinyModel::default() };
    let predicted = predicted_models().map(|(_, model)| (model.file(), Sparsity::Predictor));
    let files = [Sparsity::Off, Sparsity::Exact].map(|sparsity| (dense.file(), sparsity));
    let files: Vec<_> = files.into_iter().chain(predicted).collect();
    for isa in Isa::available() {
        for (file, sparsity) in &files {
            let sparsity = *sparsity;
            let engine = load(with_isa(isa).sparsity(sparsity).threads(2), file);
            for count in 1..=4usize {
                let mut rng = Random(count as u64);
                let texts: Vec<Vec<u32>> = (0..count).map(|s| ids(9 + 23 * s, 40 + s as u64)).collect();
                let alone: Vec<_> = texts.iter().map(|t| logits_in(&engine, t, 1)).collect();
                let options = SessionOptions { sequences: count, batch: 16, logits: 16, ..Default::default() };
                let mut s = engine.session(&options).unwrap();
                let mut done = vec![0; count];
                while done.iter().zip(&texts).any(|(d, t)| *d < t.len()) {
                    let mut batch = Vec::new();
                    let mut at = Vec::new();
                    for _ in 0..1 + rng.below(16) {
                        let seq = rng.below(count);
                        if let Some(&token) = texts[seq].get(done[seq]) {
                            batch.push(StepToken { token, seq: seq as u32, logits: rng.below(3) > 0 });
                            at.push((seq, done[seq]));
                            done[seq] += 1;
                        }
                    }
                    if batch.is_empty() {
                        continue;
                    }
                    s.step(&batch).unwrap();
                    let wanted: Vec<_> = at.iter().zip(&batch).filter(|(_, t)| t.logits).map(|(at, _)| *at).collect();
                    for (i, (seq, pos)) in wanted.into_iter().enumerate() {
                        let got = [s.logits(i).unwrap().to_vec()];
                        let want = &alone[seq][pos..=pos];
                        assert!(same_bits(&got, want), "{isa}, {sparsity:?}: {count} sequences, {seq} at {pos}");
                    }
                }
                assert!((0..count).all(|i| s.len(i as u32) == texts[i].len()));
            }
        }
    }
}

#[test]
fn a_kept_prefix_gives_the_bits_of_a_fresh_start() {
    let file = TinyModel::default().file();
    for kv in [KvType::F32, KvType::F16] {
        let engine = load(exact().kv(kv), &file);
        let mut s = engine.session(&SessionOptions { batch: 100, logits: 100, ..Default::default() }).unwrap();
        let first = ids(90, 1);
        s.step(&step(0, &first)).unwrap();
        for keep in [0, 1, 5, 63, 64, 65, 90, 500] {
            let mut text = first[..keep.min(90)].to_vec();
            s.truncate(0, keep);
            assert_eq!(s.len(0), text.len());
            let more = ids(7, 100 + keep as u64);
            text.extend(&more);
            s.step(&step(0, &more)).unwrap();
            let got = rows(&mut s, more.len());
            assert!(same_bits(&got, &logits(&engine, &text)[text.len() - 7..]), "{kv:?}, {keep} kept");
            s.truncate(0, keep);
            s.step(&step(0, &first[keep.min(90)..]).into_iter().chain(step(0, &[3])).collect::<Vec<_>>()).unwrap();
            s.truncate(0, 90);
        }
    }
}

/// `model` with its down matrices turned into `ffn_down_t`: the same numbers in another order.
fn turned(model: &TinyModel, kind: Kind) -> File {
    let (_, old) = model.parts().unwrap();
    let (b, mut new) = TinyModel { neuron_major: true, kind, ..model.clone() }.parts().unwrap();
    for m in &mut new {
        let name = m.name().to_owned();
        *m = match name.strip_suffix("_t.weight") {
            Some(stem) => {
                let d = old.iter().find(|o| o.name() == format!("{stem}.weight")).unwrap().transposed().unwrap();
                pi_core::Matrix::new(name.as_str(), d.ty(), d.rows(), d.cols(), d.view().bytes().to_vec()).unwrap()
            }
            None => old.iter().find(|o| o.name() == name).unwrap().clone(),
        };
    }
    File::from_bytes(tiny::write(b, &new), "turned.gguf").unwrap()
}

#[test]
fn neuron_major_and_output_major_files_give_the_same_numbers() {
    let tokens = ids(20, 9);
    for ty in [QuantType::F32, QuantType::F16] {
        let model = TinyModel { ty, ..TinyModel::default() };
        let plain = model.file();
        for kind in [Kind::Gguf, Kind::PowerInfer] {
            let turned = turned(&model, kind);
            for isa in Isa::available() {
                let of = |file, sparsity| logits(&load(with_isa(isa).sparsity(sparsity), file), &tokens);
                let want = of(&plain, Sparsity::Exact);
                assert!(same_bits(&of(&turned, Sparsity::Exact), &want), "{ty}, {kind:?}, {isa}: exact");
                let apart = difference(&of(&turned, Sparsity::Off), &of(&plain, Sparsity::Off));
                assert!(apart < F32, "{ty}, {kind:?}, {isa}: off: {apart:e}");
            }
        }
    }
}

/// Runs tasks backwards, one after the other.
struct Backwards;

impl Executor for Backwards {
    fn width(&self) -> usize {
        5
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).rev().for_each(task);
    }
}

#[test]
fn the_order_in_which_tasks_run_does_not_matter() {
    let tokens = ids(20, 9);
    for ty in [QuantType::F16, QuantType::Q4_K] {
        let file = TinyModel::wide(ty).file();
        for isa in Isa::available() {
            let device = CpuDevice::new(Kernels::for_isa(isa).unwrap(), Arc::new(Backwards));
            let got = logits(&load(exact().device(Arc::new(device)), &file), &tokens);
            assert!(same_bits(&got, &logits(&load(with_isa(isa), &file), &tokens)), "{ty}, {isa}");
        }
    }
}

#[test]
fn sessions_of_several_threads_share_an_engine_and_do_not_see_each_other() {
    fn sendable<T: Send>(_: &T) {}
    let engine = load(exact().threads(2), &TinyModel::default().file());
    sendable(&engine.session(&SessionOptions::default()).unwrap());
    let texts: Vec<Vec<u32>> = (0..4).map(|i| ids(30, 60 + i)).collect();
    let want: Vec<_> = texts.iter().map(|t| logits(&engine, t)).collect();
    std::thread::scope(|scope| {
        for (text, want) in texts.iter().zip(&want) {
            scope.spawn(|| {
                for batch in [1, 7, 30] {
                    assert!(same_bits(&logits_in(&engine, text, batch), want), "steps of {batch}");
                }
            });
        }
    });
}

#[test]
fn the_share_of_active_neurons_is_what_fires() {
    let tokens = ids(20, 9);
    for (shift, from, to) in [(0.0, 0.4, 0.6), (-40.0, 0.0, 0.0), (40.0, 0.0, 1.0)] {
        let file =
            TinyModel { gate_shift: shift, hidden_act: Some("fatrelu"), threshold: Some(0.0), ..Default::default() };
        let file = file.file();
        let mut share = [0.0; 2];
        for (share, sparsity) in share.iter_mut().zip([Sparsity::Exact, Sparsity::Off]) {
            let engine = load(exact().sparsity(sparsity), &file);
            let mut s = engine.session(&SessionOptions { logits: 20, ..Default::default() }).unwrap();
            assert_eq!(s.stats().active_share(), None);
            s.step(&step(0, &tokens)).unwrap();
            *share = s.stats().active_share().unwrap();
        }
        assert_eq!(share[1], 1.0, "everything is computed when sparsity is off");
        if shift == 0.0 {
            assert!((from..=to).contains(&share[0]), "{}", share[0]);
        }
    }
}

fn feed_in_pieces(s: &mut Session, tokens: &[u32], pieces: &[usize]) -> Vec<Vec<f32>> {
    let (mut all, mut at, mut i) = (Vec::new(), 0, 0);
    while at < tokens.len() {
        let n = pieces[i % pieces.len()].min(tokens.len() - at);
        s.step(&step(0, &tokens[at..at + n])).unwrap();
        all.extend(rows(s, n));
        (at, i) = (at + n, i + 1);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any small model, any pieces, any threads: the naive forward pass.
    #[test]
    fn any_small_model_in_any_pieces_equals_the_naive_forward_pass(
        dim in 1usize..40, layers in 1usize..3, kv_heads in 1usize..4, group in 1usize..4, half_head in 1usize..8,
        neurons in 1usize..80, seed in any::<u64>(), neuron_major in any::<bool>(), tied in any::<bool>(),
        qkv_bias in any::<bool>(), family in prop::sample::select(Family::ALL.to_vec()), two_norms in any::<bool>(),
        act in prop::sample::select(vec!["relu", "relu2", "silu"]),
        scaling in prop::sample::select(vec![None, Some(("linear", 2.0, 32)), Some(("yarn", 8.0, 32))]),
        threads in 1usize..4, pieces in prop::collection::vec(1usize..20, 1..5), length in 1usize..40,
    ) {
        let model = TinyModel {
            family, two_norms, dim, layers, heads: kv_heads * group, kv_heads, head_dim: 2 * half_head, neurons, seed, neuron_major, tied,
            qkv_bias, hidden_act: Some(act), rope_scaling: scaling, ..TinyModel::default()
        };
        let (file, tokens) = (model.file(), ids(length, seed));
        let want = naive::logits(&file, &tokens);
        for isa in Isa::available() {
            let engine = load(with_isa(isa).threads(threads), &file);
            let mut s = engine.session(&SessionOptions { batch: 20, logits: 20, ..Default::default() }).unwrap();
            let off = difference(&feed_in_pieces(&mut s, &tokens, &pieces), &want);
            prop_assert!(off < 1e-4, "{isa}: {off:e} with {model:?}");
        }
    }
}
