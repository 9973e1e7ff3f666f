//! Answers: what they look like, and that they are those of the engine.

mod common;

use common::*;
use pi_engine::{GenerateOptions, SamplingParams, SessionOptions};
use pi_server::ServerOptions;
use serde_json::{Value, json};
use std::ops::ControlFlow;

/// What the engine alone makes of a prompt.
fn alone(prompt: &str, n: usize) -> String {
    let engine = demo();
    let mut session = engine.session(&SessionOptions::default()).unwrap();
    let options = GenerateOptions { max_tokens: Some(n), sampling: SamplingParams::greedy(), ..Default::default() };
    let prompt = engine.encode_prompt(prompt).unwrap();
    session.generate(0, &prompt, &options, &mut |_: &str| ControlFlow::Continue(())).unwrap().text
}

#[test]
fn a_completion_is_the_text_of_the_engine_with_all_of_openais_fields() {
    // P07
    let server = start(options());
    let got = server.complete(json!({}));
    assert_eq!(got["choices"][0]["text"], alone(PROMPT, 24));
    assert_eq!((&got["object"], &got["model"]), (&json!("text_completion"), &json!("demo")));
    assert_eq!(got["choices"][0]["finish_reason"], "length");
    assert_eq!(got["usage"]["prompt_tokens"], 5);
    assert_eq!(got["usage"]["completion_tokens"], 24);
    assert_eq!(got["usage"]["total_tokens"], 29);
    let created = got["created"].as_u64().unwrap();
    assert!((1_700_000_000..10_000_000_000).contains(&created), "seconds, not milliseconds: {created}"); // H14
    assert!(got["id"].as_str().unwrap().starts_with("cmpl-"));
}

#[test]
fn a_chat_answers_as_the_assistant() {
    let server = start(options());
    let body = json!({"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 16});
    let got = server.post("/v1/chat/completions", &body).ok();
    assert_eq!(got["object"], "chat.completion");
    let choice = &got["choices"][0];
    assert_eq!((&choice["message"]["role"], &choice["finish_reason"]), (&json!("assistant"), &json!("length")));
    assert_eq!(choice["message"]["content"], alone(&format!("user: {PROMPT}\nassistant:"), 16));
    // S20
    for n in ["max_tokens", "max_completion_tokens"] {
        let body = with(json!({"messages": body["messages"], "temperature": 0}), json!({n: 3}));
        assert_eq!(server.post("/v1/chat/completions", &body).ok()["usage"]["completion_tokens"], 3);
    }
    // the newer name counts if both are there
    for (old, new) in [(9, 4), (2, 4)] {
        let body = with(body.clone(), json!({"max_tokens": old, "max_completion_tokens": new}));
        assert_eq!(server.post("/v1/chat/completions", &body).ok()["usage"]["completion_tokens"], 4);
        assert_eq!(
            server.complete(json!({"max_tokens": old, "max_completion_tokens": new}))["usage"]["completion_tokens"],
            4
        );
    }
}

#[test]
fn a_stream_has_the_form_that_strict_clients_want() {
    // H14
    let server = start(options());
    let body = json!({
        "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 12,
        "stream_options": {"include_usage": true},
    });
    let chunks = server.stream("/v1/chat/completions", body.clone());
    assert!(chunks.iter().all(|c| c["object"] == "chat.completion.chunk" && c["id"] == chunks[0]["id"]));
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let usage = &chunks[chunks.len() - 1];
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(12)));
    let last = &chunks[chunks.len() - 2];
    assert_eq!((&last["choices"][0]["delta"], &last["choices"][0]["finish_reason"]), (&json!({}), &json!("length")));
    for chunk in &chunks[..chunks.len() - 2] {
        assert_eq!((&chunk["choices"][0]["finish_reason"], &chunk["usage"]), (&Value::Null, &Value::Null));
    }
    let without = server.stream("/v1/chat/completions", with(body, json!({"stream_options": null})));
    assert!(without.iter().all(|c| c.get("usage").is_none() && !c["choices"].as_array().unwrap().is_empty()));
    assert_eq!(joined(&without), joined(&chunks));
}

#[test]
fn streamed_text_is_the_text_that_is_not_streamed() {
    // S15
    let server = start(options());
    let requests = [
        json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 40}),
        json!({"prompt": PROMPT, "temperature": 1, "seed": 7, "max_tokens": 60}),
        json!({"prompt": PROMPT, "temperature": 1.5, "seed": 8, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 80}),
        json!({"prompt": "In the beginning", "temperature": 0, "max_tokens": 60, "stop": ["the", " a"]}),
        json!({"prompt": "x", "seed": 3, "repeat_penalty": 1.3, "max_tokens": 30, "logprobs": 2}),
        json!({"prompt": "", "temperature": 0, "max_tokens": 0}),
    ];
    for body in requests {
        let whole = server.post("/v1/completions", &body).ok();
        let chunks = server.stream("/v1/completions", body.clone());
        assert_eq!(joined(&chunks), whole["choices"][0]["text"].as_str().unwrap(), "{body}");
        let last = &chunks[chunks.len() - 1]["choices"][0];
        assert_eq!(last["finish_reason"], whole["choices"][0]["finish_reason"], "{body}");
        if body.get("logprobs").is_some() {
            for list in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
                let lists = chunks.iter().flat_map(|c| c["choices"][0]["logprobs"][list].as_array());
                let streamed: Vec<&Value> = lists.flatten().collect();
                let whole: Vec<&Value> = whole["choices"][0]["logprobs"][list].as_array().unwrap().iter().collect();
                assert_eq!(streamed, whole, "{list}");
            }
        }
    }
}

#[test]
fn a_stop_string_ends_the_text_before_it_wherever_tokens_are_cut() {
    // S15
    let server = start(options());
    let text = alone(PROMPT, 24);
    for at in (1..text.len() - 3).step_by(2) {
        let (Some(before), Some(stop)) = (text.get(..at), text.get(at..at + 3)) else { continue };
        let before = &before[..text.find(stop).unwrap()];
        let got = server.complete(json!({"stop": stop}));
        assert_eq!(got["choices"][0]["text"], before, "{stop:?}");
        assert_eq!(got["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn log_probabilities_are_those_of_the_unchanged_distribution() {
    // S03
    let server = start(options());
    let bias = json!({"11": -100});
    let chat = json!({
        "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 5,
        "logprobs": true, "top_logprobs": 3,
    });
    let plain = server.post("/v1/chat/completions", &chat).ok();
    let biased = server.post("/v1/chat/completions", &with(chat.clone(), json!({"logit_bias": bias}))).ok();
    assert_eq!(
        plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
        biased["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    );
    let entries = plain["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries.len(), 5);
    let mut text = Vec::new();
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&entry["token"], &entry["logprob"]),
            "greedy: the likeliest"
        );
        let probabilities: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap().exp()).collect();
        assert!(probabilities.is_sorted_by(|a, b| a >= b) && probabilities.iter().sum::<f64>() <= 1.0 + 1e-5);
        text.extend(entry["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8));
    }
    assert_eq!(String::from_utf8(text).unwrap(), plain["choices"][0]["message"]["content"].as_str().unwrap());
    let without = server.post("/v1/chat/completions", &with(chat, json!({"logprobs": false, "top_logprobs": null})));
    assert_eq!(without.ok()["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn both_forms_of_log_probabilities_are_natural_logarithms_of_the_engines_softmax() {
    // S03, S05, S06
    let server = start(options());
    let engine = demo();
    let mut session = engine.session(&SessionOptions::default()).unwrap();
    let logits = session.feed(0, &engine.encode_prompt(PROMPT).unwrap()).unwrap().to_vec();
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&l| f64::from(l - highest).exp()).sum();
    let mut want: Vec<f64> = logits.iter().map(|&l| f64::from(l - highest) - total.ln()).collect();
    want.sort_by(|a, b| b.total_cmp(a));
    let close = |got: &Value, want: f64| assert!((got.as_f64().unwrap() - want).abs() < 1e-3, "{got}, {want}");
    let choice = server.complete(json!({"logprobs": 1, "max_tokens": 3}))["choices"][0].clone();
    let of = |list: &str| choice["logprobs"][list].as_array().unwrap_or_else(|| panic!("{list}: {choice}")).clone();
    let (tokens, own, top) = (of("tokens"), of("token_logprobs"), of("top_logprobs"));
    assert_eq!((tokens.len(), own.len(), top.len(), of("text_offset")[0].clone()), (3, 3, 3, json!(0)));
    close(&own[0], want[0]);
    assert_eq!((top[0].as_object().unwrap().len(), &top[0][tokens[0].as_str().unwrap()]), (1, &own[0]));
    let body = json!({"prompt": PROMPT, "logprobs": 10, "max_tokens": 1, "temperature": 0, "seed": 3});
    let top = server.post("/v1/completions", &body).ok()["choices"][0]["logprobs"]["top_logprobs"][0].clone();
    let mut top: Vec<f64> = top.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).collect();
    top.sort_by(|a, b| b.total_cmp(a));
    assert!(top.len() == 10 && top.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-3), "{top:?}");
}

#[test]
fn the_seed_that_comes_back_gives_the_same_text_again() {
    // S14
    let server = start(options());
    let first = server.complete(json!({"temperature": 1.2}));
    let again = server.complete(json!({"temperature": 1.2, "seed": first["seed"]}));
    assert_eq!(first["choices"], again["choices"]);
    assert_eq!(server.complete(json!({"seed": 5}))["seed"], 5);
    let texts = (0..5).map(|seed| server.complete(json!({"temperature": 1.5, "seed": seed}))["choices"].to_string());
    assert!(texts.collect::<std::collections::BTreeSet<_>>().len() > 1, "seeds matter");
}

#[test]
fn settings_do_what_they_say() {
    let server = start(options());
    let first = |more: Value| server.complete(with(more, json!({"logprobs": 1, "max_tokens": 1})));
    let token = |got: &Value| got["choices"][0]["logprobs"]["tokens"][0].as_str().unwrap().to_string();
    let greedy = token(&first(json!({})));
    let id = server.tokens(&greedy)[0].to_string();
    assert_ne!(token(&first(json!({"logit_bias": {id.clone(): -100}}))), greedy);
    let hot = json!({"temperature": 100, "top_k": 0, "top_p": 1, "min_p": 0});
    for narrow in [json!({"top_k": 1}), json!({"top_p": 0.0001}), json!({"min_p": 1})] {
        for seed in 0..5 {
            let more = with(with(hot.clone(), narrow.clone()), json!({"seed": seed}));
            assert_eq!(token(&first(more)), greedy, "{narrow}");
        }
    }
    let wild: Vec<String> = (0..5).map(|seed| token(&first(with(hot.clone(), json!({"seed": seed}))))).collect();
    assert!(wild.iter().any(|t| *t != greedy), "{wild:?}");
    // whatever comes is held against itself: nothing is said twice
    let got = server.complete(json!({"presence_penalty": 100, "repeat_last_n": -1, "logprobs": 0, "ignore_eos": true}));
    let tokens = got["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
    let once: std::collections::BTreeSet<_> = tokens.iter().map(Value::to_string).collect();
    assert_eq!(once.len(), tokens.len());
    let plain = server.complete(json!({"max_tokens": 200}));
    let frequent = server.complete(json!({"max_tokens": 200, "frequency_penalty": 2, "repeat_last_n": -1}));
    let repeated = server.complete(json!({"max_tokens": 200, "repeat_penalty": 2}));
    assert_ne!(plain["choices"][0]["text"], frequent["choices"][0]["text"]);
    assert_ne!(plain["choices"][0]["text"], repeated["choices"][0]["text"]);
}

#[test]
fn a_text_and_its_tokens_are_the_same_prompt() {
    // H07
    let server = start(options());
    let ids = demo().encode_prompt(PROMPT).unwrap();
    let text = server.complete(json!({}));
    for prompt in [json!(ids), json!([ids]), json!([PROMPT])] {
        assert_eq!(server.complete(json!({"prompt": prompt}))["choices"], text["choices"]);
    }
    let tokens = server.post("/tokenize", &json!({"content": PROMPT, "add_special": true})).ok()["tokens"].clone();
    assert_eq!(tokens, json!(ids));
    let pieces = server.post("/tokenize", &json!({"content": "Hi é", "with_pieces": true})).ok();
    assert!(pieces["tokens"].as_array().unwrap().iter().all(|t| t["id"].is_u64() && t.get("piece").is_some()));
    let plain = server.tokens(PROMPT);
    assert_eq!(server.post("/detokenize", &json!({"tokens": plain})).ok()["content"], PROMPT);
}

#[test]
fn the_small_routes_tell_what_the_server_is() {
    let server = start(ServerOptions { names: vec!["a/b".into(), "c".into()], ..options() });
    let models = server.get("/v1/models").ok();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("a/b"), &json!("c")));
    assert_eq!(server.get("/v1/models/a/b").ok()["object"], "model");
    server.get("/v1/models/none").refused(404);
    let props = server.get("/props").ok();
    assert_eq!((&props["total_slots"], &props["model"]["layers"]), (&json!(4), &json!(6)));
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512); // C01
    assert_eq!((&props["chat_template"], &props["chat_template_preset"]), (&json!(TEMPLATE), &json!(null)));
    server.complete(json!({}));
    let metrics = server.get("/metrics").text;
    for name in ["pi_tokens_per_second", "pi_active_share", "process_resident_memory_bytes", "pi_cache_hits_total"] {
        assert!(metrics.contains(&format!("\n{name} ")), "{name}: {metrics}");
    }
    assert!(metrics.contains("pi_layer_active_share{layer=\"5\"} 0."));
    assert!(metrics.contains("pi_http_responses_total{route=\"/v1/completions\",status=\"200\"} 1"));
    assert_eq!(server.metric("pi_generated_tokens_total"), 24.0);
}

#[test]
fn a_program_can_ask_its_server_without_a_network() {
    let server = start(ServerOptions { api_keys: vec!["key".into()], ..options() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let ask = |path: &str, body: Value| runtime.block_on(server.server.ask(path, &body));
    let body = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 24});
    let (status, answer) = ask("/v1/completions", body.clone());
    assert_eq!((status, answer["choices"][0]["text"].as_str()), (200, Some(&*alone(PROMPT, 24))));
    let (status, answer) = ask("/v1/completions", with(body.clone(), json!({"top_p": "x"})));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("top_p")));
    let (status, answer) = ask("/v1/completions", with(body, json!({"stream": true})));
    assert!(status == 500 && answer["error"]["message"].is_string(), "{answer}");
    assert_eq!(ask("/nowhere", json!({})).0, 404);
    assert_eq!(ask("not a path", json!({})).0, 404);
    until("nobody is left", || server.server.requests() == 0);
}
