//! The forms that an answer can be asked to have.

use crate::{GrammarError, gbnf};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

/// Most bytes of a grammar or an expression: what these may say for each byte costs more than a schema.
const LONGEST: usize = 1 << 15;
/// Most bytes of a schema.
const LONGEST_SCHEMA: usize = 1 << 19;
/// Most schemas in a schema.
const MOST_SCHEMAS: usize = 3000;
/// Most properties of an object, and most alternatives.
const MOST_ENTRIES: usize = 1000;
/// Where bounds of numbers are cut, which the standard does not limit: an answer within these is within those.
const FARTHEST: f64 = 9e18;
/// Largest and smallest numbers that others can be asked to be a multiple of.
const FACTORS: std::ops::RangeInclusive<f64> = 1e-8..=1e8;

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
    /// The same with schemas: `@NAME` in it stands for JSON of the schema of that name.
    LarkWithSchemas {
        /// The text.
        lark: String,
        /// What it names.
        schemas: Vec<Part>,
    },
    /// A regular expression, in the language of Rust's `regex` crate, for the whole answer.
    Regex(String),
}

/// A schema that is a part of a grammar.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Letters, digits and underscores, a letter first.
    pub name: String,
    /// The schema.
    pub schema: Value,
    /// As in [`Grammar::Schema`].
    pub strict: bool,
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
        let text = |text: &str| within(text.len(), LONGEST);
        let schema = |schema: &Value| within(schema.to_string().len(), LONGEST_SCHEMA);
        match self {
            Self::Schema { schema: one, .. } => schema(one)?,
            Self::Gbnf(all) | Self::Lark(all) | Self::Regex(all) => text(all)?,
            Self::LarkWithSchemas { lark, schemas } => {
                within(lark.len(), LONGEST_SCHEMA)?;
                within(schemas.iter().map(|part| part.schema.to_string().len()).sum(), LONGEST_SCHEMA)?;
            }
        }
        Ok(match self {
            Self::Schema { schema, strict } => TopLevelGrammar::from_json_schema(with_options(schema, *strict)?),
            Self::Gbnf(text) => TopLevelGrammar::from_lark(gbnf::to_lark(text)?),
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Self::LarkWithSchemas { lark, schemas } => {
                let mut all = TopLevelGrammar::from_lark(lark.clone());
                for Part { name, schema, strict } in schemas {
                    let schema = with_options(schema, *strict)?;
                    all.grammars.push(GrammarWithLexer {
                        name: Some(name.clone()),
                        ..GrammarWithLexer::from_json_schema(schema)
                    });
                }
                all
            }
            Self::Regex(text) if text.is_empty() => {
                return Err(GrammarError::Meaning("an empty expression matches nothing but an empty answer".into()));
            }
            Self::Regex(text) => TopLevelGrammar::from_grammar(GrammarWithLexer::from_regex(text)),
        })
    }
}

fn within(bytes: usize, most: usize) -> Result<(), GrammarError> {
    match bytes <= most {
        true => Ok(()),
        false => Err(GrammarError::TooMuch(format!("it has {bytes} bytes, at most {most} are taken"))),
    }
}

/// The schema with what llguidance is to make of it. Whatever a schema says of that itself is dropped.
fn with_options(schema: &Value, strict: bool) -> Result<Value, GrammarError> {
    let mut schema = match schema {
        Value::Object(fields) => fields.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(GrammarError::Meaning("no value matches the schema false".into())),
        _ => return Err(GrammarError::Meaning("a schema is an object or a truth value".into())),
    };
    tidy(&mut schema, &mut 0)?;
    let options = json!({"whitespace_pattern": JSON_SPACE, "coerce_one_of": !strict, "lenient": !strict});
    schema.insert("x-guidance".into(), options);
    Ok(Value::Object(schema))
}

/// Refuses what is too large, patterns that repeat what is no character (the standard refuses them, the `regex` crate takes them), and
/// numbers that llguidance cannot compute with, or brings them within what it can.
fn tidy(schema: &mut Map<String, Value>, count: &mut usize) -> Result<(), GrammarError> {
    *count += 1;
    let is_data = |key: &str| matches!(key, "enum" | "examples" | "const" | "default" | "required");
    let entries = |value: &Value| value.as_array().map(Vec::len).or(value.as_object().map(Map::len));
    let largest = schema.iter().filter(|(key, _)| !is_data(key)).filter_map(|(_, value)| entries(value)).max();
    if *count > MOST_SCHEMAS || largest > Some(MOST_ENTRIES) {
        let most =
            format!("more than {MOST_SCHEMAS} schemas in it, or {MOST_ENTRIES} properties or alternatives in one");
        return Err(GrammarError::TooMuch(most));
    }
    for (key, value) in schema {
        let number = value.as_f64();
        match (&**key, &mut *value) {
            ("pattern", Value::String(pattern)) if repeats_nothing(pattern) => {
                let shown: String = pattern.chars().take(60).collect();
                return Err(GrammarError::Meaning(format!("pattern {shown:?}: there is nothing to repeat")));
            }
            ("minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum", Value::Number(_)) => {
                let Some(bound) = number.filter(|bound| bound.abs() > FARTHEST) else { continue };
                if key.ends_with("inimum") == (bound > 0.0) {
                    return Err(GrammarError::Meaning(format!("{key}: expected a number up to {FARTHEST:e}")));
                }
                *value = json!(bound.clamp(-FARTHEST, FARTHEST));
            }
            ("multipleOf", Value::Number(_)) if number.is_some_and(|factor| !FACTORS.contains(&factor)) => {
                return Err(GrammarError::Meaning("multipleOf: expected a number from 1e-8 to 1e8".into()));
            }
            // a number without a fraction is an integer, however it is written
            (
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties",
                Value::Number(n),
            ) if n.is_f64() && number.is_some_and(|n| n.fract() == 0.0 && (0.0..=FARTHEST).contains(&n)) => {
                *value = json!(number.unwrap_or_default() as u64);
            }
            // a reference may point into what is no schema by its place
            ("enum", Value::Array(all)) => all.iter().try_for_each(|one| data(one, count))?,
            (key, value) if is_data(key) => data(value, count)?,
            // the keys of these are names, and what they name are schemas
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
                named.values_mut().filter_map(Value::as_object_mut).try_for_each(|inner| tidy(inner, count))?;
            }
            (_, Value::Object(inner)) => tidy(inner, count)?,
            (_, Value::Array(all)) => {
                all.iter_mut().filter_map(Value::as_object_mut).try_for_each(|inner| tidy(inner, count))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses data that would be too large a schema.
fn data(value: &Value, count: &mut usize) -> Result<(), GrammarError> {
    let (n, inner): (usize, Vec<&Value>) = match value {
        Value::Array(all) => (all.len(), all.iter().collect()),
        Value::Object(fields) => (fields.len(), fields.values().collect()),
        _ => return Ok(()),
    };
    *count += 1;
    if *count > MOST_SCHEMAS || n > MOST_ENTRIES {
        return Err(GrammarError::TooMuch(format!(
            "more than {MOST_ENTRIES} values in one, or {MOST_SCHEMAS} of these"
        )));
    }
    inner.into_iter().try_for_each(|one| data(one, count))
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
