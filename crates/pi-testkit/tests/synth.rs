//! Synthetic models do what was asked of them, computed by other code than that which made them.

mod forward;

use pi_core::QuantType;
use pi_gguf::{File, Kind};
use pi_testkit::{
    Random,
    synth::{Family, Options, Preset, Progress, Report, Shape, SynthError, SynthModel, expected_recall},
};
use std::{collections::HashSet, ops::ControlFlow};

fn small(family: Family, kind: Kind) -> SynthModel {
    let kv_heads = if family == Family::Opt { 8 } else { 4 };
    let shape = Shape { layers: 3, dim: 256, neurons: 1024, heads: 8, kv_heads, vocab: 500, context: 128 };
    SynthModel { family, shape, kind, rank: Some(128), ..SynthModel::of(Preset::ALL[0]) }
}

fn written(model: &SynthModel) -> (Vec<u8>, Report) {
    model.write(Vec::new(), Options::default()).unwrap()
}

fn opened(model: &SynthModel) -> (File, Report) {
    let (bytes, report) = written(model);
    (File::from_bytes(bytes, "synth.gguf").unwrap(), report)
}

/// Texts of random tokens: none of them was used to make the model.
fn texts(model: &SynthModel, count: usize, len: usize) -> Vec<Vec<u32>> {
    let mut random = Random(99);
    let mut text = || (0..len).map(|_| 3 + random.below(model.shape.vocab - 3) as u32).collect();
    (0..count).map(|_| text()).collect()
}

/// Means over texts of what happened in each layer, and all logits.
fn computed(model: &SynthModel, file: &File) -> (Vec<forward::Layer>, Vec<Vec<f32>>) {
    let texts = texts(model, 4, 48);
    let (mut mean, mut logits) = (vec![forward::Layer::default(); model.shape.layers], Vec::new());
    for text in &texts {
        let (layers, of_text) = forward::compute(file, text);
        for (sum, layer) in mean.iter_mut().zip(layers) {
            let n = texts.len() as f64;
            sum.active += layer.active / n;
            sum.recall += layer.recall / n;
            sum.precision += layer.precision / n;
        }
        logits.extend(of_text);
    }
    (mean, logits)
}

fn most_likely(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

/// Asserts that `got` is `want` up to a tenth.
#[track_caller]
fn assert_close(got: f64, want: f64, what: &str) {
    assert!((got / want - 1.0).abs() <= 0.1, "{what}: {got} instead of {want}");
}

#[test]
fn neurons_of_every_family_fire_as_often_as_asked_in_every_layer_for_unseen_texts() {
    for family in Family::ALL {
        for kind in [Kind::Gguf, Kind::PowerInfer] {
            for (ty, active) in [(QuantType::F16, 0.1), (QuantType::Q4_0, 0.4)] {
                let model = SynthModel { ty, active, ..small(family, kind) };
                let (file, report) = opened(&model);
                let (layers, logits) = computed(&model, &file);
                for (i, (layer, reported)) in layers.iter().zip(&report.layers).enumerate() {
                    let what = format!("{family} {kind:?} {ty} layer {i}");
                    assert_close(layer.active, active, &what);
                    assert_close(reported.active, active, &what);
                    assert_eq!(reported.recall.is_some(), kind == Kind::PowerInfer);
                }
                assert!(logits.iter().flatten().all(|l| l.is_finite()));
                let next: HashSet<_> = logits.iter().map(|l| most_likely(l)).collect();
                assert!(next.len() > logits.len() / 3, "{family}: {} different tokens", next.len());
                let end: u32 = file.metadata().require("tokenizer.ggml.eos_token_id").unwrap();
                assert!(!next.contains(&(end as usize)), "{family} ends its text");
            }
        }
    }
}

#[test]
fn predictors_find_what_the_noise_leaves_to_be_found() {
    for family in Family::ALL {
        for noise in [0.0, 0.1, 0.5] {
            let model = SynthModel { noise, ty: QuantType::F16, ..small(family, Kind::PowerInfer) };
            let (file, report) = opened(&model);
            let (layers, _) = computed(&model, &file);
            let want = expected_recall(model.thresholds().unwrap(), noise);
            for (layer, reported) in layers.iter().zip(&report.layers) {
                // Small models' states have fewer dimensions than the theory's, and thresholds are estimates.
                assert!((layer.recall - want).abs() < 0.06, "{family}, noise {noise}: {layer:?}, expected {want}");
                assert!(layer.precision > want - 0.06, "{family}, noise {noise}: {layer:?}");
                assert!((layer.recall - reported.recall.unwrap()).abs() < 0.06, "{layer:?} {reported:?}");
            }
        }
    }
}

#[test]
fn predictors_in_four_bits_still_find_most() {
    for family in Family::ALL {
        let (file, _) = opened(&small(family, Kind::PowerInfer));
        let (layers, _) = computed(&small(family, Kind::PowerInfer), &file);
        for layer in layers {
            assert!(layer.recall > 0.75 && layer.precision > 0.75, "{family}: {layer:?}");
            assert_close(layer.active, 0.1, family.name());
        }
    }
}

#[test]
fn every_type_keeps_the_share() {
    for ty in QuantType::ALL {
        let shape = Shape { dim: 512, layers: 1, ..small(Family::Llama, Kind::Gguf).shape };
        let model = SynthModel { ty, shape, ..small(Family::Llama, Kind::Gguf) };
        let (file, _) = opened(&model);
        let (layers, _) = computed(&model, &file);
        layers.iter().for_each(|layer| assert_close(layer.active, 0.1, ty.name()));
    }
}

#[test]
fn the_share_does_not_drift_in_a_deep_model() {
    let shape = Shape { layers: 40, ..small(Family::Llama, Kind::PowerInfer).shape };
    let (_, report) = written(&SynthModel { shape, ..small(Family::Llama, Kind::PowerInfer) });
    let mean = |layers: std::ops::Range<usize>| report.layers[layers].iter().map(|l| l.active).sum::<f64>() / 10.0;
    assert_close(mean(0..10), 0.1, "first layers");
    assert_close(mean(30..40), 0.1, "last layers");
}

#[test]
fn a_skew_is_what_is_measured() {
    for skew in [0.2, 0.43, 0.7] {
        let model = SynthModel { skew: Some(skew), ..small(Family::Llama, Kind::Gguf) };
        let (_, report) = written(&model);
        report.layers.iter().for_each(|l| assert_close(l.hot, skew, "hot neurons"));
    }
}

#[test]
fn the_bytes_depend_on_the_seed_and_not_on_the_number_of_threads() {
    for family in [Family::Llama, Family::Opt] {
        let model = small(family, Kind::PowerInfer);
        let with = |threads| model.write(Vec::new(), Options { threads, ..Default::default() }).unwrap();
        let one = with(Some(1));
        assert!(one == with(Some(3)), "{family}: other bytes with three threads");
        assert!(one == with(None));
        let other = SynthModel { seed: 2, ..model };
        assert!(one.0 != written(&other).0);
    }
}

#[test]
fn both_forms_hold_the_same_weights_where_they_are_not_rounded_in_blocks() {
    let model = |kind| SynthModel { ty: QuantType::F32, ..small(Family::Llama, kind) };
    let (plain, _) = opened(&model(Kind::Gguf));
    let (sparse, _) = opened(&model(Kind::PowerInfer));
    let (d, n) = (256, 1024);
    let numbers = |file: &File, name: &str| -> Vec<f32> {
        let bytes = file.require_tensor(name).unwrap().data();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    assert_eq!(numbers(&plain, "blk.0.ffn_gate.weight"), numbers(&sparse, "blk.0.ffn_gate.weight"));
    let (down, down_t) = (numbers(&plain, "blk.0.ffn_down.weight"), numbers(&sparse, "blk.0.ffn_down_t.weight"));
    for (i, v) in down.iter().enumerate() {
        let same = down_t[i % n * d + i / n];
        assert!((v - same).abs() <= 1e-6, "{v} {same}");
    }
}

#[test]
fn what_cannot_be_made_is_refused_by_name_before_anything_is_written() {
    type Change = fn(&mut SynthModel);
    let cases: [(&str, Change); 19] = [
        ("active", |m| m.active = 0.0),
        ("active", |m| m.active = 1.0),
        ("active", |m| m.active = -0.1),
        ("active", |m| m.active = f64::NAN),
        ("skew", |m| m.skew = Some(0.05)),
        ("heads", |m| m.shape.heads = 7),
        ("heads", |m| m.shape.heads = 256),
        ("heads", |m| m.shape.heads = 0),
        ("kv-heads", |m| m.shape.kv_heads = 3),
        ("vocab", |m| m.shape.vocab = 100),
        ("layers", |m| m.shape.layers = 0),
        ("dim", |m| m.shape.dim = 32),
        ("dim", |m| m.shape.dim = 260),
        ("ffn", |m| m.shape.neurons = 1000),
        ("rank", |m| m.rank = Some(100)),
        ("rank", |m| m.rank = Some(0)),
        ("noise", |m| m.noise = -1.0),
        ("context", |m| m.shape.context = 0),
        ("vocab", |m| m.shape.vocab = usize::MAX),
    ];
    for (name, change) in cases {
        let mut model = small(Family::Llama, Kind::Gguf);
        change(&mut model);
        let mut out = Vec::new();
        match model.write(&mut out, Options::default()) {
            Err(SynthError::Setting { name: got, .. }) => assert_eq!(got, name),
            other => panic!("{name}: {:?}", other.map(|(_, report)| report)),
        }
        assert!(out.is_empty());
    }
    // Neurons need not be a multiple of a block where no row runs along them.
    let mut model = small(Family::Llama, Kind::PowerInfer);
    model.shape.neurons = 1000;
    model.shape.layers = 1;
    assert!(model.write(std::io::sink(), Options::default()).is_ok());
}

#[test]
fn a_file_appears_when_it_is_complete_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let entries = || std::fs::read_dir(folder.path()).unwrap().count();
    let model = small(Family::Llama, Kind::Gguf);
    let mut calls = 0;
    let mut stop_later = |_: &Progress<'_>| {
        calls += 1;
        assert!(!path.exists());
        if calls > 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = model.create(&path, Options { progress: Some(&mut stop_later), ..Default::default() });
    assert!(matches!(stopped, Err(SynthError::Cancelled)), "{stopped:?}");
    assert_eq!(entries(), 0, "nothing is left behind");
    let report = model.create(&path, Options::default()).unwrap();
    assert_eq!(entries(), 1);
    let bytes: usize = File::open(&path).unwrap().tensors().map(|t| t.data().len()).sum();
    assert_eq!(bytes as u64, report.bytes);
    let nowhere = model.create(&folder.path().join("missing").join("model.gguf"), Options::default());
    assert!(nowhere.unwrap_err().to_string().contains("cannot create"));
}

#[test]
fn progress_is_told_with_every_layer_once() {
    let mut done = Vec::new();
    let mut watch = |now: &Progress<'_>| {
        done.extend(now.done.map(|report| (now.layer, *report)));
        ControlFlow::Continue(())
    };
    let options = Options { progress: Some(&mut watch), ..Default::default() };
    let (_, report) = small(Family::Falcon, Kind::PowerInfer).write(Vec::new(), options).unwrap();
    assert_eq!(done, report.layers.into_iter().enumerate().collect::<Vec<_>>());
}
