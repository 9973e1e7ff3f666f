//! The messages of OpenAI's interface, as templates expect them.

use super::{Conversation, TemplateError};
use serde_json::{Map, Value};

/// Who may speak.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// What templates look at in messages. Whatever else a client sends is not carried along.
const KNOWN: [&str; 11] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "tool_plan",
    "reasoning_content",
    "reasoning",
    "thinking",
    "documents",
    "tools",
];

/// Contents as text, arguments of calls as objects.
pub(super) fn normal(conversation: &Conversation) -> Result<Conversation, TemplateError> {
    let mut normal = conversation.clone();
    for (i, message) in normal.messages.iter_mut().enumerate() {
        let Value::Object(fields) = message else { return Err(wrong(format!("messages[{i}]"), "it is no object")) };
        // A template writes the role between its own characters, so that a role could complete a control token: only known ones are taken.
        if !fields.get("role").and_then(Value::as_str).is_some_and(|role| ROLES.contains(&role)) {
            return Err(wrong(format!("messages[{i}].role"), &format!("one of {} is needed", ROLES.join(", "))));
        }
        fields.retain(|name, _| KNOWN.contains(&name.as_str()));
        let content = content(i, fields.get("content"))?;
        fields.insert("content".into(), Value::String(content));
        arguments(i, fields)?;
    }
    Ok(normal)
}

fn wrong(field: String, why: &str) -> TemplateError {
    TemplateError::Message { field, why: why.into() }
}

/// Templates print what they are given: nothing has to be an empty text, and parts have to be one.
fn content(i: usize, value: Option<&Value>) -> Result<String, TemplateError> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let part = |(k, part): (usize, &Value)| {
                let field = format!("messages[{i}].content[{k}]");
                match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
                    (Some("text" | "input_text" | "output_text"), Some(text)) => Ok(text.to_string()),
                    (Some("text"), None) => Err(wrong(format!("{field}.text"), "a text is needed")),
                    _ => Err(wrong(format!("{field}.type"), "only parts of type \"text\" are supported")),
                }
            };
            Ok(parts.iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(_) => Err(wrong(format!("messages[{i}].content"), "a text or a list of parts is needed")),
    }
}

/// OpenAI's interface has the arguments of a call as a text of JSON, templates take them as an object. Arguments that are none, since
/// they were cut off, stay a text.
fn arguments(i: usize, message: &mut Map<String, Value>) -> Result<(), TemplateError> {
    let Some(calls) = message.get_mut("tool_calls").filter(|calls| !calls.is_null()) else { return Ok(()) };
    let field = format!("messages[{i}].tool_calls");
    let Value::Array(calls) = calls else { return Err(wrong(field, "a list of calls is needed")) };
    for (k, call) in calls.iter_mut().enumerate() {
        let function = call.get_mut("function").and_then(Value::as_object_mut);
        let Some(function) = function.filter(|function| function.get("name").is_some_and(Value::is_string)) else {
            return Err(wrong(format!("{field}[{k}].function"), "an object with a name is needed"));
        };
        let arguments = function.entry("arguments").or_insert(Value::Null);
        match arguments.as_str().map(serde_json::from_str) {
            Some(Ok(object @ Value::Object(_))) => *arguments = object,
            // a call without arguments
            None if arguments.is_null() => *arguments = Value::Object(Map::new()),
            _ => {}
        }
        if let Some(call) = call.as_object_mut() {
            call.entry("type").or_insert("function".into());
        }
    }
    Ok(())
}
