//! Models with predictors, of all families: whatever the threads, the steps and the types, the logits are those of the obvious
//! computation with the same predictors.

mod common;

use common::{
    difference, exact, ids, load, logits, logits_in, predicted_models, predicting, rows, same_bits, step, with_isa,
};
use pi_core::{KvType, QuantType};
use pi_engine::{Predictors, SessionOptions, Sparsity};
use pi_gguf::Kind;
use pi_sparse_cpu::Isa;
use pi_testkit::{TinyModel, naive};

/// Sums in f32 against sums in f64.
const F32: f64 = 1e-5;

#[test]
fn predicted_logits_equal_those_of_the_naive_forward_pass_with_the_same_predictors() {
    let tokens = ids(40, 5);
    for (name, model) in predicted_models() {
        let file = model.file();
        for threshold in [None, Some(0.4), Some(-0.2), Some(f32::INFINITY)] {
            let want = naive::predicted_logits(&file, &tokens, threshold.unwrap_or(0.0));
            for isa in Isa::available() {
                let got = logits(&load(predicting(isa, threshold), &file), &tokens);
                let off = difference(&got, &want);
                println!("{name}, {isa}, {threshold:?}: {off:.1e}");
                assert!(off < F32, "{name}, {isa}, {threshold:?}: {off:e}");
            }
            // Or it would make no difference whether predictors are heeded.
            let apart = difference(&logits(&load(exact(), &file), &tokens), &want);
            assert!(apart > 1e-2, "{name}, {threshold:?}: {apart:e} from exact");
        }
    }
}

#[test]
fn a_predictor_that_marks_every_neuron_changes_no_bit() {
    let tokens = ids(40, 6);
    for (name, model) in predicted_models() {
        for ty in [QuantType::F32, QuantType::F16, QuantType::Q4_0] {
            let file = TinyModel { ty, ..model.clone() }.file();
            for isa in Isa::available() {
                let exact = logits(&load(with_isa(isa).sparsity(Sparsity::Exact), &file), &tokens);
                let all = load(predicting(isa, Some(f32::NEG_INFINITY)), &file);
                assert!(same_bits(&logits(&all, &tokens), &exact), "{name}, {ty}, {isa}");
                let oracle = with_isa(isa).sparsity(Sparsity::Predictor).predictors(Predictors::Oracle);
                let apart = difference(&logits(&load(oracle, &file), &tokens), &exact);
                assert_eq!(apart, 0.0, "{name}, {ty}, {isa}: oracle");
            }
        }
    }
}

#[test]
fn predicted_logits_do_not_depend_on_threads_steps_or_kept_prefixes() {
    let tokens = ids(70, 8);
    for (name, model) in predicted_models() {
        for ty in [QuantType::F32, QuantType::Q4_0] {
            let file = TinyModel { ty, ..model.clone() }.file();
            for isa in Isa::available() {
                let of = |threads| load(predicting(isa, None).kv(KvType::F16).threads(threads), &file);
                let want = logits_in(&of(1), &tokens, 1);
                for (threads, batch) in [(1, 70), (2, 70), (3, 70), (2, 1), (3, 2), (2, 7), (1, 8), (2, 33)] {
                    let got = logits_in(&of(threads), &tokens, batch);
                    assert!(same_bits(&got, &want), "{name}, {ty}, {isa}, {threads} threads, steps of {batch}");
                }
                let engine = of(2);
                let mut s = engine.session(&SessionOptions { batch: 70, logits: 70, ..Default::default() }).unwrap();
                s.step(&step(0, &tokens)).unwrap();
                for keep in [0, 1, 63, 64, 69] {
                    s.truncate(0, keep);
                    s.step(&step(0, &tokens[keep..])).unwrap();
                    let got = rows(&mut s, 70 - keep);
                    assert!(same_bits(&got, &want[keep..]), "{name}, {ty}, {isa}, {keep} kept");
                }
            }
        }
    }
}

/// Types that other engines compute garbage with (P04): as exact as the dequantised numbers in f64.
#[test]
fn every_type_gives_the_numbers_of_its_dequantised_twin() {
    let tokens = ids(6, 3);
    for ty in QuantType::ALL {
        for (name, model) in predicted_models() {
            let wide = TinyModel::wide(ty);
            let file = TinyModel {
                ty,
                dim: wide.dim,
                head_dim: wide.head_dim,
                neurons: wide.neurons,
                rank: Some(256),
                layers: 1,
                ..model
            }
            .file();
            let got = logits(&load(predicting(Isa::Reference, None), &file), &tokens);
            let off = difference(&got, &naive::predicted_logits(&file, &tokens, 0.0));
            println!("{name}, {ty}: {off:.1e}");
            assert!(off < F32, "{name}, {ty}: {off:e}");
        }
    }
}

#[test]
fn a_file_without_predictors_runs_exactly_and_is_refused_where_predictors_are_wanted() {
    for (name, model) in predicted_models() {
        for kind in [Kind::Gguf, Kind::PowerInfer] {
            let file = TinyModel { rank: None, kind, hidden_act: Some("relu"), ..model.clone() }.file();
            assert!(load(exact(), &file).sparsity().is_on(), "{name}");
            let error = common::refusal(predicting(Isa::Reference, None), &file).to_string();
            assert!(error.contains("no layer has a predictor"), "{name}: {error}");
        }
    }
}
