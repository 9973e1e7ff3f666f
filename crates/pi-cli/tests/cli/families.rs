//! `pi run` and `pi bench` with models of PowerInfer's four families.

use crate::common::{Said, call, object};
use std::path::{Path, PathBuf};

const FAMILIES: [&str; 4] = ["llama", "bamboo", "falcon", "opt"];

/// A small model of the family in a folder.
fn synth(folder: &Path, family: &str, format: &str) -> PathBuf {
    let path = folder.join(format!("{family}.{format}.gguf"));
    let heads = if family == "opt" { 8 } else { 4 };
    let line = format!(
        "synth --family {family} --format {format} --type Q4_0 --dim 256 --ffn 1024 --heads 8 --kv-heads {heads} --vocab 600 \
         --layers 2 --active 0.1 --context 300"
    );
    let made = call(line.split_whitespace().map(str::as_ref).chain(["-o".as_ref(), path.as_os_str()]));
    assert_eq!(made.code, Some(0), "{family}: {}", made.err);
    path
}

fn with_model(line: &str, path: &Path) -> Said {
    call(line.split_whitespace().map(str::as_ref).chain(["-m".as_ref(), path.as_os_str()]))
}

#[test]
fn models_of_every_family_run_with_and_without_sparsity_and_say_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        for format in ["gguf", "pwri"] {
            let path = synth(folder.path(), family, format);
            let run = |sparsity: &str| {
                let line = format!("run --json -p abc -n 24 --temp 0 --ignore-eos --sparsity {sparsity}");
                object(&with_model(&line, &path))
            };
            let (off, exact) = (run("off"), run("exact"));
            assert_eq!(off["tokens"].as_array().unwrap().len(), 24, "{family}, {format}");
            assert_eq!(off["tokens"], exact["tokens"], "{family}, {format}");
            let share = |ran: &serde_json::Value| ran["active_share"].as_f64().unwrap();
            assert_eq!(share(&off), 1.0, "{family}, {format}");
            // Without a gate and with a down matrix that has to be read in full there is nothing to leave out.
            let skips = format == "pwri" || ["llama", "bamboo"].contains(&family);
            let expected = if skips { 0.05..0.2 } else { 1.0..1.1 };
            assert!(expected.contains(&share(&exact)), "{family}, {format}: {}", share(&exact));
            let bench = with_model("bench -p 16 -n 8 -r 1 -o json", &path);
            assert_eq!(bench.code, Some(0), "{family}, {format}: {}", bench.err);
            let inspected = call(["inspect".as_ref(), path.as_os_str()]);
            assert!(inspected.out.contains(&format!("{family}: 2 layers")), "{}", inspected.out);
        }
    }
}

#[test]
fn predictors_of_every_family_find_most_of_what_fires_and_leave_most_of_the_rest_out() {
    let folder = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        let path = synth(folder.path(), family, "pwri");
        let run = |more: &str| {
            let ran = object(&with_model(
                &format!("run --json -p abc -n 150 --temp 0.8 --seed 1 --ignore-eos {more}"),
                &path,
            ));
            let share = |name: &str| ran[name].as_f64().unwrap();
            (share("active_share"), share("marked_share"), ran["tokens"].clone())
        };
        let (active, all, text) = run("--sparsity exact");
        let (found, marked, _) = run("--sparsity predictor");
        println!("{family}: {active:.3} fire, {marked:.3} marked, {found:.3} of them fire");
        assert_eq!(all, 1.0, "{family}");
        assert!(marked < 2.0 * active && found > 0.7 * active && found < 1.1 * active, "{family}");
        // A threshold that every neuron reaches: nothing is left out, and the text is that of exact.
        assert_eq!(run("--sparsity predictor --threshold -1e30"), (active, 1.0, text), "{family}");
        let bench = with_model("bench -p 16 -n 8 -r 1 -o json --sparsity predictor", &path);
        assert_eq!(bench.code, Some(0), "{family}: {}", bench.err);
    }
}
