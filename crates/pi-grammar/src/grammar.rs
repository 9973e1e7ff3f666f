//! The forms that an answer can be asked to have.

use crate::{GrammarError, gbnf};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

/// Most bytes of a form.
const LONGEST: usize = 1 << 19;

/// White space between the parts of JSON: none, a blank, or the beginning of a line. A model that writes on and on must come to an end.
const JSON_SPACE: &str = r" |\r?\n[ \t]{0,32}";

/// What an answer must look like, from its first character to its last.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// A JSON value of this schema (draft 2020-12; `$ref` within the schema only). Properties come in the schema's order.
    Schema {
        /// The schema.
        schema: Value,
        /// What no grammar can express (`not`, `if`, `uniqueItems`, overlapping `oneOf` and the like, unknown formats) is an error.
        /// Otherwise it is passed over, and such answers may not match.
        strict: bool,
    },
    /// llama.cpp's grammars: `root ::= …`.
    Gbnf(String),
    /// llguidance's kind of Lark: `start: …`.
    Lark(String),
    /// A regular expression, in the language of Rust's `regex` crate, for the whole answer.
    Regex(String),
}

impl Grammar {
    /// Any JSON object.
    pub fn any_object() -> Self {
        Self::Schema { schema: json!({"type": "object"}), strict: false }
    }

    /// A text in the usual way: Lark if it begins with `%llguidance`, otherwise GBNF.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.trim_start().starts_with("%llguidance") { Self::Lark(text) } else { Self::Gbnf(text) }
    }

    pub(crate) fn lower(&self) -> Result<TopLevelGrammar, GrammarError> {
        let bytes = match self {
            Self::Schema { schema, .. } => schema.to_string().len(),
            Self::Gbnf(text) | Self::Lark(text) | Self::Regex(text) => text.len(),
        };
        if bytes > LONGEST {
            return Err(GrammarError::TooMuch(format!("it has {bytes} bytes, at most {LONGEST} are taken")));
        }
        Ok(match self {
            Self::Schema { schema, strict } => TopLevelGrammar::from_json_schema(with_options(schema, *strict)?),
            Self::Gbnf(text) => TopLevelGrammar::from_lark(gbnf::to_lark(text)?),
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Self::Regex(text) if text.is_empty() => {
                return Err(GrammarError::Meaning("an empty expression matches nothing but an empty answer".into()));
            }
            Self::Regex(text) => TopLevelGrammar::from_grammar(GrammarWithLexer::from_regex(text)),
        })
    }
}

/// A schema as a part of a [`Grammar::Lark`].
///
/// # Errors
/// If it is no object and no truth value.
pub fn json_block(schema: &Value, strict: bool) -> Result<String, GrammarError> {
    Ok(format!("%json {}", with_options(schema, strict)?))
}

/// The schema with what llguidance is to make of it. Whatever a schema says of that itself is dropped.
fn with_options(schema: &Value, strict: bool) -> Result<Value, GrammarError> {
    let mut schema = match schema {
        Value::Object(fields) => fields.clone(),
        Value::Bool(true) => serde_json::Map::new(),
        Value::Bool(false) => return Err(GrammarError::Meaning("no value matches the schema false".into())),
        _ => return Err(GrammarError::Meaning("a schema is an object or a truth value".into())),
    };
    patterns(&schema)?;
    let options = json!({"whitespace_pattern": JSON_SPACE, "coerce_one_of": !strict, "lenient": !strict});
    schema.insert("x-guidance".into(), options);
    Ok(Value::Object(schema))
}

/// Looks for patterns that the standard refuses and the `regex` crate takes: those that repeat what is no character.
fn patterns(schema: &serde_json::Map<String, Value>) -> Result<(), GrammarError> {
    for (key, value) in schema {
        match value {
            Value::String(pattern) if key == "pattern" && repeats_nothing(pattern) => {
                let shown: String = pattern.chars().take(60).collect();
                return Err(GrammarError::Meaning(format!("pattern {shown:?}: there is nothing to repeat")));
            }
            Value::Object(_) if matches!(&**key, "const" | "default") => {}
            Value::Array(_) if matches!(&**key, "enum" | "examples") => {}
            Value::Object(inner) => patterns(inner)?,
            Value::Array(all) => all.iter().filter_map(Value::as_object).try_for_each(patterns)?,
            _ => {}
        }
    }
    Ok(())
}

fn repeats_nothing(pattern: &str) -> bool {
    let (mut class, mut escaped, mut nothing) = (false, false, true);
    for (i, c) in pattern.char_indices() {
        let is_group = c == '?' && pattern[..i].ends_with('(');
        match c {
            _ if escaped => (escaped, nothing) = (false, false),
            '\\' => escaped = true,
            ']' if class => class = false,
            _ if class => {}
            '[' => (class, nothing) = (true, false),
            '*' | '+' | '?' | '{' if nothing && !is_group => return true,
            '^' | '$' | '(' | '|' => nothing = true,
            _ => nothing = is_group,
        }
    }
    false
}
