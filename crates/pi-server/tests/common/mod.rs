//! Servers on loopback, and clients for them.
#![allow(dead_code)] // no test file uses all of it

use pi_engine::{Engine, pi_core::text::TokenId};
use pi_server::{Loaded, Server, ServerOptions, chat::ChatTemplate};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::OnceLock,
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::oneshot};

/// A template for models that have none.
pub const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'function' %}{{ raise_exception('raised') }}{% endif %}\
    {{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
pub const PROMPT: &str = "Once upon a time";

/// The demo model, loaded once for all tests of a file.
pub fn demo() -> Engine {
    static DEMO: OnceLock<Engine> = OnceLock::new();
    DEMO.get_or_init(|| Engine::builder().threads(1).open(demo_path()).unwrap()).clone()
}

pub fn demo_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf")
}

/// A server in a thread of its own. It ends when this is dropped.
pub struct Running {
    pub address: SocketAddr,
    pub server: Server,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<JoinHandle<bool>>,
    drain: Duration,
}

pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {:?}", self.text))
    }

    /// The answer, which must be good.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// The field that the error names, after a look at the error's form.
    pub fn refused(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        let error = self.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{error}");
        assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(), "{error}");
        error["param"].clone()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

pub fn options() -> ServerOptions {
    ServerOptions { names: vec!["demo".into()], parallel: 4, ..Default::default() }
}

/// A server of the demo model, ready.
pub fn start(options: ServerOptions) -> Running {
    let running = start_with(options, || Ok(loaded(demo())));
    running.ready();
    running
}

/// The engine with the template of the tests.
pub fn loaded(engine: Engine) -> Loaded {
    let chat = ChatTemplate::new(TEMPLATE, engine.tokenizer().clone()).map(Some);
    Loaded { engine, chat }
}

pub fn start_with<L: FnOnce() -> Result<Loaded, String> + Send + 'static>(options: ServerOptions, load: L) -> Running {
    let server = Server::start(options, load).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (bound, address) = std::sync::mpsc::channel();
    let serving = server.clone();
    let drain = Duration::from_secs(5);
    let ended = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            let stop = async {
                let _ = stopped.await;
            };
            serving.serve(listener, stop, drain).await.unwrap()
        })
    });
    Running { address: address.recv().unwrap(), server, stop: Some(stop), ended: Some(ended), drain }
}

impl Running {
    pub fn ready(&self) {
        until("ready", || self.get("/health").status == 200);
    }

    /// Asks the server to end. True if nothing was cut off.
    pub fn stop(&mut self) -> bool {
        self.ask_to_stop();
        self.ended.take().unwrap().join().unwrap()
    }

    pub fn ask_to_stop(&mut self) {
        drop(self.stop.take());
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.call("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(path, body.to_string().as_bytes())
    }

    /// A POST of any bytes as JSON.
    pub fn send(&self, path: &str, body: &[u8]) -> Reply {
        self.call("POST", path, &[("content-type", "application/json")], body)
    }

    pub fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut request = ureq::http::Request::builder().method(method).uri(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let agent = ureq::Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true);
        let agent = agent.timeout_global(Some(Duration::from_secs(60))).build().new_agent();
        let response = match method {
            "GET" | "HEAD" | "OPTIONS" | "DELETE" => agent.run(request.body(()).unwrap()),
            _ => agent.run(request.body(body.to_vec()).unwrap()),
        };
        let mut response = response.unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        let header = |(n, v): (&ureq::http::HeaderName, &ureq::http::HeaderValue)| {
            (n.to_string(), v.to_str().unwrap_or_default().to_string())
        };
        let headers = response.headers().iter().map(header).collect();
        let text = response.body_mut().read_to_string().unwrap();
        Reply { status: response.status().as_u16(), headers, text }
    }

    /// A completion of the usual prompt at temperature 0.
    pub fn complete(&self, more: Value) -> Value {
        self.post("/v1/completions", &with(json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 24}), more)).ok()
    }

    /// The chunks of a stream, after a look at its form: the last thing is `[DONE]`.
    pub fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let reply = self.post(path, &with(body, json!({"stream": true})));
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        let mut data: Vec<&str> = reply.text.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", reply.text);
        data.into_iter().map(|d| serde_json::from_str(d).unwrap()).collect()
    }

    /// A request whose answer is not read yet.
    pub fn open(&self, path: &str, body: &Value) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).unwrap();
        socket
    }

    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let line = text.lines().find_map(|l| l.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
    }

    pub fn tokens(&self, text: &str) -> Vec<TokenId> {
        let reply = self.post("/tokenize", &json!({"content": text})).ok();
        serde_json::from_value(reply["tokens"].clone()).unwrap()
    }

    /// It still answers.
    pub fn is_well(&self) {
        assert_eq!(self.get("/health").status, 200);
        self.complete(json!({"max_tokens": 2}));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ask_to_stop();
    }
}

/// An object with the fields of another on top.
pub fn with(mut body: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "waited for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads a response's head and as many lines of its body as begin with `data:`, up to `n`.
pub fn read_events(socket: &TcpStream, n: usize) -> Vec<String> {
    let lines = BufReader::new(socket.try_clone().unwrap()).lines().map_while(Result::ok);
    lines.filter(|l| l.starts_with("data:")).take(n).collect()
}

/// Everything until the other side closes.
pub fn read_all(mut socket: &TcpStream) -> String {
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// The text of a stream's chunks.
pub fn joined(chunks: &[Value]) -> String {
    let choices = chunks.iter().flat_map(|c| c["choices"].as_array().unwrap());
    choices.map(|c| c["text"].as_str().or(c["delta"]["content"].as_str()).unwrap_or("")).collect()
}
