//! Wrong requests: refused with the name of what is wrong, and the server goes on.

mod common;
#[path = "requests/mutated.rs"]
mod mutated;

use common::*;
use pi_server::{Phase, ServerOptions};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::mpsc,
    time::{Duration, Instant},
};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Every route, with the method it is for.
const ROUTES: [(&str, &str); 10] = [
    ("GET", "/"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/demo"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/props"),
    ("GET", "/metrics"),
];

#[test]
fn bodies_that_are_no_json_objects_are_refused() {
    // H01
    let server = start(options());
    for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"] {
        let bad: [&[u8]; 9] = [
            br#"{"model":..."#,
            b"",
            b"hello",
            b"[]",
            b"\"x\"",
            b"{\"prompt\": \"\xff\xfe\"}",
            b"\xff",
            b"{\"a\": 1,}",
            br#"{"prompt": "\ud800"}"#,
        ];
        for body in bad {
            server.send(path, body).refused(400);
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx"] {
            server.call("POST", path, &[("content-type", kind)], b"{}").refused(415);
        }
        server.call("POST", path, &[], b"{}").refused(415);
        let json = ("content-type", "application/json");
        server.call("POST", path, &[("content-type", "application/json; charset=utf-16")], b"{}").refused(415);
        server.call("POST", path, &[json, ("content-encoding", "gzip")], b"{}").refused(415);
    }
    let good = br#"{"prompt": "a", "max_tokens": 1}"#;
    server.call("POST", "/v1/completions", &[("content-type", "Application/JSON; charset=utf-8")], good).ok();
    server.is_well();
}

#[test]
fn nesting_without_end_is_refused() {
    // H02
    let server = start(options());
    let deep = |n: usize, close: bool| "[".repeat(n) + &if close { "]".repeat(n) } else { String::new() };
    for (n, close) in [(3000, false), (10_000, true), (200_000, true)] {
        for field in ["tools", "unknown", "prompt", "messages"] {
            let body = format!("{{\"prompt\": \"a\", \"{field}\": {}}}", deep(n, close));
            server.send("/v1/completions", body.as_bytes()).refused(400);
            server.send("/v1/chat/completions", body.as_bytes()).refused(400);
        }
    }
    let objects = "{\"a\":".repeat(10_000) + "1" + &"}".repeat(10_000);
    server.send("/v1/completions", format!("{{\"x\": {objects}}}").as_bytes()).refused(400);
    server.is_well();
}

#[test]
fn prompts_that_are_no_text_and_no_tokens_are_refused() {
    // H07
    let server = start(options());
    for prompt in [
        json!([-1]),
        json!([999999999]),
        json!([1.5]),
        json!([12, "x", 34]),
        json!([]),
        json!(null),
        json!({}),
        json!(7),
        json!([[]]),
        json!([["x"]]),
        json!([null]),
        json!(["a", "b"]),
        json!([1e300]),
        json!(true),
        json!([2048]),
        json!([18446744073709551615u64]),
        json!([[1], [2]]),
    ] {
        let param = server.post("/v1/completions", &json!({"prompt": prompt})).refused(400);
        assert_eq!(param, "prompt", "{prompt}");
    }
    assert_eq!(server.post("/v1/completions", &json!({})).refused(400), "prompt");
    for prompt in [json!([15]), json!([12, 34.0]), json!("")] {
        server.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).ok();
    }
    for tokens in [json!([2048]), json!([-1]), json!("x"), json!(null), json!([1, "x"])] {
        assert_eq!(server.post("/detokenize", &json!({"tokens": tokens})).refused(400), "tokens");
    }
    for content in [json!(7), json!(null), json!(["a"])] {
        assert_eq!(server.post("/tokenize", &json!({"content": content})).refused(400), "content");
    }
    server.is_well();
}

#[test]
fn every_wrong_field_is_named() {
    let server = start(options());
    let messages = json!([{"role": "user", "content": "hi"}]);
    let both = |field: &str, value: Value| {
        for (path, body) in [
            ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
            ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 1})),
        ] {
            let reply = server.post(path, &with(body, json!({field: value})));
            assert_eq!(reply.refused(400), field, "{path}: {field}: {value}");
        }
    };
    for (field, values) in [
        ("model", vec![json!(7), json!([])]),
        ("temperature", vec![json!(-0.1), json!("1"), json!(1e300), json!([])]),
        ("top_p", vec![json!(-0.1), json!(1.1), json!("x")]),
        ("min_p", vec![json!(2), json!(-1)]),
        ("top_k", vec![json!(-1), json!(1.5), json!("x"), json!(1e30)]),
        ("repeat_penalty", vec![json!(0), json!(-1)]),
        ("repeat_last_n", vec![json!(-2), json!(0.5)]),
        ("presence_penalty", vec![json!("x"), json!(1e300)]),
        ("frequency_penalty", vec![json!({}), json!(-1e300)]),
        ("max_tokens", vec![json!(-1), json!(1.5), json!("1")]),
        ("max_completion_tokens", vec![json!(-1), json!(true)]),
        ("seed", vec![json!("x"), json!(1.5), json!([1])]),
        ("stop", vec![json!(7), json!([""]), json!(""), json!([1]), json!(vec!["x"; 17]), json!("x".repeat(1025))]),
        ("stream", vec![json!("true"), json!(1)]),
        ("stream_options", vec![json!({"include_usage": true}), json!(7)]),
        (
            "logit_bias",
            vec![
                json!([]),
                json!({"x": 1}),
                json!({"1": 101}),
                json!({"1": "a"}),
                json!({"2048": 1}),
                json!({"-1": 1}),
            ],
        ),
        ("n", vec![json!(2), json!(0), json!("1")]),
        ("best_of", vec![json!(3)]),
        ("cache_prompt", vec![json!("no")]),
        ("ignore_eos", vec![json!(3)]),
        ("response_format", vec![json!("json"), json!(3)]),
        ("grammar", vec![json!("root"), json!(3)]),
        ("json_schema", vec![json!("x"), json!({"type": "thing"})]),
        ("logprobs", vec![json!("x"), json!(-1)]),
    ] {
        values.into_iter().for_each(|value| both(field, value));
    }
    let chat = |more: Value| server.post("/v1/chat/completions", &with(json!({"messages": messages}), more));
    assert_eq!(chat(json!({"top_logprobs": 3})).refused(400), "top_logprobs");
    assert_eq!(chat(json!({"top_logprobs": 21, "logprobs": true})).refused(400), "top_logprobs");
    assert_eq!(chat(json!({"logprobs": 5})).refused(400), "logprobs");
    assert_eq!(chat(json!({"max_tokens": 0})).refused(400), "max_tokens");
    for (messages, param) in [
        (json!([]), "messages"),
        (json!("hi"), "messages"),
        (json!(["hi"]), "messages[0]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": 7, "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user", "content": "x"}, {"role": "user", "content": 5}]), "messages[1].content"),
        (json!([{"role": "user", "content": ["x"]}]), "messages[0].content[0].type"),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
        (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0].type"),
    ] {
        assert_eq!(chat(json!({"messages": messages})).refused(400), param, "{messages}");
    }
    assert_eq!(chat(json!({"messages": [{"role": "function", "content": "x"}]})).refused(400), "messages");
    assert_eq!(chat(json!({"messages": [{"role": "/s", "content": "x"}]})).refused(400), "messages[0].role");
    assert_eq!(chat(json!({"messages": null})).refused(400), "messages");
    for field in ["suffix", "echo"] {
        let value = if field == "echo" { json!(true) } else { json!("x") };
        let reply = server.post("/v1/completions", &with(json!({"prompt": "a"}), json!({field: value})));
        assert_eq!(reply.refused(400), field);
    }
    // what changes an answer elsewhere, and means nothing here
    for (field, value) in [
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function", "function": {"name": "f"}})),
        ("function_call", json!({"name": "f"})),
        ("modalities", json!(["audio"])),
        ("stop_token_ids", json!([9_999_999])), // S12
        ("typical_p", json!(0)),                // S09
        ("dry_multiplier", json!(0.8)),         // S11
        ("n_predict", json!(0)),
        ("mirostat", json!(2)),
        ("guided_json", json!({})),
        ("guided_regex", json!("a")),
        ("structured_outputs", json!({"choice": ["a"]})),
    ] {
        assert_eq!(chat(json!({field: value})).refused(400), field);
    }
    server.is_well();
}

#[test]
fn what_clients_send_beside_the_point_is_taken() {
    // H15, H09
    let server = start(options());
    server.complete(json!({"top_k": 1_000_000, "top_p": 0, "min_p": 1, "temperature": 1, "max_tokens": 2})); // S09
    let body = json!({
        "messages": [
            {"role": "system", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": []},
            {"role": "user", "content": "x", "name": null, "tool_call_id": null, "whatever": {"a": [1]}},
        ],
        "model": "gpt-4o", "max_tokens": 2, "user": "me", "unknown": {"deep": [1, 2, {"x": null}]}, "tools": [], "n": 1,
        "response_format": {"type": "text"}, "tool_choice": "auto", "stop": null, "temperature": null, "seed": -1,
        "dry_sequence_breakers": [""], // S11
        "logit_bias": {}, "n_discard": -1, "n_keep": -5, "stream_options": null, "top_logprobs": null, "logprobs": false,
    });
    server.post("/v1/chat/completions", &body).ok();
}

#[test]
fn a_prompt_too_long_is_refused_at_once_and_a_full_context_ends_the_answer() {
    // C01, C03, H09
    let server = start(ServerOptions { context: Some(64), parallel: 10, ..options() });
    let long = json!({"prompt": vec![20; 64]});
    let reply = server.post("/v1/completions", &long);
    assert_eq!(reply.refused(400), "prompt");
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("64"));
    let text = "a lot of words ".repeat(30);
    let chat = json!({"messages": [{"role": "user", "content": text}]});
    let reply = server.post("/v1/chat/completions", &chat);
    assert_eq!(
        (reply.refused(400), &reply.json()["error"]["code"]),
        (json!("messages"), &json!("context_length_exceeded"))
    );
    for more in [json!({}), json!({"n_discard": -1}), json!({"n_keep": -5}), json!({"n_keep": 100000})] {
        let got = server.complete(with(json!({"ignore_eos": true, "max_tokens": null}), more));
        assert_eq!(got["choices"][0]["finish_reason"], "length");
        assert_eq!(got["usage"]["total_tokens"], 65, "the last token needs no place");
    }
    let fits = server.complete(json!({"prompt": vec![20; 63], "max_tokens": null, "ignore_eos": true}));
    assert_eq!(fits["usage"]["completion_tokens"], 2);
    assert_eq!(server.get("/props").ok()["default_generation_settings"]["n_ctx"], 64);
}

#[test]
fn bodies_that_are_too_long_are_refused_before_they_are_read() {
    // T17
    let server = start(ServerOptions { body_limit: 4096, ..options() });
    let long = json!({"prompt": "\n".repeat(5000)}).to_string();
    server.send("/v1/completions", long.as_bytes()).refused(413);
    // the same without a length in advance
    let mut socket = TcpStream::connect(server.address).unwrap();
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let head = format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    socket.write_all(head.as_bytes()).unwrap();
    assert!(read_all(&socket).starts_with("HTTP/1.1 413 "));
    server.is_well();
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let server = start(ServerOptions { body_timeout: Duration::from_millis(100), ..options() });
    let mut socket = TcpStream::connect(server.address).unwrap();
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n";
    socket.write_all(format!("{head}content-length: 100\r\n\r\n{{").as_bytes()).unwrap();
    assert!(read_all(&socket).starts_with("HTTP/1.1 408 "));
    server.is_well();
}

#[test]
fn bodies_that_stop_coming_keep_no_others_waiting() {
    let server = start(ServerOptions { body_timeout: Duration::from_secs(60), ..options() });
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let send = |rest: &str| {
        let mut socket = TcpStream::connect(server.address).unwrap();
        socket.write_all(format!("{head}{rest}").as_bytes()).unwrap();
        socket
    };
    let part = "x".repeat(100_000);
    let stopped: Vec<TcpStream> = (0..12)
        .map(|i| match i % 3 {
            0 => send("content-length: 1000000\r\n\r\n{"),
            1 => send(&format!("content-length: 1000000\r\n\r\n{{\"content\": \"{part}")),
            _ => send("transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"),
        })
        .collect();
    let began = Instant::now();
    let chunked = send(
        "connection: close\r\ntransfer-encoding: chunked\r\n\r\n11\r\n{\"content\": \"abc\"\r\n1\r\n}\r\n0\r\n\r\n",
    );
    assert!(read_all(&chunked).starts_with("HTTP/1.1 200 "));
    assert_eq!(server.post("/tokenize", &json!({"content": part})).status, 200);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    drop(stopped);
    server.is_well();
}

#[test]
fn unknown_routes_and_wrong_methods_are_json_as_well() {
    let server = start(options());
    for path in ["/page", "/v1", "/v2/chat/completions", "/v1/chat/completions/", "/../etc/passwd", "/slots"] {
        server.get(path).refused(404);
    }
    for (method, path) in ROUTES {
        let other = if method == "GET" { "POST" } else { "GET" };
        server.call(other, path, &[], b"").refused(405);
        server.call("DELETE", path, &[], b"").refused(405);
    }
    server.call("POST", "/health", &[], b"").refused(405);
    // C10: states are not given away, so none can come back wrong
    for action in ["save", "restore", "erase"] {
        let body = json!({"filename": "a.bin"}).to_string();
        server.call("POST", &format!("/slots/0?action={action}"), &[JSON], body.as_bytes()).refused(404);
    }
}

#[test]
fn embeddings_are_refused_rather_than_made_up() {
    // H16
    let server = start(options());
    for input in [json!("hello"), json!("long ".repeat(5000)), json!(["a", "bb ccc"])] {
        server.post("/v1/embeddings", &json!({"model": "demo", "input": input})).refused(400);
    }
}

#[test]
fn every_route_but_health_asks_for_the_key() {
    // H21
    let server = start(ServerOptions { api_keys: vec!["first".into(), "second".into()], ..options() });
    let unknown = [("GET", "/nothing"), ("POST", "/slots"), ("DELETE", "/v1/models"), ("PUT", "/")];
    for (method, path) in ROUTES.into_iter().chain(unknown) {
        for key in [None, Some("Bearer wrong"), Some("Bearer firs"), Some("Bearer"), Some("first"), Some("Basic first")]
        {
            let headers: Vec<(&str, &str)> = key.map(|k| ("authorization", k)).into_iter().chain([JSON]).collect();
            let reply = server.call(method, path, &headers, b"{}");
            reply.refused(401);
            let asks = if path == "/" { "Basic " } else { "Bearer" };
            assert!(reply.header("www-authenticate").unwrap().starts_with(asks), "{method} {path}");
        }
        for key in ["Bearer first", "bearer second", "Basic bWU6c2Vjb25k"] {
            let reply = server.call(method, path, &[("authorization", key), JSON], b"{}");
            assert_ne!(reply.status, 401, "{method} {path}");
        }
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn the_page_asks_for_nothing_from_elsewhere() {
    let server = start(options());
    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none';"));
    for elsewhere in ["http:", "https:", "src=", "href=", "@import", "url(", "innerHTML"] {
        assert!(!page.text.contains(elsewhere), "{elsewhere}");
    }
    // what it shows and sets comes from here
    let props = server.get("/props").json();
    let hot = props["model"]["hot"].as_array().unwrap();
    assert_eq!(hot.len() as u64, props["model"]["layers"].as_u64().unwrap());
    assert!(hot.iter().all(|share| share == 0.0));
    for setting in ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens"] {
        assert!(page.text.contains(&format!("id=\"{setting}\"")), "{setting}");
        assert!(props["default_generation_settings"].get(setting).is_some(), "{setting}");
    }
}

#[test]
fn web_pages_of_others_are_let_in_only_if_asked() {
    let page = ("origin", "https://page.example");
    let ask = [
        page,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, x-stainless-os"),
    ];
    let closed = start(options());
    assert_eq!(closed.call("GET", "/v1/models", &[page], b"").header("access-control-allow-origin"), None);
    let one =
        start(ServerOptions { cors: vec!["https://page.example".into()], api_keys: vec!["key".into()], ..options() });
    let reply = one.call("OPTIONS", "/v1/completions", &ask, b"");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some("https://page.example")));
    let allowed = reply.header("access-control-allow-headers").unwrap_or_default();
    assert!(allowed.contains("authorization") && allowed.contains("x-stainless-os"), "{allowed}");
    // a page can read the refusal too
    let reply = one.call("GET", "/v1/models", &[page], b"");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (401, Some("https://page.example")));
    let reply = one.call("GET", "/v1/models", &[("origin", "https://other.example")], b"");
    assert_eq!(reply.header("access-control-allow-origin"), None);
    let all = start(ServerOptions { cors: vec!["*".into()], ..options() });
    let reply = all.call("GET", "/v1/models", &[("origin", "https://other.example")], b"");
    assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
}

#[test]
fn a_server_without_keys_on_loopback_answers_to_loopbacks_names_and_those_it_was_given() {
    let ask = |server: &Running, method: &str, path: &str, header: (&str, &str)| {
        server.call(method, path, &[header, JSON], br#"{"prompt": "a", "max_tokens": 1}"#)
    };
    let server = start(options());
    for (method, path) in ROUTES.into_iter().chain([("GET", "/nothing")]) {
        let reply = ask(&server, method, path, ("host", "evil.example"));
        assert_eq!(reply.refused(421), "Host", "{path}");
        assert!(reply.text.contains("evil.example") && reply.text.contains("--allow-host"), "{}", reply.text);
        let reply = ask(&server, method, path, ("origin", "http://evil.example"));
        assert_eq!(reply.refused(403), "Origin", "{path}");
    }
    assert_eq!(ask(&server, "GET", "/health", ("host", "evil.example")).status, 200);
    for host in ["localhost", "127.0.0.1:1234", "[::1]:8080"] {
        ask(&server, "POST", "/v1/completions", ("host", host)).ok();
        ask(&server, "POST", "/v1/completions", ("origin", &format!("http://{host}"))).ok();
    }
    let refused = "pi_http_responses_total{route=\"other\",status=\"421\"}";
    assert!(server.metric(refused) >= ROUTES.len() as f64);
    // names beside these
    let named = start(ServerOptions { hosts: vec!["pi.example".into()], ..options() });
    ask(&named, "POST", "/v1/completions", ("host", "PI.example:80")).ok();
    ask(&named, "POST", "/v1/completions", ("origin", "https://pi.example")).ok();
    ask(&named, "POST", "/v1/completions", ("host", "evil.example")).refused(421);
    // who has the key may call it what he likes, unless names were given
    let key = |hosts: &[&str]| {
        let hosts = hosts.iter().map(|host| host.to_string()).collect();
        let server = start(ServerOptions { api_keys: vec!["key".into()], hosts, ..options() });
        server.call("GET", "/v1/models", &[("host", "any.example"), ("authorization", "Bearer key")], b"").status
    };
    assert_eq!((key(&[]), key(&["pi.example"])), (200, 421));
    // a page that is let in
    let page = start(ServerOptions { cors: vec!["https://page.example".into()], ..options() });
    ask(&page, "POST", "/v1/completions", ("origin", "https://page.example")).ok();
    ask(&page, "POST", "/v1/completions", ("origin", "https://other.example")).refused(403);
}

#[test]
fn what_is_done_before_an_answer_is_begun_takes_no_longer_than_the_timeout() {
    // a template that would be refused after a long time
    let slow = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    let wait = Duration::from_millis(50);
    let server = start_with(ServerOptions { timeout: Some(wait), parallel: 1, queue: 0, ..options() }, move || {
        let chat = pi_server::chat::ChatTemplate::new(slow, demo().tokenizer().clone()).map(Some);
        Ok(pi_server::Loaded { engine: demo(), chat })
    });
    server.ready();
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    let reply = server.post("/v1/chat/completions", &body);
    reply.refused(504);
    assert_eq!(reply.json()["error"]["code"], "timeout");
    assert_eq!(server.metric("pi_requests_failed_total"), 1.0);
    // what goes on keeps its place until it is over
    if server.server.requests() > 0 {
        server.post("/v1/chat/completions", &body).refused(429);
    }
    until("it is over", || server.server.requests() == 0);
    assert_eq!(server.get("/health").status, 200);
}

// 250 of them once kept everyone else from being answered
#[test]
fn connections_without_a_whole_request_are_closed_after_a_while() {
    let mut server = start(ServerOptions { header_timeout: Duration::from_millis(300), ..options() });
    for begun in ["", "GET /health HTTP/1.1\r\nHo"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(begun.as_bytes()).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap_or_else(|e| panic!("{begun:?} is not closed: {e}"));
    }
    server.is_well();
    let _open = TcpStream::connect(server.address).unwrap();
    assert!(server.stop(), "a connection that asks nothing keeps the server from ending");
}

#[test]
fn while_the_model_is_loaded_everything_that_needs_it_says_503() {
    let (go, wait) = mpsc::channel::<()>();
    let server = start_with(options(), move || {
        let _ = wait.recv();
        Ok(loaded(demo()))
    });
    for (method, path) in ROUTES.into_iter().chain([("GET", "/health")]) {
        if matches!(path, "/" | "/metrics" | "/v1/embeddings") {
            continue;
        }
        let reply = server.call(method, path, &[JSON], b"{}");
        reply.refused(503);
        assert!(reply.header("retry-after").is_some() && reply.text.contains("loaded"), "{path}: {}", reply.text);
    }
    assert_eq!(server.metric("pi_ready"), 0.0);
    go.send(()).unwrap();
    server.ready();
    assert_eq!(server.metric("pi_ready"), 1.0);
    server.is_well();
}

#[test]
fn a_model_that_cannot_be_loaded_is_a_reason_and_not_a_crash() {
    // C04
    let server = start_with(options(), || Err("the file is damaged".into()));
    until("failed", || matches!(server.server.phase(), Phase::Failed(_)));
    server.get("/health").refused(503);
    let reply = server.post("/v1/completions", &json!({"prompt": "a"}));
    reply.refused(503);
    assert!(reply.text.contains("damaged"));
    let server =
        start_with(ServerOptions { parallel: 1 << 20, context: Some(1 << 24), ..options() }, || Ok(loaded(demo())));
    until("failed", || matches!(server.server.phase(), Phase::Failed(_)));
    let Phase::Failed(why) = server.server.phase() else { panic!("failed") };
    assert!(why.contains("bytes"), "{why}");
    let server = start_with(options(), || panic!("a bug"));
    until("failed", || matches!(server.server.phase(), Phase::Failed(_)));
    server.get("/health").refused(503);
}

#[test]
fn without_a_template_chats_are_refused_and_completions_work() {
    // T11
    let server = start_with(options(), || Ok(pi_server::Loaded::without_chat(demo())));
    server.ready();
    let reply = server.post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "x"}]}));
    assert_eq!(reply.refused(400), "messages");
    assert!(reply.text.contains("template"));
    server.is_well();
}

#[test]
fn whatever_comes_is_answered_or_refused_and_never_a_failure_of_the_server() {
    let server = start(ServerOptions { context: Some(48), ..options() });
    let mut random = pi_testkit::Random(1);
    let odd = [
        "null",
        "true",
        "-1",
        "0",
        "1",
        "1.5",
        "1e308",
        "-1e-308",
        "18446744073709551615",
        "99999999999999999999",
        "\"\"",
        "\"x\"",
        "\"\\u0000\\uFDD0\"",
        "[]",
        "[[]]",
        "{}",
        "[null]",
        "[1,\"x\"]",
        "{\"a\":{\"b\":[]}}",
        "\"\\ud83e\\udd99\"",
        "{\"1\":1}",
        "[{\"role\":\"user\",\"content\":\"x\"}]",
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"}]}]",
        "[{}]",
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}]",
    ];
    let names = mutated::FIELDS;
    let good = [
        ("/v1/completions", "\"prompt\":\"a\""),
        ("/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"),
        ("/tokenize", "\"content\":\"a\""),
        ("/detokenize", "\"tokens\":[20]"),
    ];
    let mut answered = 0;
    for _ in 0..600 {
        let (path, fields) = good[random.below(good.len())];
        let mut body = format!("{{{fields}");
        for _ in 0..random.below(4) {
            body += &format!(",\"{}\":{}", names[random.below(names.len())], odd[random.below(odd.len())]);
        }
        body.push('}');
        let mut bytes = body.clone().into_bytes();
        if random.below(4) == 0 {
            let at = random.below(bytes.len());
            bytes[at] = random.below(256) as u8;
        }
        let reply = server.send(path, &bytes);
        match reply.status {
            200 => answered += 1,
            _ => drop(reply.refused(400)),
        }
    }
    assert!((100..500).contains(&answered), "{answered} of 600: both happen");
    server.is_well();
}

// compiling once went on for clients that had left, in as many threads as they had asked for
#[test]
fn a_form_that_is_compiled_keeps_its_place_though_its_client_left() {
    let server = start(ServerOptions { parallel: 1, queue: 1, ..options() });
    let doubled: String = (0..300).map(|i| format!("A{i}: A{0} A{0}\n", i + 1)).collect();
    let lark = json!({"syntax": "lark", "definition": format!("start: A0\n{doubled}A300: \"x\"")});
    for _ in 0..8 {
        drop(server.open("/v1/completions", &json!({"prompt": "x", "max_tokens": 1, "grammar": lark})));
        std::thread::sleep(Duration::from_millis(30));
    }
    until("some are refused", || server.metric("pi_requests_refused_total") >= 1.0);
    until("all are over", || server.server.requests() == 0);
    server.is_well();
}
