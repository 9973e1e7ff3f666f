//! Forms from people who mean harm: they are refused, or compiled and followed, but soon.

use super::*;
use crate::GrammarError;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Compiles, and writes some of an answer. What is too much by then is said.
fn try_out(grammar: &Grammar) -> Result<(), String> {
    let since = Instant::now();
    let result = match compiler().compile(grammar) {
        Err(e) => {
            let message = e.to_string();
            assert!(message.chars().count() < 500 && !message.contains('\n'), "{message}");
            Err(message)
        }
        Ok(mut matcher) => {
            let mut random = Random(1);
            let mut logits = vec![0.0; vocabulary().len()];
            for _ in 0..30 {
                logits.fill(0.0);
                if matcher.is_complete() || matcher.mask(&mut logits).is_err() {
                    break;
                }
                let allowed: Vec<u32> = (0..).zip(&logits).filter(|(_, l)| **l == 0.0).map(|(id, _)| id).collect();
                let token = allowed[random.below(allowed.len())];
                if is_end(token) || matcher.accept(token).is_err() {
                    break;
                }
            }
            Ok(())
        }
    };
    let all = since.elapsed();
    // twenty times what it takes on an idle machine
    assert!(all < Duration::from_secs(20), "{all:?}");
    result
}

fn schema(schema: Value) -> Grammar {
    Grammar::Schema { schema, strict: false }
}

// H05
#[test]
fn schemas_that_mean_harm_are_over_soon() {
    let pattern = |pattern: String| schema(json!({"type": "string", "pattern": pattern}));
    for text in ["(".repeat(100_000), "^+[a-z]$".into(), "^{2}x$".into(), "(?<=x)*".into()] {
        assert!(try_out(&pattern(text)).is_err());
    }
    // the standard says nothing against these
    let _ = try_out(&pattern("(a|b)*a(a|b){20}".into()));
    let _ = try_out(&pattern("((((a{0,100}){0,100}){0,100}){0,100}){0,100}".into()));
    let _ = try_out(&pattern("(x+x+)+y".into()));
    let _ = try_out(&pattern("[^a]{1,100000}".into()));
    let _ = try_out(&schema(json!({"type": "string", "maxLength": 1_000_000_000})));
    let _ = try_out(&schema(json!({"type": "string", "minLength": 1_000_000_000})));
    let _ = try_out(&schema(json!({"type": "array", "items": {"type": "null"}, "minItems": 1_000_000_000})));
    let _ = try_out(&schema(json!({"type": "array", "items": {"type": "null"}, "maxItems": 1_000_000})));
    let _ = try_out(&schema(json!({"type": "integer", "minimum": -1e300, "maximum": 1e300})));
    let _ = try_out(&schema(json!({"type": "number", "minimum": 1e-300, "maximum": 2e-300})));
    let _ = try_out(&schema(json!({"type": "number", "multipleOf": 1e-300})));
    let _ = try_out(&schema(json!({"type": "integer", "multipleOf": 4294967291u64})));
    let _ = try_out(&schema(json!({"$ref": "#"})));
    let _ = try_out(&schema(
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    ));
    let _ = try_out(&schema(json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"})));
    let mut deep = json!({"type": "null"});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    assert!(try_out(&schema(deep)).is_ok());
    let chain: serde_json::Map<String, Value> = (0..900)
        .map(|i| (format!("d{i}"), json!({"anyOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"type": "null"}]})))
        .collect();
    let _ = try_out(&schema(json!({"$ref": "#/$defs/d0", "$defs": chain})));
    let many: Vec<String> = (0..40_000).map(|i| format!("word{i}")).collect();
    let _ = try_out(&schema(json!({"enum": many})));
    let doubling: serde_json::Map<String, Value> = (0..40)
        .map(|i| {
            (
                format!("d{i}"),
                json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"$ref": format!("#/$defs/d{}", i + 1)}]}),
            )
        })
        .chain([("d40".to_string(), json!({"type": "object", "properties": {"a": {"type": "null"}}}))])
        .collect();
    let _ = try_out(&schema(json!({"$ref": "#/$defs/d0", "$defs": doubling})));
    for bounds in [
        json!({"minimum": -9223372036854775808i64}),
        json!({"minimum": 0, "maximum": 18446744073709551615u64}),
        json!({"exclusiveMaximum": 1e30}),
    ] {
        for kind in ["integer", "number"] {
            let mut of = json!({"type": kind});
            of.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
            assert_eq!(try_out(&schema(of)), Ok(()), "{kind} {bounds}");
        }
    }
    let free: serde_json::Map<String, Value> = (0..1000).map(|i| (format!("p{i}"), json!({"type": "null"}))).collect();
    let _ = try_out(&schema(json!({"type": "object", "properties": free, "additionalProperties": false})));
    let too_many: serde_json::Map<String, Value> = (0..1001).map(|i| (format!("p{i}"), json!(true))).collect();
    assert!(try_out(&schema(json!({"properties": too_many}))).is_err());
    let some: Vec<Value> = (0..900)
        .map(|i| json!({"type": "object", "properties": {format!("p{i}"): {}}, "required": [format!("p{i}")]}))
        .collect();
    let _ = try_out(&schema(json!({"anyOf": [{"anyOf": some}, {"anyOf": some}]})));
    let _ = try_out(&schema(json!({"anyOf": [{"anyOf": some}, {"anyOf": some}, {"anyOf": some}, {"anyOf": some}]})));
    let wide: serde_json::Map<String, Value> = (0..900).map(|i| (format!("p{i}"), json!({"type": "null"}))).collect();
    let _ = try_out(&schema(
        json!({"type": "object", "properties": wide, "minProperties": 5, "additionalProperties": false}),
    ));
}

#[test]
fn grammars_that_mean_harm_are_over_soon() {
    let gbnf = |text: String| try_out(&Grammar::Gbnf(text));
    for text in ["root ::= root", "root ::= root \"a\"", "root ::= a\na ::= b\nb ::= a", "root ::= \"\\x00\" root root"]
    {
        assert!(gbnf(text.into()).is_err(), "{text}");
    }
    let _ = gbnf("root ::= root root | \"a\" | \"\"".into());
    let _ = gbnf("root ::= (\"a\"* \"b\"*)* root?".into());
    let _ = gbnf("root ::= (((.{0,1000}){0,1000}){0,1000}){0,1000}".into());
    let _ = gbnf("root ::= x{100000}\nx ::= \"(\" root \")\" | \"y\"".into());
    let _ = gbnf(format!("root ::= {}\"z\" root?", "[a-z]? ".repeat(3500)));
    let doubling: String = (0..60).map(|i| format!("r{i} ::= r{} r{}\n", i + 1, i + 1)).collect();
    let _ = gbnf(format!("root ::= r0\n{doubling}r60 ::= \"a\""));
    let _ = gbnf(format!("root ::= r0 root?\n{doubling}r60 ::= \"a\" | \"b\""));
    let chain: String = (0..1800).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    let _ = gbnf(format!("root ::= r0\n{chain}r1800 ::= \"a\""));
    let _ = gbnf(format!("root ::= r0 \"x\" | \"(\" root \")\"\n{chain}r1800 ::= \"a\""));
    let _ = gbnf(format!(
        "root ::= \"(\" root \")\" | {}",
        (0..1800).map(|i| format!("\"w{i}\"")).collect::<Vec<_>>().join(" | ")
    ));
    let too_long = gbnf(format!("root ::= \"a\" # {}", "x".repeat(1 << 20)));
    assert!(too_long.unwrap_err().contains("bytes"));
}

#[test]
fn lark_and_regular_expressions_that_mean_harm_are_over_soon() {
    // H06
    for (text, line) in
        [("%llguidance {}\nstart: \"a\n", 2), ("%llguidance {}\n\nstart: x", 3), ("start: (", 1), ("%%%", 1)]
    {
        match compiler().compile(&Grammar::Lark(text.into())) {
            Err(GrammarError::Syntax { dialect: "Lark", line: at, column, .. }) => {
                assert!(at == line && column > 0, "{text}: {at}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let lark = |text: String| try_out(&Grammar::Lark(text));
    for text in ["", "x: \"a\"", "start: start", "%import common.X\nstart: X", "start: <|nothing|>", "start: %json 3"] {
        assert!(lark(text.into()).is_err(), "{text}");
    }
    let _ = lark(format!("start: {}\"a\"{}", "(".repeat(15_000), ")".repeat(15_000)));
    let _ = lark(format!("start: {}/a/", "~".repeat(30_000)));
    let _ = lark("start: A\nA: ~(~(/(a|b)*a(a|b){15}/ & ~/(a|b)*b(a|b){15}/))".into());
    let _ = lark("start: \"a\"{1000000000}".into());
    let _ = lark(format!("start: {}\"z\"", "/[a-z]/? ".repeat(3500)));
    let _ = lark("start: x{100000}\nx: \"(\" start \")\" | \"y\"".into());
    let _ = lark("start: x{1,100000}\nx: (\"(\" start \")\")? | \"y\"".into());
    for text in ["", "(", "a{2,1}", "(?<=x)y", "\\p{Nothing}", "[z-a]"] {
        assert!(try_out(&Grammar::Regex(text.into())).is_err(), "{text}");
    }
    let _ = try_out(&Grammar::Regex("(".repeat(100_000)));
    let _ = try_out(&Grammar::Regex("(?:a?){100}{100}{100}".into()));
}

#[test]
fn a_long_chain_of_rules_over_a_large_class_is_over_soon() {
    let class: String = (0..3780u32).filter_map(|i| char::from_u32(0x4E00 + 2 * i)).collect();
    let chain: String = (0..195).map(|i| format!("r{i} ::= r{} \"x\"\n", i + 1)).collect();
    let _ = try_out(&Grammar::Gbnf(format!("root ::= r0 root | \"\"\n{chain}r195 ::= [{class}]")));
}

#[test]
fn a_pattern_that_is_wrong_is_told_with_the_reason() {
    let error = try_out(&schema(json!({"type": "string", "pattern": "^(?=a)b$"}))).unwrap_err();
    assert!(error.contains("(?=a)b") && error.contains("look-around"), "{error}");
}
