//! `pi serve`, as a process.

use crate::common::*;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

/// A server that runs, and what it says.
pub struct Serving {
    pub process: Child,
    address: String,
    said: Receiver<String>,
}

impl Serving {
    /// `pi serve` with the demo model on a free port, once it is ready.
    fn start(args: &[&str]) -> Self {
        let mut command = pi();
        command.args(["serve", "--port", "0"]).args(args).current_dir(repository(""));
        Self::of(&mut command)
    }

    /// What a command serves, once it is ready.
    pub fn of(command: &mut Command) -> Self {
        let mut process = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let (lines, said) = channel();
        let stderr = process.stderr.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).for_each(|l| drop(lines.send(l)))
        });
        let mut serving = Self { process, address: String::new(), said };
        let line = serving.hear("listening on http://");
        serving.address = line["listening on http://".len()..].split(' ').next().unwrap().into();
        serving.hear("ready: ");
        serving
    }

    pub fn hear(&self, beginning: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let line = self.said.recv_timeout(until.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|e| panic!("waited for {beginning:?}: {e}"));
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    /// Status and body of an answer.
    pub fn call(&self, method: &str, path: &str, key: &str, body: &Value) -> (u16, Value) {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             authorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).unwrap();
        let mut all = String::new();
        socket.read_to_string(&mut all).unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
    }

    fn text(&self, body: &Value) -> String {
        let (status, answer) = self.call("POST", "/v1/completions", "", body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().into()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_server_and_pi_run_write_the_same_text() {
    // P07
    let serving = Serving::start(&["--temp", "0", "-n", "30"]);
    for prompt in [PROMPT, "In the beginning", "The little dog ran"] {
        let run = object(&call(["run", "--json", "--temp", "0", "-n", "30", "-p", prompt]));
        assert_eq!(serving.text(&json!({"prompt": prompt})), run["text"].as_str().unwrap());
        let run = object(&call(["run", "--json", "--temp", "1", "-s", "5", "-n", "30", "-p", prompt]));
        let body = json!({"prompt": prompt, "temperature": 1, "seed": 5});
        assert_eq!(serving.text(&body), run["text"].as_str().unwrap(), "and with a seed, at any temperature");
    }
    let (_, models) = serving.call("GET", "/v1/models", "", &Value::Null);
    assert_eq!(models["data"][0]["id"], "tiny-reglu-6m-f16");
}

#[test]
fn options_reach_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    fs::write(&keys, "one\n\n  two  \n").unwrap();
    let template = folder.path().join("template");
    fs::write(&template, "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    let (keys, template) = (keys.to_str().unwrap(), template.to_str().unwrap());
    let serving = Serving::start(&[
        "--api-key-file",
        keys,
        "--api-key",
        "three",
        "--alias",
        "a",
        "--alias",
        "b",
        "--parallel",
        "2",
        "--ctx-size",
        "99",
        "--queue",
        "7",
        "--chat-template",
        template,
        "--top-k",
        "3",
        "--allow-host",
        "localhost.example",
        "-b",
        "16",
    ]);
    assert_eq!(serving.call("GET", "/health", "", &Value::Null).0, 200);
    assert_eq!(serving.call("GET", "/v1/models", "four", &Value::Null).0, 401);
    for key in ["one", "two", "three"] {
        let (status, models) = serving.call("GET", "/v1/models", key, &Value::Null);
        assert_eq!((status, &models["data"][1]["id"]), (200, &json!("b")));
    }
    let (_, props) = serving.call("GET", "/props", "one", &Value::Null);
    let (status, error) = serving.call("GET", "/props", "one\r\nhost: other.example", &Value::Null);
    assert_eq!((status, &error["error"]["param"]), (421, &json!("Host")), "{error}");
    let settings = &props["default_generation_settings"];
    assert_eq!((&props["total_slots"], &props["queue"], &settings["n_ctx"]), (&json!(2), &json!(7), &json!(99)));
    assert_eq!(settings["top_k"], 3);
    let body = json!({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1});
    let (status, answer) = serving.call("POST", "/v1/chat/completions", "one", &body);
    assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(5)), "{answer}");
}

#[test]
fn numbers_that_make_no_sense_are_refused_before_anything_is_loaded() {
    // H10
    for line in [
        "--batch-size 0",
        "--ctx-size -1",
        "--threads 0",
        "--threads -1",
        "--threads 10000",
        "--parallel 0",
        "--parallel -3",
        "--queue -1",
        "--port 70000",
        "--timeout -1",
        "--temp -1",
        "--api-key=",
        "--api-key=\u{a0}x",
        "--cors a.example",
        "--cors https://a.example/",
        "--cors=",
        "--drain-timeout x",
        "--allow-host https://a.example",
        "--allow-host a.example:80",
        "--allow-host=",
    ] {
        let said = call(["serve"].into_iter().chain(line.split(' ')));
        assert_eq!(said.code, Some(2), "{line}: {}", said.err);
        assert!(said.err.contains(line.split([' ', '=']).next().unwrap()), "{line}: {}", said.err);
    }
    // a form of calls for a template without tools: that of an option at once, that of a file when it is loaded
    let said = call(["serve", "--port", "0", "--chat-template", "chatml", "--tool-format", "hermes"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert!(said.err.contains("--chat-template chatml") && said.err.contains("--tool-format hermes"), "{}", said.err);
    let said = call(["serve", "--port", "0", "--tool-format", "mistral"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("--tool-format mistral") && said.err.contains("no place for tools"), "{}", said.err);
    let said = call(["serve", "--port", "0", "/no/such/model.gguf"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("/no/such/model.gguf"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = call(["serve", "--port", &port]);
    assert!(said.code == Some(1) && said.err.contains(&port), "{}", said.err);
}

#[cfg(unix)]
#[test]
fn sigterm_lets_answers_in_progress_end_and_then_ends_with_0() {
    let mut serving = Serving::start(&["--drain-timeout", "20"]);
    let mut socket = TcpStream::connect(&serving.address).unwrap();
    let body = json!({"prompt": PROMPT, "max_tokens": 100, "ignore_eos": true, "stream": true}).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ";
    socket.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    let mut reader = BufReader::new(socket);
    let mut line = String::new();
    while !line.starts_with("data:") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0);
    }
    assert!(Command::new("kill").args(["-TERM", &serving.process.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(serving.process.wait().unwrap().code(), Some(0));
}
