//! What `inspect` and the engine say of files that are not quite right.

mod common;

use common::{exact, logits};
use pi_core::{Matrix, QuantType};
use pi_engine::{WeightSource, inspect};
use pi_gguf::{File, Kind, Metadata, Value};
use pi_testkit::{TinyModel, requantise, tiny};

fn with(keys: &[(&str, Option<Value<'_>>)]) -> File {
    let file = TinyModel::default().file();
    File::from_bytes(tiny::rewrite(&file, keys, |_, _| true), "odd.gguf").unwrap()
}

#[test]
fn shapes_that_the_loader_refuses_are_problems() {
    assert_eq!(inspect(&TinyModel::default().file()).problems, [""; 0]);
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
