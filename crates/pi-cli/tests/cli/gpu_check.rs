//! `scripts/gpu_check` as it runs on a machine with a GPU, with sizes and a driver for machines without one.

use crate::common::*;
use pi_core::QuantType;
use pi_cuda_emu::{driver_folder, use_driver};
use pi_engine::pi_sparse_cpu::{CpuDevice, Kernels, Pool};
use pi_testkit::cases::{Case, Ffn};
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command, slice::from_ref, sync::Arc};

/// What is carried, made of what cargo has built for this test.
#[cfg(unix)]
fn carried(folder: &Path, emulated: &Path) {
    use std::os::unix::fs::symlink;
    fs::create_dir(folder.join("tests")).unwrap();
    symlink(env!("CARGO_BIN_EXE_pi"), folder.join("pi")).unwrap();
    symlink(emulated, folder.join("emulated")).unwrap();
    symlink(std::env::current_exe().unwrap(), folder.join("tests/this")).unwrap();
    symlink(repository("scripts/gpu_check").canonicalize().unwrap(), folder.join("gpu_check")).unwrap();
    let test = |names: &str| json!({ "file": "tests/this", "args": [names, "--ignored"], "sanitized": true });
    // one that has something to do, one that has not, and both
    let tests = ["a_sparse_ffn", "a_check_that", "gpu_check::a_"].map(test);
    let manifest = json!({ "commit": "none", "waits_once": true, "tests": tests });
    fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
}

fn script(folder: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(repository("scripts/gpu_check")).arg("--run").arg(folder).arg("--out").arg(folder.join("results"));
    command
}

/// The test that is carried by the one below.
#[test]
#[ignore = "run by the script"]
fn a_sparse_ffn_of_the_driver_is_that_of_the_cpu() {
    use_driver().unwrap();
    let cuda = pi_sparse_cuda::Cuda::open(0).unwrap();
    let cpu = CpuDevice::new(Kernels::reference(), Arc::new(Pool::new(1).unwrap()));
    let ffn = Ffn { ty: QuantType::Q4_0, dim: 256, neurons: 96, tokens: 1, active: 0.2, ..Ffn::default() };
    Case::Ffn(ffn).check(&cuda, &cpu).unwrap();
    assert!(cuda.copy_speed(1 << 16).unwrap() > 0.0);
}

/// Carried as well.
#[test]
#[ignore = "run by the script"]
fn a_check_that_is_skipped() {
    eprintln!("SKIPPED: there is nothing to be checked");
}

/// What the report makes of a run, as the script has it.
fn judged(found: &Value) -> Value {
    let program = "import json, sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); import gpu_report; \
                   print(json.dumps(gpu_report.verdicts(json.loads(sys.argv[2]))))";
    let mut command = Command::new("python3");
    object(&said(command.args(["-c", program]).arg(repository("scripts")).arg(found.to_string())))
}

#[test]
fn tests_that_were_skipped_or_cut_have_shown_nothing() {
    let row = |check: Option<&str>, passed: Option<bool>, ran: u32, skipped: &[&str]| json!({ "test": "x", "check": check, "passed": passed, "ran": ran, "skipped": skipped });
    let holds = |tests: &[Value]| {
        let found = json!({ "tests": tests, "waits_once": true, "emulated": false, "models": [] });
        let verdicts = judged(&found).as_array().unwrap().clone();
        let of_tests = verdicts.into_iter().filter(|v| v["what"].as_str().unwrap().contains("pass "));
        of_tests.map(|v| (v["holds"].as_bool(), v["shown"].as_str().unwrap().to_string())).collect::<Vec<_>>()
    };
    let (good, bad) = (row(None, Some(true), 3, &["a"]), row(None, Some(false), 3, &[]));
    let (nothing, cut) = (row(None, None, 0, &["a", "b"]), json!({ "test": "x", "check": null, "passed": null }));
    let said = |holds: Option<bool>, shown: &str| vec![(holds, shown.to_string())];
    assert_eq!(holds(from_ref(&good)), said(Some(true), "1 of 1 binaries, 3 tests; skipped: 1"));
    assert_eq!(holds(from_ref(&nothing)), said(None, "0 of 1 binaries, 0 tests; skipped: 2"));
    assert_eq!(holds(&[good.clone(), nothing.clone()]), said(Some(true), "1 of 2 binaries, 3 tests; skipped: 3"));
    assert_eq!(holds(&[good.clone(), cut]), said(None, "1 of 2 binaries, 3 tests; skipped: 1"));
    assert_eq!(holds(&[good.clone(), nothing, bad]), said(Some(false), "1 of 3 binaries, 6 tests; skipped: 3"));
    assert_eq!(holds(&[]), said(Some(false), "0 of 0 binaries, 0 tests"));
    // each part for itself
    let checked = holds(&[good, row(Some("memcheck"), None, 0, &["a"])]);
    assert_eq!(checked.iter().map(|v| v.0).collect::<Vec<_>>(), [Some(true), None]);
}

/// Whatever goes wrong in a part, results of the others are written.
#[cfg(unix)]
#[test]
fn a_part_that_fails_costs_no_results() {
    use std::os::unix::fs::PermissionsExt;
    let Ok(Some(emulated)) = driver_folder() else {
        assert!(std::env::var_os("CI").is_none(), "there is no emulated driver");
        return eprintln!("SKIPPED: there is no emulated driver");
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    carried(folder, Path::new(&emulated));
    let (pi, real) = (folder.join("pi"), folder.join("pi-itself"));
    fs::rename(&pi, &real).unwrap();
    let refuses = format!(
        "#!/bin/sh\nif [ \"$1\" = plan ]; then echo no budget >&2; exit 1; fi\nexec {} \"$@\"\n",
        real.display()
    );
    fs::write(&pi, refuses).unwrap();
    fs::set_permissions(&pi, fs::Permissions::from_mode(0o755)).unwrap();
    let done = said(script(folder).arg("--small"));
    assert!(done.code == Some(1) && !done.err.contains("Traceback"), "{}\n{}", done.out, done.err);
    let results = folder.join("results");
    let json = names(&results).into_iter().find(|name| name.ends_with(".json")).unwrap();
    let found: Value = serde_json::from_str(&fs::read_to_string(results.join(json)).unwrap()).unwrap();
    assert_eq!(found["failed"], json!(["decode: tiny does not fit on the device, of which no budget was said"]));
    assert_eq!(found["operators"].as_array().unwrap().len(), 8);
}

#[cfg(unix)]
#[test]
fn the_script_tests_times_and_judges_with_the_emulated_driver() {
    let emulated = match driver_folder() {
        Ok(Some(folder)) => folder,
        Ok(None) => return eprintln!("SKIPPED: on a GPU the script itself is what is run"),
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "{e}");
            return eprintln!("SKIPPED: {e}");
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    carried(folder, Path::new(&emulated));
    // results of earlier runs, whatever day it is when this one ends
    let results = folder.join("results");
    fs::create_dir(&results).unwrap();
    let days = "import datetime as d; t = d.date.today(); print(t, t + d.timedelta(1))";
    for day in said(Command::new("python3").args(["-c", days])).out.split_whitespace() {
        for end in [".json", ".md", "-2.md"] {
            fs::write(results.join(format!("{day}-gpu-check-emulated{end}")), "earlier").unwrap();
        }
    }
    let earlier = names(&results);
    let done = said(script(folder).arg("--small"));
    assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.err);
    let file = |end: &str| {
        let is_new = |name: &String| name.ends_with(end) && !earlier.contains(name);
        let names: Vec<_> = names(&results).into_iter().filter(is_new).collect();
        assert!(names.len() == 1 && names[0].ends_with(&format!("-emulated-3{end}")), "{names:?}");
        fs::read_to_string(results.join(&names[0])).unwrap()
    };
    for name in &earlier {
        assert_eq!(fs::read_to_string(results.join(name)).unwrap(), "earlier", "{name}");
    }
    let found: Value = serde_json::from_str(&file(".json")).unwrap();
    assert_eq!(
        (&found["emulated"], &found["failed"], &found["cut"]),
        (&true.into(), &json!([]), &json!([])),
        "{found}"
    );
    let skipped = "gpu_check::a_check_that_is_skipped";
    for (row, (passed, ran, skips)) in [(Some(true), 1, 0), (None, 0, 1), (Some(true), 1, 1)].into_iter().enumerate() {
        let row = &found["tests"][row];
        assert_eq!((row["passed"].as_bool(), row["ran"].as_u64()), (passed, Some(ran)), "{row}");
        assert_eq!(row["skipped"], json!(vec![skipped; skips]), "{row}");
    }
    let rows = |what: &str| found[what].as_array().unwrap().clone();
    // two widths, two types, two shares
    assert_eq!(rows("operators").len(), 8);
    for row in rows("operators") {
        assert_eq!(row["device"], "cuda:0");
        for number in ["median_ns", "min_ns", "max_ns", "read_bytes_per_second", "memory_share", "of_dense"] {
            assert!(row[number].as_f64().unwrap() > 0.0, "{number}: {row}");
        }
    }
    // one step of 16 tokens of each share, each of both ways
    let both: Vec<_> =
        rows("crossover").iter().map(|r| (r["way"].clone(), r["dense_share"].as_f64().unwrap())).collect();
    assert_eq!(both, [("dense".into(), 1.0), ("dense".into(), 1.0), ("sparse".into(), 0.0), ("sparse".into(), 0.0)]);
    let switches = rows("switches");
    assert_eq!(switches.len(), 4, "{switches:?}");
    for row in &switches {
        assert!(row["samples"].as_array().unwrap().len() >= 2, "{row}");
        let [kernels, calls] = [0, 1].map(|i| row["launches"][i].as_f64().unwrap());
        assert!(calls <= kernels, "{row}"); // a prompt may have short sequences that come again
        if row["what"] == "decoding" {
            assert_eq!(calls < kernels, row["without"].is_null(), "{row}");
        }
    }
    let decode = rows("decode");
    let named = |what: &str| decode.iter().filter(|r| r["what"] == what).cloned().collect::<Vec<_>>();
    assert_eq!((named("CPU").len(), named("hybrid").len()), (1, 3), "{decode:?}");
    assert_eq!(
        ["dense by layers", "dense by FFNs", "dense", "dense CPU"].map(|what| named(what).len()),
        [1; 4],
        "{decode:?}"
    );
    for row in &decode {
        assert!(row["samples"].as_array().unwrap().iter().all(|s| s.as_f64().unwrap() > 0.0), "{row}");
        assert!(row["samples"].as_array().unwrap().len() >= 2, "{row}");
    }
    for row in named("hybrid").iter().filter(|r| r["budget"] != 0) {
        assert!(row["on_device"].as_u64().unwrap() > 0 && row["floor"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(found["verdicts"][0]["holds"], true);
    assert_eq!(found["verdicts"][0]["shown"], "2 of 3 binaries, 2 tests; skipped: 2");
    let page = file(".md");
    for part in [
        "| must hold |",
        "emulated",
        "sparse FFN at 10 %",
        "hybrid at 1/4",
        "| tiny, 2 layers |",
        "no-graphs",
        "70B 512x32",
        &format!("skipped: 1, this {skipped}"),
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[cfg(unix)]
#[test]
fn without_a_gpu_or_a_folder_the_script_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let none = said(&mut script(folder.path()));
    assert_eq!(none.code, Some(2), "{}", none.out);
    assert!(none.err.contains("has no manifest.json") && none.err.contains("--build"), "{}", none.err);
    if pi_sparse_cuda::count().is_ok() {
        return eprintln!("SKIPPED: there is a GPU");
    }
    carried(folder.path(), folder.path());
    let alone = said(&mut script(folder.path()));
    assert_eq!(alone.code, Some(1), "{}", alone.err);
    assert!(alone.out.contains("there is no GPU here") && alone.out.contains("no NVIDIA driver"), "{}", alone.out);
}

#[cfg(unix)]
#[test]
fn a_folder_that_is_not_whole_is_refused_in_a_line() {
    use std::os::unix::fs::PermissionsExt;
    type Spoil = fn(&Path);
    let manifest = |folder: &Path, text: &str| fs::write(folder.join("manifest.json"), text).unwrap();
    fn instead(folder: &Path, name: &str, text: &str, mode: u32) {
        let path = folder.join(name);
        fs::remove_file(&path).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let refused = |folder: &Path, small: bool, text: &str| {
        let mut command = script(folder);
        let said = said(if small { command.arg("--small") } else { &mut command });
        assert_eq!((said.code, said.err.lines().count()), (Some(2), 1), "{text}: {}{}", said.out, said.err);
        assert!(said.err.starts_with("gpu_check: ") && said.err.contains(text), "{text}: {}", said.err);
    };
    let fresh = || {
        let folder = tempfile::tempdir().unwrap();
        carried(folder.path(), folder.path());
        folder
    };
    for (text, says) in [
        ("{", "manifest.json cannot be read: "),
        ("\u{0}", "manifest.json cannot be read: "),
        ("[]", "is not what --build writes: commit"),
        (r#"{"commit": 1, "waits_once": true, "tests": []}"#, "is not what --build writes: commit"),
        (r#"{"commit": "a", "waits_once": true}"#, "is not what --build writes: tests"),
        (r#"{"commit": "a", "waits_once": "yes", "tests": []}"#, "is not what --build writes: waits_once"),
        (r#"{"commit": "a", "waits_once": null, "tests": []}"#, "names no tests"),
        (r#"{"commit": "a", "waits_once": null, "tests": [1]}"#, "is not what --build writes: file"),
        (r#"{"commit": "a", "waits_once": null, "tests": [{"file": "x", "args": []}]}"#, "--build writes: sanitized"),
    ] {
        let folder = fresh();
        manifest(folder.path(), text);
        refused(folder.path(), false, says);
    }
    let spoils: [(Spoil, &str); 5] = [
        (|folder| fs::remove_file(folder.join("pi")).unwrap(), "has no pi: carry the folder whole"),
        (|folder| fs::remove_file(folder.join("tests/this")).unwrap(), "has no tests/this: carry the folder whole"),
        (|folder| instead(folder, "pi", "", 0o644), "pi may not be executed: chmod +x"),
        (|folder| instead(folder, "pi", "of another machine", 0o755), "pi does not run on this machine: "),
        (
            |folder| instead(folder, "pi", "#!/bin/sh\necho no such GLIBC >&2; exit 1", 0o755),
            "--version: no such GLIBC",
        ),
    ];
    for (spoil, says) in spoils {
        let folder = fresh();
        spoil(folder.path());
        refused(folder.path(), false, says);
    }
    refused(fresh().path(), true, "has no emulated/libcuda.so.1, which --small needs");
    // the script as it is carried, without what goes with it
    let folder = fresh();
    fs::remove_file(folder.path().join("gpu_check")).unwrap();
    fs::copy(repository("scripts/gpu_check"), folder.path().join("gpu_check")).unwrap();
    let alone = said(Command::new("python3").arg(folder.path().join("gpu_check")).arg("--run"));
    assert_eq!((alone.code, alone.err.lines().count()), (Some(2), 1), "{}", alone.err);
    assert!(alone.err.contains("has no gpu_report.py"), "{}", alone.err);
}
