//! `pi synth`, and what `pi run` makes of its files.

use crate::common::{Said, call, object, pi, repository};
use std::path::Path;

/// A small LLaMA.
const SMALL: &str = "--dim 512 --ffn 2048 --heads 8 --kv-heads 4 --vocab 2000 --layers 3";

fn synth(path: &Path, line: &str) -> Said {
    call(
        ["synth".as_ref(), "-o".as_ref(), path.as_os_str()].into_iter().chain(line.split_whitespace().map(str::as_ref)),
    )
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn the_engine_measures_the_share_that_was_asked_for_in_every_layer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (line, active) in [
        ("--format gguf --type F16", 0.1),
        ("--format gguf --type Q4_K", 0.3),
        ("--format pwri --type Q4_0", 0.1),
        ("--format pwri --type Q8_0 --skew 0.3 --rank 64 --noise 0.3", 0.2),
    ] {
        let made = synth(&path, &format!("{SMALL} {line} --active {active}"));
        assert_eq!(made.code, Some(0), "{}", made.err);
        assert!(made.out.contains("active neurons: "), "{}", made.out);
        assert_eq!(made.out.contains("predictors: "), line.contains("pwri"), "{}", made.out);
        assert!(made.err.contains("layer 3 of 3: "), "{}", made.err);
        let run = "run --json -p abc -n 150 --temp 0.8 --seed 1 --ignore-eos -m";
        let ran = object(&call(run.split(' ').map(str::as_ref).chain([path.as_os_str()])));
        let shares = ran["active_share_by_layer"].as_array().unwrap().iter().chain([&ran["active_share"]]);
        let shares: Vec<f64> = shares.map(|s| s.as_f64().unwrap()).collect();
        assert_eq!(shares.len(), 4);
        assert!(shares.iter().all(|s| (s / active - 1.0).abs() <= 0.1), "{line}: {shares:?}");
        let tokens = ran["tokens"].as_array().unwrap();
        assert!(tokens.iter().collect::<std::collections::HashSet<_>>().len() > 100, "{tokens:?}");
    }
}

/// Whether `--repack` is heeded is seen in what is said about the device; the text stays the same.
#[test]
fn weights_are_repacked_unless_that_is_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    assert_eq!(synth(&path, &format!("{SMALL} --type Q4_0 --active 0.2")).code, Some(0));
    let run = |more: &str| {
        let line = format!("run -p abc -n 8 --temp 0 {more} -m");
        let said = call(line.split_whitespace().map(str::as_ref).chain([path.as_os_str()]));
        assert_eq!(said.code, Some(0), "{}", said.err);
        (said.out, said.err.contains(" MB of weights repacked"))
    };
    let fast = pi_sparse_cpu::Kernels::best().packed(pi_core::QuantType::Q4_0).is_some();
    let (text, repacked) = run("--repack off");
    assert!(!repacked);
    for (line, expected) in [("", fast), ("--repack auto", fast), ("--repack on", fast)] {
        assert_eq!(run(line), (text.clone(), expected), "{line}");
    }
    let bench = |more: &str| {
        call(
            format!("bench gemv --type q8_0 --rows 64 --cols 96 --seconds 0.01 --bandwidth 0 {more}")
                .split_whitespace(),
        )
        .code
    };
    assert_eq!((bench("--repack on"), bench("--repack off"), bench("--repack maybe")), (Some(0), Some(0), Some(2)));
}

#[test]
fn what_cannot_be_made_is_a_wrong_call_and_names_the_option() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (line, said) in [
        ("--active 1.5", "--active: expected a share from 0.001 to 0.999, got 1.5"),
        ("--active -0.5", "--active: expected a share"),
        ("--active x", "'--active <SHARE>'"),
        ("--skew 0.01", "--skew: expected a share from 0.0"),
        ("--heads 7", "--heads: expected a divisor of the width 4096"),
        ("--kv-heads 5", "--kv-heads: expected a divisor of 32 heads, got 5"),
        ("--vocab 10", "--vocab: expected a number from 260"),
        ("--type Q4_K --dim 320 --ffn 1024 --heads 8", "--dim: expected a multiple of 256"),
        ("--ffn 1000", "--ffn: expected a multiple of 32 (a block of Q4_0 must divide a row of ffn_down), got 1000"),
        ("--type Q9", "known: F32, F16"),
        ("--preset 8b", "known: 7b, 13b, 40b-falcon, 70b, opt-30b"),
        ("--family gpt", "known: llama, bamboo, falcon, opt"),
        ("--dim 512", "--ffn"),
        ("--format zip", "gguf"),
        ("--rank 33", "--rank: expected a multiple of 32"),
        ("--noise -1", "--noise: expected a number from 0 to 10"),
        ("--layers 0", "--layers: expected a number from 1"),
    ] {
        let said_ = synth(&path, line);
        assert_eq!(said_.code, Some(2), "{line}: {}", said_.err);
        assert!(said_.err.contains(said), "{line}: {}", said_.err);
    }
    assert!(files(folder.path()).is_empty());
}

#[test]
fn an_output_that_cannot_be_written_is_named() {
    let nowhere = repository("no/such/folder/model.gguf");
    let said = synth(&nowhere, SMALL);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("model.gguf") && said.err.contains("cannot create"), "{}", said.err);
}

#[cfg(unix)]
#[test]
fn an_interrupted_synth_leaves_what_was_there_and_nothing_else() {
    use std::{process::Stdio, time::Duration};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, "older").unwrap();
    let mut child = pi().args(["synth", "--layers", "32", "-o"]).arg(&path).stderr(Stdio::null()).spawn().unwrap();
    while files(folder.path()).len() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it wrote anything");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(files(folder.path()), ["model.gguf"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"older");
}

/// A model with predictors, run by each of them: what is asked for is seen in what is said, and in how many neurons are
/// looked at.
#[test]
fn predictors_are_chosen_by_options() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.powerinfer.gguf");
    let made = synth(&path, &format!("{SMALL} --type Q8_0 --format pwri --active 0.2 --rank 64 --noise 0.3"));
    assert_eq!(made.code, Some(0), "{}", made.err);
    let run = |more: &str| {
        let line = format!("run --json -p abc -n 20 --temp 0 --ignore-eos {more} -m");
        call(line.split_whitespace().map(str::as_ref).chain([path.as_os_str()]))
    };
    let share = |more: &str| {
        let ran = object(&run(more));
        (ran["marked_share"].as_f64().unwrap(), ran["active_share"].as_f64().unwrap(), ran["tokens"].clone())
    };
    let (all, active, exact) = share("--sparsity exact");
    assert_eq!(all, 1.0);
    let (marked, found, _) = share("--sparsity predictor");
    assert!(marked < 0.5 && found <= marked && found > 0.5 * active, "{marked}, {found} of {active}");
    let (everything, found, tokens) = share("--sparsity predictor --threshold -1e30");
    assert_eq!((everything, tokens), (1.0, exact.clone()));
    assert!((found - active).abs() < 1e-3);
    let (none, ..) = share("--sparsity predictor --threshold 1e30");
    assert_eq!(none, 0.0);
    let (right, found, tokens) = share("--sparsity predictor --predictor oracle");
    assert!((right - active).abs() < 1e-3 && (found - active).abs() < 1e-3);
    assert_eq!(tokens, exact);
    let (few, ..) = share("--sparsity predictor --predictor sign --margin -0.05");
    let (many, ..) = share("--sparsity predictor --predictor sign --margin 0.05");
    assert!(few < many && many < 1.0, "{few}, {many}");
    let said = run("--sparsity predictor --predictor sign").err;
    assert!(said.contains("sparsity: predictor (sign in 3 of 3 layers), then exact"), "{said}");
    for (more, expected) in [
        ("--predictor sign", "--predictor means nothing without --sparsity predictor"),
        ("--threshold 0", "--threshold means nothing without --sparsity predictor"),
        ("--sparsity predictor --margin 0.1", "--margin means nothing without --predictor sign"),
        ("--sparsity predictor --predictor oracle --threshold 1", "--threshold means nothing without --predictor mlp"),
        ("--sparsity predictor --predictor sign --margin 0.7", "expected a share from -0.5 to 0.5"),
        ("--sparsity predictor --predictor best", "'best'"),
    ] {
        let said = run(more);
        assert_eq!((said.code, said.err.contains(expected)), (Some(2), true), "{more}: {}", said.err);
    }
    let plain = call(["run", "-p", "x", "-n", "1", "--sparsity", "predictor"]);
    assert_eq!(plain.code, Some(1));
    assert!(plain.err.contains("no layer has a predictor"), "{}", plain.err);
}
