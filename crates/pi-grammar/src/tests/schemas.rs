use super::*;
use serde_json::{Value, json};

/// Whether a value matches the part of JSON Schema that the tests use. Written for them alone.
fn matches(schema: &Value, value: &Value, root: &Value) -> bool {
    let Some(rules) = schema.as_object() else { return schema == &json!(true) };
    let number = |rule: &Value| rule.as_f64().unwrap();
    let count = |rule: &Value| rule.as_f64().unwrap() as usize;
    rules.iter().all(|(rule, of)| match rule.as_str() {
        "type" => match of {
            Value::Array(all) => all.iter().any(|kind| is(kind.as_str().unwrap(), value)),
            kind => is(kind.as_str().unwrap(), value),
        },
        "const" => of == value,
        "enum" => of.as_array().unwrap().contains(value),
        "anyOf" => of.as_array().unwrap().iter().any(|s| matches(s, value, root)),
        "oneOf" => of.as_array().unwrap().iter().filter(|s| matches(s, value, root)).count() == 1,
        "allOf" => of.as_array().unwrap().iter().all(|s| matches(s, value, root)),
        "$ref" => matches(root.pointer(&of.as_str().unwrap()[1..]).unwrap(), value, root),
        "minimum" => value.as_f64().is_none_or(|v| v >= number(of)),
        "maximum" => value.as_f64().is_none_or(|v| v <= number(of)),
        "exclusiveMinimum" => value.as_f64().is_none_or(|v| v > number(of)),
        "exclusiveMaximum" => value.as_f64().is_none_or(|v| v < number(of)),
        "multipleOf" => value.as_f64().is_none_or(|v| (v / number(of)).fract() == 0.0),
        "minLength" => value.as_str().is_none_or(|s| s.chars().count() >= count(of)),
        "maxLength" => value.as_str().is_none_or(|s| s.chars().count() <= count(of)),
        "minItems" => value.as_array().is_none_or(|a| a.len() >= count(of)),
        "maxItems" => value.as_array().is_none_or(|a| a.len() <= count(of)),
        "items" => value.as_array().is_none_or(|a| {
            let before = rules.get("prefixItems").map_or(0, |all| all.as_array().unwrap().len());
            a.iter().skip(before).all(|item| matches(of, item, root))
        }),
        "prefixItems" => value
            .as_array()
            .is_none_or(|a| a.iter().zip(of.as_array().unwrap()).all(|(item, schema)| matches(schema, item, root))),
        "required" => value
            .as_object()
            .is_none_or(|o| of.as_array().unwrap().iter().all(|name| o.contains_key(name.as_str().unwrap()))),
        "properties" => value.as_object().is_none_or(|o| {
            of.as_object().unwrap().iter().all(|(name, s)| o.get(name).is_none_or(|v| matches(s, v, root)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|o| {
            let known = |name: &str| rules.get("properties").is_some_and(|known| known.get(name).is_some());
            o.iter().all(|(name, v)| known(name) || matches(of, v, root))
        }),
        "$defs" | "description" | "title" | "pattern" | "format" => true, // looked at where they are used
        rule => panic!("{rule}"),
    })
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|v| v.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        kind => panic!("{kind}"),
    }
}

fn schema(schema: &Value) -> Grammar {
    Grammar::Schema { schema: schema.clone(), strict: true }
}

/// Answers by chance that came to an end, parsed.
fn answers(grammar: &Grammar, n: usize) -> Vec<Value> {
    let mut random = Random(7);
    let one = |i| {
        let text = by_chance(&mut compile(grammar), &mut random, i % 5 * 10)?;
        Some(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{grammar:?}: {e}: {text}")))
    };
    let all: Vec<Value> = (0..n).filter_map(one).collect();
    assert!(!all.is_empty(), "{grammar:?}: no answer came to an end");
    all
}

#[test]
fn every_answer_is_json_that_matches_the_schema() {
    let short = json!({"type": "string", "maxLength": 6.0});
    for case in [
        json!({"type": "object", "properties": {"name": short, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
            "required": ["name", "age"], "additionalProperties": false}),
        json!({"enum": ["red", "grün", 3, null, [1, {"a": "b"}], "say \"hi\" \\ \n"]}),
        json!({"const": {"a": [true, null, -1.5]}}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "minItems": 1, "maxItems": 3}),
        json!({"type": "array", "prefixItems": [{"type": "null"}, short], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}),
        json!({"type": "number", "exclusiveMinimum": -2.5, "maximum": 17.25}),
        json!({"type": "integer", "minimum": -20, "exclusiveMaximum": 1000, "multipleOf": 10}),
        json!({"type": ["integer", "null"], "minimum": 5, "maximum": 5}),
        json!({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "object", "properties": {"x": short},
            "required": ["x"], "additionalProperties": false}]}),
        json!({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "boolean"}]}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"enum": [1, 2]}}, "required": ["b"]}]}),
        json!({"type": "object", "properties": {"é\"ü": {"type": "null"}, "日本": {"enum": ["語", "🦙"]}},
            "required": ["日本", "é\"ü"], "additionalProperties": false}),
        json!({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"},
            "value": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["value"], "additionalProperties": false}}}),
    ] {
        for value in answers(&schema(&case), 12) {
            assert!(matches(&case, &value, &case), "{value} does not match {case}");
        }
    }
}

#[test]
fn patterns_and_formats_of_strings_are_kept() {
    let text = |rule: Value| {
        let mut of = json!({"type": "string"});
        of.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
        answers(&schema(&of), 10).into_iter().map(|v| v.as_str().unwrap().to_string())
    };
    for phone in text(json!({"pattern": "^\\([0-9]{3}\\) [0-9]{4}$"})) {
        let shape: String = phone.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
        assert_eq!(shape, "(999) 9999");
    }
    for date in text(json!({"format": "date"})) {
        let parts: Vec<u32> = date.split('-').map(|part| part.parse().unwrap()).collect();
        assert!(date.len() == 10 && (1..=12).contains(&parts[1]) && (1..=31).contains(&parts[2]), "{date}");
    }
    for odd in text(json!({"pattern": "^[äöü\"\\\\]{2,4}$"})) {
        assert!((2..=4).contains(&odd.chars().count()) && odd.chars().all(|c| "äöü\"\\".contains(c)), "{odd}");
    }
}

#[test]
fn properties_that_may_be_absent_and_orders_that_may_not_be_are_as_the_schema_says() {
    let case = json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
        "required": ["c"], "additionalProperties": false});
    for (text, fits) in [
        (r#"{"a": null, "b": null, "c": null}"#, true),
        (r#"{"a":null,"c":null}"#, true),
        ("{\n  \"c\": null\n}", true),
        (r#"{"a": null}"#, false),
        (r#"{"c": null, "d": null}"#, false),
        (r#"{"c": null, "a": null}"#, false),
        (r#"{"c": null} "#, false),
        (r#" {"c": null}"#, false),
        (r#"{"c":          null}"#, false),
    ] {
        assert_eq!(accepts(compile(&schema(&case)), text), fits, "{text}");
    }
}

#[test]
fn an_object_of_any_kind_is_an_object() {
    let mut random = Random(3);
    let mut whole = 0;
    for _ in 0..10 {
        if let Some(text) = by_chance(&mut compile(&Grammar::any_object()), &mut random, 0) {
            assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
            whole += 1;
        }
    }
    assert!(whole > 0);
    assert!(accepts(compile(&Grammar::any_object()), "{\"a\": [1, {\"b\": null}], \"ü\": \"\\n\"}"));
    assert!(!accepts(compile(&Grammar::any_object()), "[1]"));
}

#[test]
fn what_a_grammar_cannot_say_is_refused_if_the_schema_is_strict_and_else_passed_over() {
    for case in [
        json!({"type": "integer", "not": {"const": 3}}),
        json!({"type": "array", "uniqueItems": true, "items": {"type": "boolean"}}),
        json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        json!({"type": "string", "format": "of-my-own"}),
    ] {
        assert!(compiler().compile(&schema(&case)).is_err(), "{case}");
        compile(&Grammar::Schema { schema: case, strict: false });
    }
    // schemas that nothing matches, or that are none
    for case in [
        json!(3),
        json!("object"),
        json!(false),
        json!({"type": "thing"}),
        json!({"type": 3}),
        json!({"type": "integer", "minimum": 2, "maximum": 1}),
        json!({"enum": []}),
        json!({"enum": "x"}),
        json!({"properties": []}),
        json!({"$ref": "#/nowhere"}),
        json!({"$ref": "http://localhost:1/schema"}),
        json!({"$ref": "file:///etc/passwd"}),
        json!({"type": "string", "pattern": "(["}),
        json!({"type": "array", "minItems": 3, "maxItems": 2, "items": {}}),
    ] {
        for strict in [true, false] {
            let compiled = compiler().compile(&Grammar::Schema { schema: case.clone(), strict });
            assert!(compiled.is_err(), "{case}");
        }
    }
}
