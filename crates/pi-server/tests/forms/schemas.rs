use super::*;
use pi_server::ServerOptions;
use std::{
    thread,
    time::{Duration, Instant},
};

fn chat(server: &Running, more: Value) -> Value {
    server.post("/v1/chat/completions", &with(json!({"messages": user(PROMPT), "max_tokens": 200}), more)).ok()
}

#[test]
fn answers_match_their_schema_however_tokens_are_chosen() {
    let server = start(options());
    for more in [
        json!({"temperature": 0}),
        json!({"temperature": 1, "seed": 1, "top_k": 0, "top_p": 1, "min_p": 0}),
        json!({"temperature": 2, "seed": 2, "repeat_penalty": 1.5, "frequency_penalty": 1}),
        json!({"temperature": 0.7, "seed": 3, "top_k": 1, "logit_bias": {"300": 100, "17": -100}}),
        json!({"temperature": 0, "ignore_eos": true}),
        json!({"temperature": 0, "logprobs": true, "top_logprobs": 2}),
    ] {
        let got = chat(&server, with(json!({"response_format": json_schema(person())}), more.clone()));
        let choice = &got["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{more}: {choice}");
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(is_person(&serde_json::from_str(text).unwrap()), "{text}");
        if more.get("logprobs").is_some() {
            // of what the model said, not of what was left of it
            let all = choice["logprobs"]["content"].as_array().unwrap();
            let joined: String = all.iter().map(|t| t["token"].as_str().unwrap()).collect();
            assert_eq!(joined, text);
            let first = &all[0];
            assert!(first["top_logprobs"][0]["logprob"].as_f64() >= first["logprob"].as_f64(), "{first}");
        }
        let body = with(json!({"prompt": PROMPT, "max_tokens": 200, "json_schema": person()}), more.clone());
        let body = with(
            body,
            if more.get("logprobs").is_some() { json!({"logprobs": 1, "top_logprobs": null}) } else { json!({}) },
        );
        let got = server.post("/v1/completions", &body).ok();
        assert!(is_person(&serde_json::from_str(got["choices"][0]["text"].as_str().unwrap()).unwrap()), "{got}");
    }
}

/// Whether a text has a form.
type Fits = fn(&str) -> bool;

#[test]
fn all_kinds_of_forms_are_kept_in_both_kinds_of_answers() {
    let server = start(options());
    let cases: [(Value, Fits); 7] = [
        (
            json!({"response_format": {"type": "json_object", "schema": {"type": "object", "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"], "additionalProperties": false}}}),
            |text| text.contains("\"ok\"") && serde_json::from_str::<Value>(text).is_ok(),
        ),
        (
            json!({"grammar": "root ::= (\"yes\" | \"no\") \" \" [0-9]{2}"}),
            |text| matches!(text.split_once(' '), Some(("yes" | "no", n)) if n.len() == 2),
        ),
        (json!({"grammar": "%llguidance {}\nstart: \"[\" /[a-z]{1,5}/ \"]\""}), |text| {
            text.starts_with('[') && text.ends_with(']')
        }),
        (json!({"grammar": {"syntax": "regex", "definition": "[A-Z][a-z]{2,6}\\."}}), |text| {
            text.ends_with('.') && text.len() < 9
        }),
        (
            json!({"grammar": {"syntax": "gbnf", "definition": "root ::= \"(\" one? \")\" | \"x\"\none ::= \"(x)\""}, "temperature": 0}),
            |text| ["x", "()", "((x))"].contains(&text),
        ),
        (json!({"grammar": {"syntax": "lark", "definition": "start: \"a\" | \"b\""}}), |text| {
            text == "a" || text == "b"
        }),
        (json!({"response_format": {"type": "text"}, "grammar": "", "max_tokens": 4}), |text| !text.is_empty()),
    ];
    for (form, fits) in cases {
        let got = chat(&server, form.clone());
        let text = got["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(fits(text), "{form}: {text}");
        let got =
            server.post("/v1/completions", &with(json!({"prompt": PROMPT, "max_tokens": 200}), form.clone())).ok();
        let text = got["choices"][0]["text"].as_str().unwrap();
        assert!(fits(text), "{form}: {text}");
    }
    // any object may go on and on
    let got = chat(&server, json!({"response_format": {"type": "json_object"}, "max_tokens": 40}));
    let choice = &got["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(
        text.starts_with('{') && (choice["finish_reason"] == "length" || serde_json::from_str::<Value>(text).is_ok()),
        "{choice}"
    );
    let got = chat(&server, json!({"response_format": json_schema(person()), "max_tokens": 3}));
    assert_eq!(
        (&got["choices"][0]["finish_reason"], &got["usage"]["completion_tokens"]),
        (&json!("length"), &json!(3))
    );
}

#[test]
fn a_streamed_answer_of_a_form_is_the_whole_one_and_a_stop_string_still_ends_it() {
    let server = start(options());
    for more in
        [json!({"temperature": 0}), json!({"seed": 5, "temperature": 1.2}), json!({"temperature": 0, "stop": "age"})]
    {
        let body =
            with(json!({"messages": user(PROMPT), "max_tokens": 200, "response_format": json_schema(person())}), more);
        let whole = server.post("/v1/chat/completions", &body).ok();
        let chunks = server.stream("/v1/chat/completions", body.clone());
        assert_eq!(joined(&chunks), whole["choices"][0]["message"]["content"].as_str().unwrap());
        assert_eq!(chunks[chunks.len() - 1]["choices"][0]["finish_reason"], "stop");
        if body.get("stop").is_some() {
            assert!(joined(&chunks).ends_with('"'), "{}", joined(&chunks));
        }
    }
}

#[test]
fn answers_of_forms_in_a_batch_are_the_answers_alone() {
    let one = start(ServerOptions { parallel: 1, ..options() });
    let bodies: Vec<Value> = (0..8)
        .map(|i| {
            let form = match i % 4 {
                0 => json!({"response_format": json_schema(person())}),
                1 => json!({"grammar": "root ::= [a-z ]{20,40} \".\""}),
                2 => json!({"response_format": {"type": "json_object"}}),
                _ => json!({}),
            };
            let body = json!({"prompt": format!("{PROMPT} {i}"), "max_tokens": 30, "seed": i, "temperature": if i < 4 { 0 } else { 1 }, "logprobs": 2});
            with(body, form)
        })
        .collect();
    let ask = |server: &Running, body: &Value| server.post("/v1/completions", body).ok()["choices"][0].clone();
    let alone: Vec<Value> = bodies.iter().map(|body| ask(&one, body)).collect();
    let server = start(ServerOptions { parallel: 8, ..options() });
    let together: Vec<Value> = thread::scope(|scope| {
        let clients: Vec<_> = bodies.iter().map(|body| scope.spawn(|| ask(&server, body))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
}

#[test]
fn wrong_forms_are_refused_with_their_field_and_place_and_soon() {
    // H04, H05, H06
    let server = start(options());
    let schema = |schema: Value| json!({"response_format": json_schema(schema)});
    let field = "response_format.json_schema.schema";
    let cases = [
        (json!({"response_format": "json"}), "response_format"),
        (json!({"response_format": {}}), "response_format.type"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}), field),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}}),
            "response_format.json_schema.strict",
        ),
        (json!({"response_format": {"type": "json_object", "schema": 3}}), "response_format.schema"),
        (schema(json!(7)), field),
        (schema(json!({"type": "thing"})), field),
        (schema(json!({"not": {"type": "null"}})), field),
        (schema(json!({"$ref": "#/nowhere"})), field),
        (schema(json!({"type": "string", "pattern": "(".repeat(100_000)})), field),
        (schema(json!({"type": "string", "pattern": "^+[a-z]$"})), field),
        (schema(json!({"type": "string", "pattern": "^{2}x$"})), field),
        (schema(json!({"type": "string", "pattern": "(?<=x)*"})), field),
        (json!({"json_schema": {"type": "thing"}}), "json_schema"),
        (json!({"grammar": format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000))}), "grammar"),
        (json!({"grammar": "root ::= (\n  \"a\" | ]"}), "grammar"),
        (json!({"grammar": "hello"}), "grammar"),
        (json!({"grammar": 3}), "grammar"),
        (json!({"grammar": {"syntax": "bnf", "definition": "x"}}), "grammar.syntax"),
        (json!({"grammar": {"syntax": "lark"}}), "grammar.definition"),
        (json!({"grammar": {"syntax": "regex", "definition": "("}}), "grammar"),
        (json!({"grammar": "root ::= \"a\"", "response_format": {"type": "json_object"}}), "grammar"),
    ];
    for (form, field) in cases {
        for (path, body) in [
            ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
            ("/v1/chat/completions", json!({"messages": user("a"), "max_tokens": 1})),
        ] {
            let since = Instant::now();
            let reply = server.post(path, &with(body, form.clone()));
            let shown: String = form.to_string().chars().take(200).collect();
            assert_eq!(reply.refused(400), field, "{path} {shown}");
            assert!(since.elapsed() < Duration::from_secs(10), "{shown}");
            assert!(reply.text.len() < 1000, "{shown}");
        }
    }
    let reply = server.post("/v1/completions", &json!({"prompt": "a", "grammar": "root ::= (\n  \"a\" | ]"}));
    assert!(reply.text.contains("GBNF, line 2, column 9"), "{}", reply.text);
    let reply = server.post("/v1/completions", &json!({"prompt": "a", "grammar": "%llguidance {}\nstart: \"a"}));
    assert!(reply.text.contains("Lark, line 2, column "), "{}", reply.text);
    // schemas that would be large, or come to themselves, end no request but their own
    for schema in [
        json!({"type": "string", "maxLength": 1_000_000_000}),
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}}}),
    ] {
        let body = json!({"prompt": "a", "max_tokens": 5, "json_schema": schema});
        let reply = server.post("/v1/completions", &body);
        assert!(matches!(reply.status, 200 | 400), "{}", reply.text);
    }
    server.is_well();
}

#[test]
fn every_pair_of_settings_leaves_an_answer_in_its_form() {
    // S13
    let server = start(options());
    let settings = [
        json!({"temperature": 3}),
        json!({"top_k": 1}),
        json!({"top_p": 0}),
        json!({"min_p": 1}),
        json!({"repeat_penalty": 1.9, "repeat_last_n": -1}),
        json!({"presence_penalty": 2}),
        json!({"frequency_penalty": -2}),
        json!({"logit_bias": {"17": 100, "300": -100}}),
        json!({"ignore_eos": true}),
        json!({"stop": ["never there"]}),
    ];
    let form = json!({"prompt": "x", "grammar": "root ::= (\"yes\" | \"no\") [0-9]", "max_tokens": 20, "seed": 7, "temperature": 1});
    for (i, one) in settings.iter().enumerate() {
        for other in &settings[i..] {
            let more = with(one.clone(), other.clone());
            let got = server.post("/v1/completions", &with(form.clone(), more.clone())).ok();
            let (text, reason) = (got["choices"][0]["text"].as_str().unwrap(), &got["choices"][0]["finish_reason"]);
            let digit = text.strip_prefix("yes").or(text.strip_prefix("no")).unwrap_or_default();
            assert!(
                digit.len() == 1 && digit.bytes().all(|b| b.is_ascii_digit()) && reason == "stop",
                "{more}: {text:?}"
            );
        }
    }
    // a sampler that is not there is not passed over
    let typical = server.post("/v1/completions", &with(form, json!({"typical_p": 0.5})));
    assert_eq!(typical.refused(400), "typical_p");
}

#[test]
fn a_form_that_comes_again_is_compiled_once() {
    let server = start(options());
    let ask = |schema: Value| {
        chat(&server, json!({"temperature": 0, "response_format": json_schema(schema)}))["choices"].clone()
    };
    let first = ask(person());
    for _ in 0..3 {
        assert_eq!(ask(person()), first);
    }
    assert_eq!(server.metric("pi_forms_compiled_total"), 1.0);
    ask(json!({"enum": ["a"]}));
    assert_eq!(server.metric("pi_forms_compiled_total"), 2.0);
}
