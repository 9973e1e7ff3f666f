//! Exit codes, usage errors, paths, and what happens when nobody listens.

use crate::common::*;
use std::{
    fs,
    io::Read,
    path::Path,
    process::{Command, Stdio},
};

#[test]
fn a_wrong_call_ends_with_2_and_names_the_option() {
    for (line, name) in [
        ("-t 0", "--threads"),
        ("-t -1", "--threads"),
        ("-t 10000", "1..=1024"),
        ("-b 0", "--batch-size"),
        ("-c -1", "--ctx-size"),
        ("-n -2", "--n-predict"),
        ("-n many", "--n-predict"),
        ("--temp -1", "--temp"),
        ("--temp nan", "--temp"),
        ("--top-k -1", "--top-k"),
        ("--top-p 1.5", "--top-p"),
        ("--min-p -0.1", "--min-p"),
        ("--repeat-penalty 0", "--repeat-penalty"),
        ("--repeat-last-n -2", "--repeat-last-n"),
        ("--presence-penalty inf", "--presence-penalty"),
        ("--frequency-penalty x", "--frequency-penalty"),
        ("--seed -2", "--seed"),
        ("--logit-bias 5", "--logit-bias"),
        ("--logit-bias 5+nan", "--logit-bias"),
        ("--logit-bias 999999+1", "--logit-bias"),
        ("--sparsity some", "--sparsity"),
        ("--activation tanh", "--activation"),
        ("--kv q4_0", "--kv"),
        ("--cache-type-k q4_0", "--cache-type-k"),
        ("-ctk f16 -ctv bf16", "--cache-type-v"),
        ("--kv f16 -ctk f16 -ctv f16", "--kv"),
        ("--stop=", "--reverse-prompt"),
        ("--json --no-display-prompt", "--no-display-prompt"),
        ("-f somewhere", "--file"),
        ("--gpu-layers 10", "--gpu-layers"),
        ("-ngl ten", "--n-gpu-layers"),
        ("--n-cpu-ffn -1", "--n-cpu-ffn"),
        ("--numa", "--numa"),
        ("--context-shift", "--context-shift"),         // C08
        ("--no-kv-cache", "--no-kv-cache"),             // C09
        ("--prompt-cache state.bin", "--prompt-cache"), // C10
    ] {
        let said = run(line);
        assert_eq!(said.code, Some(2), "{line}: {}", said.err);
        assert!(said.err.contains(name) && said.err.contains("error: ") && said.out.is_empty(), "{line}: {}", said.err);
    }
    for args in [&["run"][..], &["run", "-e", "-f", "x"], &["inspect"], &["walk"], &[]] {
        let said = call(args);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{args:?}: {}", said.err);
    }
}

#[test]
fn work_that_cannot_be_done_ends_with_1_and_a_line_that_names_the_file() {
    for args in [
        &["run", "-p", "x", "-m", "no/such file.gguf"][..],
        &["run", "-f", "no/such file.gguf"],
        &["inspect", "no/such file.gguf"],
        &["inspect", "--json", "no/such file.gguf"],
    ] {
        let said = call(args);
        assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{args:?}");
        assert!(
            said.err.starts_with("error: no/such file.gguf: cannot ") && said.err.lines().count() == 1,
            "{}",
            said.err
        );
    }
}

#[test]
fn the_version_lists_back_ends_and_instruction_sets_and_the_environment_chooses_one() {
    let version = call(["--version"]).out;
    assert!(version.starts_with(&format!("pi {} (cpu: reference", env!("CARGO_PKG_VERSION"))), "{version}");
    for name in ["abacus", "AVX2"] {
        let said = said(pi().env("PI_ISA", name).args(["run", "-p", "x"]));
        assert_eq!(said.code, Some(2));
        assert!(said.err.contains(name) && said.err.contains("can run: reference"), "{}", said.err);
    }
    let (isas, cuda) = version.trim().split_once("cpu: ").unwrap().1.trim_end_matches(')').split_once("; ").unwrap();
    assert!(cuda.starts_with("cuda: ") && cuda.len() > 10, "{version}");
    for isa in isas.split(", ") {
        let said = said(pi().env("PI_ISA", isa).args(["run", "-n", "1", "-p", "x"]));
        assert!(said.code == Some(0) && said.err.contains(&format!("{isa} kernels")), "{}", said.err);
    }
}

#[test]
fn the_demo_model_is_found_from_below_the_repository_by_the_programs_place_or_by_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join(format!("pi{}", std::env::consts::EXE_SUFFIX));
    fs::copy(env!("CARGO_BIN_EXE_pi"), &copy).unwrap();
    let elsewhere = |program: &Path| {
        let mut command = crate::common::program(program);
        command.current_dir(folder.path()).args(["run", "-n", "1", "-p", PROMPT]);
        command
    };
    let lost = said(&mut elsewhere(&copy));
    assert_eq!(lost.code, Some(1));
    assert!(lost.err.contains("tiny-reglu-6m-f16.gguf") && lost.err.contains("-m FILE"), "{}", lost.err);
    for models in ["models", "models/tiny-reglu-6m"] {
        assert_eq!(said(elsewhere(&copy).env("PI_MODEL_DIR", repository(models))).code, Some(0), "{models}");
    }
    let here = said(elsewhere(&copy).current_dir(repository("crates/pi-cli/src")));
    assert!(here.code == Some(0) && here.err.contains("this is the demo model"), "{}", here.err);
    let home = folder.path().join("home");
    fs::create_dir_all(home.join("models/tiny-reglu-6m")).unwrap();
    fs::create_dir_all(home.join("target/release")).unwrap();
    fs::copy(demo(), home.join("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf")).unwrap();
    let built = home.join("target/release").join(copy.file_name().unwrap());
    fs::copy(&copy, &built).unwrap();
    assert_eq!(said(&mut elsewhere(&built)).code, Some(0));
}

#[test]
fn a_models_path_may_have_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [
        folder.path().join("Željko/模型 .gguf"),
        folder.path().join("-m"),
        #[cfg(target_os = "linux")]
        folder.path().join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff\xfe model")),
    ];
    for path in &paths {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(demo(), path).unwrap();
        let run = said(pi().args(["run", "--json", "-n", "1", "-p", PROMPT, "-m"]).arg(path));
        assert_eq!(object(&run)["model"], path.display().to_string());
        assert_eq!(said(pi().arg("inspect").arg(path)).code, Some(0), "{}", path.display());
    }
}

#[cfg(unix)]
#[test]
fn control_characters_in_a_path_do_not_reach_the_terminal() {
    let said = call(["inspect", "no\x1b[31m\nfile"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.starts_with("error: no\\u{1b}[31m"), "{:?}", said.err);
}

fn long_run() -> Command {
    let mut command = pi();
    command.args(["run", "-n", "-1", "--ignore-eos", "-c", "1000000", "-p", PROMPT]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_closed_standard_output_ends_the_run_quietly() {
    let mut child = long_run().spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 30]).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(!err.contains("error") && !err.contains("panicked"), "{err}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_text_and_the_summary_is_still_written() {
    for extra in [&[][..], &["--logit-bias", "1+1000"]] {
        // With the bias, tokens have no text: the wish to stop must be seen all the same.
        let mut child = long_run().args(extra).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; PROMPT.len()]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{err}");
        assert!(rest.ends_with('\n') && err.contains("stop: cancelled"), "{err}");
    }
}
