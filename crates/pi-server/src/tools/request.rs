//! `tools`, `tool_choice` and `parallel_tool_calls` of a request.

use crate::{
    error::ApiError,
    fields::{Fields, wrong},
};
use serde_json::{Map, Value, json};

/// Most functions of a request, as many as OpenAI takes.
const MOST: usize = 128;
/// Longest name of a function.
const NAME: usize = 64;

/// Whether functions are to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// As the model likes.
    Auto,
    /// One at least.
    Required,
    /// This one, by its place.
    Named(usize),
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Function {
    pub name: String,
    /// A JSON schema of an object.
    pub parameters: Map<String, Value>,
    pub strict: bool,
}

/// What may be called, and whether it must be. There is at least one function.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tools {
    pub functions: Vec<Function>,
    pub choice: Choice,
    /// Whether an answer may have several calls.
    pub parallel: bool,
    /// The functions as templates expect them.
    pub list: Vec<Value>,
}

/// The functions of a request; `None` if there are none, or none is to be called: then the model is not told of them.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn read(fields: &mut Fields) -> Result<Option<Tools>, ApiError> {
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let choice = fields.take("tool_choice");
    let tools = match fields.take("tools") {
        None => Vec::new(),
        Some(Value::Array(tools)) if tools.len() > MOST => {
            return Err(ApiError::field("tools", format!("expected up to {MOST} tools, got {}", tools.len())));
        }
        Some(Value::Array(tools)) => tools,
        Some(other) => return Err(wrong("tools", "an array", &other)),
    };
    let mut functions: Vec<Function> = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let function = function(tool, i)?;
        if functions.iter().any(|f| f.name == function.name) {
            let field = format!("tools[{i}].function.name");
            return Err(ApiError::field(field, format!("there is a function {} already", function.name)));
        }
        functions.push(function);
    }
    let Some(choice) = chosen(choice, &functions)? else { return Ok(None) };
    let list = functions.iter().zip(&tools).map(|(f, tool)| described(f, tool)).collect();
    Ok((!functions.is_empty()).then_some(Tools { functions, choice, parallel, list }))
}

fn function(tool: &Value, i: usize) -> Result<Function, ApiError> {
    let field = format!("tools[{i}]");
    match tool.get("type").map(|kind| kind.as_str()) {
        None | Some(Some("function")) if tool.is_object() => {}
        _ => return Err(ApiError::unsupported(field + ".type", "only tools of type \"function\" are supported")),
    }
    let field = field + ".function";
    let Some(function) = tool.get("function").and_then(Value::as_object) else {
        return Err(ApiError::field(field, "expected an object"));
    };
    let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    let name = function.get("name").and_then(Value::as_str).filter(|n| (1..=NAME).contains(&n.len()) && is_name(n));
    let Some(name) = name else {
        let expected = format!("expected 1 to {NAME} letters, digits, underscores, dashes and dots");
        return Err(ApiError::field(field + ".name", expected));
    };
    if function.get("description").is_some_and(|text| !text.is_string() && !text.is_null()) {
        return Err(ApiError::field(field + ".description", "expected a string"));
    }
    let mut parameters = match function.get("parameters") {
        // nothing is said of parameters: there are none
        None | Some(Value::Null) => Map::from_iter([("additionalProperties".to_string(), Value::Bool(false))]),
        Some(Value::Object(schema)) => schema.clone(),
        Some(_) => return Err(ApiError::field(field + ".parameters", "expected a JSON schema, which is an object")),
    };
    match parameters.get("type").map(Value::as_str) {
        None => _ = parameters.insert("type".into(), "object".into()),
        Some(Some("object")) => {}
        Some(_) => return Err(ApiError::field(field + ".parameters.type", "expected \"object\"")),
    }
    let strict = match function.get("strict") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(strict)) => *strict,
        Some(_) => return Err(ApiError::field(field + ".strict", "expected true or false")),
    };
    Ok(Function { name: name.into(), parameters, strict })
}

/// What a template sees: templates print what they are given, so nothing is missing.
fn described(function: &Function, tool: &Value) -> Value {
    let description = tool["function"].get("description").and_then(Value::as_str).unwrap_or_default();
    let mut parameters = function.parameters.clone();
    parameters.entry("properties").or_insert_with(|| json!({}));
    let function = json!({"name": function.name, "description": description, "parameters": parameters});
    json!({"type": "function", "function": function})
}

/// `None`: no function is to be called.
fn chosen(choice: Option<Value>, functions: &[Function]) -> Result<Option<Choice>, ApiError> {
    let needed = |choice| match functions {
        [] => Err(ApiError::field("tool_choice", "expected only together with tools")),
        _ => Ok(Some(choice)),
    };
    let Some(choice) = choice else { return Ok(Some(Choice::Auto)) };
    match choice.as_str() {
        Some("auto") => return Ok(Some(Choice::Auto)),
        Some("none") => return Ok(None),
        Some("required") => return needed(Choice::Required),
        _ => {}
    }
    let name = choice.pointer("/function/name").and_then(Value::as_str);
    let Some(name) = name.filter(|_| choice["type"] == "function") else {
        let expected = "none, auto, required or {\"type\": \"function\", \"function\": {\"name\": …}}";
        return Err(wrong("tool_choice", expected, &choice));
    };
    match functions.iter().position(|f| f.name == name) {
        Some(place) => Ok(Some(Choice::Named(place))),
        None => Err(ApiError::field("tool_choice", format!("there is no function {name:?} in tools"))),
    }
}
