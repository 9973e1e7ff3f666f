//! Bodies in which any known field has a value of any kind.

use crate::common::*;
use pi_engine::Engine;
use pi_server::ServerOptions;
use pi_testkit::TinyModel;
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use serde_json::{Map, Value, json};
use std::cell::Cell;

/// What the routes know, and what some server knows.
pub const FIELDS: [&str; 48] = [
    "prompt",
    "messages",
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stream",
    "stream_options",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "n",
    "best_of",
    "echo",
    "suffix",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "json_schema",
    "grammar",
    "guided_json",
    "cache_prompt",
    "ignore_eos",
    "add_generation_prompt",
    "chat_template_kwargs",
    "reasoning_effort",
    "modalities",
    "metadata",
    "store",
    "service_tier",
    "user",
    "content",
    "tokens",
    "with_pieces",
    "add_special",
    "parse_special",
];

/// Names and words that mean something deeper inside.
const WORDS: [&str; 38] = [
    "role",
    "content",
    "name",
    "type",
    "text",
    "function",
    "arguments",
    "tool_calls",
    "tool_call_id",
    "id",
    "parameters",
    "properties",
    "required",
    "items",
    "enum",
    "anyOf",
    "$ref",
    "#",
    "pattern",
    "schema",
    "strict",
    "json_schema",
    "json_object",
    "object",
    "array",
    "string",
    "integer",
    "include_usage",
    "system",
    "user",
    "assistant",
    "tool",
    "auto",
    "none",
    "<|im_start|>",
    "0",
    "5",
    "99999999",
];

fn any_value() -> impl Strategy<Value = Value> {
    let numbers = [json!(0), json!(1), json!(-1), json!(2.5), json!(1e308), json!(u64::MAX), json!(i64::MIN), json!(7)];
    let texts = ["", "a", "\u{0}", "\u{fdd0}", "😀", "{", "[[", "root ::= \"a\"", "(a*)*", "null"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        select(numbers.to_vec()),
        any::<f64>().prop_map(Value::from),
        select(texts.to_vec()).prop_map(Value::from),
        select(WORDS.to_vec()).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = prop_oneof![4 => select(WORDS.to_vec()).prop_map(String::from), 1 => ".{0,4}"];
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((name, inner), 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// A message, a tool or a format that is almost right.
fn almost_right() -> impl Strategy<Value = (&'static str, Value)> {
    let message = (select(vec!["system", "user", "assistant", "tool", "function", "x"]), any_value(), any_value());
    let messages = vec(message, 0..4).prop_map(|all| {
        let one = |(role, content, calls): (&str, Value, Value)| {
            let calls = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": calls}}]);
            match role {
                "assistant" => json!({"role": role, "content": content, "tool_calls": calls}),
                _ => json!({"role": role, "content": content}),
            }
        };
        ("messages", all.into_iter().map(one).collect())
    });
    let tools = any_value()
        .prop_map(|schema| ("tools", json!([{"type": "function", "function": {"name": "f", "parameters": schema}}])));
    let format = any_value().prop_map(|schema| {
        ("response_format", json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}))
    });
    prop_oneof![messages, tools, format]
}

#[test]
fn no_value_of_any_field_is_more_than_a_refusal() {
    let options = ServerOptions { context: Some(96), parallel: 2, max_tokens: Some(6), ..options() };
    let server =
        start_with(options, || Ok(loaded(Engine::builder().threads(1).load(&TinyModel::default().file()).unwrap())));
    server.ready();
    let good = [
        ("/v1/completions", json!({"prompt": [5, 6, 7]})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
        ("/tokenize", json!({"content": "a"})),
        ("/detokenize", json!({"tokens": [20]})),
    ];
    let field = prop_oneof![
        3 => (select(FIELDS.to_vec()), any_value()),
        1 => almost_right(),
    ];
    let requests = (select(vec![0, 0, 1, 1, 1, 2, 3]), vec(field, 0..5));
    let (answered, refused) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&requests, |(route, fields)| {
        let (path, mut body) = good[route].clone();
        let changes: Map<String, Value> = fields.into_iter().map(|(name, value)| (name.into(), value)).collect();
        body.as_object_mut().unwrap().extend(changes);
        let reply = server.post(path, &body);
        match reply.status {
            200 => answered.set(answered.get() + 1),
            400 => {
                let error = &reply.json()["error"];
                prop_assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{path} {body}: {error}");
                prop_assert!(error["param"].is_string(), "{path} {body}: the field is named: {error}");
                refused.set(refused.get() + 1);
            }
            status => prop_assert!(false, "{path} {body}: {status}: {}", reply.text),
        }
        // in a stream a failure would be an event behind a good status
        prop_assert!(!reply.text.contains("data: {\"error\""), "{path} {body}: {}", reply.text);
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
    let (answered, refused) = (answered.get(), refused.get());
    assert!(answered > 50 && refused > 50, "both happen: {answered} and {refused}");
    assert_eq!(server.post("/v1/completions", &good[0].1).status, 200);
    until("nobody is left", || server.server.requests() == 0);
}
