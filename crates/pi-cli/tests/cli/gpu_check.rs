//! `scripts/gpu_check` as it runs on a machine with a GPU, with sizes and a driver for machines without one.

use crate::common::*;
use pi_core::QuantType;
use pi_cuda_emu::{driver_folder, use_driver};
use pi_engine::pi_sparse_cpu::{CpuDevice, Kernels, Pool};
use pi_testkit::cases::{Case, Ffn};
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command, sync::Arc};

/// What is carried, made of what cargo has built for this test.
#[cfg(unix)]
fn carried(folder: &Path, emulated: &Path) {
    use std::os::unix::fs::symlink;
    fs::create_dir(folder.join("tests")).unwrap();
    symlink(env!("CARGO_BIN_EXE_pi"), folder.join("pi")).unwrap();
    symlink(emulated, folder.join("emulated")).unwrap();
    symlink(std::env::current_exe().unwrap(), folder.join("tests/this")).unwrap();
    symlink(repository("scripts/gpu_check").canonicalize().unwrap(), folder.join("gpu_check")).unwrap();
    let tests = json!([{ "file": "tests/this", "args": ["a_sparse_ffn", "--ignored"], "sanitized": true }]);
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
    let done = said(script(folder).arg("--small"));
    assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.err);
    let file = |end: &str| {
        let names: Vec<_> = names(&folder.join("results")).into_iter().filter(|n| n.ends_with(end)).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        fs::read_to_string(folder.join("results").join(&names[0])).unwrap()
    };
    let found: Value = serde_json::from_str(&file(".json")).unwrap();
    assert_eq!(
        (&found["emulated"], &found["failed"], &found["cut"]),
        (&true.into(), &json!([]), &json!([])),
        "{found}"
    );
    assert_eq!((found["tests"][0]["passed"].as_bool(), found["tests"][0]["ran"].as_u64()), (Some(true), Some(1)));
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
    let page = file(".md");
    for part in [
        "| must hold |",
        "emulated",
        "sparse FFN at 10 %",
        "hybrid at 1/4",
        "| tiny, 2 layers |",
        "no-graphs",
        "70B 512x32",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[cfg(unix)]
#[test]
fn without_a_gpu_or_a_folder_the_script_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let none = said(&mut script(folder.path()));
    assert_eq!(none.code, Some(1), "{}", none.out);
    assert!(none.err.contains("has no manifest.json") && none.err.contains("--build"), "{}", none.err);
    if pi_sparse_cuda::count().is_ok() {
        return eprintln!("SKIPPED: there is a GPU");
    }
    carried(folder.path(), folder.path());
    let alone = said(&mut script(folder.path()));
    assert_eq!(alone.code, Some(1), "{}", alone.err);
    assert!(alone.out.contains("there is no GPU here") && alone.out.contains("no NVIDIA driver"), "{}", alone.out);
}
