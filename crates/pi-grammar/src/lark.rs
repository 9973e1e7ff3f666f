//! Schemas within llguidance's kind of Lark: `%json {…}`.

use crate::{
    GrammarError,
    schema::{self, JSON_SPACE, OPTIONS},
};
use serde_json::{Value, json};

/// The text, with its schemas made ready as those are that stand alone. What cannot be read is left as it is: llguidance says what is
/// wrong with it.
///
/// # Errors
/// What is wrong with a schema, and where it is.
pub(crate) fn prepared(text: &str) -> Result<String, GrammarError> {
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    while at < text.len() {
        let rest = &text[at..];
        let n = length(rest);
        out += &rest[..n];
        at += n;
        if rest[..n] == *JSON
            && let Some((schema, n)) = json_prefix(&text[at..])
        {
            out += &one(&schema, &text[at..at + n]).map_err(|e| placed(e, &text[..at - JSON.len()]))?;
            at += n;
        }
    }
    Ok(out)
}

/// What stands before a schema.
const JSON: &str = "%json";

/// Bytes of the piece that a text begins with.
fn length(text: &str) -> usize {
    let to = |end: Option<usize>| end.unwrap_or(text.len());
    let mut chars = text.chars();
    match chars.next() {
        Some('#') => to(text.find('\n')),
        Some('/') if text[1..].starts_with('/') => to(text.find('\n')),
        Some(quote @ ('"' | '/')) => quoted(text, quote),
        // the name of a token may have all kinds of signs in it
        Some('<') => {
            let name = text[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace()).unwrap_or(0);
            if name > 0 && text[1 + name..].starts_with('>') { name + 2 } else { 1 }
        }
        Some('%') => {
            let word = 1 + text[1..].bytes().take_while(u8::is_ascii_alphabetic).count();
            match &text[..word] {
                "%regex" | "%llguidance" => word + json_prefix(&text[word..]).map_or(0, |(_, n)| n),
                _ => word,
            }
        }
        Some(c) => c.len_utf8(),
        None => 0,
    }
}

/// Bytes of a string or an expression.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = true; // the first one begins it
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return i + 1,
            '\n' if quote == '"' => return i,
            _ => {}
        }
    }
    text.len()
}

/// The JSON that a text begins with, and its bytes.
fn json_prefix(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}

/// A schema made ready, with as many lines as it had.
fn one(schema: &Value, text: &str) -> Result<String, GrammarError> {
    let mut schema = schema::object(schema)?;
    let said = schema.shift_remove(OPTIONS);
    schema::tidied(&mut schema)?;
    let mut options = json!({"whitespace_pattern": JSON_SPACE});
    match said {
        Some(Value::Object(said)) => {
            if said.get("whitespace_flexible") == Some(&Value::Bool(false)) {
                options = json!({});
            }
            said.into_iter().for_each(|(key, value)| options[key] = value);
        }
        Some(other) => options = other,
        None => {}
    }
    schema.insert(OPTIONS.into(), options);
    let lines = text.matches('\n').count();
    Ok(format!(" {{{}{}", "\n".repeat(lines), &Value::Object(schema).to_string()[1..]))
}

/// The error with the place that is behind this text.
fn placed(error: GrammarError, before: &str) -> GrammarError {
    let GrammarError::Meaning(why) = error else { return error };
    let line = before.rsplit('\n').next().unwrap_or_default();
    let (line, column) = (1 + before.matches('\n').count(), 1 + line.chars().count());
    GrammarError::Syntax { dialect: "Lark", line, column, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_found_wherever_they_are_and_nothing_else_is_touched() {
        let none = "%llguidance {\"x\": \"%json {}\"}\nstart: \"%json {}\" /%json {\\/}/ <|%json> A // %json {}\n# %json {}\nA: \"\\\"%json {}\"\n";
        assert_eq!(prepared(none).unwrap(), none);
        let ready =
            prepared("start: </s> x %json {\n\"type\": \"null\"\n} \"é\" y\nx: %json{} | /\"/ %json true").unwrap();
        let space = json!({"x-guidance": {"whitespace_pattern": JSON_SPACE}}).to_string();
        let first = json!({"type": "null", "x-guidance": {"whitespace_pattern": JSON_SPACE}}).to_string();
        let want = format!("start: </s> x %json {{\n\n{} \"é\" y\nx: %json {space} | /\"/ %json {space}", &first[1..]);
        assert_eq!(ready, want);
        for broken in ["start: %json {", "start: \"", "start: /", "start: <", "%", "start: %json", "%json {\"a\": \"x}"]
        {
            assert_eq!(prepared(broken).unwrap(), broken);
        }
    }

    #[test]
    fn a_wrong_schema_is_told_with_its_place() {
        let error = prepared("start: \"a\"\n  | %json {\"properties\": {\"a/b\": {\"multipleOf\": 1e9}}}").unwrap_err();
        let (line, column, at) = (2, 5, "#/properties/a~1b/multipleOf: ");
        assert!(
            matches!(&error, GrammarError::Syntax { dialect: "Lark", line: l, column: c, why } if (*l, *c) == (line, column) && why.starts_with(at)),
            "{error}"
        );
    }

    #[test]
    fn what_a_schema_says_of_its_own_white_space_stays() {
        let ready =
            prepared("start: %json {\"x-guidance\": {\"whitespace_flexible\": false, \"lenient\": true}}").unwrap();
        assert_eq!(ready, "start: %json {\"x-guidance\":{\"whitespace_flexible\":false,\"lenient\":true}}");
    }
}
