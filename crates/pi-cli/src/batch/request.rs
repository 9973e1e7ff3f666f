//! From a line to a request, from an answer to a line of the output.

use serde_json::{Map, Value, json};

/// What a line has that says nothing else. Sampling and lengths are the server's own defaults.
pub struct Defaults {
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    /// What answers must look like: a field and its value.
    pub form: Option<(&'static str, Value)>,
}

/// Fields that say what an answer must look like.
const FORMS: [&str; 3] = ["response_format", "json_schema", "grammar"];

/// A request for the server.
pub struct Request {
    pub path: &'static str,
    pub body: Value,
}

/// The `id` of a line, null without one, and its request; or what is wrong with it, in OpenAI's form of errors.
pub fn read(bytes: &[u8], defaults: &Defaults) -> (Value, Result<Request, Value>) {
    let mut fields = match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return (Value::Null, Err(wrong(None, "expected a JSON object"))),
        Err(e) => return (Value::Null, Err(wrong(None, &format!("not valid JSON: {e}")))),
    };
    match fields.remove("id") {
        None | Some(Value::Null) => (Value::Null, request(fields, defaults)),
        // a number with more digits than numbers keep would come back as another
        Some(Value::Number(id)) if id.as_f64().is_none_or(|n| id.is_f64() && n.abs() > 9e15) => {
            (Value::Null, Err(wrong(Some("id"), "expected a string or a shorter number")))
        }
        Some(id @ (Value::String(_) | Value::Number(_))) => (id, request(fields, defaults)),
        Some(_) => (Value::Null, Err(wrong(Some("id"), "expected a string or a number"))),
    }
}

fn request(mut fields: Map<String, Value>, defaults: &Defaults) -> Result<Request, Value> {
    let given = |name: &str| fields.get(name).is_some_and(|v| !v.is_null());
    let path = match (given("prompt"), given("messages")) {
        (true, false) => "/v1/completions",
        (false, true) => "/v1/chat/completions",
        (true, true) => return Err(wrong(Some("messages"), "expected either a prompt or messages, got both")),
        (false, false) => return Err(wrong(Some("prompt"), "expected a prompt or messages, got neither")),
    };
    if fields.get("stream").is_some_and(|v| !matches!(v, Value::Null | Value::Bool(false))) {
        return Err(wrong(Some("stream"), "answers are written whole"));
    }
    let (stop, ignore_eos, formed) = (given("stop"), given("ignore_eos"), FORMS.iter().any(|name| given(name)));
    if let (false, Some((name, value))) = (formed, &defaults.form) {
        fields.insert((*name).into(), value.clone());
    }
    if !stop && !defaults.stop.is_empty() {
        fields.insert("stop".into(), json!(defaults.stop));
    }
    if !ignore_eos && defaults.ignore_eos {
        fields.insert("ignore_eos".into(), json!(true));
    }
    Ok(Request { path, body: Value::Object(fields) })
}

/// What is wrong with a line, as the server would say it.
pub fn wrong(param: Option<&str>, why: &str) -> Value {
    let message = param.map_or_else(|| why.to_string(), |name| format!("{name}: {why}"));
    json!({"message": message, "type": "invalid_request_error", "param": param, "code": null})
}

/// The line of the output for an answer of the server: the text, and what belongs to it.
pub fn answered(line: u64, id: &Value, mut answer: Value) -> Value {
    let mut out = json!({"line": line, "id": id});
    let mut choice = answer["choices"][0].take();
    let text = match choice.get("message") {
        Some(message) => message["content"].clone(),
        None => choice["text"].take(),
    };
    out["text"] = text;
    out["finish_reason"] = choice["finish_reason"].take();
    // what only some answers have
    if let Some(calls) = choice.pointer("/message/tool_calls").filter(|v| !v.is_null()) {
        out["tool_calls"] = calls.clone();
    }
    if !choice["logprobs"].is_null() {
        out["logprobs"] = choice["logprobs"].take();
    }
    out["usage"] = answer["usage"].take();
    out["seed"] = answer["seed"].take();
    out
}

/// The line of the output for a request without an answer.
pub fn refused(line: u64, id: &Value, error: Value) -> Value {
    json!({"line": line, "id": id, "error": error})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Defaults {
        Defaults { stop: vec!["END".into()], ignore_eos: true, form: None }
    }

    #[test]
    fn a_line_becomes_a_request_with_the_defaults_it_does_not_change() {
        let (id, request) = read(br#"{"id": 7, "prompt": "a", "seed": 1}"#, &defaults());
        let request = request.ok().unwrap();
        assert_eq!((id, request.path), (json!(7), "/v1/completions"));
        assert_eq!(request.body, json!({"prompt": "a", "seed": 1, "stop": ["END"], "ignore_eos": true}));
        let (id, request) = read(br#"{"messages": [], "stop": "x", "ignore_eos": false}"#, &defaults());
        let request = request.ok().unwrap();
        assert_eq!((id, request.path), (Value::Null, "/v1/chat/completions"));
        assert_eq!(request.body, json!({"messages": [], "stop": "x", "ignore_eos": false}));
    }

    #[test]
    fn the_form_of_answers_is_that_of_the_line_or_else_that_of_all() {
        let all = Defaults { stop: Vec::new(), ignore_eos: false, form: Some(("grammar", json!("root ::= \"a\""))) };
        let body = |line: &str| read(line.as_bytes(), &all).1.ok().unwrap().body;
        assert_eq!(body(r#"{"prompt": "a"}"#)["grammar"], "root ::= \"a\"");
        assert_eq!(body(r#"{"prompt": "a", "json_schema": null}"#)["grammar"], "root ::= \"a\"");
        let own = body(r#"{"prompt": "a", "response_format": {"type": "text"}}"#);
        assert_eq!(own, json!({"prompt": "a", "response_format": {"type": "text"}}));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said_with_the_fields_name_and_its_id() {
        for (line, id, param) in [
            (r#"{"id": "a"}"#, json!("a"), json!("prompt")),
            (r#"{"id": "b", "prompt": "x", "messages": []}"#, json!("b"), json!("messages")),
            (r#"{"prompt": "x", "stream": true}"#, Value::Null, json!("stream")),
            (r#"{"id": 12345678901234567890123, "prompt": "x"}"#, Value::Null, json!("id")),
            (r#"{"id": [], "prompt": "x"}"#, Value::Null, json!("id")),
            ("[]", Value::Null, Value::Null),
            ("{", Value::Null, Value::Null),
            ("\u{fffd}", Value::Null, Value::Null),
        ] {
            let (got, request) = read(line.as_bytes(), &defaults());
            let error = request.err().unwrap();
            assert_eq!((got, &error["param"]), (id, &param), "{line}: {error}");
        }
        assert!(read(b"{\"prompt\": \"\xff\"}", &defaults()).1.is_err());
    }
}
