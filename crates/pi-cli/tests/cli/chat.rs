//! `pi chat`, as a program that reads what is typed.

use crate::common::{Said, demo, pi, said};
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Stdio},
    time::Duration,
};

/// What `pi chat` says when these lines are typed.
fn chat(args: &str, lines: &str) -> Said {
    let mut child = start(args);
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn start(args: &str) -> Child {
    let mut command = pi();
    command.arg("chat").arg("-m").arg(demo()).args(args.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn an_answer_is_what_pi_run_writes_after_the_same_prompt() {
    let said = chat("--temp 0 -n 12", "Once upon a time\n");
    assert_eq!(said.code, Some(0), "{}", said.err);
    let run = crate::common::run_json(&format!("-m {} --temp 0 -n 12", demo().display()));
    assert_eq!(said.out.trim_end_matches('\n'), run["text"].as_str().unwrap().trim_end_matches('\n'));
    // a model that was not trained on conversations goes on with the text
    assert!(said.err.contains("0 tokens were known"), "{}", said.err);
}

#[test]
fn what_was_said_is_not_computed_again_and_changes_nothing() {
    let said = chat("--temp 0 -n 8", "Once upon a time\nThe dog\n");
    assert_eq!(said.code, Some(0), "{}", said.err);
    let known: Vec<usize> = said
        .err
        .lines()
        .filter_map(|line| line.split_once("; ")?.1.split_once(" tokens were known")?.0.parse().ok())
        .collect();
    assert!(known.len() == 2 && known[1] > 8, "{}", said.err);
    // the same conversation with another first answer taken back
    let again = chat("--temp 0 -n 8", "A cat\n/undo\nOnce upon a time\n/retry\nThe dog\n");
    let (first, lines): (Vec<&str>, Vec<&str>) = (said.out.lines().collect(), again.out.lines().collect());
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert_eq!(lines[lines.len() - 1], first[first.len() - 1]);
}

#[test]
fn commands_change_settings_and_wrong_ones_are_named() {
    let said = chat(
        "--temp 0",
        "/set max_tokens 3\n/set temp hot\n/set nothing 1\n/nothing\n/show\n/system Be brief.\n/show\nHello \\\nthere\n/help\n/quit\nnot read\n",
    );
    assert_eq!(said.code, Some(0), "{}", said.err);
    for text in [
        "max_tokens is 3",
        "/set temp: expected a number from 0 on",
        "/set nothing: there is no such setting",
        "/nothing is no command",
        "temp 0, top_k 40",
        "max_tokens 3",
        "system: none",
        "system: Be brief.",
        "/retry",
        "decode: 3 tokens",
    ] {
        assert!(said.err.contains(text), "{text}: {}", said.err);
    }
    assert_eq!(said.err.matches("tokens were known").count(), 1, "{}", said.err);
}

#[test]
fn a_conversation_is_saved_and_loaded_and_damaged_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.json");
    let name = file.display();
    let first = chat("--temp 0 -n 6 --system Story:", &format!("Once upon a time\n/save {name}\nThe dog\n"));
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(saved["messages"][0]["content"], "Story:");
    assert_eq!(saved["messages"].as_array().unwrap().len(), 3);
    let second = chat("--temp 0 -n 6", &format!("/load {name}\nThe dog\n"));
    assert_eq!(second.out.lines().last(), first.out.lines().last(), "{}", second.err);
    for damage in ["{", "[]", "{\"messages\": [{\"role\": 3}]}"] {
        std::fs::write(&file, damage).unwrap();
        let said = chat("-n 1", &format!("/load {name}\n"));
        assert!(said.code == Some(0) && said.err.contains(&format!("{name}: ")), "{}", said.err);
    }
    let said = chat("-n 1", &format!("/load {}\n/save {}\n", folder.path().display(), folder.path().display()));
    assert!(
        said.code == Some(0)
            && said.err.matches("it exists and is no file").count() == 1
            && said.err.contains("a file of at most"),
        "{}",
        said.err
    );
}

#[test]
fn a_conversation_that_does_not_fit_is_said_and_forgotten() {
    let long = "word ".repeat(200);
    let said = chat("--temp 0 -n 4 -c 64", &format!("{long}\nOnce upon a time\n"));
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.err.contains("does not fit the context of 64"), "{}", said.err);
    assert_eq!(said.err.matches("tokens were known").count(), 1, "{}", said.err);
}

#[test]
fn templates_are_chosen_by_name_or_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.jinja");
    std::fs::write(&file, "Once upon a time{{ raise_exception('no bananas') if 'banana' in messages[0].content }}")
        .unwrap();
    let said = chat(&format!("--temp 0 -n 4 --chat-template {}", file.display()), "banana\nx\n");
    assert!(said.err.contains("no bananas"), "{}", said.err);
    assert_eq!(said.err.matches("tokens were known").count(), 1, "{}", said.err);
    let chatml = chat("--temp 0 -n 4 --chat-template chatml", "x\n");
    assert_eq!(chatml.code, Some(0), "{}", chatml.err);
    std::fs::write(&file, "{% if %}").unwrap();
    for (given, code, text) in
        [(&*file.to_string_lossy(), 1, "the chat template is not valid"), ("nothing", 2, "neither a name")]
    {
        let said = chat(&format!("--chat-template {given}"), "");
        assert_eq!(said.code, Some(code), "{}", said.err);
        assert!(said.err.contains(text), "{}", said.err);
    }
}

#[test]
fn lines_that_are_no_messages_are_passed_over_whole() {
    let mut child = start("--temp 0 -n 3");
    let mut stdin = child.stdin.take().unwrap();
    let long = "word ".repeat(1 << 20);
    let writer = std::thread::spawn(move || {
        stdin.write_all(long.as_bytes()).unwrap();
        stdin.write_all(b"/quit\n\xff\xfe\nOnce upon a time\n").unwrap();
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(err.contains("bytes is not taken") && err.contains("not UTF-8"), "{err}");
    assert_eq!(err.matches("tokens were known").count(), 1, "{err}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_answer_and_not_the_program() {
    let mut child = start("--temp 0 -n 100000 -c 8192 --logit-bias 1-inf --logit-bias 2-inf");
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(b"Once upon a time\n").unwrap();
    let mut first = [0; 20];
    stdout.read_exact(&mut first).unwrap(); // it writes
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let mut rest = String::new();
    stdout.read_line(&mut rest).unwrap(); // the answer ends with its line
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none());
    stdin.write_all(b"/set max_tokens 3\nOnce upon a time\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("stop: cancelled") && err.contains("decode: 3 tokens"), "{err}");
}

#[test]
fn wrong_calls_are_refused() {
    for (line, text) in [("chat -n -2", "-2"), ("chat --temp -1", "--temp"), ("chat -m nothing.gguf", "nothing.gguf")] {
        let said = said(pi().args(line.split(' ')).stdin(Stdio::null()));
        assert!(said.code != Some(0) && said.err.contains(text), "{}", said.err);
    }
}
