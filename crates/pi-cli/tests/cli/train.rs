//! `pi train-predictor` with the demo model: quick trainings, what they write, and what is refused before they begin.

use crate::common::{Said, call, demo, object, repository};
use std::{fs, path::Path};

/// A training that takes a second; a thousand times the usual loss, so that something is always found.
const QUICK: &str = "--samples 600 --epochs 2 --rank 32 --loss 100 -c 64 -b 48";

fn train(model: &Path, output: &Path, more: &str) -> Said {
    let text = repository("models/tiny-reglu-6m/text/eval.txt");
    let folder = output.parent().unwrap();
    let short = folder.join("text.txt");
    if folder.is_dir() {
        fs::write(&short, &fs::read(text).unwrap()[..6000]).unwrap();
    }
    let paths = ["train-predictor".as_ref(), model.as_os_str(), "--text".as_ref(), short.as_os_str()];
    let rest = ["-o".as_ref(), output.as_os_str()].into_iter().chain(more.split_whitespace().map(str::as_ref));
    call(paths.into_iter().chain(rest))
}

#[test]
fn trained_predictors_are_used_from_a_file_beside_the_model_and_from_one_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (beside, whole) = (folder.path().join("predictors.gguf"), folder.path().join("whole.gguf"));
    let report = object(&train(&demo(), &beside, &format!("{QUICK} --json")));
    let layers = report["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 6);
    assert!(layers.iter().any(|l| l["kind"] != "exact"), "{report}");
    for layer in layers.iter().filter(|l| l["kind"] != "exact") {
        for share in ["recall", "magnitude_recall", "predicted_share", "size_of_weights", "time_share"] {
            assert!((0.0..=1.0).contains(&layer[share].as_f64().unwrap()), "{share} of {layer}");
        }
        assert!(layer["time_share"].as_f64().unwrap() > 0.0 && layer["kl_alone"].as_f64().is_some(), "{layer}");
    }
    assert!(report["marked_share"].as_f64().unwrap() < 1.0 && report["ppl_growth"].as_f64().unwrap() <= 1.0);
    let marked = |model: &Path, more: &[&Path]| {
        let words = ["run", "--json", "-p", "Once upon", "-n", "8", "--temp", "0", "--sparsity", "predictor", "-m"];
        let words = words.iter().map(|w| w.as_ref()).chain([model.as_os_str()]);
        let ran = object(&call(words.chain(more.iter().map(|p| p.as_os_str()))));
        (ran["marked_share"].as_f64().unwrap(), ran["tokens"].clone())
    };
    let used = marked(&demo(), &[Path::new("--predictor-file"), &beside]);
    assert!(used.0 < 1.0, "{used:?}");
    let table = train(&demo(), &whole, &format!("{QUICK} --format pwri"));
    assert_eq!(table.code, Some(0), "{}", table.err);
    assert!(table.out.contains("| layer | kind ") && table.out.contains("perplexity: "), "{}", table.out);
    assert_eq!(marked(&whole, &[]), used, "the same seed, the same predictors");
    // a model that has predictors gets others
    let again = folder.path().join("again.gguf");
    let said = train(&whole, &again, &format!("{QUICK} --format pwri"));
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(marked(&again, &[]).0 < 1.0);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn what_cannot_be_written_or_trained_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    fs::copy(demo(), &model).unwrap();
    let (before, output) = (fs::read(&model).unwrap(), folder.path().join("out.gguf"));
    for (output, more, code, expected) in [
        (model.clone(), "", 1, "this is the model"),
        (folder.path().join("text.txt"), "", 1, "this is a text"),
        (folder.path().to_path_buf(), "", 1, "it is a folder"),
        (folder.path().join("nowhere/out.gguf"), "", 1, "its folder is not there"),
        (output.clone(), "--sparsity exact", 2, "--sparsity means nothing here"),
        (output.clone(), "--margin 0.1", 2, "--margin means nothing here"),
        (output.clone(), "--predictor sign", 2, "--predictor means nothing here"),
        (output.clone(), "--kinds oracle", 2, "expected mlp or sign"),
        (output.clone(), "--memory 1 --samples 5000", 1, "memory: expected at least "),
        (output.clone(), "--rank 33 --type q4_0", 1, "a multiple of 32"),
        (output.clone(), "--activation silu", 1, "never exactly 0"),
        (output, "--type q9", 2, "known: "),
    ] {
        let said = train(
            &model,
            &output,
            &format!("{QUICK} {more}")
                .replace("--rank 32 --loss", if more.contains("--rank") { "--loss" } else { "--rank 32 --loss" })
                .replace("--samples 600", if more.contains("--samples") { "" } else { "--samples 600" }),
        );
        assert_eq!(
            (said.code, said.err.contains(expected)),
            (Some(code), true),
            "{more}, {}: {}",
            output.display(),
            said.err
        );
    }
    assert!(fs::read(&model).unwrap() == before, "the model is as it was");
}

#[test]
fn a_text_that_is_too_short_is_named_before_anything_is_trained() {
    let folder = tempfile::tempdir().unwrap();
    let (output, short) = (folder.path().join("out.gguf"), folder.path().join("short.txt"));
    fs::write(&short, "Once upon a time").unwrap();
    let said = train(&demo(), &output, &format!("{QUICK} --eval-text {}", short.display()));
    assert!(said.code == Some(1) && said.err.contains("short.txt: text to measure on: expected"), "{}", said.err);
    let said = train(&demo(), &output, "--rank 32 -c 512");
    assert!(said.code == Some(1) && said.err.contains("text.txt: "), "{}", said.err);
    assert!(!folder.path().join("out.gguf.partial").exists(), "nothing was begun");
}

/// Matrices that are larger than the gate cannot pay. What was trained is not lost, and the user is told where it is; what is damaged
/// of it does not stop the next run.
#[test]
fn what_an_earlier_run_left_is_named_used_and_made_again_where_it_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.gguf");
    let wide = "--samples 200 --epochs 1 --rank 512 --kinds mlp --loss 100 -c 64 -b 48";
    let said = train(&demo(), &output, wide);
    let partial = folder.path().join("out.gguf.partial");
    assert_eq!(said.code, Some(1), "{}", said.err);
    for part in ["no predictors within 100 % of the perplexity pay", &partial.display().to_string(), "else remove it"] {
        assert!(said.err.contains(part), "{part}: {}", said.err);
    }
    let layer = partial.join("layer-3.gguf");
    fs::write(&layer, &fs::read(&layer).unwrap()[..1000]).unwrap();
    let said = train(&demo(), &output, wide);
    assert!(said.err.contains("layer-3.gguf: left by an earlier run and damaged; it is made again"), "{}", said.err);
    assert!(said.err.contains("5 of 6 layers are there from an earlier run"), "{}", said.err);
    // other options, other layers; and at the end nothing is left
    let said = train(&demo(), &output, QUICK);
    assert_eq!((said.code, partial.exists()), (Some(0), false), "{}", said.err);
    assert!(!said.err.contains("earlier run"), "{}", said.err);
}

#[test]
fn options_that_mean_nothing_are_not_shown() {
    for command in ["train-predictor", "prepare"] {
        let help = call([command, "--help"]).out;
        assert!(help.contains("--eval-text") && help.contains("--threads"), "{help}");
        for option in ["--sparsity <", "--predictor <", "--predictor-file <", "--threshold <", "--margin <"] {
            assert!(!help.contains(option), "{command}: {option}");
        }
    }
}
