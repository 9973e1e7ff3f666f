//! `--device cuda` from plan to text, with an emulated driver that this program finds as it would find the system's; with
//! `PI_CUDA_TEST=real` the system's and a GPU.

use crate::{common::*, serve::Serving};
use pi_cuda_emu::driver_folder;
use pi_testkit::TinyModel;
use serde_json::json;
use std::{fs, path::PathBuf, process::Command};

/// A folder with a model, and a cache folder.
struct Place {
    folder: tempfile::TempDir,
    is_real: bool,
}

impl Place {
    /// `None` without an emulator, which CI does not accept.
    fn new() -> Option<Self> {
        let is_real = match driver_folder() {
            Ok(folder) => folder.is_none(),
            Err(e) => {
                assert!(std::env::var_os("CI").is_none(), "{e}");
                eprintln!("SKIPPED: {e}");
                return None;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let model = TinyModel { neuron_major: true, neurons: 200, layers: 3, ..TinyModel::default() };
        fs::write(folder.path().join("tiny.gguf"), model.build().unwrap()).unwrap();
        Some(Self { folder, is_real })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `pi` with these words; `MODEL` is the model.
    fn pi(&self, line: &str) -> Command {
        // carried to another machine, tests are told where the program is
        let mut command = std::env::var_os("PI_TEST_EXE").map_or_else(pi, program);
        command.env("PI_CACHE_DIR", self.path("cache"));
        if let Ok(Some(folder)) = driver_folder() {
            command.env("LD_LIBRARY_PATH", folder);
        }
        let model = self.path("tiny.gguf");
        command
            .args(line.split_whitespace().map(|word| if word == "MODEL" { model.as_os_str() } else { word.as_ref() }));
        command
    }

    fn said(&self, line: &str) -> Said {
        said(&mut self.pi(line))
    }

    fn run(&self, line: &str) -> Command {
        let mut command = self.pi(&format!("run -m MODEL -n 8 -c 64 --temp 0 --ignore-eos {line}"));
        command.args(["-p", "abcd"]);
        command
    }

    /// What the CPU writes.
    fn want(&self) -> String {
        let said = said(&mut self.run(""));
        assert_eq!(said.code, Some(0), "{}", said.err);
        assert!(!said.out.is_empty());
        said.out
    }
}

/// Memory that the runtime of the emulated device takes, and a bit of what this model needs, in GiB.
const LITTLE: &str = "0.0163";

#[test]
fn the_text_is_that_of_the_cpu_whatever_is_on_the_gpu() {
    let Some(place) = Place::new() else { return };
    let want = place.want();
    for options in [
        "cuda",
        "cuda:0 --vram-budget 0",
        &format!("cuda:0 --vram-budget {LITTLE} --policy frequency"),
        "auto --disable-gpu-index",
        "cuda --vram-budget 1000 --policy impact",
        "cuda --on-device-loss cpu --kv f32",
    ] {
        let got = said(&mut place.run(&format!("--device {options}")));
        assert_eq!((got.code, &got.out), (Some(0), &want), "{options}: {}", got.err);
        let nothing = options.ends_with("budget 0");
        assert!(
            got.err.contains(if nothing { "plan: nothing on the device" } else { " on the device; " }),
            "{}",
            got.err
        );
        assert_eq!(got.err.contains("device: cuda:0 ("), !nothing, "{}", got.err);
        assert_eq!(got.err.contains(" of memory were allowed, and "), options.contains("1000"), "{}", got.err);
    }
}

#[test]
fn a_plan_for_the_gpu_counts_what_it_allocates_and_its_runtime() {
    let Some(place) = Place::new() else { return };
    let plan = |line: &str| object(&place.said(&format!("plan MODEL -c 64 --json --policy frequency {line}")));
    let (gpu, simulated) = (plan("--device cuda"), plan("--vram-budget 1"));
    let bytes = |plan: &serde_json::Value, what: &str| plan["bytes"][what].as_u64().unwrap();
    assert!(bytes(&gpu, "runtime") > 0 && bytes(&simulated, "runtime") == 0);
    for what in ["norms", "attention", "neurons", "output", "scratch"] {
        // whole pieces; scratch is another one
        let as_much = what == "scratch" || bytes(&gpu, what) >= bytes(&simulated, what);
        assert!(as_much && bytes(&gpu, what) > 0, "{what}: {gpu}");
    }
    let page = place.said("plan MODEL --device cuda:0");
    assert!(
        page.code == Some(0) && page.out.contains("runtime") && page.out.contains("neurons by: time"),
        "{}",
        page.err
    );
    let refused = place.said("plan MODEL");
    assert!(refused.code == Some(2) && refused.err.contains("--vram-budget is needed"), "{}", refused.err);
    let refused = place.said("plan MODEL --device none --vram-budget 1");
    assert_eq!(refused.code, Some(2), "{}", refused.err);
}

#[test]
fn chosen_neurons_are_kept_for_this_gpu() {
    let Some(place) = Place::new() else { return };
    let run = |device: &str, cc: &str| {
        let mut command = place.run(&format!("--device {device} --vram-budget {LITTLE} --policy frequency"));
        let said = said(command.env("CUEMU_CC", cc));
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.err.contains("as chosen earlier")
    };
    assert!(!run("cuda", "90") && run("cuda:0", "90"));
    assert!(!run("simulated", "90"));
    if !place.is_real {
        assert!(!run("cuda", "75"), "another GPU");
    }
}

#[test]
fn other_commands_take_the_gpu_too() {
    let Some(place) = Place::new() else { return };
    let rows = place.said("bench -m MODEL -p 4 -n 2 -r 1 --bandwidth 0 -o json --device cuda");
    assert_eq!(object(&rows).as_array().unwrap().len(), 2);
    assert!(rows.err.contains("plan: "), "{}", rows.err);
    let quick = "--seconds 0.02 --warm -o json --device cuda";
    let rows = place.said(&format!("bench ffn --type q4_0 --dim 256 --ffn 160 --active 0.1,1 {quick}"));
    for row in object(&rows).as_array().unwrap() {
        assert_eq!((&row["device"], &row["isa"]), (&"cuda:0".into(), &serde_json::Value::Null), "{row}");
        assert!(row["device_info"].as_str().unwrap().contains("compute capability"), "{row}");
        assert!(row["memory_share"].as_f64().unwrap() > 0.0 && row["of_dense"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(rows.err.contains("GB/s while the device copies within it"), "{}", rows.err);
    fs::write(place.path("text.txt"), "abcdefgh".repeat(6)).unwrap();
    let perplexity = |more: &str| {
        let mut command = place.pi(&format!("perplexity --json -c 16 -m MODEL {more}"));
        object(&said(command.arg("-f").arg(place.path("text.txt"))))["ppl"].as_f64().unwrap()
    };
    let (cpu, both) = (perplexity(""), perplexity("--device cuda"));
    assert!((cpu - both).abs() < 1e-3 * cpu, "{cpu} {both}");
    let rows = object(&place.said("ablation MODEL --vram-budget 1 --device cuda -n 3 -r 2 --json"));
    assert!(rows["simulated"].is_null() && rows["machine"].as_str().unwrap().contains("compute capability"), "{rows}");
    for row in rows["rows"].as_array().unwrap() {
        assert!(row["device_bytes"].as_u64().unwrap() > 0 && row["waits_per_token"].is_null(), "{row}");
        assert!(
            row["device_bytes"].as_u64().unwrap() < row["planned_bytes"].as_u64().unwrap(),
            "the runtime is planned: {row}"
        );
    }
    for line in ["--version", "doctor --costs --quick --json -t 1"] {
        let said = place.said(line);
        assert_eq!(said.code, Some(0), "{}", said.err);
        for part in ["compute capability ", " GiB", "driver of CUDA "] {
            assert!(said.out.contains(part), "{line}: {}", said.out);
        }
    }
}

#[test]
fn keys_and_values_are_where_they_are_asked_to_be() {
    let Some(place) = Place::new() else { return };
    let (want, there) = (place.want(), "keys and values are in this machine's memory");
    for at in ["device", "host"] {
        let got = said(&mut place.run(&format!("--device cuda --kv-place {at}")));
        assert_eq!((got.code, &got.out), (Some(0), &want), "{at}: {}", got.err);
        assert_eq!(got.err.matches(there).count(), usize::from(at == "host"), "{at}: {}", got.err);
    }
    let plan = |line: &str| object(&place.said(&format!("plan MODEL -c 64 --json --device cuda {line}")));
    let [usual, device, host] = ["", "--kv-place device", "--kv-place host"].map(plan);
    let bytes = |plan: &serde_json::Value, what: &str| plan["bytes"][what].as_u64().unwrap();
    let kv = bytes(&device, "kv");
    assert!(kv > 0 && bytes(&host, "kv") == 0 && bytes(&usual, "kv") == kv, "{usual}");
    assert_eq!(bytes(&host, "total") + kv, bytes(&device, "total"));
    assert!(host["notes"].to_string().contains(there) && !device["notes"].to_string().contains(there), "{host}");
    // a kept plan has the room of the other place
    let hot = |at: &str, earlier: bool| {
        let got =
            said(&mut place.run(&format!("--device cuda --vram-budget {LITTLE} --policy frequency --kv-place {at}")));
        assert_eq!((got.code, &got.out), (Some(0), &want), "{at}: {}", got.err);
        assert_eq!(got.err.contains("as chosen earlier"), earlier, "{at}: {}", got.err);
        got.err.lines().find(|l| l.starts_with("plan: ")).map(str::to_string)
    };
    let (few, more) = (hot("device", false), hot("host", false));
    // a GPU's runtime takes more than that budget
    assert!(few.is_some() && (place.is_real || few != more), "{few:?}");
    assert_eq!((hot("device", true), hot("host", true)), (few, more));
    // what is allocated follows
    let allocated = |at: &str| {
        let line = format!("ablation MODEL --vram-budget 1 --device cuda -n 2 -r 1 --json --kv-place {at}");
        object(&place.said(&line))["rows"][0]["device_bytes"].as_u64().unwrap()
    };
    assert!(allocated("host") < allocated("device"));
    for at in ["device", "host"] {
        let line = "--context 16 --heads 2 --kv-heads 1 --head-dim 32 --type f16 --seconds 0.01 --warm -o json";
        let rows = object(&place.said(&format!("bench attention {line} --device cuda --kv-place {at}")));
        assert_eq!(rows[0]["kv_place"], at, "{rows}");
        let models = "bench -m MODEL -p 0 -n 1 -r 1 --bandwidth 0 -o json";
        let rows = object(&place.said(&format!("{models} --device cuda --kv-place {at}")));
        assert_eq!(rows[0]["kv_place"], at, "{rows}");
    }
}

#[test]
fn a_place_for_keys_and_values_is_refused_where_there_is_no_choice() {
    let Some(place) = Place::new() else { return };
    fs::write(place.path("text.txt"), "abcdefgh").unwrap();
    let text = place.path("text.txt").display().to_string();
    let perplexity = format!("perplexity -m MODEL -f {text}");
    for command in [
        "run -m MODEL -p a -n 1",
        "run -m MODEL --prompts none.jsonl -o answers.jsonl",
        "chat -m MODEL",
        "serve MODEL --port 0",
        "bench -m MODEL",
        "bench attention",
        "plan MODEL --vram-budget 1",
        "ablation MODEL --vram-budget 1",
        &perplexity,
    ] {
        let devices = ["--device none", "--device simulated"];
        for (device, why) in devices.into_iter().zip(["there is no accelerator, as --device names none", "own memory"])
        {
            let refused = place.said(&format!("{command} {device} --kv-place host"));
            assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""), "{command} {device}: {}", refused.err);
            assert!(refused.err.contains("--kv-place: ") && refused.err.contains(why), "{}", refused.err);
        }
        let wrong = place.said(&format!("{command} --device cuda --kv-place disk"));
        assert!(wrong.code == Some(2) && wrong.err.contains("expected device or host"), "{}", wrong.err);
    }
    let allowed = said(&mut place.run("--kv-place host --allow-cpu"));
    assert_eq!((allowed.code, allowed.out), (Some(0), place.want()), "{}", allowed.err);
    assert!(allowed.err.contains("--kv-place: there is no accelerator"), "{}", allowed.err);
}

/// A library in a folder of its own, made of C++ by the compiler that built the emulator.
fn library(folder: &std::path::Path, name: &str, text: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("of.cpp"), text).unwrap();
    let soname = format!("-Wl,-soname,{}", if name.starts_with("libcuda") { "libcuda.so.1" } else { name });
    let built =
        Command::new("g++").args(["-shared", "-fPIC", &soname, "-o", name, "of.cpp"]).current_dir(folder).status();
    assert!(built.expect("the compiler that built the emulator").success());
}

/// A compiler of kernels that is asked for and is of no use costs a note, not the run.
#[test]
fn without_a_compiler_of_kernels_shipped_ones_are_used_and_that_is_said() {
    let Some(place) = Place::new() else { return };
    let Ok(Some(driver)) = driver_folder() else { return eprintln!("SKIPPED: the system's NVRTC is as it is") };
    let want = place.want();
    let no_program = "extern \"C\" {
        int nvrtcCreateProgram(void **p, const char *, const char *, int, const char *const *, const char *const *) { return *p = p, 0; }
        int nvrtcCompileProgram(void *, int, const char *const *) { return 6; }
        int nvrtcGetProgramLogSize(void *, unsigned long *n) { return *n = 8, 0; }
        int nvrtcGetProgramLog(void *, char *s) { return __builtin_memcpy(s, \"no luck\", 8), 0; }
        int nvrtcGetPTXSize(void *, unsigned long *) { return 6; }
        int nvrtcGetPTX(void *, char *) { return 6; }
        int nvrtcDestroyProgram(void **) { return 0; }
    }";
    for (name, text, says) in [
        (
            "old",
            "",
            "the NVRTC library has no nvrtcCreateProgram: it is too old, so shipped ones are used: install NVRTC",
        ),
        ("failing", no_program, ".cu: the shipped PTX is used, NVRTC does not compile it: no luck"),
    ] {
        library(&place.path(name), "libnvrtc.so", text);
        let folders = std::env::join_paths([&place.path(name), driver]).unwrap();
        let run = |with: &str| {
            let mut command = place.run("--device cuda");
            let got = said(command.env("LD_LIBRARY_PATH", &folders).env("PI_CUDA", with));
            assert_eq!((got.code, &got.out), (Some(0), &want), "{name}: {}", got.err);
            got.err
        };
        let err = run("nvrtc,no-graphs");
        assert!(err.matches("note: cuda:0: ").count() == 1 && err.contains(says), "{name}: {err}");
        assert!(!run("").contains("note: cuda:0: "));
    }
}

/// What can be wrong with a driver, and what is said.
// P14: one program for machines with a driver, without one, and with a toolkit's stub
#[test]
fn a_gpu_that_is_not_there_is_refused_with_what_can_be_done_unless_the_cpu_will_do() {
    let Some(place) = Place::new() else { return };
    if place.is_real {
        return eprintln!("SKIPPED: the system's driver is as it is");
    }
    let want = place.want();
    let nowhere = place.path("nowhere");
    let folder = nowhere.to_str().unwrap();
    // libraries of the driver's name: one that has none of its functions, and one that has all, as toolkits have it
    let (none, stubs) = (place.path("none"), place.path("stubs"));
    library(&none, "libcuda.so.1", "");
    library(&stubs, "libcuda.so.1", &stub());
    for (device, (name, value), text, advice) in [
        ("cuda:1", ("CUEMU_CC", "90"), "there is no device 1: the NVIDIA driver finds 1", "numbered from 0"),
        ("cuda", ("CUEMU_NO_DEVICE", "1"), "the NVIDIA driver finds no device", "CUDA_VISIBLE_DEVICES"),
        ("cuda", ("CUEMU_DRIVER", "11040"), "of CUDA 11.4: CUDA 12.0 is the oldest", "update the driver"),
        ("cuda", ("CUEMU_CC", "60"), "compute capability 6.0: 6.1 is the oldest", "use another GPU"),
        ("cuda", ("CUEMU_FAIL_AFTER", "1"), "error 719 (launch failed)", "nvidia-smi"),
        ("cuda", ("LD_LIBRARY_PATH", none.to_str().unwrap()), "has no cuInit: it is too old, or a", "folder of stubs"),
        ("cuda", ("LD_LIBRARY_PATH", stubs.to_str().unwrap()), "has no cuInit that works: it is", "folder of stubs"),
        ("cuda:0", ("LD_LIBRARY_PATH", folder), "no NVIDIA driver was found", "install the driver"),
    ] {
        if value == folder && pi_sparse_cuda::count().is_ok() {
            continue; // the system has one
        }
        let run = |line: &str| said(place.run(line).env(name, value));
        let refused = run(&format!("--device {device}"));
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{}", refused.err);
        for part in
            [&format!("--device {}: ", if device == "cuda" { "cuda:0" } else { device }), text, advice, "--allow-cpu"]
        {
            assert!(refused.err.contains(part), "{part}: {}", refused.err);
        }
        let allowed = run(&format!("--device {device} --allow-cpu --vram-budget 1"));
        assert_eq!((allowed.code, &allowed.out), (Some(0), &want), "{}", allowed.err);
        assert_eq!(allowed.err.matches("all of the model is on the CPU").count(), 1, "{}", allowed.err);
        if device == "cuda:1" {
            continue;
        }
        let auto = run(if name == "CUEMU_NO_DEVICE" { "--device auto --on-device-loss cpu" } else { "--device auto" });
        assert_eq!((auto.code, &auto.out), (Some(0), &want), "{}", auto.err);
        assert!(
            auto.err.contains("the CPU alone: there is no accelerator: ") && auto.err.contains(text),
            "{}",
            auto.err
        );
        let limited = run("--device auto --vram-budget 1");
        assert_eq!((limited.code, limited.out.as_str()), (Some(1), ""), "{}", limited.err);
        assert!(
            limited.err.contains("--vram-budget: there is no accelerator: ") && limited.err.contains(text),
            "{}",
            limited.err
        );
    }
    for wrong in ["gpu", "cuda:", "cuda:x", "cuda:-1"] {
        let refused = said(&mut place.run(&format!("--device {wrong}")));
        assert!(refused.code == Some(2) && refused.err.contains("expected"), "{wrong}: {}", refused.err);
    }
}

/// A toolkit's stub: all functions of the driver, which say that they are none.
fn stub() -> String {
    let driver = driver_folder().unwrap().unwrap().join("libcuda.so.1");
    let bytes = fs::read(driver).unwrap();
    let is_function = |name: &&str| name.starts_with("cu") && name[2..].starts_with(|c: char| c.is_ascii_uppercase());
    let names = bytes.split(|b| *b == 0).filter_map(|name| std::str::from_utf8(name).ok()).filter(is_function);
    let names = names.filter(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
    let all: std::collections::BTreeSet<&str> = names.collect();
    assert!(all.len() > 40, "{all:?}");
    all.into_iter().map(|name| format!("extern \"C\" int {name}() {{ return 34; }}\n")).collect()
}

/// cudarc opens `libcuda.so` first, which toolkits have in a folder of stubs, and drivers need not have.
#[cfg(unix)]
#[test]
fn a_stub_that_hides_the_driver_is_named_with_what_helps() {
    use std::os::unix::fs::symlink;
    let Some(place) = Place::new() else { return };
    let Ok(Some(driver)) = driver_folder() else { return eprintln!("SKIPPED: the system's driver is as it is") };
    let want = place.want();
    let folders = ["none", "stubs", "linked", "both", "twin"].map(|name| place.path(name));
    let [none, stubs, linked, both, twin] = &folders;
    library(none, "libcuda.so", "");
    for folder in [stubs, both] {
        library(folder, "libcuda.so", &stub());
    }
    library(twin, "libcuda.so.1", &stub());
    fs::create_dir(linked).unwrap();
    symlink(driver.join("libcuda.so.1"), linked.join("libcuda.so")).unwrap();
    symlink("libcuda.so", both.join("libcuda.so.1")).unwrap();
    let run = |folders: &[&std::path::Path]| {
        let path = std::env::join_paths(folders).unwrap();
        said(place.run("--device cuda").env("LD_LIBRARY_PATH", path))
    };
    for (folders, stub) in [([none, driver], none), ([stubs, driver], stubs), ([driver, stubs], stubs)] {
        let refused = run(&folders);
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{}", refused.err);
        let [stub, driver] = [stub.join("libcuda.so"), driver.join("libcuda.so.1")].map(|p| p.canonicalize().unwrap());
        let text = format!("a toolkit's stub, {}, hides the NVIDIA driver, {}", stub.display(), driver.display());
        assert!(refused.err.contains(&text) && refused.err.contains("out of LD_LIBRARY_PATH"), "{}", refused.err);
        // and what is said helps
        for without in [vec![driver.parent().unwrap()], [&[&**linked][..], &folders].concat()] {
            let got = run(&without);
            assert_eq!((got.code, &got.out), (Some(0), &want), "{}", got.err);
        }
    }
    // a stub hides no driver by being there twice
    for folders in [&[&**both][..], &[stubs, twin]] {
        let none = run(folders);
        assert!(none.code == Some(1) && none.err.contains("has no cuInit that works"), "{}", none.err);
    }
    let version = |path: &std::path::Path| said(place.pi("--version").env("LD_LIBRARY_PATH", path)).out;
    let hidden = version(std::env::join_paths([stubs, driver]).unwrap().as_ref());
    assert!(hidden.contains("cuda: a toolkit's stub, "), "{hidden}");
}

#[test]
fn a_gpu_with_little_memory_gets_what_fits() {
    let Some(place) = Place::new() else { return };
    if place.is_real {
        return eprintln!("SKIPPED: a GPU's memory is as it is");
    }
    let want = place.want();
    for mb in ["1", "2", "4", "17"] {
        let got = said(place.run("--device cuda --policy frequency").env("CUEMU_MEM_MB", mb));
        assert_eq!((got.code, &got.out), (Some(0), &want), "{mb}: {}", got.err);
    }
}

/// A GPU that fails in the middle of a text.
#[test]
fn a_lost_gpu_is_an_error_or_the_text_of_the_cpu() {
    let Some(place) = Place::new() else { return };
    if place.is_real {
        return eprintln!("SKIPPED: a GPU cannot be told to fail");
    }
    let want = place.want();
    let run = |after: usize, line: &str| {
        let mut command = place.run(&format!("--device cuda --policy frequency {line}"));
        said(command.env("CUEMU_FAIL_AFTER", after.to_string()).env("CUEMU_FAIL_CODE", "214"))
    };
    let code = "214 (ecc uncorrectable)";
    let mut errors = 0;
    for after in [1, 5, 100, 300, 500, 700, 1000] {
        let alone = run(after, "");
        let both = run(after, "--on-device-loss cpu");
        if alone.code == Some(0) {
            assert_eq!(alone.out, want, "{after}: it was done before");
            continue;
        }
        errors += 1;
        assert_eq!(alone.code, Some(1), "{after}: {}", alone.err);
        assert!(alone.err.contains(code) && !alone.err.contains("panicked"), "{after}: {}", alone.err);
        assert!(both.err.contains(code), "{after}: {}", both.err);
        assert_eq!((both.code, &both.out), (Some(0), &want), "{after}: {}", both.err);
    }
    assert!(errors >= 3, "{errors}");
}

/// The same while answers are served: `/health` of a server that goes on is good and says so, another ends and says why.
#[test]
fn a_server_that_loses_its_gpu_goes_on_with_the_cpu_or_ends() {
    let Some(place) = Place::new() else { return };
    if place.is_real {
        return eprintln!("SKIPPED: a GPU cannot be told to fail");
    }
    let body = json!({"prompt": "abcd", "max_tokens": 8, "temperature": 0, "cache_prompt": false});
    for on_loss in ["cpu", "error"] {
        let line = "serve MODEL --port 0 -c 64 --device cuda --policy frequency --on-device-loss";
        let mut command = place.pi(&format!("{line} {on_loss}"));
        // after loading, and before many answers
        let mut serving = Serving::of(command.env("CUEMU_FAIL_AFTER", "2000").env("CUEMU_FAIL_CODE", "214"));
        let ask = || serving.call("POST", "/v1/completions", "", &body);
        let health = || serving.call("GET", "/health", "", &serde_json::Value::Null);
        assert_eq!(health(), (200, json!({"status": "ok"})));
        let (status, first) = ask();
        assert_eq!(status, 200, "{first}");
        for n in 0.. {
            assert!(n < 500, "the GPU did not fail");
            let (status, answer) = ask();
            if on_loss == "error" && status != 200 {
                assert_eq!(status, 503, "{answer}");
                assert!(answer["error"]["message"].as_str().unwrap().contains("214 (ecc uncorrectable)"), "{answer}");
                break;
            }
            assert_eq!(status, 200, "{answer}");
            assert_eq!(answer["choices"], first["choices"]);
            if health() == (200, json!({"status": "ok", "device_lost": true})) {
                break;
            }
        }
        if on_loss == "cpu" {
            assert!(serving.hear("the device failed, the CPU goes on alone").contains("214 (ecc uncorrectable)"));
            assert_eq!(ask().1["choices"], first["choices"]);
        } else {
            let end = serving.hear("error: ");
            assert!(end.contains("the accelerator was lost: ") && end.contains("214 (ecc uncorrectable)"), "{end}");
            assert_eq!(serving.process.wait().unwrap().code(), Some(1));
        }
    }
}

/// Many prompts: what a lost GPU did not answer is answered by the same command later, and is no error of a line.
#[test]
fn prompts_that_a_lost_gpu_did_not_answer_are_answered_later() {
    let Some(place) = Place::new() else { return };
    if place.is_real {
        return eprintln!("SKIPPED: a GPU cannot be told to fail");
    }
    let lines = 24;
    let line = json!({"prompt": "abcd", "max_tokens": 8}).to_string() + "\n";
    fs::write(place.path("prompts.jsonl"), line.repeat(lines)).unwrap();
    // at calls that follow each other: a step fails at its kernels, or when its logits are fetched
    for after in 1500..1512 {
        let _ = fs::remove_file(place.path("answers.jsonl"));
        let run = |after: i32| {
            let mut command = place.pi("run -m MODEL --temp 0 -c 64 --device cuda --policy frequency");
            command.arg("--prompts").arg(place.path("prompts.jsonl")).arg("-o").arg(place.path("answers.jsonl"));
            said(command.env("CUEMU_FAIL_AFTER", after.to_string()).env("CUEMU_FAIL_CODE", "214"))
        };
        let lost = run(after);
        assert_eq!(lost.code, Some(1), "{}", lost.err);
        assert!(lost.err.contains("the accelerator was lost: ") && lost.err.contains("214 (ecc"), "{}", lost.err);
        let rest = run(0);
        assert_eq!(rest.code, Some(0), "{}", rest.err);
        assert!(rest.err.contains("lines are there already"), "some were answered before: {}", rest.err);
        let answers = fs::read_to_string(place.path("answers.jsonl")).unwrap();
        let texts: Vec<serde_json::Value> = answers.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let text = |answer: &serde_json::Value| answer["text"].clone();
        assert!(
            texts.len() == lines && texts.iter().all(|t| text(t) == text(&texts[0]) && text(t).is_string()),
            "after {after}: {answers}"
        );
    }
}

/// Whatever a GPU's threads do first.
#[test]
fn the_text_does_not_depend_on_the_order_of_threads() {
    let Some(place) = Place::new() else { return };
    if place.is_real {
        return eprintln!("SKIPPED: a GPU has an order of its own");
    }
    let run = |device: &str, order: &str| {
        let mut command = place.pi(&format!("run -m MODEL -n 4 -c 64 --temp 0 --ignore-eos {device}"));
        // as many tokens as are computed in tiles
        let got = said(command.args(["-p", "a b c d e f g h i j k l m n"]).env("CUEMU_ORDER", order));
        assert_eq!(got.code, Some(0), "{order}: {}", got.err);
        got.out
    };
    let want = run("", "");
    for order in ["rev", "rand"] {
        assert_eq!(run("--device cuda", order), want, "{order}");
    }
}

#[test]
fn what_a_gpu_is_not_to_use_is_left_out() {
    let Some(place) = Place::new() else { return };
    let bench = |with: &str| {
        let mut command = place.pi("bench -m MODEL -p 0 -n 6 -r 1 --bandwidth 0 --device cuda");
        let got = said(command.env("PI_CUDA", with));
        assert_eq!(got.code, Some(0), "{with}: {}", got.err);
        let line = got.err.lines().find(|l| l.contains("kernels per token")).unwrap_or_else(|| panic!("{}", got.err));
        let numbers: Vec<f64> = line.split([' ', ',']).filter_map(|w| w.parse().ok()).collect();
        (numbers[0], numbers[1])
    };
    let ((kernels, calls), (alone, each)) = (bench(""), bench("no-graphs"));
    assert!(kernels == alone && each == alone && calls * 2.0 < kernels, "{kernels} in {calls}; {alone} in {each}");
    for device in ["cuda", "auto", "cuda --allow-cpu"] {
        let wrong = said(place.run(&format!("--device {device}")).env("PI_CUDA", "graphs"));
        assert!(
            wrong.code == Some(2) && wrong.err.contains("PI_CUDA=graphs: graphs is none of no-graphs"),
            "{}",
            wrong.err
        );
    }
    if !place.is_real {
        let want = place.want();
        let none = said(place.run("--device cuda").env("CUEMU_NO_GRAPHS", "1"));
        assert_eq!((none.code, none.out), (Some(0), want), "{}", none.err);
        assert_eq!(none.err.matches("the driver refused a graph").count(), 1, "{}", none.err);
    }
}

#[test]
fn measuring_a_gpu_that_is_slow_ends_and_says_what_found_no_time() {
    let Some(place) = Place::new() else { return };
    if place.is_real {
        return eprintln!("SKIPPED: a GPU is not slow");
    }
    let begun = std::time::Instant::now();
    let got = place.said("doctor --costs --quick --json --device cuda");
    assert_eq!(got.code, Some(0), "{}", got.err);
    assert!(begun.elapsed().as_secs() < 120, "{:?}", begun.elapsed());
    println!("{:?}", begun.elapsed());
    assert!(got.out.contains("there was no time left"), "{}", got.out);
}
