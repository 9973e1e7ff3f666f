//! `pi bench` with the demo model and with small operators.

use crate::common::*;
use serde_json::Value;

fn bench(line: &str) -> Said {
    call(["bench"].into_iter().chain(line.split_whitespace()))
}

/// The objects of a call that must succeed.
fn rows(line: &str) -> Vec<Value> {
    let said = bench(&format!("{line} -o json"));
    object(&said).as_array().expect("an array").clone()
}

const TINY: &str = "-p 16 -n 4 -r 2 --bandwidth 10";

#[test]
fn keys_and_values_are_kept_as_lists_say() {
    let types = |line: &str| {
        let rows = rows(&format!("-p 4 -n 0 -r 1 --bandwidth 0 {line}"));
        let pair = |row: &Value| [&row["type_k"], &row["type_v"]].map(|v| v.as_str().unwrap().to_string()).join(" ");
        rows.iter().map(pair).collect::<Vec<_>>()
    };
    assert_eq!(types(""), ["f16 f16"]);
    assert_eq!(types("-ctk f32,q8_0 -ctv f16,f32"), ["f32 f16", "f32 f32", "q8_0 f16", "q8_0 f32"]);
    assert_eq!(types("--kv q8_0,f32"), ["q8_0 q8_0", "f32 f32"]);
    let md = bench("-p 4 -n 0 -r 1 --bandwidth 0 -ctk q8_0").out;
    assert!(md.lines().next().unwrap().contains("| type_k | type_v |") && md.contains("|   q8_0 |    f16 |"), "{md}");
    assert!(!bench("-p 4 -n 0 -r 1 --bandwidth 0").out.contains("type_k"));
    assert_eq!(bench("-ctk q4_0 -p 1 -n 0").code, Some(2));
    assert_eq!(bench("-ctk f16 --kv f16 -p 1 -n 0").code, Some(2));
}

#[test]
fn the_tests_are_a_prompt_and_single_tokens_and_every_field_is_there() {
    let rows = rows(TINY);
    let names: Vec<_> = rows.iter().map(|r| r["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp16", "tg4"]);
    for (row, (prompt, generated)) in rows.iter().zip([(16, 0), (0, 4)]) {
        assert_eq!((&row["n_prompt"], &row["n_gen"]), (&prompt.into(), &generated.into()));
        assert_eq!((&row["n_batch"], &row["n_ubatch"]), (&2048.into(), &512.into()));
        let samples: Vec<_> = row["samples_ts"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        assert_eq!((samples.len(), row["samples_ns"].as_array().unwrap().len()), (2, 2));
        let mean = (samples[0] + samples[1]) / 2.0;
        assert!((row["avg_ts"].as_f64().unwrap() - mean).abs() < 1e-6 * mean);
        let deviation = (samples[0] - samples[1]).abs() / 2f64.sqrt();
        assert!((row["stddev_ts"].as_f64().unwrap() - deviation).abs() < 1e-6 * mean);
        let share = row["active_share"].as_f64().unwrap();
        assert!(share > 0.0 && share < 0.5, "{share}");
        assert_eq!(row["dense_share"], 0.0);
        assert!(row["bytes_per_token"].as_u64().unwrap() > 1000);
        let (read, memory) = (row["read_bytes_per_second"].as_f64().unwrap(), row["memory_bytes_per_second"].as_f64());
        assert_eq!(memory, Some(10e9));
        assert!((row["memory_share"].as_f64().unwrap() - read / 10e9).abs() < 1e-3);
        assert!(row["model_filename"].as_str().unwrap().ends_with("tiny-reglu-6m-f16.gguf"));
        assert!(row["model_type"].as_str().unwrap().starts_with("llama 6.43 M F16"), "{row}");
        assert!(row["test_time"].as_str().unwrap().ends_with('Z'));
    }
}

#[test]
fn every_form_says_the_same() {
    let mut fields: Vec<String> = rows(TINY)[0].as_object().unwrap().keys().cloned().collect();
    fields.sort_unstable(); // objects may keep their order, or not
    let said = bench(&format!("-o jsonl {TINY}"));
    let lines: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    let sorted = |line: &Value| {
        let mut keys: Vec<String> = line.as_object().unwrap().keys().cloned().collect();
        keys.sort_unstable();
        keys
    };
    assert!(lines.iter().all(|line| sorted(line) == fields));

    let csv = bench(&format!("-o csv {TINY}")).out;
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    let mut names: Vec<&str> = lines[0].split(',').collect();
    assert_eq!(lines[1].split("\",\"").count(), names.len());
    names.extend(["samples_ns", "samples_ts"]);
    names.sort_unstable();
    assert_eq!(names, fields, "the table has all fields but the lists");

    let md = bench(&format!("-o md {TINY}")).out;
    let lines: Vec<Vec<&str>> =
        md.lines().map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    assert_eq!(lines.len(), 4);
    let titles = ["model", "size", "params", "backend", "threads", "test", "t/s", "active", "dense path"];
    assert_eq!(lines[0][..9], titles);
    assert_eq!(lines[0][9..], ["MB/token", "GB/s", "of memory"]);
    assert!(lines.iter().all(|l| l.len() == 12), "{md}");
    assert_eq!((lines[2][5], lines[3][5]), ("pp16", "tg4"));
    assert!(lines[2][6].contains(" ± ") && lines[2][3].starts_with("CPU "), "{md}");
    assert_eq!(bench(TINY).out.lines().count(), 4, "Markdown is what you get unasked");
}

#[test]
fn lists_are_every_combination_and_depths_and_pairs_are_tests_too() {
    let tests = |line: &str| {
        let row = |r: &Value| {
            format!("{} t{} b{} u{}", r["test"].as_str().unwrap(), r["n_threads"], r["n_batch"], r["n_ubatch"])
        };
        rows(&format!("-r 1 --bandwidth 0 {line}")).iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(
        tests("-p 8,16 -n 0 -pg 8,2 -d 0,4 -t 1"),
        ["pp8", "pp16", "pp8+tg2", "pp8 @ d4", "pp16 @ d4", "pp8+tg2 @ d4"].map(|t| format!("{t} t1 b2048 u512"))
    );
    assert_eq!(
        tests("-p 8 -n 0 -t 1-2 -b 4 -ub 2-4*2"),
        ["pp8 t1 b4 u2", "pp8 t1 b4 u4", "pp8 t2 b4 u2", "pp8 t2 b4 u4"]
    );
    let demo = demo();
    let both = format!("{},{}", demo.display(), demo.display());
    assert_eq!(rows(&format!("-m {both} -p 4 -n 0 -r 1 --bandwidth 0")).len(), 2);
}

#[test]
fn sparsity_and_crossover_change_what_is_read_and_are_seen() {
    let row = |line: &str| rows(&format!("-p 0 -n 8 -r 1 --bandwidth 0 {line}")).remove(0);
    let (exact, off, dense) = (row("--sparsity exact"), row("--sparsity off"), row("--crossover 0"));
    assert_eq!((&off["active_share"], &off["dense_share"]), (&1.0.into(), &1.0.into()));
    assert_eq!(exact["dense_share"], 0.0);
    assert_eq!(dense["active_share"], exact["active_share"]);
    assert!(dense["dense_share"].as_f64().unwrap() > 0.8, "all but the first step: {dense}");
    let bytes = |row: &Value| row["bytes_per_token"].as_u64().unwrap();
    assert!(bytes(&exact) < bytes(&dense) && bytes(&dense) <= bytes(&off));
    assert_eq!(exact["memory_share"], Value::Null);
}

#[test]
fn the_memorys_speed_is_measured_unless_it_is_given() {
    let row = rows("-p 4 -n 0 -r 1").remove(0);
    assert!(row["memory_bytes_per_second"].as_f64().unwrap() > 1e8, "{row}");
}

#[test]
fn operators_are_checked_and_timed() {
    let quick = "--seconds 0.01 --bandwidth 10 -t 1,2 --warm";
    let gemv = rows(&format!("gemv --type q4_0,f16 --rows 64 --cols 256 {quick}"));
    assert_eq!(gemv.len(), 4);
    let gemm = rows(&format!("gemm --type q8_0 --rows 64 --cols 256 --tokens 3,8 {quick}"));
    assert_eq!(gemm.len(), 4);
    let ffn = rows(&format!("ffn --type q4_0 --dim 256 --ffn 200 --active 0.1,0.5 --select marks,gate,dense {quick}"));
    assert_eq!(ffn.len(), 10, "dense once, with marks or gates for each share");
    let shape = "--heads 4 --kv-heads 2 --head-dim 32 --context 0,40 --kv f16,f32";
    let attention = rows(&format!("attention {shape} {quick}"));
    assert_eq!(attention.len(), 8);
    for row in gemv.iter().chain(&gemm).chain(&ffn).chain(&attention) {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        assert!(number("median_ns") >= number("min_ns") && number("min_ns") > 0.0);
        assert!(number("bytes") > 0.0 && number("macs") > 0.0 && number("calls") >= 5.0);
        assert!(number("error") <= number("tolerance"));
        assert!((number("read_bytes_per_second") - number("bytes") / number("median_ns") * 1e9).abs() < 1e6);
        assert_eq!(row["weights_from"], "caches");
    }
    for row in &ffn {
        let dense = row["select"] == "dense";
        let want = if dense { 1.0 } else { row["active"].as_f64().unwrap() };
        assert!((row["active_share"].as_f64().unwrap() - want).abs() < 1e-9, "{row}");
        assert!(row["of_dense"].as_f64().unwrap() > 0.0);
        assert_eq!(row["dense_share"], f64::from(dense));
    }
}

#[test]
fn operators_of_an_accelerator_are_checked_and_timed_without_a_wait_for_each() {
    let quick = "--device simulated --seconds 0.05 --warm";
    let shape = "--dim 256 --ffn 200 --active 0.1,1";
    let with = rows(&format!("ffn --type q4_0 {shape} {quick} --bandwidth 10"));
    let without = rows(&format!("ffn --type q4_0 {shape} {quick}"));
    for (row, share) in with.iter().zip([0.1, 1.0]).chain(without.iter().zip([0.1, 1.0])) {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        assert_eq!((&row["device"], &row["isa"], &row["n_threads"]), (&"simulated".into(), &Value::Null, &Value::Null));
        assert!(number("max_ns") >= number("median_ns") && number("median_ns") >= number("min_ns"), "{row}");
        assert!(number("min_ns") > 0.0 && number("calls") >= 5.0 && number("of_dense") > 0.0, "{row}");
        assert!(number("error") <= number("tolerance") && (number("active_share") - share).abs() < 1e-9, "{row}");
        // of one step, however many there were
        assert_eq!(number("bytes"), (200.0 * share).round() * 3.0 * 144.0, "{row}");
    }
    assert!(with.iter().all(|r| r["memory_share"].as_f64().unwrap() > 0.0));
    assert!(without.iter().all(|r| r["memory_share"].is_null()), "nobody knows a simulated device's memory");
    let cpu = &rows("gemv --type f16 --rows 64 --cols 64 --seconds 0.01 --warm --bandwidth 0")[0];
    assert_eq!((&cpu["device"], &cpu["device_info"]), (&"cpu".into(), &Value::Null));
}

#[test]
fn an_operators_instruction_set_can_be_chosen_and_weights_can_come_from_memory() {
    let rows = rows("gemv --type f16 --rows 512 --cols 512 --isa reference --seconds 0.01 --bandwidth 0");
    assert_eq!((&rows[0]["isa"], &rows[0]["kernel_isa"]), (&"reference".into(), &"reference".into()));
    assert_eq!(rows[0]["weights_from"], "memory");
    assert!(rows[0]["copies"].as_u64().unwrap() > 1);
    let md = bench("gemv --type f16 --rows 64 --cols 64 --seconds 0.01 --warm --bandwidth 0").out;
    assert!(md.lines().next().unwrap().starts_with("| operator "), "{md}");
    assert!(md.lines().nth(2).unwrap().starts_with("| gemv F16 64x64 "), "{md}");
}

#[test]
fn wrong_calls_end_with_2_and_say_what_is_wrong() {
    for (line, name) in [
        ("-p x", "--n-prompt"),
        ("-n -1", "--n-gen"),
        ("-p 0 -n 0", "nothing to time"),
        ("-pg 5", "--pg"),
        ("-t 0", "--threads"),
        ("-t 4-1", "--threads"),
        ("-b 0", "--batch-size"),
        ("-ub 0", "--ubatch-size"),
        ("-r 0", "--repetitions"),
        ("-o xml", "--output"),
        ("--sparsity some", "--sparsity"),
        ("--crossover 2", "--crossover"),
        ("--bandwidth -1", "--bandwidth"),
        ("sort", "sort"),
        ("gemv --type q9", "'q9' is none of f32"),
        ("gemv --rows 0", "--rows"),
        ("gemv --type q4_0 --cols 33", "rows of 33 numbers"),
        ("gemv --isa mmx", "reference"),
        ("gemv --tokens 3", "--tokens"),
        ("gemv --seconds 0", "--seconds"),
        ("gemm --tokens 0", "--tokens"),
        ("ffn --active 1.5", "--active"),
        ("ffn --select some", "marks, gate or dense"),
        ("ffn --type f16 --ffn 0", "--ffn"),
        ("attention --kv q2", "f32, f16 or q8_0"),
        ("attention --heads 3 --kv-heads 2", "heads"),
        ("gemv --device gpu", "simulated"),
        ("gemv --device simulated -t 2", "--threads"),
        ("gemv --device simulated --isa reference", "--isa"),
        ("gemm --device simulated --repack on", "--repack"),
        ("ffn --device simulated --crossover 0.5", "--crossover"),
        ("-m x gemv", "gemv"),
    ] {
        let said = bench(line);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{line}: {}", said.err);
        assert!(said.err.contains("error: ") && said.err.contains(name), "{line}: {}", said.err);
    }
    let said = bench("-m no/such.gguf --bandwidth 0");
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("error: no/such.gguf: cannot "), "{}", said.err);
}
