//! `pi prepare` with the demo model and little of everything, in seconds: what it writes is what it says.

use crate::common::{Said, call, demo, names, object, repository};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

const QUICK: &str = "--samples 600 --epochs 2 --rank 32 -c 64 -b 48";

/// A text of a few hundred tokens, which the demo model knows.
fn text(folder: &Path) -> PathBuf {
    let path = folder.join("text.txt");
    let all = fs::read(repository("models/tiny-reglu-6m/text/profile.txt")).unwrap();
    fs::write(&path, &all[..6000]).unwrap();
    path
}

fn prepare(model: &Path, output: &Path, more: &str) -> Said {
    let text = text(output.parent().unwrap());
    let paths = ["prepare".as_ref(), model.as_os_str(), "--text".as_ref(), text.as_os_str(), "-o".as_ref()];
    call(paths.into_iter().chain([output.as_os_str()]).chain(more.split_whitespace().map(OsStr::new)))
}

#[test]
fn a_prepared_model_runs_with_its_predictors_and_is_what_the_table_says() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.gguf");
    let report = object(&prepare(&demo(), &output, &format!("{QUICK} --type q8_0 --loss 100 --json")));
    assert_eq!(names(folder.path()), ["out.gguf", "out.gguf.profile", "text.txt"], "nothing else is left");
    let number = |way: &str, key: &str| report[way][key].as_f64().unwrap_or_else(|| panic!("{way}.{key}: {report}"));
    for way in ["before", "exact", "after"] {
        assert!(number(way, "ppl") > 1.0 && number(way, "tps") > 0.0, "{report}");
    }
    assert_eq!(number("before", "bytes"), fs::metadata(demo()).unwrap().len() as f64);
    assert_eq!(number("after", "bytes"), fs::metadata(&output).unwrap().len() as f64);
    assert!(number("after", "bytes") < 0.6 * number("before", "bytes"), "eight bits instead of sixteen");
    assert!(number("exact", "kl_mean") < 0.01 && number("after", "kl_mean") > number("exact", "kl_mean"), "{report}");
    assert!(number("after", "marked_share") < 1.0 && number("exact", "marked_share") == 1.0);
    assert!(report["layers"].as_array().unwrap().iter().any(|l| l["kind"] != "exact"));

    let inspected = object(&call(["inspect".as_ref(), output.as_os_str(), "--json".as_ref()]));
    assert!(inspected.to_string().contains("ffn_down_t"), "down matrices lie neuron by neuron");
    let words = ["run", "--json", "-p", "Once upon", "-n", "8", "--temp", "0", "--sparsity", "predictor", "-m"];
    let ran = object(&call(words.iter().map(OsStr::new).chain([output.as_os_str()])));
    assert!(ran["marked_share"].as_f64().unwrap() < 1.0, "{ran}");

    // the profile belongs to the new file, and has all of the text: there is nothing left to count
    let (profile, text) = (folder.path().join("out.gguf.profile"), folder.path().join("text.txt"));
    let before = fs::read(&profile).unwrap();
    let args = ["profile".as_ref(), output.as_os_str(), "--text".as_ref(), text.as_os_str(), "-o".as_ref()];
    let said = call(args.into_iter().chain([profile.as_os_str(), "--resume".as_ref()]));
    assert_eq!((said.code, fs::read(&profile).unwrap() == before), (Some(0), true), "{}", said.err);
}

/// Matrices that are larger than the gate cannot pay: the model is written without, and runs exactly.
#[test]
fn where_no_predictor_pays_the_model_is_written_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.gguf");
    let said = prepare(&demo(), &output, "--samples 200 --epochs 1 --rank 512 --kinds mlp --loss 100 -c 64 -b 48");
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.err.contains("no predictors within 100 % of the perplexity pay"), "{}", said.err);
    assert!(said.out.contains("| before, dense ") && said.out.contains("| after, exact "), "{}", said.out);
    assert!(!said.out.contains("| after, predictor "), "{}", said.out);
    let ran = object(&call(
        ["run", "--json", "-p", "Once", "-n", "2", "-m"].map(OsStr::new).into_iter().chain([output.as_os_str()]),
    ));
    assert!(ran["active_share"].as_f64().unwrap() < 0.5, "{ran}");
}

#[test]
fn what_cannot_be_prepared_is_said_at_once_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.gguf");
    fs::write(&output, "dear to somebody").unwrap();
    for (more, code, expected) in [
        ("--activation silu", 1, "never exactly 0"),
        ("--type q9", 2, "is no kind of file"),
        ("--allow-requantize", 2, "--type"),
        ("--predictor-type q9", 2, "known: "),
        ("--threshold 1", 2, "--threshold means nothing here"),
        ("--memory 1 --samples 5000 -c 64", 1, "memory: expected at least "),
    ] {
        let said = prepare(&demo(), &output, more);
        assert_eq!((said.code, said.err.contains(expected)), (Some(code), true), "{more}: {}", said.err);
        assert_eq!(fs::read(&output).unwrap(), b"dear to somebody", "{more}");
        assert_eq!(names(folder.path()), ["out.gguf", "text.txt"], "{more}");
    }
    let said = prepare(&demo(), &folder.path().join("text.txt"), "");
    assert!(said.code == Some(1) && said.err.contains("this is a text"), "{}", said.err);
}

/// With the model that it belongs to, a profile is replaced; that of another one, or what is no profile, is dear to somebody.
#[test]
fn the_profile_of_another_model_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (output, profile) = (folder.path().join("out.gguf"), folder.path().join("out.gguf.profile"));
    let quick = "--samples 200 --epochs 1 --kinds sign --loss 100 -c 64 -b 48";
    let text = text(folder.path());
    let counted = call(
        ["profile".as_ref(), demo().as_os_str(), "--text".as_ref(), text.as_os_str(), "--tokens".as_ref()]
            .into_iter()
            .chain(["100".as_ref(), "-o".as_ref(), profile.as_os_str()]),
    );
    assert_eq!(counted.code, Some(0), "{}", counted.err);
    let others = fs::read(&profile).unwrap();
    for (contents, expected) in
        [(&others[..], "it is a profile of another model"), (b"a diary", "cannot be read as a profile")]
    {
        fs::write(&profile, contents).unwrap();
        let said = prepare(&demo(), &output, quick);
        assert!(said.code == Some(1) && said.err.contains(expected), "{}", said.err);
        assert_eq!(fs::read(&profile).unwrap(), contents);
        assert_eq!(names(folder.path()), ["out.gguf.profile", "text.txt"], "nothing was begun");
    }
    fs::remove_file(&profile).unwrap();
    for _ in 0..2 {
        let said = prepare(&demo(), &output, quick);
        assert_eq!(said.code, Some(0), "its own is replaced: {}", said.err);
    }
}

/// Wherever it is interrupted, the same command goes on, and what comes out is what would have come out.
#[cfg(unix)]
#[test]
fn an_interrupted_preparation_goes_on_to_the_same_model() {
    use std::{process::Stdio, time::Duration};
    let folder = tempfile::tempdir().unwrap();
    let (whole, output) = (folder.path().join("whole.gguf"), folder.path().join("out.gguf"));
    let quick = format!("{QUICK} --type q8_0 --loss 100 --kinds mlp");
    assert_eq!(prepare(&demo(), &whole, &quick).code, Some(0));
    let (text, partial) = (text(folder.path()), folder.path().join("out.gguf.partial"));
    let start = || {
        let model = demo();
        let paths = ["prepare".as_ref(), model.as_os_str(), "--text".as_ref(), text.as_os_str(), "-o".as_ref()];
        let mut command = crate::common::pi();
        command.args(paths.into_iter().chain([output.as_os_str()])).args(quick.split_whitespace());
        command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    };
    let has = |part: &str| partial.is_dir() && names(&partial).iter().any(|name| name.starts_with(part));
    // after the model of other types is there, so while neurons are counted; after a layer was trained
    for (part, signal) in [("base-", "-INT"), ("layer-", "-TERM")] {
        let mut child = start();
        while !has(part) {
            assert!(child.try_wait().unwrap().is_none(), "it ended before there was {part}");
            std::thread::sleep(Duration::from_millis(2));
        }
        let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{part}");
        assert!(has(part) && !output.exists(), "{part}: {:?}", names(folder.path()));
        assert!(has("profile"), "what was counted is kept");
    }
    let said = prepare(&demo(), &output, &quick);
    assert!(said.code == Some(0) && said.err.contains("earlier run"), "{}", said.err);
    assert!(!partial.exists());
    assert!(fs::read(&output).unwrap() == fs::read(&whole).unwrap(), "the same model");
    let profile =
        |of: &Path| fs::read(of.with_file_name(of.file_name().unwrap().to_str().unwrap().to_owned() + ".profile"));
    assert_eq!(profile(&output).unwrap().len(), profile(&whole).unwrap().len());
}
