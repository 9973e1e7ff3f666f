//! What is made ready before llguidance sees it: references, numbers that meet, schemas within Lark.

use super::*;
use crate::GrammarError;
use serde_json::{Value, json};

fn strict(schema: Value) -> Grammar {
    Grammar::Schema { schema, strict: true }
}

fn refused(schema: Value) -> String {
    match compiler().compile(&strict(schema.clone())) {
        Err(GrammarError::Meaning(why)) => why,
        other => panic!("{schema}: {other:?}"),
    }
}

#[test]
fn references_may_be_written_in_every_way_that_the_standard_knows() {
    let named = json!({"a/b": {"const": 1}, "a~b": {"const": 2}, "Of[int]": {"const": 3}, "ü %": {"const": 4}, "~0": {"const": 5},
        "deep": {"properties": {"x/y": {"type": "array", "items": {"$ref": "#/$defs/a~1b"}, "minItems": 1, "maxItems": 1}}}});
    for (reference, text) in [
        ("#/$defs/a~1b", "1"),
        ("#/$defs/a%2Fb", "1"),
        ("#/%24defs/a~1b", "1"),
        ("#/$defs/a~0b", "2"),
        ("#/$defs/Of%5Bint%5D", "3"),
        ("#/$defs/Of[int]", "3"),
        ("#/$defs/%C3%BC%20%25", "4"),
        ("#/$defs/~00", "5"),
        ("#/$defs/deep/properties/x~1y", "[1]"),
        ("#/$defs/deep/properties/x~1y/items", "1"),
    ] {
        let schema = json!({"$ref": reference, "$defs": named});
        assert!(accepts(compile(&strict(schema.clone())), text), "{reference}");
        assert!(!accepts(compile(&strict(schema)), "9"), "{reference}");
    }
    // one that comes to itself
    let tree = json!({"$ref": "#/definitions/t~1r", "definitions": {"t/r": {"type": "object", "properties":
        {"l": {"$ref": "#/definitions/t~1r"}}, "additionalProperties": false}}});
    assert!(accepts(compile(&strict(tree)), "{\"l\": {\"l\": {}}}"));
    for (reference, why) in [
        ("#/$defs/nothing~1here", "there is nothing at"),
        ("#/$defs/a~2b", "~0 or ~1"),
        ("#/$defs/%f", "hexadecimal"),
        ("#/$defs/%FF", "UTF-8"),
        ("other.json#/a", "only places in the schema itself"),
        ("#anchor", "only places in the schema itself"),
    ] {
        let why_not = refused(json!({"properties": {"p": {"$ref": reference}}, "$defs": named}));
        assert!(why_not.contains(why) && why_not.contains("$ref"), "{reference}: {why_not}");
    }
    let place = refused(json!({"properties": {"a/b": {"items": {"$ref": "x"}}}}));
    assert!(place.starts_with("#/properties/a~1b/items/$ref: "), "{place}");
    // what is named is copied, but not without end
    let many: Vec<Value> = (0..900).map(|i| json!({"$ref": format!("#/$defs/{i}~1")})).collect();
    let mut all = json!({"anyOf": many, "$defs": {}});
    for i in 0..900 {
        all["$defs"][format!("{i}/")] = json!({"const": "x".repeat(400)});
    }
    let _ = compiler().compile(&strict(all.clone()));
    all["$defs"]["0/"] = json!({"const": "x".repeat(200_000)});
    all["$defs"]["1/"] = json!({"$ref": "#/$defs/0~1", "description": "x".repeat(1000)});
    assert!(matches!(compiler().compile(&strict(all)), Err(GrammarError::TooMuch(_))));
}

#[test]
fn numbers_that_would_not_fit_together_are_refused_with_their_place() {
    let number = |n: f64| json!({"type": "number", "multipleOf": n});
    for (schema, place) in [
        (json!({"allOf": [number(100_000.0), number(100_000.0)]}), "#/allOf/1/multipleOf"),
        (json!({"allOf": [number(9973.0), number(9967.0)]}), "#/allOf/1/multipleOf"),
        (json!({"allOf": [number(0.000_001), number(10_000.0)]}), "#/allOf/1/multipleOf"),
        (
            json!({"properties": {"n": {"multipleOf": 9973, "anyOf": [{"type": "null"}, {"type": "integer", "multipleOf": 9967}]}}}),
            "#/properties/n/anyOf/1/multipleOf",
        ),
        (
            json!({"$defs": {"a": number(7000.0)}, "properties": {"n": {"$ref": "#/$defs/a", "type": "number", "multipleOf": 7001}}}),
            "#/$defs/a/multipleOf",
        ),
        (
            json!({"$defs": {"a": number(70_000.0)}, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}),
            "#/$defs/a/multipleOf",
        ),
        (
            json!({"allOf": [{"properties": {"a": number(300.0)}}, {"properties": {"a": number(7919.0)}},
                {"properties": {"a": number(7907.0)}}]}),
            "#/allOf/2/properties/a/multipleOf",
        ),
        (
            json!({"properties": {"ab": number(1e5)}, "patternProperties": {"^a": number(1e5)}}),
            "#/patternProperties/^a/multipleOf",
        ),
    ] {
        let why = refused(schema.clone());
        assert!(why.starts_with(&format!("{place}: ")), "{schema}: {why}");
        assert!(compiler().compile(&Grammar::Schema { schema, strict: false }).is_err());
    }
    // what does not meet, or is small together
    for schema in [
        json!({"type": "object", "properties": {"a": number(1e-3), "b": number(1e3), "c": number(97.0)}}),
        json!({"anyOf": [number(1e-3), number(1e3), number(97.0)]}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": number(97.0), "b": {"allOf": [number(1e5), number(1e6)]}}}),
    ] {
        compile(&strict(schema));
    }
    let both = json!({"allOf": [{"type": "integer", "multipleOf": 60}, {"type": "integer", "multipleOf": 42}]});
    assert!(accepts(compile(&strict(both.clone())), "420") && !accepts(compile(&strict(both)), "60"));
}

/// llguidance would go through a million remainders and more, for minutes and gigabytes.
#[test]
fn numbers_with_many_remainders_are_refused_at_once_and_others_are_not() {
    let number = |n: f64| json!({"type": "integer", "multipleOf": n});
    let three = |n: [f64; 3]| json!({"allOf": n.map(number)});
    let many = Value::Object((0..4).map(|i| (format!("p{i}"), number(19_991.0 - f64::from(i)))).collect());
    let began = std::time::Instant::now();
    for (schema, place) in [
        (number(1_234_567.0), "#/multipleOf"),
        (number(99_999_989.0), "#/multipleOf"),
        (json!({"type": "number", "multipleOf": 1234.567}), "#/multipleOf"),
        (
            json!({"properties": {"a": {"anyOf": [{"type": "null"}, number(20_011.0)]}}}),
            "#/properties/a/anyOf/1/multipleOf",
        ),
        (three([97.0, 89.0, 83.0]), "#/allOf/2/multipleOf"),
        (json!({"properties": many}), "#/properties/p3/multipleOf"),
    ] {
        let why = refused(schema.clone());
        assert!(why.starts_with(&format!("{place}: ")), "{schema}: {why}");
    }
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    for (schema, one) in
        [(number(9973.0), "19946"), (number(5_000_000.0), "15000000"), (three([8.0, 9.0, 25.0]), "3600")]
    {
        assert!(accepts(compile(&strict(schema)), one));
    }
}

#[test]
fn schemas_that_no_value_matches_are_refused_at_once_wherever_that_stands() {
    let never = [
        json!({"anyOf": [false, {"enum": []}]}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"allOf": [{"const": 1}, {"const": 2}]}),
        json!({"enum": ["a", "b"], "type": "integer"}),
        json!({"type": "integer", "minimum": 1.2, "maximum": 1.8}),
        json!({"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 10}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"type": "string", "pattern": "^a$", "minLength": 2}),
        json!({"allOf": [{"type": "string", "pattern": "^a+$"}, {"type": "string", "pattern": "^b+$"}]}),
        json!({"type": "array", "items": false, "minItems": 1}),
        json!({"type": "object", "required": ["a"], "additionalProperties": false}),
        json!({"$ref": "#/$defs/never", "$defs": {"never": false}}),
    ];
    for schema in never {
        refused(schema.clone());
        let defs = schema.get("$defs").cloned().unwrap_or(json!({}));
        let deep = json!({"type": "object", "properties": {"z": {"type": "null"}, "a": schema}, "required": ["z", "a"], "$defs": defs});
        refused(deep);
    }
    let why = refused(json!({"type": "string", "pattern": "^a$", "minLength": 2}));
    assert!(why.contains("no string") && !why.contains("Regex"), "{why}");
}

#[test]
fn what_is_refused_is_not_told_with_settings_that_nobody_can_change() {
    for schema in [
        json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        json!({"properties": {"a": {"oneOf": [{"minimum": 3}, {"minimum": 4}]}}}),
        json!({"not": {"type": "null"}}),
        json!({"if": {"const": 1}, "then": false}),
    ] {
        let why = refused(schema);
        assert!(!["coerce", "lenient", "option", "Unimplemented"].iter().any(|word| why.contains(word)), "{why}");
    }
    let why = refused(json!({"uniqueItems": true, "type": "array"}));
    assert!(why.contains("uniqueItems"), "{why}");
}

#[test]
fn schemas_within_lark_are_made_ready_as_those_that_stand_alone() {
    let lark = |schema: &str| Grammar::Lark(format!("%llguidance {{}}\nstart: \"<\" x \">\"\nx: %json {schema}"));
    // references, numbers that are no whole ones by their looks, white space that comes to an end
    let tidy = "{\"$ref\": \"#/$defs/a~1b\", \"$defs\": {\"a/b\":\n {\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"maxItems\": 2.0}}}";
    for (text, fits) in
        [("<[null,null]>", true), ("<[null, null]>", true), ("<[null,null,null]>", false), ("<[null,  null]>", false)]
    {
        assert_eq!(accepts(compile(&lark(tidy)), text), fits, "{text}");
    }
    for (schema, why) in [
        ("{\"type\": \"number\", \"multipleOf\": 1e-300}", "#/multipleOf: "),
        ("{\"allOf\": [{\"multipleOf\": 1e5}, {\"multipleOf\": 1e5}]}", "#/allOf/1/multipleOf: "),
        ("{\"type\": \"string\", \"pattern\": \"^+a\"}", "#/pattern: "),
        ("false", "no value"),
    ] {
        match compiler().compile(&lark(schema)) {
            Err(GrammarError::Syntax { dialect: "Lark", line: 3, column: 4, why: told }) => {
                assert!(told.starts_with(why), "{told}");
            }
            other => panic!("{schema}: {other:?}"),
        }
    }
    let many = format!("{{\"anyOf\": [{}]}}", vec!["{}"; 1001].join(","));
    assert!(matches!(compiler().compile(&lark(&many)), Err(GrammarError::TooMuch(_))));
}

#[test]
fn a_form_that_was_compiled_lately_is_not_compiled_again_and_is_as_new() {
    let compiler = Compiler::new(&**vocabulary()).unwrap();
    let of = |n: usize| Grammar::Gbnf(format!("root ::= \"a{n}\" [a-z]{{3}}"));
    let mut matcher = compiler.compile(&of(0)).unwrap();
    for token in vocabulary().encode(b"a0x", EncodeOptions::PLAIN).unwrap() {
        matcher.accept(token).unwrap();
    }
    for _ in 0..3 {
        let again = compiler.compile(&of(0)).unwrap();
        assert!(accepts(again, "a0xyz"));
    }
    assert_eq!(compiler.compiled(), 1);
    // the last 32, by when they were used
    for n in 1..32 {
        compiler.compile(&of(n)).unwrap();
    }
    compiler.compile(&of(0)).unwrap();
    compiler.compile(&of(32)).unwrap();
    assert_eq!(compiler.compiled(), 33);
    compiler.compile(&of(0)).unwrap();
    assert_eq!(compiler.compiled(), 33);
    compiler.compile(&of(1)).unwrap();
    assert_eq!(compiler.compiled(), 34);
    // what is wrong is not kept
    for _ in 0..2 {
        assert!(compiler.compile(&Grammar::Gbnf("root ::= (".into())).is_err());
    }
    assert_eq!(compiler.compiled(), 36);
}

#[test]
fn forms_that_look_alike_are_told_apart() {
    let compiler = Compiler::new(&**vocabulary()).unwrap();
    let object = |properties: &str, strict| {
        let text = format!(
            "{{\"type\": \"object\", \"properties\": {properties}, \"required\": [\"a\", \"b\"], \"additionalProperties\": false}}"
        );
        Grammar::Schema { schema: serde_json::from_str(&text).unwrap(), strict }
    };
    let (ab, ba) = ("{\"a\": {\"const\": 1}, \"b\": {\"const\": 2}}", "{\"b\": {\"const\": 2}, \"a\": {\"const\": 1}}");
    let fits = |grammar: &Grammar, text: &str| accepts(compiler.compile(grammar).unwrap(), text);
    for strict in [true, false] {
        assert!(fits(&object(ab, strict), "{\"a\":1,\"b\":2}") && !fits(&object(ab, strict), "{\"b\":2,\"a\":1}"));
        assert!(fits(&object(ba, strict), "{\"b\":2,\"a\":1}") && !fits(&object(ba, strict), "{\"a\":1,\"b\":2}"));
    }
    let (regex, lark) = (Grammar::Regex("start: \"a\"".into()), Grammar::Lark("start: \"a\"".into()));
    assert!(fits(&regex, "start: \"a\"") && fits(&lark, "a") && !fits(&lark, "start: \"a\""));
    assert_eq!(compiler.compiled(), 6);
}
