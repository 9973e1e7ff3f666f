//! The forms that an answer can be asked to have.

use crate::{GrammarError, gbnf, lark, schema};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

/// Most bytes of a grammar or an expression: what these may say for each byte costs more than a schema.
const LONGEST: usize = 1 << 15;
/// Most bytes of a schema.
pub(crate) const LONGEST_SCHEMA: usize = 1 << 19;

/// What an answer must look like, from its first character to its last.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// A JSON value of this schema (draft 2020-12; `$ref` within the schema only). Properties come in the schema's order. A schema that
    /// contradicts itself is refused; one that only values without end match (an object that must contain its like) is not recognised,
    /// and its answers go on until they are cut off.
    Schema {
        /// The schema.
        schema: Value,
        /// What no grammar can express (`not`, `if`, `uniqueItems`, overlapping `oneOf` and the like, unknown formats) is an error.
        /// Otherwise it is passed over, and such answers may not match.
        strict: bool,
    },
    /// llama.cpp's grammars: `root ::= …`.
    Gbnf(String),
    /// llguidance's kind of Lark: `start: …`. Schemas in it (`%json {…}`) are strict unless they say `"x-guidance": {"lenient": true}`.
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

    /// A text that no other form has. The order of properties counts.
    pub(crate) fn key(&self) -> Option<String> {
        let key = match self {
            Self::Schema { schema, strict } => serde_json::to_string(&("schema", schema, strict)),
            Self::Gbnf(text) => serde_json::to_string(&("gbnf", text)),
            Self::Lark(text) => serde_json::to_string(&("lark", text)),
            Self::Regex(text) => serde_json::to_string(&("regex", text)),
            Self::LarkWithSchemas { lark, schemas } => {
                let parts: Vec<_> = schemas.iter().map(|part| (&part.name, &part.schema, part.strict)).collect();
                serde_json::to_string(&("larks", lark, parts))
            }
        };
        key.ok()
    }

    pub(crate) fn lower(&self) -> Result<TopLevelGrammar, GrammarError> {
        let text = |text: &str| within(text.len(), LONGEST);
        let size = |schema: &Value| within(schema.to_string().len(), LONGEST_SCHEMA);
        match self {
            Self::Schema { schema, .. } => size(schema)?,
            Self::Gbnf(all) | Self::Lark(all) | Self::Regex(all) => text(all)?,
            Self::LarkWithSchemas { lark, schemas } => {
                within(lark.len(), LONGEST_SCHEMA)?;
                within(schemas.iter().map(|part| part.schema.to_string().len()).sum(), LONGEST_SCHEMA)?;
            }
        }
        Ok(match self {
            Self::Schema { schema, strict } => TopLevelGrammar::from_json_schema(schema::prepared(schema, *strict)?),
            Self::Gbnf(text) => TopLevelGrammar::from_lark(gbnf::to_lark(text)?),
            Self::Lark(text) => TopLevelGrammar::from_lark(lark::prepared(text)?),
            Self::LarkWithSchemas { lark, schemas } => {
                let mut all = TopLevelGrammar::from_lark(lark.clone());
                for Part { name, schema, strict } in schemas {
                    let schema = schema::prepared(schema, *strict)?;
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
