//! Sends any bytes as the body of a request to a server of a tiny model: it is answered or refused, and the server goes on.
//!
//! `cargo +nightly fuzz run requests -- -rss_limit_mb=2048 -max_len=4096`. The first byte chooses the route; a body is JSON, so a
//! dictionary helps: `-dict=fuzz/requests.dict`.
#![no_main]

use axum::{
    body::{Body, to_bytes},
    http::Request,
};
use libfuzzer_sys::fuzz_target;
use pi_engine::Engine;
use pi_server::{Loaded, Server, ServerOptions, chat::ChatTemplate};
use pi_testkit::TinyModel;
use std::sync::OnceLock;
use tokio::runtime::Runtime;
use tower::ServiceExt;

const ROUTES: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"];

fn server() -> &'static (Server, Runtime) {
    static SERVER: OnceLock<(Server, Runtime)> = OnceLock::new();
    SERVER.get_or_init(|| {
        let options = ServerOptions { context: Some(64), parallel: 1, max_tokens: Some(8), ..Default::default() };
        let server = Server::start(options, || {
            let engine = Engine::builder().threads(1).load(&TinyModel::default().file()).map_err(|e| e.to_string())?;
            let chat = ChatTemplate::new("chatml", engine.tokenizer().clone()).map(Some);
            Ok(Loaded { engine, chat })
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let server = server.expect("a server");
        runtime.block_on(server.loaded()).expect("a model");
        (server, runtime)
    })
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&route, body)) = bytes.split_first() else { return };
    let (server, runtime) = server();
    let ask = |path: &str, body: Vec<u8>| {
        let request = Request::post(path).header("content-type", "application/json").body(Body::from(body));
        let response = runtime.block_on(server.router().oneshot(request.expect("a request"))).expect("a response");
        let status = response.status().as_u16();
        // a streamed answer is over when its body is
        let text = runtime.block_on(to_bytes(response.into_body(), usize::MAX)).expect("a body");
        (status, text)
    };
    let (status, text) = ask(ROUTES[usize::from(route) % ROUTES.len()], body.to_vec());
    assert!(matches!(status, 200 | 400), "{status}: {}", String::from_utf8_lossy(&text));
    let (status, _) = ask("/v1/completions", br#"{"prompt": [5, 6], "max_tokens": 1}"#.to_vec());
    assert_eq!(status, 200, "the server goes on");
});
