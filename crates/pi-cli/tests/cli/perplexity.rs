//! `pi perplexity` with the demo model.

use crate::common::*;
use pi_testkit::data::test_data;
use serde_json::Value;
use std::path::Path;

fn text() -> String {
    repository("models/tiny-reglu-6m/text/eval.txt").display().to_string()
}

fn perplexity(line: &str) -> Said {
    let (model, text) = (demo().display().to_string(), text());
    call(["perplexity", "-m", &model, "--text", &text].into_iter().chain(line.split_whitespace()))
}

fn json(line: &str) -> Value {
    object(&perplexity(&format!("--json {line}")))
}

#[test]
fn windows_are_those_that_were_asked_for() {
    let goldens = std::fs::read(repository("models/tiny-reglu-6m/goldens/goldens.json")).unwrap();
    let goldens: Value = serde_json::from_slice(&goldens).unwrap();
    let golden = &goldens["eval"]["first_20k"];
    let all = json("-c 256 --stride 255 --chunks 78");
    assert_eq!(all["tokens"], golden["scored_tokens"]);
    let (got, want) = (all["ppl"].as_f64().unwrap(), golden["perplexity"].as_f64().unwrap());
    assert!((got / want - 1.0).abs() < 1e-3, "{got} instead of {want}");
    assert!((all["mean_nll"].as_f64().unwrap() - got.ln()).abs() < 1e-9);

    let halves = json("--chunks 4");
    assert_eq!(
        (&halves["tokens"], &halves["context"], &halves["stride"]),
        (&(4 * 255).into(), &512.into(), &Value::Null)
    );
    assert_eq!(json("-c 64 --chunks 4")["tokens"], 4 * 31);
    assert_eq!(json("-c 0 --chunks 4"), halves, "the model was made for 512");
    assert_eq!(json("-b 100 --chunks 4")["ppl"], halves["ppl"]);
    assert_ne!(json("-c 64 --stride 16 --chunks 4")["ppl"], json("-c 64 --chunks 4")["ppl"]);
    assert!(perplexity("-c 600 --chunks 1").err.contains("made for a context of 512"));
}

#[test]
fn what_is_not_compared_is_null_and_what_is_has_numbers() {
    let alone = json("-c 128 --chunks 3");
    let compared =
        ["kl_mean", "kl_median", "kl_p99", "kl_max", "top1_agreement", "against", "against_ppl", "ppl_increase"];
    assert!(compared.iter().all(|key| alone[key].is_null()), "{alone}");
    let same = json("-c 128 --chunks 3 --against-sparsity exact");
    assert_eq!((same["kl_mean"].as_f64(), same["top1_agreement"].as_f64()), (Some(0.0), Some(1.0)));
    assert_eq!(same["ppl"], alone["ppl"]);

    let model = demo().display().to_string();
    let signs = json(&format!("-c 128 --chunks 3 --sparsity predictor --predictor sign --against {model}"));
    let number = |key: &str| signs[key].as_f64().unwrap();
    assert!(
        0.0 < number("kl_median") && number("kl_median") < number("kl_mean") && number("kl_mean") < number("kl_p99")
    );
    assert!(number("kl_p99") <= number("kl_max") && number("top1_agreement") < 1.0);
    assert_eq!(signs["against_ppl"], alone["ppl"]);
    assert!((number("ppl") / number("against_ppl") - 1.0 - number("ppl_increase")).abs() < 1e-9);
    assert!(number("marked_share") < 0.6);
    // predictors of the other side
    let swapped = json("-c 128 --chunks 3 --against-sparsity predictor --predictor sign");
    assert_eq!((&swapped["against_ppl"], &swapped["ppl"]), (&signs["ppl"], &alone["ppl"]));
}

#[test]
fn the_text_says_what_the_object_says() {
    let said = perplexity("-c 128 --chunks 3 --against-sparsity off");
    assert_eq!(said.code, Some(0));
    let ppl = json("-c 128 --chunks 3")["ppl"].as_f64().unwrap();
    assert!(said.out.starts_with(&format!("perplexity: {ppl:.4} ± ")), "{}", said.out);
    for part in ["(189 tokens of 3 windows, ", " (off): perplexity ", "KL divergence: mean 0.0000", "token: 100.000 %"]
    {
        assert!(said.out.contains(part), "{}", said.out);
    }
    assert!(said.err.contains("tokens/s | active neurons: "), "{}", said.err);
}

#[test]
fn what_cannot_be_measured_is_named() {
    let none = repository("none.txt").display().to_string();
    let model = demo().display().to_string();
    for (args, code, said) in [
        (vec!["-m", &model, "--text", &none], 1, "none.txt: cannot read"),
        #[cfg(unix)]
        (vec!["-m", &model, "--text", "/dev/null"], 1, "/dev/null: text: expected at least "),
        (vec!["-m", &none, "--text", &text()], 1, "none.txt"),
        (vec!["-m", &model, "--text", &text(), "--against", &none], 1, "none.txt"),
        (vec!["-m", &model, "--text", &text(), "-c", "100000"], 1, "text: expected at least 100000 tokens"),
        (vec!["-m", &model, "--text", &text(), "--stride", "600"], 1, "stride: expected a number from 1 to 511"),
        (vec!["-m", &model, "--text", &text(), "--stride", "0"], 2, "--stride"),
        (vec!["-m", &model, "--text", &text(), "--predictor", "sign"], 2, "means nothing without --sparsity predictor"),
        (vec!["-m", &model], 2, "--text"),
    ] {
        let got = call(["perplexity"].into_iter().chain(args.iter().copied()));
        assert_eq!(got.code, Some(code), "{args:?}: {}", got.err);
        assert!(got.err.contains(said) && got.out.is_empty(), "{args:?}: {}", got.err);
    }
}

/// Perplexity of a model, and how far it is from another.
fn compared(model: &Path, line: &str, other: &Path) -> Value {
    let (model, text, other) = (model.display().to_string(), text(), other.display().to_string());
    let words = ["perplexity", "-m", &model, "--text", &text, "--against", &other, "--json"];
    object(&call(words.into_iter().chain(line.split_whitespace())))
}

// P20
#[test]
fn a_relu_model_has_the_same_perplexity_dense_and_sparse() {
    let number = |found: &Value, key: &str| found[key].as_f64().unwrap();
    let found = compared(&demo(), "-c 256 --chunks 12 --sparsity exact --against-sparsity off", &demo());
    let (sparse, dense) = (number(&found, "ppl"), number(&found, "against_ppl"));
    println!("{sparse} sparse, {dense} dense, divergence {}", found["kl_mean"]);
    assert!(dense < 20.0 && (sparse / dense - 1.0).abs() < 1e-5, "{sparse} and {dense}");
    assert!(number(&found, "kl_mean") < 1e-6 && number(&found, "top1_agreement") > 0.999);
}

// P20
#[test]
fn a_converted_checkpoint_has_the_perplexity_of_the_published_file() {
    let (Some(demo), Some(small)) = (test_data("demo-model"), test_data("powerinfer-samples")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("converted.gguf");
    let convert = |from: &Path, line: &str| {
        let words = ["convert".into(), from.display().to_string(), "-o".into(), path.display().to_string()];
        let said = call(words.into_iter().chain(line.split_whitespace().map(String::from)));
        assert_eq!(said.code, Some(0), "{}", said.err);
    };
    let same = |line: &str, published: &Path| {
        let found = compared(&path, line, published);
        println!("{}: {}", published.display(), found["ppl"]);
        assert_eq!(found["ppl"], found["against_ppl"], "{found}");
        assert_eq!((found["kl_max"].as_f64(), found["top1_agreement"].as_f64()), (Some(0.0), Some(1.0)));
        found["ppl"].as_f64().unwrap()
    };
    convert(&demo.join("hf"), "--outtype f32");
    assert!(same("-c 256 --chunks 8", &demo.join("tiny-reglu-6m-f32.gguf")) < 20.0);
    let small = small.join("small");
    let predictors = small.join("predictor").display().to_string();
    convert(&small.join("hf"), &format!("--format pwri --predictors {predictors}"));
    let published = small.join("small.powerinfer.gguf");
    let exact = same("-c 64 --chunks 4 --sparsity exact --against-sparsity exact", &published);
    let dense = same("-c 64 --chunks 4 --sparsity off --against-sparsity off", &published);
    assert!((exact / dense - 1.0).abs() < 1e-4, "{exact} and {dense}");
    same("-c 64 --chunks 4 --sparsity predictor --against-sparsity predictor", &published);
}
