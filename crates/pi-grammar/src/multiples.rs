//! Whether llguidance can compute with what `multipleOf` says. It goes through remainders one by one when it looks whether any number
//! is left, which takes long and much memory for large ones; and where schemas meet, it takes the least common multiple with numbers of
//! 32 bits, and what is beyond these would wrap.

use crate::{
    GrammarError,
    schema::{is_data, names_schemas},
};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Most remainders of a number or of a common multiple: as many as digits count without zeros at their end. So many take about a second
/// with slow code.
const REMAINDERS: u128 = 20_000;
/// Most remainders of all numbers of a schema.
const IN_ALL: u128 = 3 * REMAINDERS;

/// A decimal number: `digits` · 10^−`places`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Factor {
    digits: u128,
    places: u32,
}

/// Refuses a schema with numbers that are too large, or too large together where they may meet.
///
/// # Errors
/// Naming one of them.
pub(crate) fn check(root: &Map<String, Value>) -> Result<(), GrammarError> {
    // mostly all of them may meet without harm
    let mut all = Meeting::default();
    all.collect(root, root, "#");
    let mut sum = 0;
    for (factor, at) in &all.factors {
        let remainders = without_zeros(factor.digits);
        sum += remainders;
        let problem = if remainders > REMAINDERS {
            format!("expected digits up to {REMAINDERS}, but for zeros at their end")
        } else if sum > IN_ALL {
            format!("the digits of all such numbers come to more than {IN_ALL}")
        } else {
            continue;
        };
        return Err(GrammarError::Meaning(format!("{}/multipleOf: {problem}", shortened(at))));
    }
    if all.factors.is_empty() || all.fit() {
        return Ok(());
    }
    combinations(root, root, "#")
}

fn combinations(schema: &Map<String, Value>, root: &Map<String, Value>, path: &str) -> Result<(), GrammarError> {
    if combines(schema) {
        let mut meeting = Meeting::default();
        meeting.collect(schema, root, path);
        return match meeting.factors.last() {
            Some((_, at)) if !meeting.fit() => Err(GrammarError::Meaning(format!(
                "{}/multipleOf: together with others that it is combined with, the numbers are too large",
                shortened(at)
            ))),
            _ => Ok(()),
        };
    }
    inner(schema).into_iter().try_for_each(|(step, schema)| combinations(schema, root, &format!("{path}/{step}")))
}

/// Whether a schema is more than one at the same place: what is in it may meet.
fn combines(schema: &Map<String, Value>) -> bool {
    const SAYS_NOTHING: [&str; 9] =
        ["$defs", "definitions", "title", "description", "default", "examples", "$schema", "$id", "$comment"];
    let has = |key| schema.contains_key(key);
    let alone = schema.keys().filter(|key| !SAYS_NOTHING.contains(&key.as_str())).count() < 2;
    has("allOf")
        || has("properties") && has("patternProperties")
        || !alone && (has("anyOf") || has("oneOf") || has("$ref"))
}

/// The schemas that stand in a schema, with their places.
fn inner(schema: &Map<String, Value>) -> Vec<(String, &Map<String, Value>)> {
    let mut all = Vec::new();
    for (key, value) in schema.iter().filter(|(key, _)| !is_data(key)) {
        match value {
            Value::Object(named) if names_schemas(key) => {
                all.extend(named.iter().filter_map(|(name, value)| Some((format!("{key}/{name}"), value.as_object()?))))
            }
            Value::Object(one) => all.push((key.clone(), one)),
            Value::Array(some) => all.extend(
                some.iter().enumerate().filter_map(|(i, value)| Some((format!("{key}/{i}"), value.as_object()?))),
            ),
            _ => {}
        }
    }
    all
}

/// Numbers that may meet.
#[derive(Default)]
struct Meeting {
    factors: Vec<(Factor, String)>,
    /// References that were followed.
    seen: HashSet<String>,
    /// Whether one of these came twice: a number may meet itself.
    again: bool,
}

impl Meeting {
    fn collect(&mut self, schema: &Map<String, Value>, root: &Map<String, Value>, path: &str) {
        if let Some(factor) = schema.get("multipleOf").and_then(Value::as_f64).and_then(Factor::of) {
            self.factors.push((factor, path.into()));
        }
        for (step, schema) in inner(schema).into_iter().filter(|(step, _)| !step.starts_with("$defs/")) {
            self.collect(schema, root, &format!("{path}/{step}"));
        }
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return };
        if !self.seen.insert(reference.into()) {
            self.again = true;
        } else if let Some(schema) = found(root, reference) {
            self.collect(schema, root, reference);
        }
    }

    /// Whether the common multiples of them all can be computed, whichever meet first.
    fn fit(&self) -> bool {
        let most = u128::from(u32::MAX);
        let places = self.factors.iter().map(|(factor, _)| factor.places).max().unwrap_or(0);
        let scaled = |(factor, _): &(Factor, String)| {
            let scale = 10u128.checked_pow(places - factor.places)?;
            factor.digits.checked_mul(scale).filter(|n| *n <= most)
        };
        let Some(all) = self.factors.iter().map(scaled).collect::<Option<Vec<u128>>>() else {
            return self.factors.len() < 2 && !self.again;
        };
        match all[..] {
            [] => true,
            [_] if !self.again => true,
            [a, b] if !self.again => a * b <= most && without_zeros(a / gcd(a, b) * b) <= REMAINDERS,
            // any two that meet divide what all have in common
            _ => all
                .iter()
                .try_fold(1, |sum, &n| Some(sum / gcd(sum, n) * n).filter(|n| n * n <= most))
                .is_some_and(|all| without_zeros(all) <= REMAINDERS),
        }
    }
}

fn shortened(place: &str) -> String {
    place.chars().take(200).collect()
}

fn without_zeros(mut digits: u128) -> u128 {
    while digits > 0 && digits.is_multiple_of(10) {
        digits /= 10;
    }
    digits
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What a tidy reference names.
fn found<'a>(root: &'a Map<String, Value>, reference: &str) -> Option<&'a Map<String, Value>> {
    if reference == "#" {
        return Some(root);
    }
    let mut steps = reference.strip_prefix("#/")?.split('/');
    let first = root.get(steps.next()?)?;
    let value = steps.try_fold(first, |value, step| match value {
        Value::Object(fields) => fields.get(step),
        Value::Array(all) => all.get(step.parse::<usize>().ok()?),
        _ => None,
    });
    value?.as_object()
}

impl Factor {
    /// The number as llguidance reads it; `None` for what it refuses.
    fn of(number: f64) -> Option<Self> {
        let (mut number, mut places) = (number.abs(), 0);
        while number.fract() != 0.0 {
            (number, places) = (number * 10.0, places + 1);
        }
        let mut factor = Self { digits: number as u128, places };
        while factor.places > 0 && factor.digits.is_multiple_of(10) {
            factor = Self { digits: factor.digits / 10, places: factor.places - 1 };
        }
        (factor.digits > 0 && factor.digits <= u128::from(u32::MAX)).then_some(factor)
    }
}
