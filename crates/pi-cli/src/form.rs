//! The form that the text of `pi run` must have.

use crate::{
    failure::{Failure, Result},
    prompt,
};
use clap::{Args, ValueHint};
use pi_engine::{Constrained, Engine, Sampler, sampler::Chain};
use pi_grammar::{Compiler, Grammar, GrammarError};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What the generated text must look like. At most one of these.
#[derive(Args, Debug)]
#[group(multiple = false)]
#[command(next_help_heading = "Form of the text")]
pub struct FormFlags {
    /// GBNF grammar of the generated text, root first; Lark if it begins with %llguidance
    #[arg(long, value_name = "GRAMMAR")]
    pub grammar: Option<String>,
    /// File with such a grammar
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub grammar_file: Option<PathBuf>,
    /// JSON schema: the generated text is JSON that matches it
    #[arg(short = 'j', long, value_name = "SCHEMA")]
    pub json_schema: Option<String>,
    /// File with such a schema
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub json_schema_file: Option<PathBuf>,
}

impl FormFlags {
    /// The form that is asked for, as text.
    ///
    /// # Errors
    /// If a file cannot be read, or a schema is not JSON.
    pub fn grammar(&self) -> Result<Option<(Grammar, String)>> {
        let text = |path: &Path| {
            let text = String::from_utf8(prompt::read(path)?);
            let text = text.map(|text| text.strip_prefix('\u{feff}').map(String::from).unwrap_or(text));
            text.map_err(|_| Failure::Work(format!("{}: expected UTF-8", path.display())))
        };
        let schema = |text: &str, from: &str| match serde_json::from_str(text) {
            Ok(schema) => Ok(Some((Grammar::Schema { schema, strict: true }, from.to_string()))),
            Err(e) => Err(Failure::Work(format!("{from}: not valid JSON: {e}"))),
        };
        match self {
            Self { grammar: Some(grammar), .. } => Ok(Some((Grammar::text(grammar), "--grammar".into()))),
            Self { grammar_file: Some(path), .. } => Ok(Some((Grammar::text(text(path)?), path.display().to_string()))),
            Self { json_schema: Some(json), .. } => schema(json, "--json-schema"),
            Self { json_schema_file: Some(path), .. } => schema(&text(path)?, &path.display().to_string()),
            _ => Ok(None),
        }
    }
}

/// The form as a field of a request to the server.
///
/// # Errors
/// If there is no such field.
pub fn field(grammar: &Grammar, from: &str) -> Result<(&'static str, Value)> {
    let text = |syntax: &str, text: &str| Ok(("grammar", json!({"syntax": syntax, "definition": text})));
    match grammar {
        Grammar::Schema { schema, strict } => {
            let schema = json!({"name": "form", "schema": schema, "strict": strict});
            Ok(("response_format", json!({"type": "json_schema", "json_schema": schema})))
        }
        Grammar::Gbnf(gbnf) => text("gbnf", gbnf),
        Grammar::Lark(lark) => text("lark", lark),
        Grammar::Regex(regex) => text("regex", regex),
        _ => Err(Failure::Work(format!("{from}: not supported with --prompts"))),
    }
}

/// The sampler that keeps to a form, if there is one.
///
/// # Errors
/// If the form cannot be compiled for the model's vocabulary.
pub fn sampler(chain: Chain, form: Option<(Grammar, String)>, engine: &Engine) -> Result<Box<dyn Sampler>> {
    let Some((grammar, from)) = form else { return Ok(Box::new(chain)) };
    let failed = |e: GrammarError| Failure::Work(format!("{from}: {e}"));
    let compiler = Compiler::new(&**engine.tokenizer()).map_err(failed)?;
    let matcher = compiler.compile(&grammar).map_err(failed)?;
    Ok(Box::new(Constrained::new(chain, Box::new(matcher))))
}
