//! Models with predictors, of all families: whatever the threads, the steps and the types, the logits are those of the obvious
//! computation with the same predictors.

use crate::common::{
    difference, exact, ids, load, logits, logits_in, predicted_models, predicting, rows, same_bits, step, with_isa,
};
use pi_core::{ActiveSet, Device, Hidden, KvType, Limits, Matrix, MlpSpec, Predictor, QuantType, Serial};
use pi_engine::{Predictors, SessionOptions, Sparsity};
use pi_gguf::Kind;
use pi_predictor::Mlp;
use pi_sparse_cpu::{CpuDevice, Isa, Kernels};
use pi_testkit::{TinyModel, naive};
use std::sync::Arc;

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
            let error = crate::common::refusal(predicting(Isa::Reference, None), &file).to_string();
            assert!(error.contains("no layer has a predictor"), "{name}: {error}");
        }
    }
}

#[test]
fn the_plain_predictor_rounds_what_f16_matrices_read_as_the_devices_do() {
    // one neuron behind one number: it fires if the input reaches the threshold
    let fires = |predictor: Arc<dyn Predictor>, input: f32| {
        let limits = Limits { tokens: 1, sequences: 1, context: 1 };
        let (mut h, mut x, mut active) = (Hidden::new(1, 1), Hidden::new(1, 1), ActiveSet::new(1, 1));
        h.host_mut().unwrap()[0] = input;
        predictor.open(&limits).unwrap().mark(&mut h, &mut x, &mut active).unwrap();
        active.host().unwrap().unwrap()[0] == 1
    };
    let device = CpuDevice::new(Kernels::reference(), Arc::new(Serial));
    let step = 2f32.powi(-10); // between 1 and the next number of F16
    for ty in [QuantType::F16, QuantType::F32] {
        let one = |name: &str| Matrix::encode(name, ty, 1, 1, &[1.0]).unwrap();
        let half = ty == QuantType::F16;
        for (input, threshold, want) in [
            (1.0 + 0.3 * step, 1.0 + 0.2 * step, !half),
            (1.0 + 0.7 * step, 1.0 + 0.9 * step, half),
            (1.0, 1.0, true),
            (1e6, 9e5, true),
            (1e6, 2e6, false), // not infinite
            (f32::NAN, 0.0, true),
        ] {
            let spec = MlpSpec { fc1: one("fc1"), fc2: one("fc2"), threshold };
            let plain = Arc::new(Mlp::new(spec.clone(), Arc::new(Serial)).unwrap());
            assert_eq!(fires(device.mlp(&spec).unwrap(), input), want, "{ty}, {input}: device");
            assert_eq!(fires(plain, input), want, "{ty}, {input}: plain");
        }
    }
}
