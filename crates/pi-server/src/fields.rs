//! The fields of a request. What is wrong with one is said with its name. `null` is the same as no value.

use crate::error::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use tokio::sync::OwnedSemaphorePermit;

/// The object that a request brought.
#[derive(Debug)]
pub(crate) struct Fields {
    all: Map<String, Value>,
    is_long: bool,
    /// Free again when this is dropped.
    _place: Option<OwnedSemaphorePermit>,
}

impl Fields {
    pub(crate) fn new(fields: Map<String, Value>) -> Self {
        Self { all: fields, is_long: false, _place: None }
    }

    /// The same of a long body, which keep a place for as long as there are these.
    pub(crate) fn long(self, place: Option<OwnedSemaphorePermit>) -> Self {
        Self { is_long: true, _place: place, ..self }
    }

    /// Whether to look at them takes long enough to keep others waiting.
    pub(crate) fn is_long(&self) -> bool {
        self.is_long
    }

    /// The value of a field, if it has one.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.all.get(name).filter(|v| !v.is_null())
    }

    /// The same, taken out.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.all.remove(name).filter(|v| !v.is_null())
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&str>, ApiError> {
        self.get(name).map(|v| v.as_str().ok_or_else(|| wrong(name, "a string", v))).transpose()
    }

    /// A number; its range is for the caller to check.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f32>, ApiError> {
        self.read(name, "a number", |v| v.as_f64().map(|v| v as f32).filter(|v| v.is_finite()))
    }

    /// A whole number; 2.0 is one as well, since some clients send it so.
    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let expected = match *range.end() {
            u64::MAX => format!("a whole number from {} on", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        self.read(name, &expected, |v| whole(v).and_then(|n| u64::try_from(n).ok()).filter(|n| range.contains(n)))
    }

    pub(crate) fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        self.get(name).map(|v| read(v).ok_or_else(|| wrong(name, expected, v))).transpose()
    }
}

/// A JSON number without a fraction.
pub(crate) fn whole(value: &Value) -> Option<i128> {
    let exact = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    exact.or_else(|| value.as_f64().filter(|v| v.fract() == 0.0 && v.abs() < 9e15).map(|v| v as i128))
}

/// 400: the field should have been something else. Long values are not repeated.
pub(crate) fn wrong(name: &str, expected: &str, got: &Value) -> ApiError {
    let got = match got {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        value => {
            let text = value.to_string();
            if text.chars().count() > 60 { text.chars().take(60).chain("…".chars()).collect() } else { text }
        }
    };
    ApiError::field(name, format!("expected {expected}, got {got}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        let Value::Object(map) = value else { panic!("an object") };
        Fields::new(map)
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_name_of_its_field() {
        let f = fields(json!({"a": "x", "b": 1.5, "c": -1, "d": 1e300, "e": [1], "f": null, "g": 7.0, "h": true}));
        for name in ["a", "b", "c", "d", "e", "h"] {
            let error = f.integer(name, 0..=9).unwrap_err();
            assert_eq!(error.body_json()["error"]["param"], name);
            assert!(error.message().starts_with(&format!("{name}: expected a whole number from 0 to 9, got ")));
        }
        assert_eq!((f.integer("f", 0..=9), f.integer("none", 0..=9)), (Ok(None), Ok(None)));
        assert_eq!(f.integer("g", 0..=9), Ok(Some(7)));
        assert!(f.integer("g", 0..=6).is_err() && f.number("d").is_err() && f.boolean("a").is_err());
        assert_eq!((f.number("b"), f.boolean("h"), f.string("a")), (Ok(Some(1.5)), Ok(Some(true)), Ok(Some("x"))));
    }
}
