//! Answers that have a form: schemas, grammars, calls of functions.

#[path = "../common/mod.rs"]
mod common;
mod schemas;
mod tools;

use common::*;
use serde_json::{Value, json};

/// A message of somebody.
fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// The form of a schema, as `response_format` has it.
fn json_schema(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}})
}

/// A person: a schema whose answers cannot go on for long.
fn person() -> Value {
    json!({"type": "object", "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["king", "prophet", "déjà vu 🦙"]},
    }, "required": ["name", "age", "kind"], "additionalProperties": false})
}

fn is_person(value: &Value) -> bool {
    let fields = value.as_object().unwrap();
    let name = value["name"].as_str().unwrap().chars().count();
    fields.len() == 3
        && (1..=8).contains(&name)
        && value["age"].as_u64().is_some_and(|age| age <= 150)
        && ["king", "prophet", "déjà vu 🦙"].contains(&value["kind"].as_str().unwrap())
}
