//! `pi inspect` on files of all kinds.

use crate::common::*;
use pi_core::QuantType;
use pi_gguf::{Builder, Kind, LayerIndex, NeuronIndex, TensorType};
use std::{fs, path::Path};

fn inspect(path: &Path) -> Said {
    said(pi().arg("inspect").arg(path))
}

fn inspect_json(path: &Path) -> serde_json::Value {
    object(&said(pi().args(["inspect", "--json"]).arg(path)))
}

fn build(path: &Path, builder: Builder, tensors: &[(&str, usize)]) {
    let mut writer = builder.create(path).unwrap();
    for (name, bytes) in tensors {
        writer.write(name, &vec![0; *bytes]).unwrap();
    }
    writer.finish().unwrap().commit().unwrap();
}

#[test]
fn the_demo_model_is_described_for_people_and_for_programs() {
    let said = inspect(&demo());
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    for part in [
        "GGUF, version 3",
        "\"tiny-reglu-6m\"",
        "string[2048]",
        "256 × 2048  1048576 bytes at",
        "F16: 43 tensors",
        "llama: 6 layers, width 256, 1024 neurons",
        "sparsity: exact (relu:",
        "No problems found",
    ] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    assert!(said.out.lines().all(|line| line.chars().count() < 200));

    let object = inspect_json(&demo());
    assert_eq!(object["kind"], "gguf");
    assert_eq!(object["metadata"]["llama.block_count"], 6);
    assert_eq!(object["metadata"]["tokenizer.ggml.tokens"]["length"], 2048);
    assert_eq!(object["tensors"].as_array().unwrap().len(), 56);
    assert_eq!(object["tensors"][0]["shape"], serde_json::json!([256, 2048]));
    assert_eq!(object["types"][0]["type"], "F16");
    assert_eq!(object["model"]["sparsity"]["skips_down"], true);
    assert_eq!(object["model"]["shape"]["neurons"], 1024);
    assert_eq!(object["problems"], serde_json::json!([]));

    let short = crate::common::object(&said_with(&["--json", "--no-tensors", "--full"]));
    assert!(short.get("tensors").is_none());
    assert_eq!(short["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 2048);
    assert!(!said_with(&["--no-tensors"]).out.contains("blk.0.attn_q.weight"));
    assert!(said_with(&["--full"]).out.lines().any(|line| line.len() > 10_000));
}

fn said_with(options: &[&str]) -> Said {
    said(pi().arg("inspect").args(options).arg(demo()))
}

#[test]
fn what_is_no_gguf_file_is_named_and_advice_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (bytes, name, advice) in [
        (&b"\x10\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\"}}"[..], "a safetensors file", "convert it"),
        (b"<!DOCTYPE html><html>", "a web page", "login or error page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "a git LFS pointer", "git lfs pull"),
        (b"lmgg\x01\0\0\0", "a GGML file", "older than GGUF"),
        (b"PK\x03\x04\x14\0\0\0\x08\0", "a zip archive", "unpack it"),
        (b"\x1f\x8b\x08\0\0\0", "gzip", "unpack it"),
        (b"{\"error\": \"no\"}", "a JSON file", ""),
        (b"", "an empty file", ""),
        (b"\x1b[31mred", "\\x1b[31", ""),
        (b"GGUF\x03\0\0\0\x01", "truncated", ""),
        (b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0", "version 1", "expected 2 or 3"),
    ] {
        fs::write(&path, bytes).unwrap();
        for said in [inspect(&path), said(pi().args(["run", "-p", "x", "-m"]).arg(&path))] {
            assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{name}");
            assert!(said.err.starts_with(&format!("error: {}: ", path.display())), "{}", said.err);
            assert!(
                said.err.contains(name) && said.err.contains(advice) && said.err.lines().count() == 1,
                "{}",
                said.err
            );
        }
    }
    let said = inspect(folder.path());
    assert!(said.code == Some(1) && said.err.contains("a directory"), "{}", said.err);
}

#[test]
fn a_family_that_is_not_known_is_described_and_the_problem_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("strange.gguf");
    let mut builder = Builder::new(Kind::Gguf);
    builder.set("general.architecture", "mystery").unwrap().set("mystery.temperament", -0.5f32).unwrap();
    builder.tensor("blk.0.thing.weight", QuantType::F32, &[4, 3]).unwrap();
    builder.tensor("blk.0.odd.weight", TensorType::from_id(16).unwrap(), &[256]).unwrap();
    let odd = TensorType::from_id(16).unwrap().block_bytes();
    build(&path, builder, &[("blk.0.thing.weight", 48), ("blk.0.odd.weight", odd)]);
    let said = inspect(&path);
    assert_eq!(said.code, Some(0));
    for part in
        ["-0.5", "blk.0.thing.weight", "does not compute with it", "Problems", "architecture \"mystery\" is not"]
    {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let object = inspect_json(&path);
    assert_eq!(object["model"]["shape"], serde_json::Value::Null);
    assert!(object["problems"][0].as_str().unwrap().starts_with("model architecture"), "{object}");
}

#[test]
fn a_vocabulary_is_told_from_a_model_by_one_problem() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vocabulary.gguf");
    let demo = pi_gguf::File::open(demo()).unwrap();
    let mut builder = Builder::new(Kind::Gguf);
    for (key, value) in demo.metadata().iter() {
        builder.set(key, value).unwrap();
    }
    build(&path, builder, &[]);
    let said = inspect(&path);
    assert_eq!(said.code, Some(0));
    assert!(said.out.contains("without tensors") && said.out.contains("6 layers"), "{}", said.out);
    assert_eq!(inspect_json(&path)["problems"].as_array().unwrap().len(), 1);
}

#[test]
fn predictors_of_a_powerinfer_file_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    let mut builder = Builder::new(Kind::PowerInfer);
    builder.set("general.architecture", "llama").unwrap().set("powerinfer.sparse_threshold", 0.25f32).unwrap();
    let mut tensors = Vec::new();
    for (name, dims) in [
        ("blk.0.fc1.weight", [8, 4]),
        ("blk.0.fc2.weight", [4, 16]),
        ("blk.1.fc1.weight", [8, 6]),
        ("blk.1.fc2.weight", [6, 16]),
    ] {
        builder.tensor(name, QuantType::F32, &dims).unwrap();
        tensors.push((name, dims[0] * dims[1] * 4));
    }
    build(&path, builder, &tensors);
    let said = inspect(&path);
    assert_eq!(said.code, Some(0));
    assert!(said.out.contains("magic PWRI"), "{}", said.out);
    assert!(said.out.contains("predictors: in 2 layers, rank 4 to 6, threshold 0.25"), "{}", said.out);
    let object = inspect_json(&path);
    assert_eq!(object["kind"], "powerinfer");
    assert_eq!(object["model"]["predictors"]["rank"], serde_json::json!([4, 6]));
}

#[test]
fn a_file_of_predictors_is_described_as_one_and_belongs_to_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("predictors.gguf");
    let write = |width: usize, layers: u32| {
        let mut builder = Builder::new(Kind::Gguf);
        builder.set("general.architecture", "pi.predictor").unwrap().set("pi.predictor.block_count", layers).unwrap();
        builder.set_array("pi.predictor.thresholds", &[0.0f32, -1.5, 0.0, 0.0, 0.5, 0.0]).unwrap();
        let mut tensors = Vec::new();
        for (name, dims) in [
            ("blk.1.fc1.weight", [width, 4]),
            ("blk.1.fc2.weight", [4, 1024]),
            ("blk.4.fc1.weight", [width, 6]),
            ("blk.4.fc2.weight", [6, 1024]),
        ] {
            builder.tensor(name, QuantType::F32, &dims).unwrap();
            tensors.push((name, dims[0] * dims[1] * 4));
        }
        build(&path, builder, &tensors);
    };
    write(256, 6);
    let said = inspect(&path);
    assert_eq!(said.code, Some(0));
    for part in [
        "predictors in GGUF",
        "for a model of 6 layers, width 256, 1024 neurons per layer",
        "predictors: in 2 of 6 layers, rank 4 to 6, threshold -1.5 to 0.5",
        "layer 0: none, runs exactly",
        "layer 1: rank 4, F32, threshold -1.5",
        "layer 4: rank 6, F32, threshold 0.5",
        "No problems found",
    ] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let object = inspect_json(&path);
    assert_eq!((&object["kind"], &object["model"]), (&"predictors".into(), &serde_json::Value::Null));
    assert_eq!(object["predictors"]["exact_layers"], serde_json::json!([0, 2, 3, 5]));
    assert_eq!(object["predictors"]["by_layer"][1]["layer"], 4);

    // as which it is used with a model, and not with another, nor as one
    let with = |file: &Path| {
        let words = format!("--sparsity predictor -n 2 --temp 0 --predictor-file {}", file.display());
        run(&words)
    };
    assert_eq!(with(&path).code, Some(0), "{}", with(&path).err);
    let refused = |file: &Path, what: &str| {
        let said = with(file);
        let start = format!("error: {}: ", file.display());
        assert!(said.code == Some(1) && said.err.lines().last().unwrap().starts_with(&start), "{}", said.err);
        assert!(said.err.contains(what), "{what}: {}", said.err);
    };
    write(256, 7);
    refused(&path, "expected 6, as the model has, got 7");
    write(128, 6);
    refused(&path, "blk.1.fc1.weight");
    refused(&folder.path().join("absent.gguf"), "absent.gguf");
    fs::write(folder.path().join("cut.gguf"), &fs::read(&path).unwrap()[..300]).unwrap();
    refused(&folder.path().join("cut.gguf"), "truncated");
    fs::write(folder.path().join("text.gguf"), "no model").unwrap();
    refused(&folder.path().join("text.gguf"), "");
    let said = crate::common::said(pi().args(["run", "-p", "x", "-m"]).arg(&path));
    assert!(said.code == Some(1) && said.err.contains("predictors alone"), "{}", said.err);
}

#[test]
fn a_neuron_index_is_described_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf.generated.gpuidx");
    let layers = [vec![1, 2], vec![]].map(|hot| LayerIndex::new(4, hot).unwrap()).to_vec();
    NeuronIndex { vram_capacity: 5_000_000, layers }.save(&path).unwrap();
    let said = inspect(&path);
    assert_eq!(said.code, Some(0));
    for part in ["neuron index", "5.00 MB of device memory", "layer 0: 2 of 4", "layer 1: 0 of 4", "No problems found"]
    {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let object = inspect_json(&path);
    assert_eq!(object["neuron_index"]["layers"][0]["hot"], 2);
    assert_eq!(object["model"], serde_json::Value::Null);
}

#[test]
fn any_part_of_a_split_model_shows_the_whole_and_a_missing_part_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let name = |part: u16| folder.path().join(format!("model-{:05}-of-00002.gguf", part + 1));
    for part in 0..2u16 {
        let mut builder = Builder::new(Kind::Gguf);
        if part == 0 {
            builder.set("general.architecture", "llama").unwrap();
        }
        builder.set("split.no", part).unwrap().set("split.count", 2u16).unwrap();
        builder.set("split.tensors.count", 2i32).unwrap();
        let tensor = ["token_embd.weight", "output_norm.weight"][part as usize];
        builder.tensor(tensor, QuantType::F32, &[4]).unwrap();
        build(&name(part), builder, &[(tensor, 16)]);
    }
    for part in 0..2 {
        let said = inspect(&name(part));
        assert_eq!(said.code, Some(0), "{}", said.err);
        for text in ["part 2 of 2: ", "in part 1", "in part 2", "all: 2 tensors"] {
            assert!(said.out.contains(text), "{text}: {}", said.out);
        }
    }
    assert_eq!(inspect_json(&name(1))["tensors"][1]["part"], 1);
    fs::remove_file(name(0)).unwrap();
    let said = inspect(&name(1));
    assert!(
        said.code == Some(1) && said.err.contains("part 1 is missing") && said.err.contains("-00001-of"),
        "{}",
        said.err
    );
}

#[test]
fn control_sequences_in_names_and_values_do_not_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.gguf");
    let mut builder = Builder::new(Kind::Gguf);
    builder
        .set("general.architecture", "\x1b[2Jmystery")
        .unwrap()
        .set("general.name", "a\x1b]0;title\x07\u{202e}b")
        .unwrap();
    builder.set_strings("general.tags", ["\x1b[31m", "\u{9b}31m"]).unwrap();
    let tensors: &[(&str, usize)] = match builder.tensor("bl\x1b[5mk", QuantType::F32, &[4]) {
        Ok(_) => &[("bl\x1b[5mk", 16)],
        Err(_) => &[],
    };
    build(&path, builder, tensors);
    let said = inspect(&path);
    assert_eq!(said.code, Some(0));
    let printable = |c: char| c == '\n' || (!c.is_control() && c != '\u{202e}');
    assert!(said.out.chars().all(printable), "{:?}", said.out);
    assert!(said.out.contains("\\u{1b}[2Jmystery"), "{}", said.out);
    let said = crate::common::said(pi().args(["run", "-p", "x", "-m"]).arg(&path));
    assert!(said.code == Some(1) && said.err.chars().all(printable), "{:?}", said.err);
}

#[test]
fn a_profile_is_summed_up_and_a_damaged_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demo.profile");
    let (model, text) = (demo(), repository("models/tiny-reglu-6m/text/eval.txt"));
    let words = ["profile".as_ref(), model.as_os_str(), "--text".as_ref(), text.as_os_str(), "--tokens".as_ref()];
    let rest = ["200".as_ref(), "-o".as_ref(), path.as_os_str()];
    let counted = call(words.into_iter().chain(rest));
    assert_eq!(counted.code, Some(0), "{}", counted.err);
    let page = call(["inspect".as_ref(), path.as_os_str()]);
    assert_eq!(page.code, Some(0), "{}", page.err);
    assert!(page.out.contains("profile of pi, ") && page.out.ends_with(&counted.out), "{}", page.out);
    assert!(!page.out.contains("not complete"), "{}", page.out);
    let found = object(&call(["inspect".as_ref(), path.as_os_str(), "--json".as_ref()]));
    assert_eq!((&found["kind"], &found["tokens"], &found["complete"]), (&"profile".into(), &200.into(), &true.into()));
    assert_eq!(found["bytes"], fs::metadata(&path).unwrap().len());
    assert_eq!(found["layers"].as_array().unwrap().len(), 6);
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, bytes).unwrap();
    let bad = call(["inspect".as_ref(), path.as_os_str()]);
    assert!(bad.code == Some(1) && bad.err.contains("demo.profile: byte") && bad.out.is_empty(), "{}", bad.err);
}
