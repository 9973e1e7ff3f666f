//! `pi convert` and `pi quantize`, and what `pi run` makes of their files.

use crate::common::{Said, call, demo, names, pi};
use pi_core::QuantType;
use pi_gguf::{File, LayerIndex, NeuronIndex};
use pi_testkit::{data::test_data, tiny::TinyModel};
use std::{ffi::OsStr, fs, path::Path, process::Stdio, time::Duration};

/// `pi` with words, where `{}` stands for a path each.
fn pi_line(line: &str, paths: &[&Path]) -> Said {
    let mut paths = paths.iter();
    call(
        line.split_whitespace()
            .map(|word| if word == "{}" { paths.next().unwrap().as_os_str() } else { OsStr::new(word) }),
    )
}

/// What a model says, decoded greedily.
fn greedy(model: &Path) -> String {
    let said = pi_line("run -m {} -n 40 --temp 0 -p Lily", &[model]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    said.out
}

#[test]
fn the_demo_models_checkpoint_says_what_the_demo_model_says() {
    let Some(hf) = test_data("demo-model") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demo.gguf");
    let said = pi_line("convert {} -o {} --outtype f32", &[&hf.join("hf"), &path]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("25.7 MB of tensors from 25.7 MB (100.0 %)"), "{}", said.out);
    assert!(said.out.contains("F32        56 tensors"), "{}", said.out);
    // Standard error is no terminal: a line for every tenth.
    assert!(said.err.contains("56 of 56 tensors, ") || said.err.contains("55 of 56 tensors, "), "{}", said.err);
    let expected = greedy(&hf.join("tiny-reglu-6m-f32.gguf"));
    assert!(expected.len() > 60, "{expected}");
    assert_eq!(greedy(&path), expected);
    // The same with down matrices neuron by neuron.
    let said = pi_line("convert {} -o {} --outtype f32 --transpose-down", &[&hf.join("hf"), &path]);
    assert_eq!((said.code, greedy(&path)), (Some(0), expected.clone()), "{}", said.err);
    let said = pi_line(
        "convert {} -o {} --outtype f32 --format pwri --predictors {}",
        &[&hf.join("hf"), &path, &hf.join("predictors-r64")],
    );
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(File::open(&path).unwrap().tensor("blk.5.fc2.weight").unwrap().dims(), [64, 1024]);
}

#[test]
fn transposing_the_demo_model_changes_no_word_and_says_what_it_costs() {
    let folder = tempfile::tempdir().unwrap();
    let (copy, small) = (folder.path().join("copy.gguf"), folder.path().join("small.gguf"));
    let said = pi_line("quantize {} {} COPY --transpose-down", &[&demo(), &copy]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(
        said.out
            .contains("down matrices transposed: 6, relative error 0.000 % on average; without transposing 0.000 %"),
        "{}",
        said.out
    );
    assert_eq!(greedy(&copy), greedy(&demo()));
    let said = pi_line("quantize {} {} q4_k_m --transpose-down -t 1", &[&demo(), &small]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let cost = said.out.split("relative error ").nth(1).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
    assert!((0.5..15.0).contains(&cost), "{}", said.out);
    let file = File::open(&small).unwrap();
    assert_eq!(file.tensor("blk.2.ffn_down_t.weight").unwrap().quant(), Some(QuantType::Q6_K));
    assert!(!greedy(&small).is_empty());
}

#[test]
fn options_are_heeded_and_the_default_name_has_the_type() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    fs::write(&model, TinyModel::wide(QuantType::F32).build().unwrap()).unwrap();
    let types = |line: &str| {
        let said = pi_line(&format!("quantize {{}} Q4_0 {line}"), &[&model]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        let file = File::open(folder.path().join("model.Q4_0.gguf")).unwrap();
        ["token_embd", "output", "blk.0.ffn_up"]
            .map(|n| file.require_tensor(&format!("{n}.weight")).unwrap().ty().name())
    };
    assert_eq!(types(""), ["Q4_0", "Q6_K", "Q4_0"]);
    assert_eq!(types("--pure"), ["Q4_0", "Q4_0", "Q4_0"]);
    assert_eq!(types("--leave-output-tensor"), ["Q4_0", "F32", "Q4_0"]);
    assert_eq!(types("--output-tensor-type q8_0 --token-embedding-type Q5_0"), ["Q5_0", "Q8_0", "Q4_0"]);
    assert_eq!(names(folder.path()), ["model.Q4_0.gguf", "model.gguf"]);
    let small = folder.path().join("model.Q4_0.gguf");
    let again = pi_line("quantize {} Q8_0", &[&small]);
    assert_eq!(again.code, Some(1));
    assert!(again.err.contains("is quantised already") && again.err.contains("--allow-requantize"), "{}", again.err);
}

#[test]
fn the_model_that_is_read_is_not_replaced_by_whatever_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    fs::write(&model, TinyModel::wide(QuantType::F32).build().unwrap()).unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    let before = fs::read(&model).unwrap();
    let mut outputs = vec![model.clone(), folder.path().join("sub/../model.gguf")];
    #[cfg(unix)]
    {
        let link = folder.path().join("link.gguf");
        std::os::unix::fs::symlink(&model, &link).unwrap();
        outputs.push(link);
    }
    for output in outputs {
        let said = pi_line("quantize {} {} Q8_0", &[&model, &output]);
        assert_eq!(said.code, Some(1), "{}", said.err);
        assert!(said.err.contains("this is the model, and is not replaced"), "{}", said.err);
        assert!(fs::read(&model).unwrap() == before, "{}", output.display());
    }
}

#[test]
fn a_copy_refuses_options_about_number_types_and_a_neuron_index_is_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let (index, out) = (folder.path().join("model.gpuidx"), folder.path().join("out.gguf"));
    for option in ["--pure", "--output-tensor-type Q8_0", "--token-embedding-type Q8_0", "--predictor-type Q8_0"] {
        let said = pi_line(&format!("quantize {{}} {{}} COPY {option}"), &[&demo(), &out]);
        assert_eq!(said.code, Some(2), "{option}: {}", said.err);
        let flag = option.split(' ').next().unwrap();
        assert!(said.err.contains(&format!("{flag} means nothing with COPY")), "{}", said.err);
    }
    let layers = vec![LayerIndex::new(4, vec![1, 2]).unwrap()];
    NeuronIndex { vram_capacity: 1 << 30, layers }.save(&index).unwrap();
    for ty in ["COPY", "Q8_0"] {
        let said = pi_line(&format!("quantize {{}} {{}} {ty}"), &[&index, &out]);
        assert_eq!(said.code, Some(1), "{}", said.err);
        assert!(said.err.contains("model.gpuidx") && said.err.contains("neuron index"), "{}", said.err);
    }
    assert_eq!(names(folder.path()), ["model.gpuidx"]);
}

#[test]
fn a_file_of_the_checkpoint_is_not_replaced_by_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("model");
    fs::create_dir(&dir).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::write(dir.join(name), "{}").unwrap();
        let said = pi_line("convert {} -o {}", &[&dir, &dir.join("..").join("model").join(name)]);
        assert_eq!(said.code, Some(1), "{}", said.err);
        assert!(said.err.contains("this is a file of the checkpoint, and is not replaced"), "{name}: {}", said.err);
        assert_eq!(fs::read(dir.join(name)).unwrap(), b"{}");
    }
    // a model made before is no input
    fs::write(dir.join("model.gguf"), "old").unwrap();
    let said = pi_line("convert {} -o {}", &[&dir, &dir.join("model.gguf")]);
    assert!(said.code == Some(1) && !said.err.contains("is not replaced"), "{}", said.err);
}

#[test]
fn wrong_calls_and_bad_input_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = folder.path().join("nothing");
    for (line, code, text) in [
        ("quantize {}", 2, "MODEL"),
        ("quantize {} Q4_7", 2, "'Q4_7' is no kind of file (known: F32, F16, "),
        ("quantize {} Q4_0 --output-tensor-type Q9", 2, "known: F32, F16"),
        ("quantize {} Q4_0", 1, "nothing"),
        ("convert {}", 1, "config.json: the model's config is missing"),
        ("convert {} --outtype q4_0", 2, "q4_0"),
        ("convert {} --format gguf --predictors x", 1, "predictors need PowerInfer's container"),
    ] {
        let said = pi_line(line, &[&nothing]);
        assert_eq!(said.code, Some(code), "{line}: {}", said.err);
        assert!(said.err.contains(text), "{line}: {}", said.err);
    }
    assert!(names(folder.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_no_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let (model, path) = (folder.path().join("model.gguf"), folder.path().join("out.gguf"));
    let made = pi_line("synth -o {} --type F16 --layers 2 --dim 1024 --ffn 4096 --heads 8 --vocab 1000", &[&model]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    for signal in ["-TERM", "-INT"] {
        let args =
            ["quantize".as_ref(), model.as_os_str(), path.as_os_str(), "IQ4_XS".as_ref(), "-t".as_ref(), "1".as_ref()];
        let mut child = pi().args(args).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        while names(folder.path()).len() < 2 {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
            std::thread::sleep(Duration::from_millis(5));
        }
        let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(names(folder.path()), ["model.gguf"]);
    }
}

// N08
#[test]
fn quantize_says_which_tensors_got_another_type_because_blocks_do_not_divide_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (folder.path().join("odd.gguf"), folder.path().join("out.gguf"));
    fs::write(&model, TinyModel { dim: 96, head_dim: 24, ..TinyModel::default() }.build().unwrap()).unwrap();
    let said = pi_line("quantize {} {} Q4_K_M", &[&model, &out]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let text = said.out.clone() + &said.err;
    assert!(text.contains("rows of 96 do not divide"), "{text}");
    let types: Vec<_> = File::open(&out).unwrap().tensors().map(|t| t.ty().name()).collect();
    assert!(types.contains(&"Q5_0") && !types.contains(&"Q4_K"), "{types:?}");
    assert_eq!(pi_line("run -m {} -n 4 --temp 0 --ignore-eos -p x", &[&out]).code, Some(0));
}
