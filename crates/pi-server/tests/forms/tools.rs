use super::*;
use pi_server::{Loaded, ServerOptions, chat::ChatTemplate};

/// Templates that take tools, each with its way of calls. What was called before is shown in it.
const HERMES: &str = "{% if tools %}Tools: {% for t in tools %}{{ t.function.name }}: {{ t.function.description }} {% endfor %}\
    Call: <tool_call>{\"name\": N, \"arguments\": A}</tool_call>{{ '\n' }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments}|tojson }}\n</tool_call>{% endfor %}{{ '\n' }}\
    {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
const LLAMA3: &str = "{% if tools %}Respond in the format {\"name\": function name, \"parameters\": dictionary}. {{ tools|tojson }}\n{% endif %}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
const MISTRAL: &str = "{% if tools %}[AVAILABLE_TOOLS] {{ tools|tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
    {% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{{ c.function|tojson }}{% endfor %}]{% endif %}\n{% endfor %}assistant:";

fn serve(template: &str) -> Running {
    serve_with(template, ServerOptions { context: Some(1500), ..options() })
}

fn serve_with(template: &str, options: ServerOptions) -> Running {
    let template = template.to_string();
    let server = start_with(options, move || {
        let engine = demo();
        let chat = ChatTemplate::new(&template, engine.tokenizer().clone()).map(Some);
        Ok(Loaded { engine, chat })
    });
    server.ready();
    server
}

/// Two functions, one of which has no arguments and says nothing of itself.
fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "find_person", "description": "Finds somebody", "parameters": person(), "strict": true}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

fn asked(more: Value) -> Value {
    with(json!({"messages": user("Who is it?"), "tools": tools(), "max_tokens": 300, "temperature": 0}), more)
}

/// The calls of an answer as (name, arguments), after a look at their form.
fn calls(message: &Value) -> Vec<(String, Value)> {
    let all = message["tool_calls"].as_array().unwrap_or_else(|| panic!("{message}"));
    let call = |call: &Value| {
        assert!(call["type"] == "function" && call["id"].as_str().is_some_and(|id| id.len() >= 9), "{call}");
        let arguments = call["function"]["arguments"].as_str().unwrap();
        (call["function"]["name"].as_str().unwrap().to_string(), serde_json::from_str(arguments).unwrap())
    };
    all.iter().map(call).collect()
}

/// The message that the chunks of a stream add up to, as the official clients add them, and why it ended.
fn summed(chunks: &[Value]) -> (Value, Value) {
    let (mut content, mut calls, mut reason) = (String::new(), Vec::<Value>::new(), Value::Null);
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or("");
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = part["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(
                    part["id"].is_string() && part["function"]["name"].is_string(),
                    "the first says what it is: {part}"
                );
                assert_eq!(part["function"]["arguments"], "");
                calls.push(json!({"type": part["type"], "function": part["function"]}));
            } else {
                assert!(part.get("id").is_none() && part["function"].get("name").is_none(), "{part}");
                let text = calls[index]["function"]["arguments"].as_str().unwrap().to_string();
                calls[index]["function"]["arguments"] = (text + part["function"]["arguments"].as_str().unwrap()).into();
            }
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    (json!({"content": content, "tool_calls": calls}), reason)
}

#[test]
fn functions_that_must_be_called_are_with_arguments_that_match_in_every_format() {
    for template in [HERMES, LLAMA3, MISTRAL] {
        let server = serve(template);
        let named = json!({"type": "function", "function": {"name": "find_person"}});
        for more in [
            json!({"tool_choice": named}),
            json!({"tool_choice": named, "temperature": 1.5, "seed": 4}),
            json!({"tool_choice": {"type": "function", "function": {"name": "now"}}}),
            json!({"tool_choice": "required", "parallel_tool_calls": false}),
            json!({"tool_choice": "required", "parallel_tool_calls": false, "temperature": 1.5, "seed": 11}),
            json!({"tool_choice": "required", "temperature": 1, "seed": 2}),
        ] {
            let got = server.post("/v1/chat/completions", &asked(more.clone())).ok();
            let choice = &got["choices"][0];
            if more.get("parallel_tool_calls").is_none() && choice["finish_reason"] == "length" {
                continue; // as many calls as there was room for
            }
            assert_eq!(choice["finish_reason"], "tool_calls", "{more}: {choice}");
            assert_eq!(choice["message"]["content"], Value::Null, "{more}");
            let calls = calls(&choice["message"]);
            assert!(
                more["tool_choice"] == "required" && more.get("parallel_tool_calls").is_none() || calls.len() == 1,
                "{calls:?}"
            );
            for (name, arguments) in calls {
                match &*name {
                    "find_person" => assert!(is_person(&arguments), "{arguments}"),
                    "now" => assert!(arguments.is_object() && more["tool_choice"] != named),
                    other => panic!("{other}"),
                }
            }
            let (message, reason) = summed(&server.stream("/v1/chat/completions", asked(more)));
            assert_eq!(reason, "tool_calls");
            for (a, b) in message["tool_calls"]
                .as_array()
                .unwrap()
                .iter()
                .zip(choice["message"]["tool_calls"].as_array().unwrap())
            {
                assert_eq!(a["function"], b["function"]);
            }
        }
    }
}

#[test]
fn a_model_that_may_call_or_not_answers_with_a_text_and_is_told_of_functions_only_if_it_may_call_them() {
    let server = serve(HERMES);
    let plain = server.post("/v1/chat/completions", &asked(json!({"max_tokens": 40}))).ok();
    let choice = &plain["choices"][0];
    // the demo model knows nothing of calls
    assert!(choice["message"]["content"].as_str().is_some_and(|text| !text.is_empty()), "{choice}");
    assert!(choice["message"].get("tool_calls").is_none());
    assert!(matches!(choice["finish_reason"].as_str(), Some("stop" | "length")));
    let (message, _) = summed(&server.stream("/v1/chat/completions", asked(json!({"max_tokens": 40}))));
    assert_eq!(message["content"], choice["message"]["content"]);
    // with no function to call it is not told of any
    let count = |more: Value| server.post("/v1/chat/completions", &asked(more)).ok()["usage"]["prompt_tokens"].as_u64();
    let none = count(json!({"tool_choice": "none", "max_tokens": 1}));
    assert!(none < count(json!({"max_tokens": 1})));
    assert_eq!(none, count(json!({"tools": [], "max_tokens": 1})));
}

#[test]
fn a_model_that_begins_a_call_by_itself_goes_on_with_a_whole_one() {
    // no token of the announcement is in the prompt: tokens that were there are made unlikely below
    let template = "{% if false %}<tool_call>{\"name\": \"arguments\"}{{ tools }}{% endif %}Once";
    let server = serve(template);
    // What makes it begin: only the tokens that announce a call are likely, one after the other, and each once.
    let vocabulary = server.get("/props").ok()["model"]["vocabulary"].as_u64().unwrap();
    let mut bias: serde_json::Map<String, Value> = (0..vocabulary).map(|id| (id.to_string(), json!(-100))).collect();
    let announcement = server.tokens("<tool_call>");
    assert_eq!(announcement.len(), 7);
    bias.extend(announcement.iter().map(u32::to_string).zip([100, 78, 62, 60, 38, 36, 36].map(Value::from)));
    let more = json!({"logit_bias": bias, "presence_penalty": 2, "repeat_penalty": 1000, "repeat_last_n": -1,
        "parallel_tool_calls": false});
    let called = server.post("/v1/chat/completions", &asked(more.clone())).ok()["choices"][0].clone();
    assert_eq!((&called["finish_reason"], &called["message"]["content"]), (&json!("tool_calls"), &Value::Null));
    let got = calls(&called["message"]);
    assert_eq!(got.len(), 1);
    let (name, arguments) = &got[0];
    assert!(name == "find_person" && is_person(arguments) || name == "now" && arguments == &json!({}), "{called}");
    let (message, reason) = summed(&server.stream("/v1/chat/completions", asked(more)));
    assert_eq!(reason, "tool_calls");
    assert_eq!(message["tool_calls"][0]["function"], called["message"]["tool_calls"][0]["function"]);
}

#[test]
fn an_answer_without_a_call_may_have_a_form_of_its_own() {
    let server = serve(HERMES);
    let got = server.post("/v1/chat/completions", &asked(json!({"response_format": json_schema(person())}))).ok();
    let message = &got["choices"][0]["message"];
    match message["content"].as_str() {
        Some(text) => assert!(is_person(&serde_json::from_str(text).unwrap()), "{text}"),
        None => assert!(!calls(message).is_empty()),
    }
    let refused = |server: &Running, more: Value| server.post("/v1/chat/completions", &asked(more)).refused(400);
    assert_eq!(refused(&server, json!({"grammar": "root ::= \"a\""})), "grammar");
    assert_eq!(
        refused(&server, json!({"response_format": {"type": "json_object"}, "tool_choice": "required"})),
        "response_format"
    );
    assert_eq!(refused(&serve(LLAMA3), json!({"response_format": {"type": "json_object"}})), "response_format");
}

#[test]
fn arguments_that_are_cut_off_come_as_far_as_they_are() {
    let server = serve(HERMES);
    let named = json!({"type": "function", "function": {"name": "find_person"}});
    let whole = server.post("/v1/chat/completions", &asked(json!({"tool_choice": named}))).ok();
    let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
    let whole = whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap().to_string();
    let mut seen = 0;
    for n in (1..tokens).step_by(3) {
        let body = asked(json!({"tool_choice": named, "max_tokens": n}));
        let choice = server.post("/v1/chat/completions", &body).ok()["choices"][0].clone();
        let done = choice["finish_reason"] == "tool_calls";
        assert!(done || choice["finish_reason"] == "length", "{choice}");
        if let Some(call) = choice["message"].get("tool_calls") {
            let part = call[0]["function"]["arguments"].as_str().unwrap();
            assert!(whole.starts_with(part), "{part} of {whole}");
            seen += usize::from(part.len() < whole.len());
        }
        let (streamed, reason) = summed(&server.stream("/v1/chat/completions", body));
        assert_eq!(reason, choice["finish_reason"]);
        let of = |message: &Value| message["tool_calls"].get(0).map(|call| call["function"].clone());
        assert_eq!(of(&streamed), of(&choice["message"]));
    }
    assert!(seen > 2, "{seen}");
}

#[test]
fn what_was_called_and_what_came_of_it_is_told_by_the_template() {
    // H15
    let server = serve(HERMES);
    let history = |arguments: &str| {
        json!([
            {"role": "user", "content": "Who is it?"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "find_person", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "It is the king."},
        ])
    };
    let written = "user: Who is it?\nassistant: <tool_call>\n{\"name\": \"find_person\", \"arguments\": {\"name\": \"x\"}}\n</tool_call>\ntool: It is the king.\nassistant:";
    let got =
        server.post("/v1/chat/completions", &json!({"messages": history("{\"name\": \"x\"}"), "max_tokens": 1})).ok();
    let tokens = server.post("/tokenize", &json!({"content": written, "add_special": true})).ok()["tokens"].clone();
    assert_eq!(got["usage"]["prompt_tokens"], tokens.as_array().unwrap().len() as u64);
    // arguments that were cut off are a text
    server.post("/v1/chat/completions", &json!({"messages": history("{\"name\": \"x"), "max_tokens": 1})).ok();
    // an answer goes back as it came
    let named = json!({"type": "function", "function": {"name": "find_person"}});
    let first = server.post("/v1/chat/completions", &asked(json!({"tool_choice": named}))).ok();
    let message = first["choices"][0]["message"].clone();
    let id = message["tool_calls"][0]["id"].clone();
    let messages = json!([user("Who is it?")[0], message, {"role": "tool", "tool_call_id": id, "content": "the king"}]);
    let second = server.post("/v1/chat/completions", &asked(json!({"messages": messages, "max_tokens": 5}))).ok();
    assert!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(10), "{second}");
    for (calls, field) in [
        (json!(3), "messages[1].tool_calls"),
        (json!([3]), "messages[1].tool_calls[0].function"),
        (json!([{"function": {"arguments": "{}"}}]), "messages[1].tool_calls[0].function"),
    ] {
        let mut messages = history("{}");
        messages[1]["tool_calls"] = calls;
        assert_eq!(server.post("/v1/chat/completions", &json!({"messages": messages})).refused(400), field);
    }
}

#[test]
fn wrong_tools_are_refused_with_their_field() {
    let server = serve(HERMES);
    let one = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    for (more, field) in [
        (json!({"tools": 3}), "tools"),
        (json!({"tools": vec![json!({}); 129]}), "tools"),
        (json!({"tools": ["x"]}), "tools[0].type"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (one(json!({})), "tools[0].function.name"),
        (one(json!({"name": ""})), "tools[0].function.name"),
        (one(json!({"name": "a b"})), "tools[0].function.name"),
        (one(json!({"name": "x".repeat(65)})), "tools[0].function.name"),
        (one(json!({"name": "a", "parameters": 3})), "tools[0].function.parameters"),
        (one(json!({"name": "a", "parameters": {"type": "string"}})), "tools[0].function.parameters.type"),
        (
            one(json!({"name": "a", "parameters": {"properties": {"x": {"type": "thing"}}}})),
            "tools[0].function.parameters",
        ),
        (one(json!({"name": "a", "parameters": {"not": {}}, "strict": true})), "tools[0].function.parameters"),
        (one(json!({"name": "a", "description": 5})), "tools[0].function.description"),
        (one(json!({"name": "a", "strict": 1})), "tools[0].function.strict"),
        (json!({"tools": [tools()[1], tools()[1]]}), "tools[1].function.name"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "nothing"}}}), "tool_choice"),
        (json!({"tool_choice": "required", "tools": []}), "tool_choice"),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls"),
    ] {
        let reply = server.post("/v1/chat/completions", &asked(more.clone()));
        assert_eq!(reply.refused(400), field, "{more}");
    }
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a", "tools": tools()})).refused(400), "tools");
    // templates without tools, and with calls in a form of their own
    let refused = |template: &str, message: &str| {
        let reply = serve(template).post("/v1/chat/completions", &asked(json!({})));
        assert_eq!(reply.refused(400), "tools");
        assert!(reply.text.contains(message), "{}", reply.text);
    };
    refused(TEMPLATE, "does not take tools");
    let odd = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}";
    refused(odd, "--tool-format");
    let told = ServerOptions { tool_format: Some("llama3".parse().unwrap()), context: Some(1500), ..options() };
    let named = json!({"type": "function", "function": {"name": "now"}});
    let got = serve_with(odd, told).post("/v1/chat/completions", &asked(json!({"tool_choice": named}))).ok();
    assert_eq!(got["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "now");
    server.is_well();
}

#[test]
fn a_call_that_is_cut_off_is_no_text_and_one_without_arguments_has_none() {
    let server = serve(HERMES);
    let named = json!({"type": "function", "function": {"name": "now"}});
    for max_tokens in 1..6 {
        let body = asked(json!({"tool_choice": named, "max_tokens": max_tokens}));
        let choice = server.post("/v1/chat/completions", &body).ok()["choices"][0].clone();
        assert!(matches!(choice["message"]["content"].as_str(), None | Some("")), "{choice}");
        assert_eq!(choice["finish_reason"], "length");
    }
    let call = json!({"id": "c", "type": "function", "function": {"name": "now"}});
    let messages = json!([{"role": "user", "content": "When?"}, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"}]);
    server.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1})).ok();
}
