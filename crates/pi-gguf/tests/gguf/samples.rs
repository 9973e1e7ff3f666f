//! Files that other programs wrote.

use std::path::PathBuf;

use pi_gguf::{Builder, File, Kind, NeuronIndex, Source, TensorType};

/// The folder of sample files, or `None` (said loudly) where there is none. In CI there must be one.
fn samples() -> Option<PathBuf> {
    pi_testkit::data::test_data("")
}

fn gguf_files(folder: &std::path::Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("sample folder") {
        let path = entry.expect("sample folder").path();
        if path.is_dir() {
            gguf_files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "gguf" || ext == "gpuidx") {
            found.push(path);
        }
    }
}

#[test]
fn every_sample_opens_mapped_and_in_memory_with_the_same_content() {
    let Some(folder) = samples() else { return };
    let mut files = Vec::new();
    for part in ["tiny", "vocab", "powerinfer-samples"] {
        gguf_files(&folder.join(part), &mut files);
    }
    assert!(files.len() > 30, "only {} sample files", files.len());
    for path in files {
        let mapped = File::open(&path).unwrap_or_else(|e| panic!("{e}"));
        let read = File::open_with(&path, Source::InMemory).unwrap_or_else(|e| panic!("{e}"));
        assert!(!mapped.metadata().require::<&str>("general.architecture").expect("architecture").is_empty());
        assert!(mapped.metadata().iter().eq(read.metadata().iter()), "{}", path.display());
        assert_eq!(mapped.tensors().len(), read.tensors().len());
        for (a, b) in mapped.tensors().zip(read.tensors()) {
            assert_eq!((a.name(), a.ty(), a.dims()), (b.name(), b.ty(), b.dims()));
            assert!(a.data() == b.data(), "{} {}", path.display(), a.name());
        }
    }
}

#[test]
fn a_neuron_index_has_integer_tensors_of_the_old_numbering() {
    let Some(folder) = samples() else { return };
    let file =
        File::open(folder.join("powerinfer-samples/small/small.powerinfer.gguf.generated.gpuidx")).expect("opens");
    assert_eq!(file.kind(), Kind::PowerInfer);
    for tensor in file.tensors() {
        assert_eq!(tensor.ty(), TensorType::I32, "{}", tensor.name());
    }
    file.require_tensor("blk.0.gpu_idx").expect("first layer");
}

#[test]
fn a_neuron_index_that_is_read_and_saved_again_has_the_same_bytes() {
    let Some(folder) = samples() else { return };
    let original = folder.join("powerinfer-samples/small/small.powerinfer.gguf.generated.gpuidx");
    let index = NeuronIndex::open(&original).expect("opens");
    assert!(!index.layers.is_empty());
    for layer in &index.layers {
        assert!(layer.neurons() > 0);
    }
    let out = tempfile::tempdir().expect("folder");
    let copy = out.path().join("copy.gpuidx");
    index.save(&copy).expect("saves");
    assert_eq!(NeuronIndex::open(&copy).expect("opens"), index);
    assert!(std::fs::read(original).expect("original") == std::fs::read(copy).expect("copy"));
}

#[test]
fn a_model_that_is_copied_key_by_key_and_tensor_by_tensor_has_the_same_bytes() {
    let Some(folder) = samples() else { return };
    for name in ["tiny/llama-256-Q4_K.gguf", "powerinfer-samples/small/small.Q4_0.powerinfer.gguf"] {
        let path = folder.join(name);
        let file = File::open(&path).expect("opens");
        let mut builder = Builder::new(file.kind());
        for (key, value) in file.metadata().iter() {
            builder.set(key, value).expect("key");
        }
        for tensor in file.tensors() {
            builder.tensor(tensor.name(), tensor.ty(), tensor.dims()).expect("tensor");
        }
        let mut writer = builder.start(Vec::new()).expect("header");
        for tensor in file.tensors() {
            writer.write(tensor.name(), tensor.data()).expect("data");
        }
        assert!(writer.finish().expect("end") == std::fs::read(&path).expect("bytes"), "{name}");
    }
}
