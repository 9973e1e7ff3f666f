//! The messages of a chat, brought into one form: content is a string wherever there is any.

use crate::{error::ApiError, fields::wrong};
use serde_json::{Map, Value};

/// Checks the messages. Lists of text parts become one text; fields that are not known stay as they are.
///
/// # Errors
/// 400 naming the message and its field.
pub(super) fn read(messages: Option<Value>) -> Result<Vec<Value>, ApiError> {
    let expected = "an array of at least one message";
    match messages {
        Some(Value::Array(all)) if !all.is_empty() => {
            all.into_iter().enumerate().map(|(i, message)| one(&format!("messages[{i}]"), message)).collect()
        }
        Some(Value::Array(_)) => Err(ApiError::field("messages", format!("expected {expected}, got none"))),
        Some(other) => Err(wrong("messages", expected, &other)),
        None => Err(ApiError::field("messages", format!("expected {expected}, got nothing"))),
    }
}

fn one(name: &str, message: Value) -> Result<Value, ApiError> {
    let Value::Object(mut message) = message else { return Err(wrong(name, "an object", &message)) };
    let role = match message.get("role") {
        Some(Value::String(role)) if !role.is_empty() => role.clone(),
        Some(other) => return Err(wrong(&format!("{name}.role"), "a role", other)),
        None => return Err(ApiError::field(format!("{name}.role"), "expected a role, got nothing")),
    };
    let calls = match message.get("tool_calls") {
        None | Some(Value::Null) => false,
        Some(Value::Array(calls)) => !calls.is_empty(),
        Some(other) => return Err(wrong(&format!("{name}.tool_calls"), "an array", other)),
    };
    let at = format!("{name}.content");
    let content = match message.remove("content") {
        Some(Value::String(text)) => Value::String(text),
        Some(Value::Array(parts)) => Value::String(joined(&at, &parts)?),
        // calls of tools stand without a text; some clients send an assistant's empty answer in this way as well
        None | Some(Value::Null) if calls => Value::Null,
        None | Some(Value::Null) if role == "assistant" => Value::String(String::new()),
        None | Some(Value::Null) => return Err(ApiError::field(at, "expected a string or an array of text parts")),
        Some(other) => return Err(wrong(&at, "a string or an array of text parts", &other)),
    };
    message.insert("content".into(), content);
    Ok(Value::Object(message))
}

fn joined(name: &str, parts: &[Value]) -> Result<String, ApiError> {
    let text = |(i, part): (usize, &Value)| {
        let name = format!("{name}[{i}]");
        let part: &Map<String, Value> = part.as_object().ok_or_else(|| wrong(&name, "an object", part))?;
        match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
            (Some("text"), Some(text)) => Ok(text.to_string()),
            (Some("text"), None) => Err(ApiError::field(format!("{name}.text"), "expected a string")),
            (Some(other), _) => {
                let message = format!("expected \"text\", the only kind this model reads, got {other:?}");
                Err(ApiError::field(format!("{name}.type"), message))
            }
            (None, _) => Err(ApiError::field(format!("{name}.type"), "expected \"text\"")),
        }
    };
    parts.iter().enumerate().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn odd_but_meant_messages_are_taken() {
        // H15
        let got = read(Some(json!([
            {"role": "system", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "x": [1]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "c", "tool_call_id": null},
            {"role": "assistant"},
        ])))
        .unwrap();
        assert_eq!(got[1], json!({"role": "user", "content": "ab", "x": [1]}));
        assert_eq!((&got[2]["content"], &got[4]["content"]), (&Value::Null, &json!("")));
    }

    #[test]
    fn wrong_messages_are_refused_by_their_place() {
        for (messages, param) in [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": 7, "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user", "content": "x"}, {"role": "user"}]), "messages[1].content"),
            (json!([{"role": "user", "content": 5}]), "messages[0].content"),
            (json!([{"role": "user", "content": ["x"]}]), "messages[0].content[0]"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0].type"),
            (json!([{"role": "assistant", "tool_calls": 1}]), "messages[0].tool_calls"),
        ] {
            assert_eq!(read(Some(messages)).unwrap_err().body_json()["error"]["param"], param);
        }
        assert!(read(None).is_err());
    }
}
