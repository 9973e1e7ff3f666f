//! Many requests at once: each gets the answer it would get alone, and leaves nothing behind.

mod common;

use common::*;
use pi_engine::{Engine, pi_gguf::File};
use pi_server::ServerOptions;
use pi_testkit::{TinyModel, tiny::rewrite};
use serde_json::{Value, json};
use std::{
    net::Shutdown,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

/// Prompts of very different lengths.
fn prompts() -> Vec<String> {
    let words =
        ["Once upon a time", "In the beginning", "The little dog", "And he said unto them", "x", "One day, Lily"];
    let long = "The king went into the city and the people said unto him. ".repeat(12);
    words.into_iter().map(String::from).chain([long.clone(), long + "And then"]).collect()
}

fn answer(server: &Running, prompt: &str, more: Value) -> Value {
    let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 30, "ignore_eos": true});
    server.post("/v1/completions", &with(body, more)).ok()["choices"][0].clone()
}

#[test]
fn answers_of_a_batch_are_the_answers_alone() {
    // P05, H18
    let one = start(ServerOptions { parallel: 1, ..options() });
    let logprobs = json!({"logprobs": 3, "cache_prompt": false});
    let alone: Vec<Value> = prompts().iter().map(|p| answer(&one, p, logprobs.clone())).collect();
    // steps of few tokens cut the prompts, steps of many do not
    for batch in [8, 48, 512] {
        let server = start(ServerOptions { parallel: 8, batch, ..options() });
        for round in 0..2 {
            let together: Vec<Value> = thread::scope(|scope| {
                let ask = |p: String| answer(&server, &p, json!({"logprobs": 3}));
                let clients: Vec<_> = prompts().into_iter().map(|p| scope.spawn(move || ask(p))).collect();
                clients.into_iter().map(|c| c.join().unwrap()).collect()
            });
            // log-probabilities to the last digit: not only the same tokens
            assert_eq!(together, alone, "batch {batch}, round {round}");
        }
    }
}

#[test]
fn many_rounds_of_two_users_never_mix() {
    // H18
    let server = start(ServerOptions { parallel: 2, ..options() });
    let ask = |p: &str| answer(&server, p, json!({"max_tokens": 4}));
    let alone = ["The little dog", "In the beginning"].map(|p| (p, ask(p)));
    thread::scope(|scope| {
        let ask = &ask;
        for (prompt, want) in &alone {
            scope.spawn(move || (0..100).for_each(|_| assert_eq!(&ask(prompt), want)));
        }
    });
}

#[test]
fn a_prompt_seen_before_is_not_computed_again_and_the_answer_is_the_same() {
    // C05, C06, C09
    let server = start(ServerOptions { parallel: 2, ..options() });
    let prompt = "The king went into the city and the people said unto him. ".repeat(12);
    let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 20, "logprobs": 2});
    let ask = |more: Value| server.post("/v1/completions", &with(body.clone(), more)).ok();
    let cached = |got: &Value| got["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let first = ask(json!({}));
    let tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens > 100 && cached(&first) == 0);
    for _ in 0..2 {
        let again = ask(json!({}));
        assert_eq!((cached(&again), &again["choices"]), (tokens - 1, &first["choices"]));
    }
    let off = ask(json!({"cache_prompt": false}));
    assert_eq!((cached(&off), &off["choices"]), (0, &first["choices"]));
    assert!(server.metric("pi_cache_hits_total") == 2.0 && server.metric("pi_cached_tokens_total") > 200.0);

    // the next turn of a chat brings the last one along, and so does the last one once more
    let text = "Tell me of the king who went into the city. ".repeat(5);
    let chat = |messages: &Value| {
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 20});
        server.post("/v1/chat/completions", &body).ok()
    };
    let mut messages = json!([{"role": "user", "content": text}]);
    let first = chat(&messages);
    let again = chat(&messages);
    assert_eq!(cached(&again), first["usage"]["prompt_tokens"].as_u64().unwrap() - 1);
    assert_eq!(again["choices"], first["choices"]);
    let all = messages.as_array_mut().unwrap();
    all.push(first["choices"][0]["message"].clone());
    all.push(json!({"role": "user", "content": "And then?"}));
    assert!(cached(&chat(&messages)) >= first["usage"]["prompt_tokens"].as_u64().unwrap() - 2);
}

/// A request that runs for many thousand steps.
fn endless(more: Value) -> Value {
    with(json!({"prompt": PROMPT, "max_tokens": 100_000, "ignore_eos": true}), more)
}

#[test]
fn a_client_that_leaves_frees_its_slot_at_once() {
    // H11
    let server = start(ServerOptions { parallel: 1, context: Some(30_000), batch: 4, ..options() });
    let gone = |what: &str, cancelled: f64| {
        let since = Instant::now();
        until(what, || server.metric("pi_requests_cancelled_total") == cancelled);
        assert!(since.elapsed() < Duration::from_secs(2), "{what}: {:?}", since.elapsed());
        until(what, || server.metric("pi_requests_running") + server.metric("pi_requests_waiting") == 0.0);
        assert_eq!(server.server.requests(), 0, "{what}");
    };
    // (a) in the middle of a stream
    let socket = server.open("/v1/completions", &endless(json!({"stream": true})));
    assert_eq!(read_events(&socket, 3).len(), 3);
    socket.shutdown(Shutdown::Both).unwrap();
    gone("mid-stream", 1.0);
    // (b) in the middle of an answer that is not streamed
    let socket = server.open("/v1/completions", &endless(json!({})));
    let before = server.metric("pi_generated_tokens_total");
    until("it runs", || server.metric("pi_generated_tokens_total") > before + 3.0);
    drop(socket);
    gone("mid-answer", 2.0);
    // (c) in the queue, behind one that goes on
    let first = server.open("/v1/completions", &endless(json!({})));
    until("the first runs", || server.metric("pi_requests_running") == 1.0);
    let second = server.open("/v1/completions", &endless(json!({})));
    until("the second waits", || server.metric("pi_requests_waiting") == 1.0);
    drop(second);
    until("dropped from the queue", || server.metric("pi_requests_cancelled_total") == 3.0);
    assert_eq!((server.metric("pi_requests_running"), server.metric("pi_requests_waiting")), (1.0, 0.0));
    drop(first);
    gone("the first", 4.0);
    // (d) in the prompt, which takes thousands of steps of four tokens
    let begun = server.metric("pi_generated_tokens_total");
    let steps = server.metric("pi_steps_total");
    let prompt: Vec<u32> = (0..20_000).map(|i| i % 2000).collect();
    let socket = server.open("/v1/completions", &endless(json!({"prompt": prompt})));
    until("the prompt is computed", || server.metric("pi_steps_total") > steps + 3.0);
    drop(socket);
    gone("in the prompt", 5.0);
    assert_eq!(server.metric("pi_generated_tokens_total"), begun, "it was still in the prompt");
    server.is_well();
}

#[test]
fn a_long_prompt_does_not_stall_the_others() {
    let server = start(ServerOptions { parallel: 2, context: Some(8000), ..options() });
    let socket = server.open("/v1/completions", &endless(json!({"stream": true, "max_tokens": 7000})));
    read_events(&socket, 2);
    let prompt: Vec<u32> = (0..6000).map(|i| i % 2000).collect();
    let long = server.open("/v1/completions", &endless(json!({"prompt": prompt, "stream": true, "max_tokens": 1})));
    until("it runs", || server.metric("pi_requests_running") == 2.0);
    let (steps, tokens) = (server.metric("pi_steps_total"), server.metric("pi_generated_tokens_total"));
    read_events(&long, 1);
    let (steps, tokens) =
        (server.metric("pi_steps_total") - steps, server.metric("pi_generated_tokens_total") - tokens);
    assert!(steps >= 5.0, "the prompt took {steps} steps");
    assert!(tokens >= steps - 2.0, "the other answer went on: {tokens} tokens in {steps} steps");
}

#[test]
fn the_queue_is_first_come_first_served_and_bounded() {
    // H20
    let server = start(ServerOptions { parallel: 1, queue: 3, batch: 32, context: Some(30_000), ..options() });
    let first = server.open("/v1/completions", &endless(json!({})));
    until("it runs", || server.metric("pi_requests_running") == 1.0);
    // each prompt goes on where the one before ends: what it finds computed says which one that was
    let ids: Vec<u32> = (0..30).map(|i| 100 + i * 7).collect();
    let cached: Vec<Value> = thread::scope(|scope| {
        let waiting: Vec<_> = (1..=3)
            .map(|i| {
                let (server, prompt) = (&server, json!(ids[..10 * i]));
                let client = scope.spawn(move || server.complete(json!({"prompt": prompt, "max_tokens": 1})));
                until("it waits", || server.metric("pi_requests_waiting") == i as f64);
                client
            })
            .collect();
        let reply = server.post("/v1/completions", &json!({"prompt": "a"}));
        reply.refused(429);
        assert!(reply.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
        drop(first);
        let cached = |got: Value| got["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
        waiting.into_iter().map(|client| cached(client.join().unwrap())).collect()
    });
    assert_eq!(json!(cached), json!([0, 10, 20]));
    assert_eq!(server.metric("pi_requests_refused_total"), 1.0);
    server.is_well();
}

#[test]
fn requests_that_take_too_long_are_ended() {
    let timeout = Some(Duration::from_millis(300));
    let server = start(ServerOptions { parallel: 1, timeout, batch: 32, context: Some(30_000), ..options() });
    let running = server.open("/v1/completions", &endless(json!({"stream": true})));
    until("it runs", || server.metric("pi_requests_running") == 1.0);
    let waiting = server.post("/v1/completions", &endless(json!({})));
    waiting.refused(504);
    let text = read_all(&running);
    assert!(text.contains("data: {\"error\":") && text.contains("timeout") && !text.contains("[DONE]"), "{text}");
    server.is_well();
}

/// A tiny model of which one token makes everything NaN.
const POISON: u32 = 270;

fn poisoned() -> Engine {
    let model = TinyModel { context: 4096, ..TinyModel::default() };
    let file = model.file();
    let bytes = rewrite(&file, &[], |name, bytes| {
        if name == "token_embd.weight" {
            let row = model.dim * 4;
            let row = &mut bytes[POISON as usize * row..(POISON as usize + 1) * row];
            row.as_chunks_mut::<4>().0.iter_mut().for_each(|v| *v = f32::NAN.to_le_bytes());
        }
        true
    });
    Engine::builder().threads(1).load(&File::from_bytes(bytes, "poisoned.gguf").unwrap()).unwrap()
}

#[test]
fn a_request_whose_numbers_break_is_the_only_one_that_fails() {
    // H13, S01
    let server = start_with(ServerOptions { parallel: 3, ..options() }, || Ok(loaded(poisoned())));
    server.ready();
    let good = json!({"prompt": [5, 6, 7], "max_tokens": 300, "temperature": 0, "ignore_eos": true,
        "logit_bias": {POISON.to_string(): -100}});
    let want = server.post("/v1/completions", &good).ok()["choices"].clone();
    let bad = json!({"prompt": [5, POISON], "max_tokens": 5});
    thread::scope(|scope| {
        let clients: Vec<_> = (0..2).map(|_| scope.spawn(|| server.post("/v1/completions", &good).ok())).collect();
        for _ in 0..5 {
            server.post("/v1/completions", &bad).refused(500);
            drop(server.open("/v1/completions", &bad)); // the same while the client has gone
        }
        for client in clients {
            assert_eq!(client.join().unwrap()["choices"], want);
        }
    });
    // in a stream the failure is an event, and the stream ends
    let reply = server.post("/v1/completions", &with(bad, json!({"stream": true})));
    assert!(reply.status == 500 || reply.text.contains("data: {\"error\":"), "{}", reply.text);
    assert!(!reply.text.contains("[DONE]"));
    // what the broken request left in its slot is not used for the next one
    assert_eq!(server.post("/v1/completions", &with(good, json!({"prompt": [5, 6, 7]}))).ok()["choices"], want);
}

#[test]
fn two_hundred_clients_of_which_a_third_leaves_get_right_answers_and_leak_nothing() {
    let server = start(ServerOptions { parallel: 8, queue: 400, ..options() });
    let prompts = prompts();
    let body = |i: usize| json!({"prompt": prompts[i % 6], "temperature": 0, "max_tokens": 12, "ignore_eos": true});
    let want: Vec<Value> = (0..6).map(|i| server.post("/v1/completions", &body(i)).ok()["choices"].clone()).collect();
    let wave = || {
        let right = AtomicUsize::new(0);
        thread::scope(|scope| {
            for i in 0..200 {
                let (server, want, right) = (&server, &want, &right);
                scope.spawn(move || {
                    if i % 3 == 0 {
                        let stream = i % 2 == 0;
                        let body = with(body(i), json!({"max_tokens": 200, "stream": stream}));
                        let socket = server.open("/v1/completions", &body);
                        // anywhere between the first byte and the last
                        thread::sleep(Duration::from_millis((i as u64 * 37) % 400));
                        if stream && i % 4 == 0 {
                            read_events(&socket, i % 7);
                        }
                        drop(socket);
                    } else {
                        assert_eq!(server.post("/v1/completions", &body(i)).ok()["choices"], want[i % 6]);
                        right.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(right.load(SeqCst), 133);
        until("nobody is left", || server.server.requests() == 0);
        until("and counted out", || server.metric("pi_requests_running") + server.metric("pi_requests_waiting") == 0.0);
        server.metric("process_resident_memory_bytes")
    };
    wave();
    let before = wave();
    let after = wave();
    assert!(after < before + 24e6, "memory went from {before} to {after} bytes");
    server.is_well();
}

#[test]
fn a_server_that_is_asked_to_end_finishes_what_it_began() {
    let mut server = start(ServerOptions { parallel: 1, ..options() });
    let running = server.open("/v1/completions", &endless(json!({"stream": true, "max_tokens": 60})));
    let waiting = server.open("/v1/completions", &json!({"prompt": "a", "max_tokens": 3}));
    until("both are there", || server.server.requests() == 2);
    let kept = std::net::TcpStream::connect(server.address).unwrap();
    server.ask_to_stop();
    until("it drains", || server.server.phase() == pi_server::Phase::Draining);
    assert!(read_all(&running).contains("data: [DONE]"));
    assert!(read_all(&waiting).contains("\"finish_reason\":\"length\""));
    drop(kept);
    assert!(server.stop(), "nothing was cut off");
    assert!(std::net::TcpStream::connect(server.address).is_err(), "no connections are taken any more");
}
