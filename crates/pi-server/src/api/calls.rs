//! From the functions of a request to what its answer may look like.

use super::form::{Form, refused};
use crate::{
    error::ApiError,
    state::Model,
    tools::{Choice, ToolFormat, Tools, grammar},
};
use pi_grammar::{Grammar, GrammarError, Matcher};
use serde_json::Value;

/// The form of calls of a model's template.
///
/// # Errors
/// 400 if the template has no place for functions, or shows a form of calls that is not known.
pub(super) fn format(model: &Model, given: Option<ToolFormat>) -> Result<ToolFormat, ApiError> {
    let Ok(Some(template)) = &model.chat else {
        return Err(ApiError::unsupported("tools", "the model has no chat template that could tell it of tools"));
    };
    if !template.takes_tools() {
        return Err(ApiError::unsupported("tools", "the model's chat template does not take tools"));
    }
    given.or_else(|| ToolFormat::of(template.source_for_tools())).ok_or_else(|| {
        let why = "the model's chat template takes tools, but shows no form of calls that this server knows \
                   (--tool-format names one)";
        ApiError::unsupported("tools", why)
    })
}

/// The constraint on an answer with calls. `form` is what the answer looks like without any.
pub(super) fn compile(
    model: &Model,
    format: ToolFormat,
    tools: &Tools,
    form: Option<&Form>,
) -> Result<Matcher, ApiError> {
    let answer = match form {
        None => None,
        Some(form) if tools.choice != Choice::Auto => {
            return Err(ApiError::field(form.field, "an answer that must be a call has no other form"));
        }
        Some(form) => match &form.grammar {
            // an answer that is JSON and a call that is nothing else cannot be told apart
            Grammar::Schema { schema, strict } if format != ToolFormat::Llama3 => Some((schema, *strict)),
            _ => return Err(ApiError::unsupported(form.field, "not supported together with this model's tools")),
        },
    };
    let field = |i: usize| format!("tools[{i}].function.parameters");
    let compiler = model.compiler().map_err(|e| refused("tools", e))?;
    let all = grammar(format, tools, answer, &**model.engine.tokenizer());
    compiler.compile(&all).map_err(|e| {
        if matches!(e, GrammarError::TooMuch(_)) {
            return refused("tools", &e); // to compile them once more, one by one, would take long
        }
        // whose schema is it?
        let single = tools.functions.iter().enumerate().find_map(|(i, function)| {
            let schema = Value::Object(function.parameters.clone());
            let alone = compiler.compile(&Grammar::Schema { schema, strict: function.strict });
            alone.err().map(|e| refused(field(i), &e))
        });
        single.or_else(|| form.and_then(|form| form.compile(model).err())).unwrap_or_else(|| refused("tools", &e))
    })
}
