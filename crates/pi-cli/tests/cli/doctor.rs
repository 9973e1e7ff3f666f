//! `pi doctor`, and what later runs make of what it stored.

use crate::common::*;
use pi_core::QuantType;
use serde_json::Value;
use std::{fs, path::Path, process::Command};

/// `pi`, with a cache folder of its own.
fn with_cache(folder: &Path, line: &str) -> Command {
    let mut command = pi();
    command.env("PI_CACHE_DIR", folder).args(line.split_whitespace());
    command
}

#[test]
fn the_report_names_every_type_and_what_it_stores_is_used_by_later_runs() {
    let folder = tempfile::tempdir().unwrap();
    let report = object(&said(&mut with_cache(folder.path(), "doctor --json --quick -t 2")));
    let names: Vec<_> = report["types"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, QuantType::ALL.map(QuantType::name));
    for ty in report["types"].as_array().unwrap() {
        let share = ty["crossover"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&share), "{ty}");
        let isas = ty["kernels"].as_array().unwrap();
        assert!(isas.iter().map(|k| &k["isa"]).eq(report["isas"].as_array().unwrap()), "{ty}");
        assert_eq!((&isas[0]["dot"], &isas[0]["axpy"]), (&"reference".into(), &"reference".into()));
        assert!(ty["measured"].as_array().unwrap().len() >= 2);
    }
    assert!(!report["cpu"]["name"].as_str().unwrap().is_empty());
    assert!(report["memory"]["read_bytes_per_second"].as_f64().unwrap() > 1e8);
    assert_eq!(report["threads"], 2);
    // one of the two, whatever machine this is
    assert_ne!(report["backends"][1]["found"].is_null(), report["backends"][1]["missing"].is_null());
    assert_eq!(report["isa_forced"], false);
    let path = folder.path().join("crossover.json");
    assert_eq!(report["crossover_file"]["path"], path.to_str().unwrap());
    assert_eq!(report["crossover_file"]["error"], Value::Null);

    // As if the doctor had found that the dense path always wins.
    let mut stored: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(stored["entries"].as_array().unwrap().len(), 1);
    for share in stored["entries"][0]["shares"].as_object_mut().unwrap().values_mut() {
        *share = 0.0.into();
    }
    fs::write(&path, stored.to_string()).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let run = |threads: usize, line: &str| {
        let line = format!("run --json --temp 0 -n 8 -t {threads} {line} -p Hello");
        object(&said(&mut with_cache(folder.path(), &line)))
    };
    let usual = run(1, "");
    assert_eq!(usual["dense_share"], 0.0, "nothing was measured for one thread");
    if cores >= 2 {
        let dense = run(2, "");
        assert!(dense["dense_share"].as_f64().unwrap() > 0.8, "{dense}");
        assert_eq!((&dense["text"], &dense["active_share"]), (&usual["text"], &usual["active_share"]));
        assert_eq!(run(2, "--crossover 1")["dense_share"], 0.0, "the option goes before the file");
    }
}

/// Under ten seconds on a machine that does nothing else; tests share theirs with others.
#[test]
fn figures_for_plans_are_measured_quickly_and_kept_for_each_side() {
    let folder = tempfile::tempdir().unwrap();
    let report = object(&said(&mut with_cache(folder.path(), "doctor --json --costs --device simulated -t 2")));
    assert_eq!(report["types"], serde_json::json!([]), "nothing else was measured");
    let path = folder.path().join("costs.json");
    let stored: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(report["costs"].as_array().unwrap().len(), 2);
    let mut seconds = 0.0;
    for (i, side) in report["costs"].as_array().unwrap().iter().enumerate() {
        seconds += side["seconds"].as_f64().unwrap();
        let entry = &stored["entries"][i];
        assert_eq!((&side["device"], &entry["device"]), ([&Value::Null, &"simulated".into()][i], &side["device"]));
        assert_eq!((&side["file"]["path"], &side["file"]["error"]), (&path.to_str().unwrap().into(), &Value::Null));
        assert_eq!(side["bytes_per_second"]["origin"], "measured");
        assert!(side["bytes_per_second"]["value"].as_f64().unwrap() > 1e8, "{side}");
        let neurons = side["neuron_bytes_per_second"].as_object().unwrap();
        assert_eq!(neurons.len(), QuantType::ALL.len());
        // the first of them; on a machine that is busy with other things there may have been no time for it, which is said
        let late = side["missing"].to_string().contains("neurons of Q4_0: there was no time left");
        assert_eq!(neurons["Q4_0"]["origin"], if late { "assumed" } else { "measured" }, "{side}");
        for (name, figure) in neurons {
            let kept = entry["neuron_bytes_per_second"].get(name).map(|v| v.as_f64().unwrap());
            let measured = figure["origin"] == "measured";
            assert_eq!(kept.is_some(), measured, "{name}: {side}");
            let value = figure["value"].as_f64().unwrap();
            let want = if measured { kept.unwrap() } else { side["bytes_per_second"]["value"].as_f64().unwrap() };
            assert!((value - want).abs() <= 1.0, "{name}: {side}");
        }
        let has_link = side["link_bytes_per_second"].as_f64().is_some_and(|v| v > 1e7);
        assert_eq!((has_link, side["sync_seconds"].is_null()), (i == 1, i == 0), "{side}");
    }
    assert!(seconds < 30.0, "{seconds} s");
    let text = said(&mut with_cache(folder.path(), "doctor --costs --quick -t 2"));
    assert!(text.out.contains("What plans are made of, CPU, in GB/s"), "{}", text.out);
    assert!(text.out.contains("--quick does not replace them"), "{}", text.out);
    assert_eq!(serde_json::from_slice::<Value>(&fs::read(&path).unwrap()).unwrap(), stored);
}

#[test]
fn a_damaged_file_is_ignored_with_a_note_and_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crossover.json");
    fs::write(&path, "{\"version\": 1, \"entries\": 7}").unwrap();
    let run = said(&mut with_cache(folder.path(), "run --json -n 2 -p Hello"));
    assert!(run.err.contains(&format!("note: {} is ignored: ", path.display())), "{}", run.err);
    assert_eq!(object(&run)["dense_share"], 0.0);
    assert_eq!(said(&mut with_cache(folder.path(), "doctor --quick")).code, Some(0));
    let run = said(&mut with_cache(folder.path(), "run --json -n 2 -p Hello"));
    assert!(run.code == Some(0) && !run.err.contains("is ignored"), "{}", run.err);
}

#[test]
fn the_text_shows_a_forced_instruction_set_and_where_measurements_went() {
    let folder = tempfile::tempdir().unwrap();
    // A cache folder that cannot be one.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let said = said(with_cache(&file, "doctor --quick -t 1").env("PI_ISA", "reference"));
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("reference, forced by PI_ISA"), "{}", said.out);
    assert!(said.out.contains("crossovers could not be stored in "), "{}", said.out);
    for ty in QuantType::ALL {
        assert!(said.out.lines().any(|line| line.starts_with(&format!("{} ", ty.name()))), "{ty}");
    }
    for name in ["cpu ", "threads ", "memory reads ", "back ends     cpu: "] {
        assert!(said.out.contains(&format!("\n{name}")), "{name}: {}", said.out);
    }
}

#[test]
fn wrong_calls_end_with_2() {
    for line in ["doctor -t 0", "doctor --fast", "doctor file.gguf"] {
        let said = call(line.split(' '));
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{line}");
    }
}
