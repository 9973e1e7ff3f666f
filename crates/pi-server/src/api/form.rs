//! The form that an answer must have: `response_format`, `grammar`, `json_schema`.

use crate::{
    error::ApiError,
    fields::{Fields, wrong},
    server::App,
    state::Model,
};
use pi_grammar::{Grammar, GrammarError, Matcher};
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

/// A form, and the field that it came from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Form {
    pub field: &'static str,
    pub grammar: Grammar,
}

/// Waits until there is room to compile a form, if there is one. Few are compiled at a time: one may take as long as a second, and
/// prompts and long bodies need threads as well.
pub(super) async fn turn(app: &App, wanted: bool) -> Option<OwnedSemaphorePermit> {
    if wanted { app.compiling.clone().acquire_owned().await.ok() } else { None }
}

/// The form that a request asks for, if it does.
///
/// # Errors
/// 400 naming the field.
pub(super) fn read(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let all = [response_format(fields)?, json_schema(fields)?, grammar(fields)?];
    let mut forms = all.into_iter().flatten();
    let form = forms.next();
    match forms.next() {
        Some(second) => {
            Err(ApiError::field(second.field, "an answer cannot have two forms: only one of the fields is taken"))
        }
        None => Ok(form),
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    const FIELD: &str = "response_format";
    let format = match fields.take(FIELD) {
        None => return Ok(None),
        Some(Value::Object(format)) => format,
        Some(other) => return Err(wrong(FIELD, "an object", &other)),
    };
    let form = |field, schema: Value, strict| Some(Form { field, grammar: Grammar::Schema { schema, strict } });
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => match format.get("schema") {
            None | Some(Value::Null) => Ok(Some(Form { field: FIELD, grammar: Grammar::any_object() })),
            Some(schema) => Ok(form("response_format.schema", schema.clone(), false)),
        },
        Some("json_schema") => {
            let Some(Value::Object(given)) = format.get("json_schema") else {
                return Err(ApiError::field("response_format.json_schema", "expected an object"));
            };
            let schema = given.get("schema").filter(|schema| !schema.is_null());
            let field = "response_format.json_schema.schema";
            let schema = schema.ok_or_else(|| ApiError::field(field, "expected a JSON schema, got nothing"))?;
            Ok(form(field, schema.clone(), strict(given)?))
        }
        _ => Err(ApiError::field("response_format.type", "expected text, json_object or json_schema")),
    }
}

fn strict(given: &Map<String, Value>) -> Result<bool, ApiError> {
    match given.get("strict") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(strict)) => Ok(*strict),
        Some(other) => Err(wrong("response_format.json_schema.strict", "true or false", other)),
    }
}

/// A schema as llama.cpp's server takes it.
fn json_schema(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let form = |schema| Form { field: "json_schema", grammar: Grammar::Schema { schema, strict: false } };
    Ok(fields.take("json_schema").map(form))
}

/// A text: GBNF, or Lark if it begins with `%llguidance`; or an object that says what it is.
fn grammar(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    const FIELD: &str = "grammar";
    let form = |grammar| Ok(Some(Form { field: FIELD, grammar }));
    match fields.take(FIELD) {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => form(Grammar::text(text)),
        Some(Value::Object(given)) => {
            let Some(text) = given.get("definition").and_then(Value::as_str) else {
                return Err(ApiError::field("grammar.definition", "expected a string"));
            };
            match given.get("syntax").and_then(Value::as_str) {
                Some("gbnf") => form(Grammar::Gbnf(text.into())),
                Some("lark") => form(Grammar::Lark(text.into())),
                Some("regex") => form(Grammar::Regex(text.into())),
                _ => Err(ApiError::field("grammar.syntax", "expected gbnf, lark or regex")),
            }
        }
        Some(other) => Err(wrong(FIELD, "a string, or an object with syntax and definition", &other)),
    }
}

impl Form {
    /// Compiles it, which may take a while. Returns the field as well.
    pub(super) fn compile(&self, model: &Model) -> Result<(&'static str, Matcher), ApiError> {
        let compiler = model.compiler().map_err(|e| refused(self.field, e))?;
        let matcher = compiler.compile(&self.grammar).map_err(|e| refused(self.field, &e))?;
        Ok((self.field, matcher))
    }
}

/// What is wrong with a form, as an error of its field.
pub(super) fn refused(field: impl Into<String>, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Vocabulary(_) => ApiError::unsupported(field, error.to_string()),
        error => ApiError::field(field, error.to_string()),
    }
}
