//! `pi run` with the demo model.

mod batch;

use crate::common::*;
use pi_core::QuantType;
use serde_json::Value;
use std::fs;

/// Tokens and text of a run that needs no luck.
fn greedy(line: &str) -> (Value, Value) {
    let run = run_json(&format!("--temp 0 -n 24 {line}"));
    (run["tokens"].clone(), run["text"].clone())
}

#[test]
fn greedy_text_begins_as_the_goldens_say() {
    let goldens = fs::read(repository("models/tiny-reglu-6m/goldens/goldens.json")).unwrap();
    let goldens: Value = serde_json::from_slice(&goldens).unwrap();
    for golden in goldens["prompts"].as_array().unwrap() {
        let text = golden["text"].as_str().unwrap();
        let run = object(&call(["run", "--json", "--temp", "0", "-n", "10", "-p", text]));
        assert_eq!(run["tokens"].as_array().unwrap()[..], golden["greedy_ids"].as_array().unwrap()[..10], "{text}");
        assert!(golden["greedy_text"].as_str().unwrap().starts_with(run["text"].as_str().unwrap()), "{text}");
        assert_eq!(run["prompt_tokens"], golden["ids"].as_array().unwrap().len());
    }
}

#[test]
fn the_json_object_has_every_field_and_is_all_that_standard_output_gets() {
    let said = run("--json -n 8 -s 3");
    assert_eq!(said.out.lines().count(), 1);
    let run = object(&said);
    let share = run["active_share"].as_f64().unwrap();
    assert!(share > 0.0 && share < 0.5, "{share}");
    assert_eq!(run["active_share_by_layer"].as_array().unwrap().len(), 6);
    for measured in ["prompt_tps", "decode_tps", "bytes_per_token"] {
        assert!(run[measured].as_f64().unwrap() > 0.0, "{measured}");
    }
    assert_eq!((&run["generated_tokens"], &run["stop_reason"], &run["seed"]), (&8.into(), &"length".into(), &3.into()));
    assert_eq!(run["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(run["prompt_tokens"], 5);
    assert!(run["model"].as_str().unwrap().ends_with("tiny-reglu-6m-f16.gguf"));
    assert_eq!(run["stop_string"], Value::Null);
    let shown = run_json("-n 8 -s 3")["text"].clone();
    assert_eq!(run["text"], shown);
}

#[test]
fn what_was_not_measured_is_null() {
    for n in [0, 1] {
        let run = run_json(&format!("-n {n}"));
        assert_eq!(run["generated_tokens"], n);
        assert!(["decode_tps", "active_share", "bytes_per_token"].iter().all(|f| run[f].is_null()), "{run}");
    }
}

#[test]
fn the_prompt_stands_before_the_text_unless_it_is_switched_off() {
    let text = greedy("").1;
    let text = text.as_str().unwrap();
    let said = run("--temp 0 -n 24");
    assert_eq!((said.code, said.out), (Some(0), format!("{PROMPT}{text}\n")));
    assert_eq!(run("--temp 0 -n 24 --no-display-prompt").out, format!("{text}\n"));
    for part in ["prompt: 5 tokens, ", "decode: 24 tokens, ", "active neurons: ", "read per token: ", "stop: length"] {
        assert!(said.err.lines().last().unwrap().contains(part), "{}", said.err);
    }
}

// S14
#[test]
fn the_printed_seed_gives_the_same_text_again() {
    let first = run("-n 40 --temp 1");
    let seed = first.err.lines().find_map(|l| l.strip_prefix("seed: ")).unwrap();
    assert_eq!(run(&format!("-n 40 --temp 1 -s {seed}")).out, first.out);
    let other = run("-n 40 --temp 1 --seed -1");
    assert!(!other.err.contains(&format!("seed: {seed}\n")) && other.out != first.out);
}

#[test]
fn skipping_idle_neurons_changes_what_is_read_and_not_what_is_written() {
    let (exact, off) = (run_json("--temp 0 -n 24 --sparsity exact"), run_json("--temp 0 -n 24 --sparsity off"));
    assert_eq!(exact["text"], off["text"]);
    assert_eq!(off["active_share"], 1.0);
    assert!(exact["active_share"].as_f64().unwrap() < 0.5);
    assert!(exact["bytes_per_token"].as_u64().unwrap() < off["bytes_per_token"].as_u64().unwrap());
}

#[test]
fn how_the_model_is_loaded_and_computed_does_not_change_the_text() {
    let want = greedy("");
    for line in [
        "--no-mmap",
        "-t 1",
        "-t 3",
        "-b 1",
        "-b 2",
        "-c 64",
        "-c 0",
        "--check",
        "--kv f32",
        "-ctk f32 -ctv f32",
        "-ctv f32",
        "--device simulated --on-device-loss cpu",
        "--device simulated --on-device-loss error",
    ] {
        assert_eq!(greedy(line), want, "{line}");
    }
    let said = said(pi().env("PI_ISA", "reference").args(["run", "--json", "--temp", "0", "-n", "24", "-p", PROMPT]));
    assert!(said.err.contains("reference kernels"), "{}", said.err);
    assert_eq!(object(&said)["text"], want.1);
}

#[test]
fn a_text_ends_at_a_stop_string_at_the_models_end_token_or_where_the_context_ends() {
    let text = greedy("").1;
    let word = text.as_str().unwrap().split_whitespace().nth(3).unwrap();
    let run = run_json(&format!("--temp 0 -r never --stop {word}"));
    assert_eq!((&run["stop_reason"], &run["stop_string"]), (&"stop".into(), &word.into()));
    assert!(text.as_str().unwrap().starts_with(run["text"].as_str().unwrap()));
    let run = run_json("--temp 0 --logit-bias 1+1000");
    assert_eq!((&run["stop_reason"], &run["generated_tokens"]), (&"eos".into(), &0.into()));
    let run = run_json("--temp 0 --logit-bias 1+1000 --ignore-eos -c 16");
    assert_eq!(
        (&run["stop_reason"], &run["generated_tokens"], &run["text"]),
        (&"context".into(), &12.into(), &"".into())
    );
    // C08: a full cache of any type ends the text; nothing is shifted
    for kv in ["f16", "f32", "q8_0"] {
        let run = run_json(&format!("--temp 0 --ignore-eos -c 16 --kv {kv}"));
        assert_eq!((&run["stop_reason"], &run["generated_tokens"]), (&"context".into(), &12.into()), "{kv}");
    }
}

#[test]
fn every_sampling_option_changes_the_text() {
    let text = |line: &str| run_json(&format!("-n 40 {line}"))["text"].clone();
    for (without, with) in [
        ("-s 5", "-s 6"),
        ("-s 5", "-s 5 --temp 3"),
        ("-s 5 --temp 3", "-s 5 --temp 3 --top-k 2"),
        ("-s 5 --temp 3 --min-p 0 --top-p 1", "-s 5 --temp 3 --min-p 0 --top-p 1 --top-k 0"),
        ("-s 5 --temp 3 --min-p 0", "-s 5 --temp 3 --min-p 0 --top-p 0.5"),
        ("-s 5 --temp 3", "-s 5 --temp 3 --min-p 0.5"),
        ("-s 5", "-s 5 --repeat-penalty 1.8"),
        ("-s 5 --repeat-penalty 1.8", "-s 5 --repeat-penalty 1.8 --repeat-last-n 3"),
        ("-s 5", "-s 5 --presence-penalty 4"),
        ("-s 5", "-s 5 --frequency-penalty 4"),
        ("-s 5", "-s 5 --logit-bias 13-inf"),
    ] {
        assert_ne!(text(with), text(without), "{with}");
    }
    assert_eq!(text("-s 5 --repeat-penalty 1.8 --repeat-last-n 0"), text("-s 5"));
    assert_eq!(
        text("-s 5 --repeat-penalty 1.8 --repeat-last-n -1"),
        text("-s 5 --repeat-penalty 1.8 --repeat-last-n 512")
    );
}

#[test]
fn a_model_that_cannot_skip_runs_dense_and_says_so() {
    let said = run("--json -n 4 --activation silu");
    assert!(said.err.contains("sparsity: none, the model runs dense: silu is never exactly 0"), "{}", said.err);
    assert_eq!(object(&said)["active_share"], 1.0);
    let said = run("-n 4 --activation silu --sparsity exact");
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("error: ") && said.err.contains("silu is never exactly 0"), "{}", said.err);
}

#[test]
fn a_quantised_down_matrix_is_read_in_full_which_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quantised.gguf");
    remake(&path, &[], |t| match t.name().contains("ffn_down") {
        true => Made::stored_as(t, QuantType::Q8_0),
        false => Made::copy(t),
    });
    let said = call(["run", "-n", "4", "-p", PROMPT, "-m", path.to_str().unwrap()]);
    assert_eq!(said.code, Some(0));
    assert!(said.err.contains("ffn_down is stored as Q8_0") && said.err.contains("read in full"), "{}", said.err);
    let said = call(["inspect", path.to_str().unwrap()]);
    assert!(said.out.contains("ffn_down is stored as Q8_0"), "{}", said.out);
}

#[test]
fn numbers_that_are_not_finite_end_the_run_and_check_names_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.gguf");
    remake(&path, &[], |t| {
        let mut made = Made::copy(t);
        if t.name() == "blk.3.attn_output.weight" {
            made.data[..2].copy_from_slice(&0x7e00u16.to_le_bytes());
        }
        made
    });
    let model = path.to_str().unwrap();
    let said = call(["run", "-p", PROMPT, "-m", model]);
    assert_eq!(said.code, Some(1));
    let last = said.err.lines().last().unwrap();
    assert!(last.starts_with(&format!("error: {model}: non-finite logits")) && last.contains("--check"), "{last}");
    let said = call(["run", "--check", "-p", PROMPT, "-m", model]);
    assert_eq!(said.code, Some(1));
    let last = said.err.lines().last().unwrap();
    let place = "tensor 'blk.3.attn_output.weight': expected finite numbers, got NaN at row 0, column 0";
    assert_eq!(last, format!("error: {model}: {place}"));
}

#[test]
fn an_empty_prompt_starts_from_the_token_that_begins_a_text_if_there_is_one() {
    let run = object(&call(["run", "--json", "-n", "3", "-p", ""]));
    assert_eq!((&run["prompt_tokens"], &run["generated_tokens"]), (&1.into(), &3.into()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no-bos.gguf");
    let changed = [
        ("tokenizer.ggml.bos_token_id", None),
        ("tokenizer.ggml.add_bos_token", None),
        ("tokenizer.ggml.pre", Some("glm4")), // one without a default
    ];
    remake(&path, &changed, Made::copy);
    let model = path.to_str().unwrap();
    let said = call(["run", "-n", "3", "-p", "", "-m", model]);
    assert_eq!(said.code, Some(1), "{}", said.out);
    let last = said.err.lines().last().unwrap();
    assert!(last.starts_with(&format!("error: {model}: the prompt is empty")), "{last}");
}

#[test]
fn what_is_odd_about_a_file_is_said_on_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    remake(&path, &[("tokenizer.ggml.pre", None)], Made::copy);
    let said = call(["run", "--json", "-n", "1", "-p", PROMPT, "-m", path.to_str().unwrap()]);
    let warning = format!("warning: {}: ", path.display());
    assert!(said.err.lines().any(|line| line.starts_with(&warning) && line.contains("pre")), "{}", said.err);
    object(&said);
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_the_size_it_needs() {
    let said = run("-c 4");
    assert_eq!(said.code, Some(1));
    let last = said.err.lines().last().unwrap();
    assert!(last.contains("5 tokens") && last.contains("--ctx-size 6"), "{last}");
    assert_eq!(said.out, "");
    assert_eq!(run("-c 5 -n 0").code, Some(0));
    assert_eq!(run_json("-c 6 --ignore-eos")["stop_reason"], "context");
}

#[test]
fn stop_strings_know_escapes_too() {
    let run = run_json("--temp 0 -e --stop \\x2e");
    assert_eq!((&run["stop_reason"], &run["stop_string"]), (&"stop".into(), &".".into()));
    let said = crate::common::run("-e --stop \\xff");
    assert!(said.code == Some(2) && said.err.contains("--reverse-prompt"), "{}", said.err);
}

#[test]
fn a_prompt_is_bytes_from_a_file_or_with_escapes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt.txt");
    fs::write(&path, b"Once \xff upon\n\n").unwrap();
    let output = pi().args(["run", "-n", "0", "-f"]).arg(&path).output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"Once \xff upon\n");
    let escaped = pi().args(["run", "-n", "0", "-e", "-p", r"Once \xff upon\n"]).output().unwrap();
    assert_eq!(escaped.stdout, output.stdout);
    assert_eq!(call(["run", "-n", "0", "-p", r"- a\n"]).out, "- a\\n\n");
}

#[test]
fn text_has_the_form_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let schema = r#"{"type":"object","properties":{"age":{"type":"integer","minimum":1,"maximum":99}},"required":["age"],"additionalProperties":false}"#;
    let grammar = "root ::= \"<\" [a-z]{3} \">\"";
    let run = |args: &[&str]| {
        let words = ["run", "--json", "-n", "200", "--temp", "1", "-s", "5", "-p", PROMPT];
        call(words.iter().chain(args))
    };
    for args in [["--json-schema", schema], ["-j", schema], ["--json-schema-file", &file("s.json", schema)]] {
        let run = object(&run(&args));
        let value: Value = serde_json::from_str(run["text"].as_str().unwrap()).unwrap();
        assert!((1..=99).contains(&value["age"].as_u64().unwrap()), "{value}");
        assert!(matches!(run["stop_reason"].as_str(), Some("complete" | "eos")), "{run}");
    }
    for args in [["--grammar", grammar], ["--grammar-file", &file("g.gbnf", grammar)]] {
        let run = object(&run(&args));
        let text = run["text"].as_str().unwrap();
        assert!(text.len() == 5 && text.starts_with('<') && text.ends_with('>'), "{text}");
        assert_eq!(run["stop_reason"], "complete");
    }
    for (args, code, why) in [
        (["--grammar", "root ::= x"], 1, "--grammar: not valid GBNF, line 1, column 10"),
        (["--json-schema", "{"], 1, "--json-schema: not valid JSON"),
        (["--json-schema", "{\"type\": 3}"], 1, "--json-schema: "),
        (["--grammar-file", "/nowhere"], 1, "/nowhere"),
    ] {
        let said = run(&args);
        assert!(said.code == Some(code) && said.err.contains(why), "{}", said.err);
    }
    assert_eq!(run(&["--grammar", grammar, "-j", schema]).code, Some(2));
}
