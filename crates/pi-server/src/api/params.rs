//! Fields that chat and plain completions have in common.

use crate::{
    error::ApiError,
    fields::{Fields, whole, wrong},
    server::App,
    state::Model,
};
use pi_engine::{Error, GenerateOptions, SamplingParams, pi_core::text::TokenId};
use serde_json::Value;
use std::time::Instant;

/// Most stop strings of a request.
const STOPS: usize = 16;
/// Most bytes of a stop string.
const STOP_BYTES: usize = 1024;
/// Most likely tokens that can be asked for at each place.
pub(super) const TOP: u64 = 20;

/// What a request wants, beside its prompt.
#[derive(Clone, Debug)]
pub(super) struct Params {
    pub options: GenerateOptions,
    /// How many of the likeliest tokens beside each chosen one; `None`: no log-probabilities.
    pub logprobs: Option<usize>,
    pub stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub usage: bool,
    /// Whether what was computed for an earlier request may be used.
    pub reuse: bool,
    /// When the answer must be there: counted from the request's arrival.
    pub deadline: Option<Instant>,
}

/// Reads what both kinds of requests have; `least` is the smallest number of tokens that can be asked for.
///
/// # Errors
/// 400 naming the field.
pub(super) fn read(
    fields: &Fields,
    app: &App,
    model: &Model,
    least: u64,
    deadline: Option<Instant>,
) -> Result<Params, ApiError> {
    refuse_what_is_not_built(fields)?;
    fields.string("model")?;
    let defaults = &app.options.sampling;
    let last_n = fields.read("repeat_last_n", "a whole number from -1 on", |v| whole(v).filter(|n| *n >= -1))?;
    let sampling = SamplingParams {
        temperature: fields.number("temperature")?.unwrap_or(defaults.temperature),
        top_k: fields.integer("top_k", 0..=i32::MAX as u64)?.map_or(defaults.top_k, |k| k as usize),
        top_p: fields.number("top_p")?.unwrap_or(defaults.top_p),
        min_p: fields.number("min_p")?.unwrap_or(defaults.min_p),
        repeat_penalty: fields.number("repeat_penalty")?.unwrap_or(defaults.repeat_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(defaults.frequency_penalty),
        repeat_last_n: last_n
            .map_or(defaults.repeat_last_n, |n| usize::try_from(n).unwrap_or(usize::MAX))
            .min(model.context),
        logit_bias: logit_bias(fields)?.unwrap_or_else(|| defaults.logit_bias.clone()),
        seed: seed(fields)?.unwrap_or(defaults.seed),
    };
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let options = GenerateOptions {
        max_tokens: max_tokens(fields, least)?.or(app.options.max_tokens),
        sampling,
        stop: stops(fields)?,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
    };
    let reuse = fields.boolean("cache_prompt")?.unwrap_or(true);
    let params = Params { options, logprobs: None, stream, usage: usage(fields, stream)?, reuse, deadline };
    params.options.sampling.check(model.engine.vocab()).map_err(|e| params.refused(&e))?;
    Ok(params)
}

impl Params {
    /// What the engine says of a setting, as an error of the field of the same name.
    pub(super) fn refused(&self, error: &Error) -> ApiError {
        match error {
            Error::Setting { name, expected, got } => ApiError::field(*name, format!("expected {expected}, got {got}")),
            error => ApiError::engine(error.to_string()),
        }
    }
}

/// Fields of OpenAI's and of other servers that change an answer, and mean nothing here.
const NOT_BUILT: [&str; 23] = [
    "functions",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "suffix",
    "echo",
    "audio",
    "prediction",
    "web_search_options",
    "stop_token_ids",
    "n_predict",
    "min_tokens",
    "typical_p",
    "tfs_z",
    "mirostat",
    "samplers",
    "dry_multiplier",
    "xtc_probability",
    "dynatemp_range",
    "lora",
    "use_beam_search",
];

/// What a request may ask for elsewhere, and must not be passed over in silence.
fn refuse_what_is_not_built(fields: &Fields) -> Result<(), ApiError> {
    for name in ["n", "best_of"] {
        if fields.integer(name, 0..=u64::MAX)?.is_some_and(|n| n != 1) {
            return Err(ApiError::unsupported(name, "expected 1: one answer per request"));
        }
    }
    let is_set = |v: &Value| match v {
        Value::Array(all) => !all.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(on) => *on,
        Value::Null => false,
        _ => true,
    };
    for name in NOT_BUILT {
        if fields.get(name).is_some_and(is_set) {
            return Err(ApiError::unsupported(name, "not supported"));
        }
    }
    if fields.get("function_call").is_some_and(|v| !matches!(v.as_str(), Some("none" | "auto"))) {
        return Err(ApiError::unsupported(
            "function_call",
            "not supported, except none or auto: it is tool_choice now",
        ));
    }
    if fields.get("modalities").is_some_and(|v| *v != serde_json::json!(["text"])) {
        return Err(ApiError::unsupported("modalities", "not supported, except [\"text\"]"));
    }
    Ok(())
}

/// The newer name counts if both are there.
fn max_tokens(fields: &Fields, least: u64) -> Result<Option<usize>, ApiError> {
    let new = fields.integer("max_completion_tokens", least..=u64::MAX)?;
    let old = fields.integer("max_tokens", least..=u64::MAX)?;
    Ok(new.or(old).map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
}

fn stops(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let expected = format!("a string or up to {STOPS} strings, none empty or longer than {STOP_BYTES} bytes");
    let one = |v: &Value| {
        let stop = v.as_str().filter(|s| (1..=STOP_BYTES).contains(&s.len()));
        stop.map(String::from).ok_or_else(|| wrong("stop", &expected, v))
    };
    match fields.get("stop") {
        None => Ok(Vec::new()),
        Some(Value::Array(all)) if all.len() <= STOPS => all.iter().map(one).collect(),
        Some(Value::Array(all)) => Err(ApiError::field("stop", format!("expected {expected}, got {}", all.len()))),
        Some(v) => one(v).map(|stop| vec![stop]),
    }
}

/// `{"ID": BIAS}`, from -100 to 100.
fn logit_bias(fields: &Fields) -> Result<Option<Vec<(TokenId, f32)>>, ApiError> {
    let expected = "an object of token ids and numbers from -100 to 100";
    let Some(value) = fields.get("logit_bias") else { return Ok(None) };
    let Value::Object(all) = value else { return Err(wrong("logit_bias", expected, value)) };
    let one = |(id, bias): (&String, &Value)| {
        let bias = bias.as_f64().filter(|b| (-100.0..=100.0).contains(b));
        Some((id.parse().ok()?, bias? as f32))
    };
    let bad = || ApiError::field("logit_bias", format!("expected {expected}"));
    all.iter().map(|entry| one(entry).ok_or_else(bad)).collect::<Result<_, _>>().map(Some)
}

/// -1 is a random one.
fn seed(fields: &Fields) -> Result<Option<Option<u64>>, ApiError> {
    let read = |v: &Value| match whole(v)? {
        -1 => Some(None),
        n => u64::try_from(n).or_else(|_| i64::try_from(n).map(|n| n as u64)).ok().map(Some),
    };
    fields.read("seed", "a whole number", read)
}

fn usage(fields: &Fields, stream: bool) -> Result<bool, ApiError> {
    match fields.get("stream_options") {
        None => Ok(false),
        Some(_) if !stream => Err(ApiError::field("stream_options", "expected only with \"stream\": true")),
        Some(Value::Object(options)) => {
            let usage = Fields::new(options.clone()).boolean("include_usage");
            usage.map(|u| u.unwrap_or(false)).map_err(|e| ApiError::field("stream_options", e.message()))
        }
        Some(other) => Err(wrong("stream_options", "an object", other)),
    }
}
