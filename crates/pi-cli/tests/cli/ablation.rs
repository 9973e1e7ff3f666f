//! `pi ablation` with the demo model on a simulated device.

use crate::common::*;
use serde_json::Value;
use std::{fs, path::Path};

fn ablation(more: &str) -> Said {
    let model = demo().display().to_string();
    call(["ablation", &model].into_iter().chain(more.split_whitespace()))
}

/// A profile of the demo model, in seconds.
fn profile(folder: &Path) -> String {
    let (model, text) = (demo().display().to_string(), repository("models/tiny-reglu-6m/text/profile.txt"));
    let path = folder.join("demo.profile").display().to_string();
    let text = text.display().to_string();
    let said = call(["profile", &model, "--text", &text, "--tokens", "1500", "-o", &path]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    path
}

fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    rows.iter().find(|r| r["name"].as_str().unwrap().contains(name)).unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn each_part_is_a_row_that_computes_the_same_and_keeps_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let profile = profile(folder.path());
    let words = format!(
        "--profile {profile} --vram-budget 0.009 -n 4 -r 3 --predictor sign --sim-host 0.5 --sim-device 6 --json"
    );
    let report = object(&ablation(&words));
    let names: Vec<_> = report["rows"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names[0], names[1]), (7, "base", "+ predictor and operators"), "{names:?}");
    let number = |name: &str, key: &str| row(&report, name)[key].as_f64().unwrap();
    let budget = report["budget_bytes"].as_f64().unwrap();
    for name in names {
        let used = number(name, "device_bytes");
        assert!(used > 0.0 && used <= budget, "{name}: {used} of {budget}");
        assert!((used / number(name, "planned_bytes") - 1.0).abs() < 0.01, "{name}: {report}");
        assert!(number(name, "tokens_per_second") > 0.0 && number(name, "bytes_moved_per_token") > 0.0, "{name}");
        assert!((0.0..=1.0).contains(&number(name, "hit_rate")), "{name}");
    }
    // what was not predicted is missing from the second row on, and the same in all of them
    assert!(number("base", "kl") < 1e-5 && number("operators", "kl") > 1e-4, "{report}");
    for name in ["random", "frequency", "impact", "policy: time"] {
        assert!((number(name, "kl") / number("operators", "kl") - 1.0).abs() < 0.05, "{name}: {report}");
        assert!(number(name, "hot_share") > 0.0 && number(name, "hot_share") < 1.0, "{name}: {report}");
    }
    // the policies know what is hot
    for name in ["frequency", "impact"] {
        assert!(number(name, "hit_rate") > number("random", "hit_rate") + 0.1, "{name}: {report}");
    }
    assert!(report["exact_difference"].as_f64().unwrap() <= report["tolerance"].as_f64().unwrap());
    assert!(report["slow_motion"].as_f64().unwrap() > 1.0);
    // This is simulated: a busy machine may be late, but not so late that reading a tenth is no faster.
    assert!(number("impact", "tokens_per_second") > 1.2 * number("base", "tokens_per_second"), "{report}");
}

#[test]
fn without_predictors_or_a_profile_the_table_says_so() {
    let said = ablation("--vram-budget 0.01 -n 2 -r 1 --slow-motion 50");
    assert_eq!(said.code, Some(0), "{}", said.err);
    for part in ["without --profile all neurons", "the model has no predictors", "the machine is simulated"] {
        assert!(said.err.contains(part), "{part}: {}", said.err);
    }
    for part in ["| + operators", "| + policy: time", "50 times slower", "Counted, not simulated"] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    assert!(!said.out.contains("predictor and operators"));
}

#[test]
fn what_cannot_be_compared_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.profile");
    fs::write(&bad, "a diary").unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, "Once").unwrap();
    for (words, code, expected) in [
        (format!("--vram-budget 1 --profile {}", bad.display()), 1, "bad.profile"),
        (format!("--vram-budget 1 --text {}", text.display()), 1, "text.txt: expected at least 16 tokens"),
        ("--vram-budget 1 --activation silu".into(), 1, "silu"),
        ("--vram-budget -1".into(), 2, "from 0 on"),
        ("--vram-budget 1 --sim-host 0".into(), 2, "GB/s from"),
        ("--vram-budget 1 --sim-latency 1e30".into(), 2, "microseconds from"),
        ("--vram-budget 1 --slow-motion 1e30".into(), 2, "from 1 to"),
        ("--vram-budget 1 --device gpu".into(), 2, "cuda:N"),
        ("--vram-budget 1 --device none".into(), 2, "what a device is worth"),
        ("--vram-budget 1 --device cuda --sim-host 3".into(), 2, "of a simulated machine"),
        (String::new(), 2, "--vram-budget"),
    ] {
        let said = ablation(&words);
        assert_eq!((said.code, said.err.contains(expected)), (Some(code), true), "{words}: {}", said.err);
        assert_eq!(said.out, "", "{words}");
    }
}
