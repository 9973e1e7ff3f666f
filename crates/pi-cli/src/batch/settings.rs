//! What the answers depend on. An interrupted run goes on only with the same.

use super::{input::Survey, request::Defaults};
use crate::{
    failure::{Failure, Result},
    flags::RunFlags,
};
use pi_engine::{
    Error, pi_core::Activation, pi_gguf::File, pi_predictor::profile::fingerprint, profile::model_fingerprint,
};
use serde_json::{Map, Value};
use std::path::Path;

/// Settings by their names, as text.
#[derive(Debug, PartialEq)]
pub struct Settings(Map<String, Value>);

impl Settings {
    /// Those of a run with the model at `path`. How many lines are computed at a time is none of them: it changes no answer.
    ///
    /// # Errors
    /// If the model's file cannot be read.
    pub fn new(
        flags: &RunFlags,
        defaults: &Defaults,
        template: Option<&str>,
        path: &Path,
        survey: &Survey,
    ) -> Result<Self> {
        let (e, s) = (&flags.engine, &flags.sampling);
        let predictors = match &e.predictor.predictor_file {
            Some(path) => format!("{:?} {:016x}", e.predictor, model(path)?),
            None => format!("{:?}", e.predictor),
        };
        let all = [
            ("the program's version", env!("CARGO_PKG_VERSION").to_string()),
            ("the prompts", format!("{} lines, {:016x}", survey.lines, survey.sum)),
            ("the model", format!("{:016x}", model(path)?)),
            (
                "--chat-template",
                template.map_or("none".into(), |text| format!("{:016x}", fingerprint([text.as_bytes()]))),
            ),
            ("--tool-format", flags.batch.tool_format.map_or("the template's".into(), |format| format.to_string())),
            ("--n-predict", flags.n_predict.to_string()),
            ("--reverse-prompt", format!("{:?}", defaults.stop)),
            ("the form of answers", defaults.form.as_ref().map_or("none".into(), |(_, form)| form.to_string())),
            ("--ignore-eos", defaults.ignore_eos.to_string()),
            ("--temp", s.temp.to_string()),
            ("--top-k", s.top_k.to_string()),
            ("--top-p", s.top_p.to_string()),
            ("--min-p", s.min_p.to_string()),
            ("--repeat-penalty", s.repeat_penalty.to_string()),
            ("--repeat-last-n", s.repeat_last_n.to_string()),
            ("--presence-penalty", s.presence_penalty.to_string()),
            ("--frequency-penalty", s.frequency_penalty.to_string()),
            ("--logit-bias", format!("{:?}", s.logit_bias)),
            ("--seed", s.seed.0.map_or("random".into(), |seed| seed.to_string())),
            ("--ctx-size", e.ctx_size.map_or("default".into(), |n| n.to_string())),
            ("--sparsity", format!("{:?}", e.sparsity)),
            ("predictors", predictors),
            ("--repack", format!("{:?}", e.repack)),
            ("--activation", e.activation.map_or("the file's".into(), |a| a.to_string())),
            ("--kv", format!("{:?}", e.kv_types())),
            ("--device", flags.placing.device.to_string()),
        ];
        Ok(Self(all.into_iter().map(|(name, value)| (name.into(), value.into())).collect()))
    }

    /// One setting, for tests.
    #[cfg(test)]
    pub fn of(value: &str) -> Self {
        Self([("setting".to_string(), Value::from(value))].into_iter().collect())
    }

    /// As they are kept.
    pub fn json(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// The first that is not as it was, as a sentence for people.
    pub fn difference(&self, then: &Value) -> Option<String> {
        let differs = |(name, now): &(&String, &Value)| then.get(name.as_str()) != Some(now);
        self.0.iter().find(differs).map(|(name, now)| {
            let shown = |v: &Value| v.as_str().map_or_else(|| v.to_string(), String::from);
            let then = then.get(name.as_str()).map_or("not known".into(), shown);
            format!("{name} changed (then {then}, now {})", shown(now))
        })
    }
}

/// Tells a model's file from others: its shapes, parts of its weights, and all that it says of itself.
fn model(path: &Path) -> Result<u64> {
    let file = File::open(path).map_err(|e| Failure::engine(&Error::from(e), path))?;
    let weights = model_fingerprint(&file, Activation::Relu).to_le_bytes();
    let said: Vec<Vec<u8>> =
        file.metadata().iter().map(|(key, value)| format!("{key}={value:?};").into_bytes()).collect();
    Ok(fingerprint([&weights[..]].into_iter().chain(said.iter().map(Vec::as_slice))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_changed_is_named_with_both_values() {
        let now = Settings(json!({"--temp": "0", "--seed": "1"}).as_object().unwrap().clone());
        assert_eq!(now.difference(&now.json()), None);
        let then = json!({"--temp": "0", "--seed": "2"});
        assert_eq!(now.difference(&then).unwrap(), "--seed changed (then 2, now 1)");
        assert_eq!(now.difference(&json!({"--temp": "0"})).unwrap(), "--seed changed (then not known, now 1)");
        assert!(now.difference(&Value::Null).is_some());
    }
}
