//! Predictors in a file of their own: used with the model they were made for, and refused with another, by the file's name.

use crate::common::{exact, ids, logits, same_bits};
use pi_core::{Matrix, QuantType};
use pi_engine::{EngineBuilder, Error, Predictors, Sparsity, WeightSource, inspect};
use pi_gguf::{Builder, File, Kind};
use pi_testkit::{TinyModel, tiny};
use std::sync::Arc;

fn model(seed: u64) -> TinyModel {
    TinyModel { rank: Some(32), kind: Kind::PowerInfer, gate_shift: -0.5, seed, ..TinyModel::default() }
}

/// The predictors of a model in a file of their own, with these keys.
fn alone(model: &TinyModel, keys: impl Fn(&mut Builder)) -> File {
    let file = model.file();
    let mut b = Builder::new(Kind::Gguf);
    b.set("general.architecture", "pi.predictor").unwrap();
    keys(&mut b);
    let names = file.tensors().map(|t| t.name().to_string()).filter(|n| n.contains(".fc"));
    let all: Vec<Matrix> = names.map(|n| file.matrix(&n).unwrap().unwrap()).collect();
    for m in &all {
        b.tensor(m.name(), m.ty(), &[m.cols(), m.rows()]).unwrap();
    }
    File::from_bytes(tiny::write(b, &all), "beside.gguf").unwrap()
}

fn beside(file: File) -> EngineBuilder {
    exact().sparsity(Sparsity::Predictor).predictors(Predictors::Beside { source: Arc::new(file), threshold: None })
}

/// Why a file of predictors is refused for a model. The message names the file, not the model.
fn refused(file: File, model: &TinyModel) -> Error {
    let e = beside(file).load(&model.file()).expect_err("it should be refused");
    assert!(e.to_string().starts_with("beside.gguf: "), "{e}");
    e
}

fn shape(b: &mut Builder, [layers, dim, neurons]: [u32; 3]) {
    b.set("pi.predictor.block_count", layers).unwrap();
    b.set("pi.predictor.embedding_length", dim).unwrap();
    b.set("pi.predictor.feed_forward_length", neurons).unwrap();
}

#[test]
fn a_file_that_says_little_is_used_if_its_shapes_fit() {
    let tokens = ids(20, 3);
    let own = exact().sparsity(Sparsity::Predictor).load(&model(1).file()).unwrap();
    for file in [alone(&model(1), |_| ()), alone(&model(1), |b| shape(b, [2, 64, 96]))] {
        let engine = beside(file).load(&model(1).file()).unwrap();
        assert!(same_bits(&logits(&engine, &tokens), &logits(&own, &tokens)));
    }
}

#[test]
fn what_a_file_says_of_its_model_has_to_hold() {
    for (key, other) in
        [("block_count", [3, 64, 96]), ("embedding_length", [2, 128, 96]), ("feed_forward_length", [2, 64, 100])]
    {
        let e = refused(alone(&model(1), |b| shape(b, other)), &model(1));
        assert!(matches!(&e, Error::Config { key: k, .. } if k.ends_with(key)), "{e}");
    }
    let few = alone(&model(1), |b| {
        b.set_array("pi.predictor.thresholds", &[0.0f32]).unwrap();
    });
    assert!(matches!(refused(few, &model(1)), Error::Config { key, .. } if key == "pi.predictor.thresholds"));
    let words = alone(&model(1), |b| {
        b.set("pi.predictor.block_count", "two").unwrap();
    });
    assert!(refused(words, &model(1)).to_string().contains("pi.predictor.block_count"));
    // no key, but matrices of another width
    let wide = alone(&TinyModel { dim: 128, ..model(1) }, |_| ());
    assert!(matches!(refused(wide, &model(1)), Error::Tensor { tensor, .. } if tensor == "blk.0.fc1.weight"));
    let many = alone(&TinyModel { neurons: 128, ..model(1) }, |_| ());
    assert!(matches!(refused(many, &model(1)), Error::Tensor { tensor, .. } if tensor == "blk.0.fc2.weight"));
    let nan = alone(&model(1), |b| {
        b.set("powerinfer.sparse_threshold", f32::NAN).unwrap();
    });
    assert!(refused(nan, &model(1)).to_string().contains("NaN"));
}

#[test]
fn files_of_another_kind_are_named_as_what_they_are() {
    let of = |architecture: &str| {
        let mut b = Builder::new(Kind::Gguf);
        b.set("general.architecture", architecture).unwrap();
        File::from_bytes(tiny::write(b, &[]), "beside.gguf").unwrap()
    };
    let e = refused(of("generic.gpu_index"), &model(1));
    assert!(matches!(&e, Error::Config { key, .. } if key == "general.architecture"), "{e}");
    assert!(refused(of("pi.predictor"), &model(1)).to_string().contains("no layer has a predictor"));
    let nothing = File::from_bytes(tiny::write(Builder::new(Kind::Gguf), &[]), "beside.gguf").unwrap();
    assert!(refused(nothing, &model(1)).to_string().contains("general.architecture"));
    // and the other way round: predictors are no model
    let e = exact().load(&alone(&model(1), |_| ())).unwrap_err().to_string();
    assert!(e.contains("predictors alone") && e.contains("--predictor-file"), "{e}");
}

#[test]
fn another_models_file_lends_its_predictors_only_to_the_same_weights() {
    let named = |m: &TinyModel| File::from_bytes(m.build().unwrap(), "beside.gguf").unwrap();
    assert!(beside(named(&model(1))).load(&model(1).file()).is_ok());
    // the same weights in fewer bits are the same model
    for ty in [QuantType::Q4_0, QuantType::Q8_0] {
        assert!(beside(named(&model(1))).load(&TinyModel { ty, ..model(1) }.file()).is_ok(), "{ty}");
    }
    let e = refused(named(&model(2)), &model(1)).to_string();
    assert!(e.contains("another model of the same shape"), "{e}");
    let e = refused(named(&TinyModel { layers: 3, ..model(1) }), &model(1)).to_string();
    assert!(e.contains("expected a model of 2 layers") && e.contains("got 3 layers"), "{e}");
}

#[test]
fn a_file_of_predictors_is_inspected_as_one() {
    let file = alone(&model(1), |b| {
        shape(b, [5, 64, 96]);
        b.set_array("pi.predictor.thresholds", &[0.5f32, -1.0, 0.0, 0.0, 0.0]).unwrap();
    });
    let report = inspect(&file);
    assert!(report.config.is_none() && report.problems.is_empty(), "{:?}", report.problems);
    let found = report.predictors.unwrap();
    assert_eq!((found.layers, found.shape, found.found.len()), (Some(5), (64, 96), 2));
    assert_eq!(found.exact().collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(found.found[1].threshold(), Some(-1.0));
    // numbers that cannot be
    let huge = inspect(&alone(&model(1), |b| shape(b, [u32::MAX, 64, 80])));
    assert!(huge.problems.iter().any(|p| p.contains("fc2")), "{:?}", huge.problems);
    assert!(huge.predictors.unwrap().exact().count() < 2000);
}
