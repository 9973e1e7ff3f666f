//! `pi profile` with the demo model.

use crate::common::*;
use pi_convert::{read_activations, write_activations};
use pi_predictor::profile::Profile;
use pi_testkit::TinyModel;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

fn text(name: &str) -> String {
    repository(&format!("models/tiny-reglu-6m/text/{name}.txt")).display().to_string()
}

fn profile(words: &[&str]) -> Said {
    let model = demo().display().to_string();
    call(["profile", &model].iter().chain(words))
}

fn read(path: &Path) -> Profile {
    Profile::read(&fs::read(path).unwrap()).unwrap()
}

fn folder() -> (tempfile::TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demo.profile");
    let name = path.display().to_string();
    (folder, path, name)
}

#[test]
fn the_object_the_table_and_the_file_say_the_same() {
    let (_folder, path, name) = folder();
    let (eval, prof) = (text("eval"), text("profile"));
    let words = ["--text", &eval, "--text", &prof, "--tokens", "1000", "-c", "256", "-o", &name];
    let found = object(&profile(&[&words[..], &["--json"]].concat()));
    let counted = read(&path);
    let all = counted.merged();
    assert_eq!((&found["tokens"], &found["complete"]), (&2000.into(), &true.into()));
    assert_eq!(found["whole"]["share_for_80"].as_f64().unwrap(), all.share_for(0.8));
    assert_eq!(found["layers"].as_array().unwrap().len(), 6);
    assert_eq!(found["layers"][3]["layer"], 3);
    assert_eq!(found["layers"][3]["never_active"], all.layers()[3].idle());
    let texts = counted.texts();
    assert_eq!(found["overlap"][0][1].as_f64().unwrap(), texts[0].counts.overlap(&texts[1].counts, 0.2).unwrap());
    assert_eq!((texts[0].name.as_str(), texts[0].length, texts[0].position), ("eval.txt", 1000, 1000));
    let share = found["whole"]["active_share"].as_f64().unwrap();
    assert!(share > 0.06 && share < 0.1, "{share}");

    let exported = path.with_file_name("activation");
    let folder = exported.display().to_string();
    let table = profile(&[&words[..], &["--export-activation", &folder]].concat());
    let layers = read_activations(&exported, Some(6), Some(1024)).unwrap();
    for (layer, counts) in layers.iter().zip(all.layers()) {
        assert!(layer.iter().zip(counts.fired()).all(|(got, want)| *got == *want as f32), "{}", counts.layer());
    }
    let row = |name: &str| table.out.lines().find(|l| l.trim_start().starts_with(name)).unwrap().to_string();
    assert!(row("all").contains(&format!("{:.1} %", 100.0 * all.share_for(0.8))), "{}", table.out);
    assert!(row("all").contains(&format!("{:.2} %", 100.0 * share)), "{}", table.out);
    assert!(table.out.contains("profile.txt") && table.out.contains("the most active 20 %"), "{}", table.out);
    assert_eq!(read(&path), counted, "the same again");
}

#[test]
fn counting_goes_on_where_it_was_left_as_if_it_had_never_stopped() {
    let (_folder, path, name) = folder();
    let (eval, prof) = (text("eval"), text("profile"));
    let run = |words: &[&str]| {
        let said = profile(&[&["-c", "128", "-o", &name], words].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        read(&path)
    };
    let once = run(&["--text", &eval, "--text", &prof, "--tokens", "1270"]);
    fs::remove_file(&path).unwrap();
    // 127 tokens are a chunk, behind the one that begins a text
    let half = run(&["--text", &eval, "--tokens", "508", "--resume"]);
    assert_eq!(half.texts()[0].position, 508);
    let more = run(&["--text", &eval, "--tokens", "1270", "--resume"]);
    assert_eq!(more.texts()[0], once.texts()[0]);
    assert_eq!(run(&["--text", &prof, "--tokens", "1270", "--resume"]), once, "texts that are not named are kept");
    // the same once more changes nothing, also where a text is named twice, or less of it is wanted
    assert_eq!(run(&["--text", &prof, "--text", &prof, "--tokens", "1270", "--resume"]), once);
    let twice = profile(&["-c", "128", "--text", &prof, "--text", &eval, "--text", &prof, "--tokens", "127"]);
    assert!(
        twice.err.contains("note: profile.txt is the same text as profile.txt: it is counted once"),
        "{}",
        twice.err
    );
    assert!(!twice.err.contains("eval.txt is the same"), "{}", twice.err);
    let less = run(&["--text", &prof, "--tokens", "10", "--resume"]);
    assert_eq!(less, once);
    // without --resume it begins anew
    assert_eq!(run(&["--text", &eval, "--tokens", "254"]).merged().tokens(), 254);
}

/// A chunk that `--tokens` cut short stays as it was counted, and what that means is said.
#[test]
fn going_on_after_a_number_of_tokens_that_is_no_multiple_of_the_chunk_is_said() {
    let (_folder, path, name) = folder();
    let eval = text("eval");
    let run = |tokens: &str, more: &[&str]| {
        let said = profile(&[&["-c", "128", "-o", &name, "--text", &eval, "--tokens", tokens], more].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        (said.err, read(&path).texts()[0].clone())
    };
    let (said, _) = run("200", &[]);
    assert!(!said.contains("chunk of their own"), "{said}");
    let (said, now) = run("100", &["--resume"]);
    assert!(said.contains("note: eval.txt: 200 of its tokens are counted already, which stay, not 100"), "{said}");
    assert_eq!((now.position, now.length), (200, 200));
    let (said, now) = run("254", &["--resume"]);
    assert!(
        said.contains("note: eval.txt: the 73 tokens before token 200") && said.contains("Multiples of 127"),
        "{said}"
    );
    assert_eq!(now.position, 254);
    let (said, now) = run("508", &["--resume"]);
    assert!(!said.contains("chunk of their own") && now.position == 508, "{said}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_profile_can_be_gone_on_with() {
    use std::process::Stdio;
    let (_folder, path, name) = folder();
    let prof = text("profile");
    let model = demo().display().to_string();
    let words = ["profile", &model, "--text", &prof, "-c", "64", "-o", &name];
    for signal in ["-INT", "-TERM"] {
        let resume = path.exists().then_some("--resume");
        let mut child = pi().args(words).args(resume).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let before = if path.exists() { read(&path).merged().tokens() } else { 0 };
        while !path.exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::thread::sleep(std::time::Duration::from_millis(700));
        let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signal}");
        let now = read(&path);
        assert!(now.merged().tokens() > before && !now.texts()[0].is_complete(), "{} tokens", now.merged().tokens());
        assert_eq!(now.texts()[0].position % 63, 0);
    }
    // It is not written over by mistake.
    let anew = profile(&["--text", &prof, "--tokens", "100", "-o", &name]);
    assert_eq!(anew.code, Some(1));
    assert!(anew.err.contains("--resume goes on with it"), "{}", anew.err);
}

#[cfg(unix)]
#[test]
fn a_finished_profile_stays_until_the_new_one_is_whole_and_nothing_is_drawn_of_an_interrupted_one() {
    use std::process::Stdio;
    let (folder, path, name) = folder();
    let (prof, model) = (text("profile"), demo().display().to_string());
    assert_eq!(profile(&["--text", &prof, "--tokens", "100", "-o", &name]).code, Some(0));
    let before = fs::read(&path).unwrap();
    let (partial, html) = (folder.path().join("demo.profile.partial"), folder.path().join("f.html"));
    let export = folder.path().join("activation");
    let outputs = ["--html".as_ref(), html.as_os_str(), "--export-activation".as_ref(), export.as_os_str()];
    let words = ["profile", &model, "--text", &prof, "-c", "64", "-o", &name];
    let mut command = pi();
    let mut child = command.args(words).args(outputs).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    while !partial.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(fs::read(&path).unwrap() == before, "the old one is as it was");
    assert!(!read(&partial).texts()[0].is_complete() && !html.exists() && !export.exists());
    // what was counted is not lost, and not written over
    let anew = profile(&["--text", &prof, "--tokens", "200", "-o", &name]);
    assert!(anew.code == Some(1) && anew.err.contains("demo.profile.partial: left by"), "{}", anew.err);
    fs::remove_file(&partial).unwrap();
    assert_eq!(profile(&["--text", &prof, "--tokens", "200", "-o", &name]).code, Some(0));
    assert_eq!((read(&path).merged().tokens(), partial.exists()), (200, false));
    // another model's is not replaced
    let now = fs::read(&path).unwrap();
    let other = profile(&["--text", &prof, "--tokens", "9", "-o", &name, "--activation", "relu2"]);
    assert!(other.code == Some(1) && other.err.contains("it is a profile of another model"), "{}", other.err);
    assert!(fs::read(&path).unwrap() == now);
}

#[test]
fn figures_are_whole_documents_and_names_stay_text() {
    let (folder, ..) = folder();
    let odd = folder.path().join("a<b>&\"c.txt");
    fs::copy(text("profile"), &odd).unwrap();
    let (svg, html) = (folder.path().join("f.svg"), folder.path().join("f.html"));
    let arg = |path: &Path| path.display().to_string();
    let said = profile(&[
        "--text",
        &text("eval"),
        "--text",
        &arg(&odd),
        "--tokens",
        "500",
        "--svg",
        &arg(&svg),
        "--html",
        &arg(&html),
    ]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let (svg, html) = (fs::read_to_string(svg).unwrap(), fs::read_to_string(html).unwrap());
    for page in [&svg, &html] {
        assert!(page.contains("a&lt;b&gt;&amp;&quot;c.txt") && !page.contains("a<b>"));
        // every element that is opened is closed
        for tag in ["svg", "g", "text", "table", "tr", "td", "th", "h2", "p", "body", "html"] {
            let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        // a curve for each layer and one for all, whose last point is the right upper corner
        let curves = page
            .split("<polyline points=\"")
            .skip(1)
            .filter(|c| c.split('"').next().unwrap().matches(' ').count() == 200);
        let ends: Vec<&str> = curves.map(|c| c.split('"').next().unwrap().rsplit(' ').next().unwrap()).collect();
        assert_eq!(ends, ["500.0,12.0"; 7]);
        assert!(!page.contains("NaN"));
        // nothing is fetched from elsewhere
        assert_eq!(page.matches("://").count(), page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    }
    assert!(svg.starts_with("<?xml") && html.starts_with("<!DOCTYPE html>") && !html.contains("<script"));
}

#[test]
fn what_cannot_be_profiled_is_named() {
    let (folder, path, name) = folder();
    let eval = text("eval");
    fs::write(&path, "something dear").unwrap();
    let empty = folder.path().join("empty.txt");
    fs::write(&empty, "").unwrap();
    let empty = empty.display().to_string();
    let new = folder.path().join("new").display().to_string();
    let (model, none) = (demo().display().to_string(), "/no/such/folder/x");
    for (words, code, said) in [
        (vec!["--text", &eval, "-o", &name, "--resume"], 1, "demo.profile: byte 0: expected a profile"),
        (vec!["--text", &eval, "-o", &eval], 1, "this is a text, and is not replaced"),
        (vec!["--text", &eval, "--html", &eval], 1, "this is a text, and is not replaced"),
        (vec!["--text", &eval, "--svg", &model], 1, "this is the model, and is not replaced"),
        (vec!["--text", &eval, "--svg", &new, "--html", &new], 1, "this is --html, and is not replaced"),
        (vec!["--text", &eval, "--html", none], 1, "its folder is not there"),
        (vec!["--text", &eval, "--export-activation", &name], 1, "it is no folder"),
        (vec!["--text", &eval, "-o", &name], 1, "it exists, and is not replaced"),
        (vec!["--text", &eval, "-o", &name, "--resume"], 1, "expected a profile"),
        (vec!["--text", &empty], 1, "empty.txt: the text is empty"),
        (vec!["--text", &eval, "--resume"], 2, "--output"),
        (vec!["--text", &eval, "--sparsity", "off"], 2, "neurons are counted in exact mode"),
        (vec!["--text", &eval, "--activation", "silu"], 1, "silu, with which every neuron always counts"),
        (vec!["--text", &eval, "--tokens", "9", "--svg", "/no/such/folder/f.svg"], 1, "f.svg"),
        (vec![], 2, "--text"),
    ] {
        let got = profile(&words);
        assert_eq!(got.code, Some(code), "{words:?}: {}", got.err);
        assert!(got.err.contains(said), "{words:?}: {}", got.err);
        let other_outputs = words.iter().any(|w| ["--html", "--svg", "--export-activation"].contains(w));
        assert!(!(other_outputs && got.err.contains("sparsity: ")), "said before the model is loaded: {}", got.err);
    }
    assert_eq!(fs::read(&path).unwrap(), b"something dear");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left of the trials");

    // a profile of the same model with another activation is another model's
    fs::remove_file(&path).unwrap();
    assert_eq!(profile(&["--text", &eval, "--tokens", "9", "-o", &name]).code, Some(0));
    let other = profile(&["--text", &eval, "--tokens", "9", "-o", &name, "--resume", "--activation", "relu2"]);
    assert_eq!(other.code, Some(1));
    assert!(other.err.contains("the profile's model: expected"), "{}", other.err);
    let _: Value = object(&profile(&["--text", &eval, "--tokens", "9", "-o", &name, "--resume", "--json"]));
}

// P01
#[test]
fn activations_of_twelve_layers_stay_with_their_layers_from_files_to_profile_and_back() {
    let (folder, path, name) = folder();
    let model = folder.path().join("twelve.gguf");
    let tiny = TinyModel { layers: 12, ..TinyModel::default() };
    fs::write(&model, tiny.build().unwrap()).unwrap();
    let files = folder.path().join("activation");
    // each layer's hottest neurons are its own
    let counts: Vec<Vec<f32>> =
        (0..12).map(|l| (0..96).map(|i| if i / 8 == l { 40.0 + l as f32 } else { 1.0 }).collect()).collect();
    write_activations(&files, &counts).unwrap();
    let (model, dir) = (model.display().to_string(), files.display().to_string());
    let said = call(["profile", &model, "--import-activation", &dir, "-o", &name]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let profile = read(&path);
    let all = profile.merged();
    assert_eq!((all.tokens(), all.layers().len()), (51, 12));
    for (l, layer) in all.layers().iter().enumerate() {
        assert_eq!(layer.layer(), l as u32);
        assert_eq!(layer.fired().iter().map(|n| *n as f32).collect::<Vec<_>>(), counts[l], "layer {l}");
        let hot: Vec<usize> = (0..96).filter(|i| layer.fired()[*i] > 1).collect();
        assert_eq!(hot, (8 * l..8 * l + 8).collect::<Vec<_>>(), "layer {l}");
    }
    // a text beside them, and out again
    let eval = text("eval");
    let back = folder.path().join("back");
    let words = ["--text", &eval, "--tokens", "50", "-o", &name, "--resume", "--export-activation"];
    let said = call(
        ["profile", &model, "--import-activation", &dir]
            .iter()
            .chain(&words)
            .chain([&back.display().to_string().as_str()]),
    );
    assert_eq!(said.code, Some(0), "{}", said.err);
    let profile = read(&path);
    assert_eq!(profile.texts().len(), 2, "the same counts once");
    let text = profile.texts()[1].counts.layers();
    for (l, row) in read_activations(&back, Some(12), Some(96)).unwrap().iter().enumerate() {
        let sum: Vec<f32> = counts[l].iter().zip(text[l].fired()).map(|(a, b)| a + *b as f32).collect();
        assert_eq!(*row, sum, "layer {l}");
    }
}

#[test]
fn activation_files_of_another_model_are_refused_by_name() {
    let (folder, path, name) = folder();
    let files = folder.path().join("activation");
    let dir = files.display().to_string();
    let refused = |said: &str| {
        let got = profile(&["--import-activation", &dir, "-o", &name]);
        assert_eq!(got.code, Some(1), "{}", got.err);
        assert!(got.err.contains("activation") && got.err.contains(said), "{}", got.err);
        assert!(!path.exists());
    };
    refused("activation");
    write_activations(&files, &vec![vec![1.0; 1024]; 5]).unwrap();
    refused("5");
    write_activations(&files, &vec![vec![1.0; 1000]; 6]).unwrap();
    refused("1024");
    write_activations(&files, &vec![vec![0.5; 1024]; 6]).unwrap();
    refused("neuron 0 of layer 0");
}

#[test]
fn counting_goes_on_only_with_the_context_it_was_begun_with() {
    let (_folder, path, name) = folder();
    let eval = text("eval");
    let run = |tokens: &str, context: &str| {
        profile(&["--text", &eval, "--tokens", tokens, "-c", context, "-o", &name, "--resume"])
    };
    assert_eq!(run("254", "128").code, Some(0));
    let before = fs::read(&path).unwrap();
    assert_eq!(read(&path).texts()[0].context, 128);
    let said = run("508", "64");
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("254 of 508 tokens were counted with -c 128"), "{}", said.err);
    assert_eq!(fs::read(&path).unwrap(), before);
    // a text that is done stays as it is, and that is said
    let said = run("254", "64");
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.err.contains("note: eval.txt was counted with -c 128, not 64"), "{}", said.err);
    assert_eq!(run("508", "128").code, Some(0));
}
