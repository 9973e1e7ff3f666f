//! Other number types: which tensor gets which, and what is in them.

use crate::common::{Model, decoded, error, same_tensors};
use pi_convert::{Error, FileType, QuantizeOptions, quantize};
use pi_core::QuantType;
use pi_gguf::{Builder, File, Kind};
use pi_testkit::{data::test_data, tiny::TinyModel};
use serde_json::Value as Json;
use std::{collections::HashMap, fs, ops::ControlFlow, path::Path};

fn default() -> QuantizeOptions {
    QuantizeOptions::default()
}

/// The model with tensors of zeros that `tests/data/types.json` speaks of.
fn shaped(case: &Json) -> File {
    let number = |key: &str| case[key].as_u64().unwrap() as usize;
    let (layers, dim, ff, heads, kv) = (number("layers"), number("dim"), number("ff"), number("heads"), number("kv"));
    let (arch, kv_dim) = (case["arch"].as_str().unwrap(), kv * dim / heads);
    let mut model = Model::new(Kind::Gguf, arch);
    for (key, value) in [("block_count", layers), ("attention.head_count", heads), ("attention.head_count_kv", kv)] {
        model.builder.set(&format!("{arch}.{key}"), value as u32).unwrap();
    }
    let mut add = |name: &str, dims: &[usize]| model.add(name, dims, |_| 0.0);
    add("token_embd.weight", &[dim, 8]);
    add("output_norm.weight", &[dim]);
    if !case["tied"].as_bool().unwrap() {
        add("output.weight", &[dim, 8]);
    }
    for i in 0..layers {
        let mut add = |name: &str, dims: &[usize]| add(&format!("blk.{i}.{name}.weight"), dims);
        if arch == "falcon" {
            add("attn_qkv", &[dim, dim + 2 * kv_dim]);
        } else {
            for (name, rows) in [("attn_q", dim), ("attn_k", kv_dim), ("attn_v", kv_dim), ("ffn_gate", ff)] {
                add(name, &[dim, rows]);
            }
        }
        add("attn_norm", &[dim]);
        add("attn_output", &[dim, dim]);
        add("ffn_up", &[dim, ff]);
        add("ffn_down", &[ff, dim]);
    }
    model.file()
}

#[test]
fn every_tensor_gets_the_type_that_llama_cpp_gives_it() {
    let cases: Json = serde_json::from_str(include_str!("data/types.json")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let (mut last, mut model) = (String::new(), None);
    let cases = cases.as_array().unwrap();
    for case in cases {
        let key = ["arch", "layers", "dim", "ff", "heads", "kv", "tied"].map(|k| case[k].to_string()).join(" ");
        if key != last {
            (last, model) = (key.clone(), Some(shaped(case)));
        }
        let file = model.as_ref().unwrap();
        let name = case["file"].as_str().unwrap();
        quantize(file, &path, Some(name.parse().unwrap()), &default(), None).unwrap();
        let mut expected = HashMap::new();
        for (ty, names) in case["others"].as_object().unwrap() {
            expected.extend(names.as_str().unwrap().split(' ').map(|name| (name.to_owned(), ty.as_str())));
        }
        for tensor in File::open(&path).unwrap().tensors() {
            let short = tensor.name().trim_end_matches(".weight").trim_start_matches("blk.");
            let ty = if tensor.dims().len() == 1 {
                "F32"
            } else {
                expected.get(short).copied().unwrap_or(case["most"].as_str().unwrap())
            };
            assert_eq!(tensor.ty().name(), ty, "{} of {key} as {name}", tensor.name());
        }
    }
    assert_eq!(cases.len(), 6 * FileType::all().count());
}

/// PowerInfer's programs are compiled to multiply and add with one rounding, so that a few numbers in a million, which lie
/// between two codes, get the other one. llama.cpp rounds twice, as we do. Blocks are compared with both.
#[test]
fn the_samples_powerinfer_file_becomes_its_q4_0_file_but_for_one_rounding() {
    let Some(samples) = test_data("powerinfer-samples/small") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q4_0.gguf");
    let input = File::open(samples.join("small.powerinfer.gguf")).unwrap();
    let report = quantize(&input, &path, Some(FileType::Q4_0), &default(), None).unwrap();
    assert_eq!(report.notes, Vec::<String>::new());
    let (expected, made) =
        (File::open(samples.join("small.Q4_0.powerinfer.gguf")).unwrap(), File::open(&path).unwrap());
    assert!(expected.metadata().iter().eq(made.metadata().iter()));
    assert!(expected.tensors().map(|t| (t.name(), t.ty())).eq(made.tensors().map(|t| (t.name(), t.ty()))));
    let mut rounded = 0;
    for (x, y) in expected.tensors().zip(made.tensors()) {
        assert_eq!(x.dims(), y.dims());
        let numbers = decoded(&input, x.name());
        match x.quant().unwrap() {
            QuantType::Q4_0 => {}
            QuantType::Q6_K => {
                // Here a rounding decides between two searched scales: few blocks differ, and are as near to the numbers.
                let blocks = x.data().chunks(210).zip(y.data().chunks(210));
                assert!(blocks.filter(|(x, y)| x != y).count() <= x.data().len() / 210 / 50);
                let off = |file: &File| {
                    let stored = decoded(file, x.name());
                    numbers.iter().zip(stored).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>()
                };
                assert!((off(&expected) / off(&made) - 1.0).abs() < 1e-3);
                continue;
            }
            _ => {
                assert!(x.data() == y.data(), "{}", x.name());
                continue;
            }
        }
        for ((numbers, x), y) in numbers.as_chunks::<32>().0.iter().zip(x.data().chunks(18)).zip(y.data().chunks(18)) {
            let top = numbers.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
            let inverse = if top == 0.0 { 0.0 } else { 1.0 / (top / -8.0) };
            let once = |v: f32| ((f64::from(v) * f64::from(inverse) + 8.5) as f32 as u8).min(15);
            assert_eq!(x[..2], y[..2]);
            for j in 0..16 {
                assert_eq!(x[2 + j], once(numbers[j]) | once(numbers[j + 16]) << 4);
                rounded += usize::from(x[2 + j] != y[2 + j]);
            }
        }
    }
    assert!(rounded < 100, "{rounded} bytes");
}

#[test]
fn predictors_of_powerinfer_files_have_five_bits_unless_all_have_four_or_they_are_asked_for() {
    let mut model = Model::new(Kind::PowerInfer, "falcon");
    model.builder.set("falcon.block_count", 1u32).unwrap();
    for (name, dims) in [
        ("token_embd", [256, 8]),
        ("output", [256, 8]),
        ("blk.0.attn_qkv", [256, 8]),
        ("blk.0.ffn_down_t", [256, 8]),
        ("blk.0.fc1", [256, 48]),
        ("blk.0.fc2", [48, 8]),
    ] {
        model.add(&format!("{name}.weight"), &dims, |i| (i % 11) as f32);
    }
    let file = model.file();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let types = |ty, options: &QuantizeOptions| {
        let report = quantize(&file, &path, Some(ty), options, None).unwrap();
        let types: Vec<_> = File::open(&path).unwrap().tensors().map(|t| t.ty().name()).collect();
        (types.join(" "), report.notes)
    };
    let note =
        |ty: &str| vec![format!("blk.0.fc2.weight: rows of 48 do not divide into blocks of {ty}, stored as F16")];
    assert_eq!(types(FileType::Q8_0, &default()), ("Q8_0 Q8_0 Q8_0 Q8_0 Q5_0 F16".into(), note("Q5_0")));
    assert_eq!(types(FileType::Q4_K_M, &default()), ("Q4_K Q8_0 Q4_K Q4_K Q5_0 F16".into(), note("Q5_0")));
    assert_eq!(types(FileType::Q4_0, &default()), ("Q4_0 Q8_0 Q4_0 Q4_0 Q4_0 F16".into(), note("Q4_0")));
    let options = QuantizeOptions {
        predictor_type: Some(QuantType::F16),
        output_tensor_type: Some(QuantType::Q6_K),
        token_embedding_type: Some(QuantType::Q8_0),
        ..default()
    };
    assert_eq!(types(FileType::Q4_0, &options), ("Q8_0 Q6_K Q4_0 Q4_0 F16 F16".into(), vec![]));
    let options = QuantizeOptions { pure: true, leave_output_tensor: true, ..default() };
    assert_eq!(types(FileType::Q4_K_S, &options).0, "Q4_K F32 Q4_K Q4_K Q4_K F16");
    assert_eq!(types(FileType::F16, &default()).0, "F16 F16 F16 F16 F16 F16");
}

// N08: 4544 is the width of Falcon 7B, not a multiple of 256.
#[test]
fn rows_that_blocks_do_not_divide_get_another_type_and_the_report_says_so() {
    let mut model = Model::new(Kind::Gguf, "falcon");
    model.builder.set("falcon.block_count", 1u32).unwrap();
    model.add("token_embd.weight", &[256, 1], |_| 0.0);
    model.add("blk.0.ffn_up.weight", &[4544, 2], |i| (i as f32).sin());
    model.add("blk.0.odd.weight", &[33, 2], |i| (i as f32).cos());
    let file = model.file();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    for (ty, instead) in [
        ("Q4_K_M", "Q5_0"),
        ("Q5_K_M", "Q5_1"),
        ("Q6_K", "Q8_0"),
        ("Q2_K", "Q4_0"),
        ("Q3_K_M", "Q4_0"),
        ("IQ4_XS", "IQ4_NL"),
        ("Q4_0", "Q4_0"),
    ] {
        let ty: FileType = ty.parse().unwrap();
        let report = quantize(&file, &path, Some(ty), &default(), None).unwrap();
        let out = File::open(&path).unwrap();
        assert_eq!(out.tensor("blk.0.ffn_up.weight").unwrap().ty().name(), instead);
        assert_eq!(out.tensor("blk.0.odd.weight").unwrap().ty().name(), "F16");
        // One row is a vector: it stays.
        assert_eq!(out.tensor("token_embd.weight").unwrap().ty().name(), "F32");
        let notes = report.notes.join("\n");
        assert_eq!(notes.contains("rows of 4544 do not divide"), instead != ty.name(), "{notes}");
        assert!(notes.contains("blk.0.odd.weight: rows of 33 do not divide into blocks of "), "{notes}");
    }
}

#[test]
fn quantised_tensors_are_quantised_anew_only_if_that_is_allowed() {
    let file = TinyModel::wide(QuantType::Q8_0).file();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let said = error(quantize(&file, &path, Some(FileType::Q4_0), &default(), None));
    assert!(
        said.contains("'token_embd.weight' is quantised already (Q8_0)") && said.contains("--allow-requantize"),
        "{said}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    // What has the type already is no obstacle, and is copied.
    quantize(&file, &path, Some(FileType::Q8_0), &default(), None).unwrap();
    same_tensors(&file, &File::open(&path).unwrap());
    quantize(&file, &path, Some(FileType::Q4_0), &QuantizeOptions { allow_requantize: true, ..default() }, None)
        .unwrap();
    let out = File::open(&path).unwrap();
    let up = "blk.0.ffn_up.weight";
    assert_eq!(out.tensor(up).unwrap().quant(), Some(QuantType::Q4_0));
    let (a, b) = (decoded(&file, up), decoded(&out, up));
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let share = norm(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / norm(&mut a.iter().copied());
    assert!((0.01..0.12).contains(&share), "{share}");
}

#[test]
fn a_transposed_down_has_one_row_per_neuron_and_the_error_is_reported() {
    let file = TinyModel { neurons: 640, ..TinyModel::wide(QuantType::F32) }.file();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let options = QuantizeOptions { transpose_down: true, ..default() };
    let check = |file: &File, out: &File, bound: f64| {
        let (down, down_t) = (decoded(file, "blk.1.ffn_down.weight"), decoded(out, "blk.1.ffn_down_t.weight"));
        assert_eq!(out.tensor("blk.1.ffn_down_t.weight").unwrap().dims(), [256, 640]);
        assert!(out.tensor("blk.1.ffn_down.weight").is_none());
        let (mut errors, mut squares) = (0.0, 0.0);
        for (neuron, output) in (0..640).flat_map(|n| (0..256).map(move |o| (n, o))) {
            let (x, y) = (f64::from(down[output * 640 + neuron]), f64::from(down_t[neuron * 256 + output]));
            (errors, squares) = (errors + (x - y).powi(2), squares + x * x);
        }
        let share: f64 = (errors / squares).sqrt();
        assert!(share <= bound, "{share}");
        share
    };
    let copied = quantize(&file, &path, None, &options, None).unwrap();
    assert_eq!(check(&file, &File::open(&path).unwrap(), 0.0), 0.0);
    assert_eq!((copied.transposed.len(), copied.transposed[1].error, copied.transposed[1].plain), (2, 0.0, Some(0.0)));

    let report = quantize(&file, &path, Some(FileType::Q4_0), &options, None).unwrap();
    let share = check(&file, &File::open(&path).unwrap(), 0.15);
    let told = &report.transposed[1];
    assert_eq!((&*told.tensor, told.ty), ("blk.1.ffn_down_t.weight", QuantType::Q4_0));
    assert!((told.error - share).abs() < 1e-9, "{} is not {share}", told.error);
    // Without transposing, it costs as much: what it would cost is measured, not guessed.
    let plain_path = dir.path().join("plain.gguf");
    quantize(&file, &plain_path, Some(FileType::Q4_0), &default(), None).unwrap();
    let plain = File::open(&plain_path).unwrap();
    let (x, y) = (decoded(&file, "blk.1.ffn_down.weight"), decoded(&plain, "blk.1.ffn_down.weight"));
    let errors: f64 = x.iter().zip(&y).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
    assert!((told.plain.unwrap() - (errors / squares).sqrt()).abs() < 1e-9, "{:?}", told.plain);

    // A quantised matrix has to be quantised anew, whatever the type.
    let said = error(quantize(&plain, &path, None, &options, None));
    assert!(said.contains("'blk.0.ffn_down.weight' is quantised already"), "{said}");
    let anew = QuantizeOptions { allow_requantize: true, ..options.clone() };
    let report = quantize(&plain, &path, None, &anew, None).unwrap();
    let share = check(&plain, &File::open(&path).unwrap(), 0.15);
    assert!(
        share > 0.0 && (report.transposed[1].error - share).abs() < 1e-9 && report.transposed[1].plain == Some(0.0)
    );
    drop(plain);
    let said = error(quantize(&File::open(&path).unwrap(), &plain_path, None, &options, None));
    assert!(said.ends_with("there is no ffn_down.weight to transpose"), "{said}");
}

#[test]
fn keys_stay_but_for_the_kind_of_file_and_the_parts() {
    let mut model = Model::new(Kind::Gguf, "llama");
    model.builder.set("llama.block_count", 1u32).unwrap().set("general.file_type", 0u32).unwrap();
    model.builder.set("split.count", 1u16).unwrap().set("split.no", 0u16).unwrap();
    model.builder.set_strings("tokenizer.ggml.tokens", ["a", "b"]).unwrap();
    model.add("token_embd.weight", &[256, 2], |i| i as f32);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    quantize(&model.file(), &path, Some(FileType::Q6_K), &default(), None).unwrap();
    let out = File::open(&path).unwrap();
    let shown: Vec<_> = out.metadata().iter().map(|(key, value)| format!("{key} = {value}")).collect();
    assert_eq!(
        shown,
        [
            "general.architecture = llama",
            "llama.block_count = 1",
            "general.file_type = 18",
            r#"tokenizer.ggml.tokens = ["a", "b"]"#,
            "general.quantization_version = 2"
        ]
    );
}

#[test]
fn a_conversion_that_is_stopped_or_fails_leaves_nothing_behind_and_the_old_file_as_it_was() {
    let file = TinyModel::wide(QuantType::F32).file();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    fs::write(&path, "old").unwrap();
    let mut seen = Vec::new();
    let mut stop = |now: &pi_convert::Progress<'_>| {
        seen.push((now.done, now.bytes));
        if now.done == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = quantize(&file, &path, Some(FileType::Q4_0), &default(), Some(&mut stop));
    assert!(matches!(stopped, Err(Error::Cancelled)));
    assert!(seen.is_sorted() && seen.len() > 3, "{seen:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert!(quantize(&file, Path::new("/nowhere/out.gguf"), Some(FileType::Q4_0), &default(), None).is_err());
}

#[test]
fn types_that_are_not_decoded_are_copied_or_refused_by_name() {
    let mut builder = Builder::new(Kind::Gguf);
    builder.set("general.architecture", "llama").unwrap().set("llama.block_count", 1u32).unwrap();
    builder.tensor("blk.0.ffn_up.weight", pi_gguf::TensorType::IQ2_XS, &[256, 2]).unwrap();
    let mut writer = builder.start(Vec::new()).unwrap();
    writer.write("blk.0.ffn_up.weight", &[7; 148]).unwrap();
    let file = File::from_bytes(writer.finish().unwrap(), "iq2.gguf").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let said = error(quantize(&file, &path, Some(FileType::Q4_0), &default(), None));
    assert_eq!(said, "iq2.gguf: tensor 'blk.0.ffn_up.weight': expected a type that is decoded here, got IQ2_XS");
    quantize(&file, &path, None, &default(), None).unwrap();
    same_tensors(&file, &File::open(&path).unwrap());
}

#[test]
fn numbers_that_f16_cannot_hold_are_reported_and_threads_do_not_change_a_byte() {
    let mut model = Model::new(Kind::Gguf, "llama");
    model.builder.set("llama.block_count", 1u32).unwrap();
    model.add("blk.0.ffn_up.weight", &[256, 600], |i| if i % 1000 == 7 { 7e4 } else { (i as f32).sin() });
    let file = model.file();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let report = quantize(&file, &path, Some(FileType::F16), &default(), None).unwrap();
    assert_eq!(report.notes, ["blk.0.ffn_up.weight: 154 numbers are too large for F16"]);
    let mut all = Vec::new();
    for threads in [1, 3] {
        let options = QuantizeOptions { threads: Some(threads), ..default() };
        quantize(&file, &path, Some(FileType::Q4_K_M), &options, None).unwrap();
        all.push(fs::read(&path).unwrap());
    }
    assert!(all[0] == all[1]);
}
