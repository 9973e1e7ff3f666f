//! What `inspect` and the engine say of files that are not quite right.

use crate::common::{exact, logits};
use pi_core::{Matrix, QuantType};
use pi_engine::{PredictorForm, WeightSource, inspect};
use pi_gguf::{Builder, File, Kind, Metadata, Value};
use pi_testkit::{TinyModel, requantise, tiny};

fn with(keys: &[(&str, Option<Value<'_>>)]) -> File {
    let file = TinyModel::default().file();
    File::from_bytes(tiny::rewrite(&file, keys, |_, _| true), "odd.gguf").unwrap()
}

#[test]
fn shapes_that_the_loader_refuses_are_problems() {
    let report = inspect(&TinyModel::default().file());
    assert_eq!(report.problems, [""; 0]);
    for key in ["embedding_length", "feed_forward_length", "attention.head_count", "attention.key_length"] {
        let key = format!("llama.{key}");
        let file = with(&[(&key, Some(Value::U32(48)))]);
        assert!(exact().load(&file).is_err(), "{key}");
        assert!(!inspect(&file).problems.is_empty(), "{key}");
    }
}

#[test]
fn layers_that_metadata_does_not_count_are_reported() {
    let file = with(&[("llama.block_count", Some(Value::U32(1)))]);
    let said = "more layers than the 1 ";
    assert!(inspect(&file).problems.iter().any(|p| p.contains(said)));
    assert!(exact().load(&file).unwrap().warnings().iter().any(|w| w.contains(said)));
}

#[test]
fn a_vocabulary_and_a_neuron_index_are_named_as_what_they_are() {
    let bare = tiny::rewrite(&TinyModel::default().file(), &[], |_, _| false);
    let error = exact().load(&File::from_bytes(bare, "vocab.gguf").unwrap()).unwrap_err().to_string();
    assert!(error.contains("no weights"), "{error}");
    let index = with(&[("general.architecture", Some(Value::from("generic.gpu_index")))]);
    let error = exact().load(&index).unwrap_err().to_string();
    assert!(error.contains("neuron index"), "{error}");
}

/// A model with one layer's down matrix in another type.
struct Mixed {
    file: File,
    layer: usize,
}

impl WeightSource for Mixed {
    fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    fn kind(&self) -> Kind {
        self.file.kind()
    }

    fn matrix(&self, name: &str) -> pi_engine::Result<Option<Matrix>> {
        let found = self.file.matrix(name)?;
        match found.filter(|_| name == format!("blk.{}.ffn_down.weight", self.layer)) {
            Some(m) => Ok(Some(requantise(&m, QuantType::Q4_0)?)),
            None => self.file.matrix(name),
        }
    }
}

#[test]
fn each_layer_skips_what_its_own_tensors_allow_and_the_report_counts_them() {
    let tokens = [1, 100, 200];
    for layer in [0, 1] {
        let source = Mixed { file: TinyModel::wide(QuantType::F16).file(), layer };
        let engine = exact().load(&source).unwrap();
        let report = engine.sparsity();
        assert!(report.skips_up && report.skips_down, "{report}");
        assert!(report.to_string().contains("ffn_down of 1 of 2 layers is stored as Q4_0"), "{report}");
        let dense = exact().sparsity(pi_engine::Sparsity::Off).load(&source).unwrap();
        for (a, b) in logits(&engine, &tokens).iter().flatten().zip(logits(&dense, &tokens).iter().flatten()) {
            assert!((a - b).abs() < 1e-3, "{a} and {b}");
        }
    }
}

/// A model with predictors in some layers and a threshold for each layer.
fn predicted(layers: &[usize], thresholds: &[f32]) -> File {
    predicted_with(layers, thresholds, |_| ())
}

/// The same with more keys.
fn predicted_with(layers: &[usize], thresholds: &[f32], keys: impl FnOnce(&mut Builder)) -> File {
    let model = TinyModel { layers: 4, rank: Some(32), kind: Kind::PowerInfer, ..TinyModel::default() };
    let with = layers.to_vec();
    let has = move |name: &str| {
        let layer = name.strip_prefix("blk.").and_then(|n| n.split('.').next()?.parse().ok());
        !name.contains(".fc") || layer.is_some_and(|l: usize| with.contains(&l))
    };
    let bytes = tiny::rewrite(&model.file(), &[("powerinfer.sparse_threshold", None)], |name, _| has(name));
    let file = File::from_bytes(bytes, "some.gguf").unwrap();
    let mut b = Builder::new(file.kind());
    for (key, value) in file.metadata().iter() {
        b.set(key, value).unwrap();
    }
    if !thresholds.is_empty() {
        b.set_array("pi.predictor.thresholds", thresholds).unwrap();
    }
    keys(&mut b);
    let tensors: Vec<_> = file.tensors().map(|t| file.matrix(t.name()).unwrap().unwrap()).collect();
    for (t, m) in file.tensors().zip(&tensors) {
        b.tensor(t.name(), m.ty(), t.dims()).unwrap();
    }
    File::from_bytes(tiny::write(b, &tensors), "some.gguf").unwrap()
}

#[test]
fn predictors_are_reported_by_layer_also_where_the_first_layers_run_exactly() {
    let report = inspect(&predicted(&[1, 3], &[0.0, -0.5, 0.0, 0.25]));
    assert_eq!(report.problems, [""; 0]);
    let found = report.predictors.expect("two predictors");
    assert_eq!((found.layers, found.shape), (Some(4), (64, 96)));
    assert_eq!(found.exact().collect::<Vec<_>>(), [0, 2]);
    let each: Vec<_> = found.found.iter().map(|p| (p.layer, p.form.clone())).collect();
    let mlp = |threshold| PredictorForm::Mlp { rank: 32, types: [QuantType::F32; 2], threshold: Some(threshold) };
    assert_eq!(each, [(1, mlp(-0.5)), (3, mlp(0.25))]);
    assert_eq!((found.ranks(), found.thresholds()), (Some((32, 32)), Some((-0.5, 0.25))));
    assert_eq!(found.bytes(), 2 * 4 * 32 * (64 + 96));

    let none = inspect(&predicted(&[], &[]));
    assert!(none.predictors.is_none() && none.problems[0].contains("no predictors"), "{:?}", none.problems);
}

#[test]
fn signs_and_layers_that_run_exactly_are_reported_as_what_the_file_says() {
    let file = predicted_with(&[0, 1], &[], |b| {
        b.set_strings("pi.predictor.kinds", ["exact", "mlp", "sign", "sign"]).unwrap();
        b.set_array("pi.predictor.margins", &[0.0f32, 0.0, 0.1, -0.7]).unwrap();
    });
    let report = inspect(&file);
    let found = report.predictors.expect("three predictors");
    let of = |i: usize| (found.found[i].layer, found.found[i].form.clone());
    assert!(matches!(of(0), (1, PredictorForm::Mlp { rank: 32, .. })), "{:?}", of(0));
    assert_eq!(of(1), (2, PredictorForm::Sign { margin: 0.1 }));
    assert_eq!(found.exact().collect::<Vec<_>>(), [0]);
    assert!(report.problems.iter().any(|p| p.contains("layer 3") && p.contains("-0.7")), "{:?}", report.problems);
}

#[test]
fn predictors_that_the_loader_would_refuse_are_problems() {
    let problem = |file: &File, said: &str| {
        let problems = inspect(file).problems;
        assert!(problems.iter().any(|p| p.contains(said)), "{said}: {problems:?}");
    };
    problem(&predicted(&[1], &[0.0; 3]), "expected 4 numbers, one per layer, got 3");
    problem(&predicted(&[1], &[0.0, f32::NAN, 0.0, 0.0]), "layer 1 is NaN");
    let endless = predicted(&[1], &[0.0, f32::INFINITY, 0.0, 0.0]);
    problem(&endless, "layer 1 is inf");
    let e = crate::common::refusal(exact().sparsity(pi_engine::Sparsity::Predictor), &endless).to_string();
    assert!(e.contains("pi.predictor.thresholds") && e.contains("inf for layer 1"), "{e}");
    let half = tiny::rewrite(&predicted(&[0, 1], &[]), &[], |name, _| name != "blk.1.fc2.weight");
    problem(&File::from_bytes(half, "half.gguf").unwrap(), "blk.1.fc2.weight");
    let narrow = [("llama.feed_forward_length", Some(Value::U32(80)))];
    let narrow = tiny::rewrite(&predicted(&[2], &[]), &narrow, |_, _| true);
    problem(&File::from_bytes(narrow, "narrow.gguf").unwrap(), "blk.2.fc2.weight");
}
