//! From a schema as people write it to one that llguidance takes.

use crate::{GrammarError, grammar::LONGEST_SCHEMA, multiples};
use serde_json::{Map, Value, json};

/// Most schemas in a schema.
const MOST_SCHEMAS: usize = 3000;
/// Most properties of an object, and most alternatives.
const MOST_ENTRIES: usize = 1000;
/// Where bounds of numbers are cut, which the standard does not limit: an answer within these is within those.
const FARTHEST: f64 = 9e18;
/// Largest and smallest numbers that others can be asked to be a multiple of.
const FACTORS: std::ops::RangeInclusive<f64> = 1e-8..=1e8;

/// White space between the parts of JSON: none, a blank, or the beginning of a line. A model that writes on and on must come to an end.
pub(crate) const JSON_SPACE: &str = r" |\r?\n[ \t]{0,32}";
/// Where llguidance's settings stand in a schema.
pub(crate) const OPTIONS: &str = "x-guidance";

/// The schema with what llguidance is to make of it. Whatever a schema says of that itself is dropped.
pub(crate) fn prepared(schema: &Value, strict: bool) -> Result<Value, GrammarError> {
    let mut schema = object(schema)?;
    tidied(&mut schema)?;
    let options = json!({"whitespace_pattern": JSON_SPACE, "coerce_one_of": !strict, "lenient": !strict});
    schema.insert(OPTIONS.into(), options);
    Ok(Value::Object(schema))
}

/// A schema as an object.
pub(crate) fn object(schema: &Value) -> Result<Map<String, Value>, GrammarError> {
    match schema {
        Value::Object(fields) => Ok(fields.clone()),
        Value::Bool(true) => Ok(Map::new()),
        Value::Bool(false) => Err(GrammarError::Meaning("no value matches the schema false".into())),
        _ => Err(GrammarError::Meaning("a schema is an object or a truth value".into())),
    }
}

/// Refuses what is too large, patterns that repeat what is no character (the standard refuses them, the `regex` crate takes them), and
/// numbers that llguidance cannot compute with, or brings them within what it can; writes references as it reads them.
pub(crate) fn tidied(root: &mut Map<String, Value>) -> Result<(), GrammarError> {
    let mut mark = "~".to_string();
    let named = root.get("$defs").and_then(Value::as_object);
    while named.is_some_and(|all| all.keys().any(|name| name.starts_with(&mark))) {
        mark.push('~');
    }
    let mut work = Tidy { count: 0, path: "#".into(), mark, named: Vec::new() };
    work.schema(root)?;
    let named = work.named;
    copy_named(root, named)?;
    multiples::check(root)
}

/// What is known on the way through a schema.
struct Tidy {
    /// Schemas so far.
    count: usize,
    /// Where we are, as references say it.
    path: String,
    /// What no name in `$defs` begins with.
    mark: String,
    /// What references name that llguidance cannot find by its place, each with a new name.
    named: Vec<(Vec<String>, String)>,
}

impl Tidy {
    fn wrong(&self, key: &str, why: impl std::fmt::Display) -> GrammarError {
        let path: String = self.path.chars().take(200).collect();
        GrammarError::Meaning(format!("{path}/{key}: {why}"))
    }

    /// Does something one step further down.
    fn at<T>(&mut self, step: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.extend(["/", &step.replace('~', "~0").replace('/', "~1")]);
        let done = work(self);
        self.path.truncate(length);
        done
    }

    fn schema(&mut self, schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
        self.count += 1;
        let entries = |value: &Value| value.as_array().map(Vec::len).or(value.as_object().map(Map::len));
        let largest = schema.iter().filter(|(key, _)| !is_data(key)).filter_map(|(_, value)| entries(value)).max();
        if self.count > MOST_SCHEMAS || largest > Some(MOST_ENTRIES) {
            let most =
                format!("more than {MOST_SCHEMAS} schemas in it, or {MOST_ENTRIES} properties or alternatives in one");
            return Err(GrammarError::TooMuch(most));
        }
        schema.iter_mut().try_for_each(|(key, value)| self.keyword(key, value))
    }

    fn keyword(&mut self, key: &str, value: &mut Value) -> Result<(), GrammarError> {
        let number = value.as_f64();
        match (key, &mut *value) {
            ("pattern", Value::String(pattern)) if repeats_nothing(pattern) => {
                let shown: String = pattern.chars().take(60).collect();
                return Err(self.wrong(key, format_args!("{shown:?}: there is nothing to repeat")));
            }
            ("$ref", Value::String(reference)) => *reference = self.reference(reference)?,
            ("minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum", Value::Number(_)) => {
                let Some(bound) = number.filter(|bound| bound.abs() > FARTHEST) else { return Ok(()) };
                if key.ends_with("inimum") == (bound > 0.0) {
                    return Err(self.wrong(key, format_args!("expected a number up to {FARTHEST:e}")));
                }
                *value = json!(bound.clamp(-FARTHEST, FARTHEST));
            }
            ("multipleOf", Value::Number(_)) if number.is_some_and(|factor| !FACTORS.contains(&factor)) => {
                return Err(self.wrong(key, "expected a number from 1e-8 to 1e8"));
            }
            // a number without a fraction is an integer, however it is written
            (
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties",
                Value::Number(n),
            ) if n.is_f64() && number.is_some_and(|n| n.fract() == 0.0 && (0.0..=FARTHEST).contains(&n)) => {
                *value = json!(number.unwrap_or_default() as u64);
            }
            // a reference may point into what is no schema by its place
            ("enum", Value::Array(all)) => all.iter().try_for_each(|one| data(one, &mut self.count))?,
            (key, value) if is_data(key) => data(value, &mut self.count)?,
            (key, Value::Object(inner)) if names_schemas(key) => {
                let schemas = inner.iter_mut().filter_map(|(name, value)| Some((name, value.as_object_mut()?)));
                for (name, inner) in schemas {
                    self.at(key, |at| at.at(name, |at| at.schema(inner)))?;
                }
            }
            (key, Value::Object(inner)) => self.at(key, |at| at.schema(inner))?,
            (key, Value::Array(all)) => {
                let schemas = all.iter_mut().enumerate().filter_map(|(i, value)| Some((i, value.as_object_mut()?)));
                for (i, inner) in schemas {
                    self.at(key, |at| at.at(&i.to_string(), |at| at.schema(inner)))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A reference as llguidance reads it: nothing in it is written as something else.
    fn reference(&mut self, reference: &str) -> Result<String, GrammarError> {
        let wrong = |why: &str| {
            let shown: String = reference.chars().take(60).collect();
            self.wrong("$ref", format_args!("{shown:?}: {why}"))
        };
        if reference == "#" {
            return Ok(reference.into());
        }
        let Some(places) = reference.strip_prefix("#/") else {
            return Err(wrong("only places in the schema itself can be named, as #/$defs/NAME"));
        };
        let places: Option<Vec<String>> = places.split('/').map(place).collect();
        let places = places.ok_or_else(|| wrong("expected % with two hexadecimal digits of UTF-8, and ~0 or ~1"))?;
        if !places.iter().any(|place| place.contains('/')) {
            return Ok(format!("#/{}", places.join("/")));
        }
        // llguidance cuts references at slashes
        let known = self.named.iter().find(|(known, _)| *known == places).map(|(_, name)| name.clone());
        let name = known.unwrap_or_else(|| {
            let name = format!("{}{}", self.mark, self.named.len());
            self.named.push((places, name.clone()));
            name
        });
        Ok(format!("#/$defs/{name}"))
    }
}

/// A step of a reference, decoded.
fn place(step: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), step.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
                u8::from_str_radix(digits, 16).ok()?
            }
            byte => byte,
        });
    }
    let text = String::from_utf8(bytes).ok()?;
    let mut parts = text.split('~');
    let mut out = parts.next()?.to_string();
    for part in parts {
        let c = match part.as_bytes().first()? {
            b'0' => '~',
            b'1' => '/',
            _ => return None,
        };
        out.push(c);
        out += &part[1..];
    }
    Some(out)
}

/// Puts what is at these places into `$defs` once more, by the new names.
fn copy_named(root: &mut Map<String, Value>, named: Vec<(Vec<String>, String)>) -> Result<(), GrammarError> {
    let mut bytes = 0;
    for (places, name) in named {
        let (first, rest) = places.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let found = rest.iter().try_fold(root.get(first), |value, place| {
            let next = match value? {
                Value::Object(fields) => fields.get(place),
                Value::Array(all) => place.parse().ok().and_then(|i: usize| all.get(i)),
                _ => None,
            };
            Some(next)
        });
        let Some(found) = found.flatten() else {
            let shown: String = places.join("/").chars().take(60).collect();
            return Err(GrammarError::Meaning(format!("$ref: there is nothing at {shown:?}")));
        };
        bytes += found.to_string().len();
        if bytes > LONGEST_SCHEMA {
            return Err(GrammarError::TooMuch("references with ~1 name too much of the schema".into()));
        }
        let copy = found.clone();
        match root.entry("$defs").or_insert_with(|| json!({})) {
            Value::Object(all) => _ = all.insert(name, copy),
            _ => return Err(GrammarError::Meaning("#/$defs: expected an object".into())),
        }
    }
    Ok(())
}

/// Whether a keyword's value is no schema, whatever it looks like.
pub(crate) fn is_data(key: &str) -> bool {
    matches!(key, "enum" | "examples" | "const" | "default" | "required")
}

/// Whether a keyword's value is an object whose keys are names, and what they name are schemas.
pub(crate) fn names_schemas(key: &str) -> bool {
    matches!(key, "properties" | "patternProperties" | "$defs" | "definitions")
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
