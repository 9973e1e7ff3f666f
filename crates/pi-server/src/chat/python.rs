//! What chat templates expect of the language around them: Python's, as Hugging Face's `transformers` sets it up.

use jiff::civil::DateTime;
use minijinja::{
    Environment, Error, ErrorKind, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, ValueKind},
};
use std::fmt::Write;

/// The steps that a rendering may take; 64 bytes of what it makes count as one (so that it stays below 128 MB). A megabyte of messages
/// takes a fifth of it.
const FUEL: u64 = 2_000_000;

/// How deep macros and blocks may call each other.
const DEPTH: usize = 64;

/// The time that templates ask for.
pub(super) type Clock = fn() -> DateTime;

/// The time of this machine's clock and zone.
pub(super) fn clock() -> DateTime {
    jiff::Zoned::now().datetime()
}

/// An environment that reads no file, no variable and no network, and whose renderings end.
pub(super) fn environment(clock: Clock) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(DEPTH);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_filter("tojson", to_json);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", move |format: &str| {
        jiff::fmt::strtime::format(format, clock())
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
    });
    Ok(env)
}

/// Hugging Face marks what the assistant wrote with a tag of its own, which prints nothing: it becomes one that is always true.
pub(super) fn known_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        match inner.trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `json.dumps` of Python: spaces after commas and colons, text as it is.
fn to_json(value: &Value, ascii: Option<bool>, options: Kwargs) -> Result<Value, Error> {
    let ascii = match ascii {
        Some(ascii) => ascii,
        None => options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    if indent.is_some_and(|n| n > 64) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: an indent of more than 64"));
    }
    let (comma, colon) = match separators.as_deref() {
        Some([comma, colon]) => (comma.clone(), colon.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: two separators are needed")),
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let mut json = Json { out: String::new(), values: VALUES, ascii, indent, comma, colon, sorted };
    json.value(value, 0)?;
    Ok(Value::from(json.out))
}

/// Most values of a document: lists may share what is in them, so that a few steps make exponentially large ones.
const VALUES: usize = 1 << 20;

struct Json {
    out: String,
    /// Values that may still be written.
    values: usize,
    ascii: bool,
    indent: Option<usize>,
    comma: String,
    colon: String,
    sorted: bool,
}

impl Json {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let refuse =
            |what: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, format!("{what} is not JSON"));
        self.values = self.values.checked_sub(1).ok_or_else(|| Error::from(ErrorKind::OutOfFuel))?;
        if depth > 128 {
            return Err(refuse(&"a value of more than 128 levels"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match (value.is_integer(), f64::try_from(value.clone())) {
                (false, Ok(x)) => self.out.push_str(&float(x)),
                _ => self.out.push_str(&value.to_string()),
            },
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', depth, items, |json, item| json.value(&item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.list('{', '}', depth, keys, |json, key| {
                    match key.as_str() {
                        Some(text) => json.string(text),
                        None => json.string(&key.to_string()),
                    }
                    json.out.push_str(&json.colon.clone());
                    json.value(&value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => return Err(refuse(&kind)),
        }
        Ok(())
    }

    fn list<T>(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: Vec<T>,
        mut each: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let some = !items.is_empty();
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.comma.clone());
            }
            self.line(depth + 1);
            each(self, item)?;
        }
        if some {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        let _ = write!(self.out, "\\u{unit:04x}"); // a string takes everything
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python prints it.
fn float(x: f64) -> String {
    match x {
        x if x.is_nan() => "NaN".into(),
        x if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        x if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) => {
            let text = format!("{x:e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
        x => format!("{x:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;

    fn render(source: &str) -> Result<String, Error> {
        let x = Serde(serde_json::json!({"b": 1, "a": [1.5, "é\"\n", null]}));
        environment(clock)?.render_str(source, minijinja::context! { x => Value::from(x) })
    }

    #[test]
    fn json_is_that_of_python() {
        assert_eq!(render("{{ x|tojson }}").unwrap(), r#"{"b": 1, "a": [1.5, "é\"\n", null]}"#);
        assert_eq!(
            render("{{ x|tojson(sort_keys=true, ensure_ascii=true) }}").unwrap(),
            r#"{"a": [1.5, "\u00e9\"\n", null], "b": 1}"#
        );
        assert_eq!(render("{{ x.a|tojson(indent=2) }}").unwrap(), "[\n  1.5,\n  \"é\\\"\\n\",\n  null\n]");
        assert_eq!(render("{{ x|tojson(separators=(',', ':')) }}").unwrap(), r#"{"b":1,"a":[1.5,"é\"\n",null]}"#);
        assert_eq!(render("{{ [[], {}, 1e16, 1e-5, 0.0]|tojson }}").unwrap(), "[[], {}, 1e+16, 1e-05, 0.0]");
        assert!(render("{{ nothing|tojson }}").is_err());
    }

    #[test]
    fn an_endless_template_ends() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
        assert_eq!(render(endless).unwrap_err().kind(), ErrorKind::OutOfFuel);
        assert!(render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").is_err());
    }

    #[test]
    fn nothing_is_read_from_files() {
        assert!(render("{% include '/etc/passwd' %}").is_err());
        assert!(render("{% import '/etc/passwd' as x %}").is_err());
    }

    #[test]
    fn marks_of_what_the_assistant_wrote_print_nothing() {
        assert_eq!(render(&known_tags("a\n{%- generation -%}\n b {% endgeneration %}c")).unwrap(), "ab c");
        assert_eq!(known_tags("{% unfinished"), "{% unfinished");
    }
}
