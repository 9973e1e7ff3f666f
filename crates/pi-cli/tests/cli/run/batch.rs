//! `pi run --prompts`.

use crate::common::*;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

/// A folder with prompts, and the options that every call gets.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(lines: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("in.jsonl"), lines.join("\n") + "\n").unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn partial(&self) -> PathBuf {
        self.path("out.jsonl.partial")
    }

    fn command(&self, line: &str) -> std::process::Command {
        let mut command = pi();
        command
            .args(["run", "-c", "256", "--prompts"])
            .arg(self.path("in.jsonl"))
            .arg("-o")
            .arg(self.path("out.jsonl"));
        command.args(["--temp", "0"].iter().filter(|_| !line.contains("--temp")));
        command.args(line.split_whitespace()).current_dir(repository(""));
        command
    }

    fn run(&self, line: &str) -> Said {
        said(&mut self.command(line))
    }

    fn answers(&self) -> Vec<Value> {
        answers(&self.path("out.jsonl"))
    }

    /// A run in the background, once so many answers are in the output.
    fn until(&self, answers: usize, line: &str) -> Child {
        let mut child = self.command(line).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        while self.there() < answers {
            assert!(child.try_wait().unwrap().is_none(), "it ended before there were {answers} answers");
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(2));
        }
        child
    }

    fn there(&self) -> usize {
        fs::read(self.path("out.jsonl")).map_or(0, |bytes| bytes.iter().filter(|&&b| b == b'\n').count())
    }
}

fn answers(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// Prompts of which some take much longer than those behind them.
fn prompts(n: usize) -> Vec<String> {
    let begin = ["Once upon a time", "The little dog", "In the beginning", "A girl named"];
    let line = |i: usize| {
        let tokens = if i.is_multiple_of(5) { 120 } else { 8 };
        json!({"id": format!("p{i}"), "prompt": format!("{} {i}", begin[i % 4]), "max_tokens": tokens, "ignore_eos": true})
    };
    (0..n).map(|i| line(i).to_string()).collect()
}

#[test]
fn many_prompts_are_answered_in_their_order_as_if_each_were_alone() {
    let mut lines = prompts(12);
    lines.insert(3, "not JSON".into());
    lines.insert(4, String::new());
    lines.insert(5, json!({"id": 5, "prompt": "x", "temperature": "hot"}).to_string());
    lines.push(json!({"id": null, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}).to_string());
    lines.push(json!({"prompt": "Once upon a time", "max_tokens": 30, "stop": " a"}).to_string());
    let place = Place::new(&lines);
    let said = place.run("--parallel 3");
    assert_eq!(said.code, Some(1), "{}", said.err);
    for wrong in ["in.jsonl: line 4: not valid JSON", "in.jsonl: line 6: temperature: expected a number"] {
        assert!(said.err.contains(wrong), "{}", said.err);
    }
    let answers = place.answers();
    let numbers: Vec<u64> = answers.iter().map(|a| a["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=17).filter(|n| *n != 5).collect::<Vec<_>>(), "the blank line has no answer");
    assert_eq!((&answers[3]["id"], &answers[3]["error"]["type"]), (&Value::Null, &json!("invalid_request_error")));
    assert_eq!((&answers[4]["id"], &answers[4]["error"]["param"]), (&json!(5), &json!("temperature")));
    for (answer, line) in
        answers.iter().zip(lines.iter().filter(|l| !l.is_empty())).filter(|(a, _)| a["error"].is_null())
    {
        let asked: Value = serde_json::from_str(line).unwrap();
        assert_eq!(answer["id"], asked["id"]);
        let Some(prompt) = asked["prompt"].as_str() else { continue };
        let (n, stop) = (asked["max_tokens"].to_string(), asked["stop"].as_str());
        let mut alone = vec!["run", "--json", "--temp", "0", "-p", prompt, "-n", &n];
        alone.extend(asked["ignore_eos"].as_bool().map(|_| "--ignore-eos"));
        alone.extend(stop.map(|_| "-r"));
        alone.extend(stop);
        let alone = object(&call(alone));
        assert_eq!(answer["text"], alone["text"], "{prompt}");
        assert_eq!(answer["finish_reason"], alone["stop_reason"]);
        assert_eq!(answer["usage"]["prompt_tokens"], alone["prompt_tokens"]);
        assert_eq!(answer["usage"]["completion_tokens"], alone["generated_tokens"]);
    }
    let chat = &answers[14];
    assert!(chat["text"].is_string() && chat["usage"]["completion_tokens"] == 5, "{chat}");
    assert!(!place.partial().exists());
    let again = place.run("");
    assert!(again.code == Some(1) && again.err.contains("--overwrite"), "{}", again.err);
    assert_eq!(place.answers(), answers);
}

#[test]
fn a_run_that_was_killed_goes_on_and_computes_nothing_twice() {
    let place = Place::new(&prompts(40));
    let whole = Place::new(&prompts(40));
    assert_eq!(whole.run("--parallel 8").code, Some(0));

    let mut child = place.until(6, "--parallel 4");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(place.partial().exists() && place.there() < 40);
    // what was answered has another text now, so that one can see that it is kept; and the last line is torn
    let kept = place.there();
    let out = fs::read_to_string(place.path("out.jsonl")).unwrap();
    let marked: String = answers_of(&out, kept)
        .map(|mut a| {
            a["text"] = "kept".into();
            format!("{a}\n")
        })
        .collect();
    fs::write(place.path("out.jsonl"), marked + "{\"line\": 9").unwrap();

    for (change, named) in
        [("--temp 0.5", "--temp changed (then 0, now 0.5)"), ("-n 7", "--n-predict"), ("--seed 9", "--seed")]
    {
        let said = place.run(change);
        assert!(said.code == Some(1) && said.err.contains(named) && said.err.contains("cannot go on"), "{}", said.err);
    }
    let model = place.path("other.gguf");
    remake(&model, &[("tokenizer.ggml.pre", Some("glm4"))], Made::copy);
    let said = place.run(&format!("-m {}", model.display()));
    assert!(said.code == Some(1) && said.err.contains("the model changed"), "{}", said.err);
    let inputs = fs::read(place.path("in.jsonl")).unwrap();
    fs::write(place.path("in.jsonl"), [&inputs[..], b"{\"prompt\": \"more\"}\n"].concat()).unwrap();
    let said = place.run("");
    assert!(said.code == Some(1) && said.err.contains("the prompts changed"), "{}", said.err);
    fs::write(place.path("in.jsonl"), inputs).unwrap();

    let said = place.run("--parallel 7");
    assert_eq!(said.code, Some(0), "{}", said.err);
    let ready: usize =
        said.err.split(" of 40 lines are there already").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((kept..40).contains(&ready), "{}", said.err);
    assert!(said.err.contains(&format!("{} answered now", 40 - ready)), "{}", said.err);
    let (all, want) = (place.answers(), whole.answers());
    assert_eq!((all.len(), want.len()), (40, 40));
    for (i, (got, want)) in all.iter().zip(&want).enumerate() {
        let text = if i < kept { &json!("kept") } else { &want["text"] };
        assert_eq!((&got["line"], &got["id"], &got["text"]), (&want["line"], &want["id"], text));
    }
    assert_eq!(names(place.folder.path()), ["in.jsonl", "other.gguf", "out.jsonl"]);
}

fn answers_of(text: &str, n: usize) -> impl Iterator<Item = Value> {
    text.lines().take(n).map(|l| serde_json::from_str(l).unwrap())
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_done_and_says_how_to_go_on() {
    let place = Place::new(&prompts(40));
    let mut child = place.until(3, "--parallel 2");
    let locked = place.run("");
    assert!(locked.code == Some(1) && locked.err.contains("another process"), "{}", locked.err);
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let there = place.there();
    assert!((3..40).contains(&there));
    let said = place.run("--parallel 8");
    assert_eq!((said.code, place.answers().len()), (Some(0), 40), "{}", said.err);
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let mut lines = prompts(6);
    lines[2] = json!({"id": 2}).to_string();
    let place = Place::new(&lines);
    let said = place.run("--fail-fast --parallel 1");
    assert_eq!(said.code, Some(1));
    assert!(said.err.lines().last().unwrap().contains("line 3: prompt: expected a prompt or messages"), "{}", said.err);
    assert!(place.partial().exists());
    let said = place.run("--overwrite --reverse-prompt . --ignore-eos -n 3");
    assert!(said.code == Some(1) && place.answers().len() == 6, "{}", said.err);

    let file = place.path("in.jsonl");
    let file = file.to_str().unwrap();
    for (line, named) in [
        (vec!["--prompts", file], "--output"),
        (vec!["-p", "x", "-o", "y"], "--prompts"),
        (vec!["-p", "x", "--parallel", "2"], "--prompts"),
        (vec!["-p", "x", "--prompts", file, "-o", "y"], "--prompts"),
        (vec!["--json", "--prompts", file, "-o", "y"], "--json"),
        (vec!["--parallel", "0", "--prompts", file, "-o", "y"], "--parallel"),
        (vec!["--escape", "--prompts", file, "-o", "y"], "--escape"),
        (vec!["-p", "x", "--tool-format", "hermes"], "--prompts"),
        (vec!["--tool-format", "odd", "--prompts", file, "-o", "y"], "--tool-format"),
        (
            vec!["--tool-format", "hermes", "--chat-template", "llama3", "--prompts", file, "-o", "y"],
            "--chat-template llama3",
        ),
    ] {
        let said = call(["run"].into_iter().chain(line.clone()));
        assert!(said.code == Some(2) && said.err.contains(named), "{line:?}: {}", said.err);
    }
    for (input, why) in [("/no/such/file", "cannot read"), ("/", "regular file")] {
        let out = place.path("never");
        let said = call(["run", "--prompts", input, "-o", out.to_str().unwrap()]);
        assert!(said.code == Some(1) && said.err.contains(why) && !out.exists(), "{}", said.err);
    }
}

#[test]
fn forms_are_those_of_all_lines_and_what_is_read_is_not_written() {
    let lines = [
        "{\"prompt\": \"Once\", \"max_tokens\": 200}",
        "{\"prompt\": \"A dog\", \"grammar\": \"root ::= \\\"yes\\\"\"}",
    ];
    let place = Place::new(&lines.map(String::from));
    let form = ["--json-schema", r#"{"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}"#];
    let said = said(place.command("").args(form));
    assert_eq!(said.code, Some(0), "{}", said.err);
    let answers = place.answers();
    let items: Vec<u64> = serde_json::from_str(answers[0]["text"].as_str().unwrap()).unwrap();
    assert!((2..=3).contains(&items.len()) && items.iter().all(|n| [1, 2].contains(n)), "{items:?}");
    assert_eq!(answers[1]["text"], "yes");

    let before = fs::read(place.path("in.jsonl")).unwrap();
    let mut command = pi();
    command.args(["run", "--overwrite", "--prompts"]).arg(place.path("in.jsonl"));
    let said = crate::common::said(command.arg("-o").arg(place.path("./in.jsonl")).current_dir(repository("")));
    assert!(said.code == Some(1) && said.err.contains("this is the file of prompts"), "{}", said.err);
    assert_eq!(fs::read(place.path("in.jsonl")).unwrap(), before);
}

#[test]
fn lines_may_have_functions_where_the_template_takes_them() {
    let tools = r#""tools": [{"type": "function", "function": {"name": "now"}}], "tool_choice": "required", "parallel_tool_calls": false"#;
    let line =
        format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"When?\"}}], \"max_tokens\": 60, {tools}}}");
    let place = Place::new(&[line]);
    let template = place.path("template");
    fs::write(&template, "{{ tools|tojson }}{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    // a template that shows no form of calls
    let with = |more: &[&str]| said(place.command("").arg("--chat-template").arg(&template).args(more));
    let none = with(&[]);
    assert_eq!(none.code, Some(1), "{}", none.err);
    let error = place.answers()[0]["error"].clone();
    assert!(error["param"] == "tools" && error["message"].as_str().unwrap().contains("--tool-format"), "{error}");
    let told = with(&["--tool-format", "llama3", "--overwrite"]);
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert_eq!(place.answers()[0]["tool_calls"][0]["function"]["name"], "now", "{:?}", place.answers());
}
