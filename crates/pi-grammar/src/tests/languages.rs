use super::*;
use crate::gbnf::naive;

/// llama.cpp's grammar of JSON, as its clients send it.
const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;

/// Grammars with texts that have their form. Some are such that taking the longest piece would go wrong.
const CASES: [(&str, &[&str]); 15] = [
    (JSON, &["{}", "{ \"a\": [1, -2.5e+3, true], \"é\\u00e9\": {\"b\": null}}", "{\"\": \"\\\"\"} "]),
    ("root ::= \"yes\" | \"no\"", &["yes", "no"]),
    ("root ::= [a-z]{1,4} \"x\" [0-9]{2,3}", &["xx12", "axbx345"]),
    ("root ::= (\"ab\" | \"a\" \"c\" | \"abcd\")+", &["ab", "ac", "abcdac", "abab"]),
    ("root ::= \"(\" root \")\" | \"\"", &["", "()", "((()))"]),
    (
        "root ::= e\ne ::= e \"+\" t | t\nt ::= t \"*\" f | f\nf ::= \"(\" e \")\" | [0-9]+",
        &["1", "12+3*(4+5)", "((7))*8"],
    ),
    // a word that may end where the next begins
    ("root ::= \"<\" word word \">\" | \"[\" root \"]\"\nword ::= [a-z]+", &["<ab>", "[<abc>]"]),
    // pieces that begin alike
    (
        "root ::= \"[\" root \"]\" | name | key\nname ::= \"ab\" [a-z]*\nkey ::= \"abc\" [0-9]+",
        &["[abx]", "abc1", "[[ab]]"],
    ),
    ("root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"c\"", &["c", "aca", "abacaba"]),
    ("root ::= (ws \"x\")* tail\nws ::= \" \"*\ntail ::= \"(\" root \")\" | \"\"", &["", " x", "x  x( x)"]),
    ("root ::= .{3}", &["abc", "é🦙x", "\n\n\n"]),
    ("root ::= [^a-c\\n]+ (\"a\" root)?", &["xyz", "dadad"]),
    ("root ::= \"q\"{2} (\"r\" \"s\"){1,2} \"t\"{0,} (root)?", &["qqrs", "qqrsrsttqqrst"]),
    ("root ::= a b\na ::= \"x\"?\nb ::= \"(\" root \")\" | \"x\"?", &["", "x", "xx", "x(x(xx))"]),
    ("root ::= list\nlist ::= \"- \" text \"\\n\" list?\ntext ::= [^\\n]+", &["- a\n", "- - b\n- é\n"]),
];

#[test]
fn texts_have_the_form_that_llama_cpps_grammars_say() {
    let mut random = Random(5);
    for (grammar, texts) in CASES {
        let rules = naive(grammar);
        let is_member = |text: &str| rules(text);
        for text in texts {
            assert!(is_member(text), "{grammar}\n{text}: the test is wrong");
            assert!(accepts(compile(&Grammar::Gbnf(grammar.into())), text), "{grammar}\n{text:?}");
        }
        // the same with a character changed, left out or doubled
        let mut others = 0;
        for _ in 0..30 {
            let chars: Vec<char> = texts[random.below(texts.len())].chars().collect();
            let at = random.below(chars.len().max(1));
            let mut changed = chars.clone();
            match random.below(3) {
                0 if !chars.is_empty() => _ = changed.remove(at),
                1 if !chars.is_empty() => changed.insert(at, chars[random.below(chars.len())]),
                _ => changed.insert(at, ['a', 'x', ' ', '(', '1', '"', '\n'][random.below(7)]),
            }
            let text: String = changed.into_iter().collect();
            assert_eq!(
                accepts(compile(&Grammar::Gbnf(grammar.into())), &text),
                is_member(&text),
                "{grammar}\n{text:?}"
            );
            others += usize::from(!is_member(&text));
        }
        assert!(others > 2 || grammar.contains(".{3}"), "{grammar}");
    }
}

#[test]
fn texts_by_chance_have_the_form() {
    let (mut random, mut whole) = (Random(9), 0);
    for (grammar, _) in CASES {
        let rules = naive(grammar);
        for _ in 0..4 {
            if let Some(text) = by_chance(&mut compile(&Grammar::Gbnf(grammar.into())), &mut random, 5) {
                assert!(text.len() > 120 || rules(&text), "{grammar}\n{text:?}");
                whole += 1;
            }
        }
    }
    assert!(whole > 30, "{whole} of 60 came to an end");
}

#[test]
fn lark_and_regular_expressions_say_what_comes() {
    let lark = "%llguidance {}\nstart: \"a\" b\nb: /[0-9]{2}/ | \"(\" b \")\"";
    assert_eq!(Grammar::text(lark), Grammar::Lark(lark.into()));
    for (text, fits) in [("a12", true), ("a((34))", true), ("a1", false), ("b12", false)] {
        assert_eq!(accepts(compile(&Grammar::text(lark)), text), fits, "{text}");
    }
    for (text, fits) in [("2026-11-30", true), ("2026/11/30", true), ("2026-11-3", false)] {
        assert_eq!(accepts(compile(&Grammar::Regex("\\d{4}[-/]\\d\\d[-/]\\d{2}".into())), text), fits, "{text}");
    }
}

#[test]
fn control_tokens_come_where_a_form_names_them_and_the_end_only_where_it_may() {
    let end = vocabulary().special().eog[0];
    let mut matcher = compile(&Grammar::Regex("ab?".into()));
    assert!(!allowed(&mut matcher).into_iter().any(is_end));
    let a = vocabulary().encode(b"a", EncodeOptions::PLAIN).unwrap()[0];
    matcher.accept(a).unwrap();
    assert!(allowed(&mut matcher).contains(&end) && !matcher.is_complete());
    matcher.accept(end).unwrap();
    assert!(matcher.is_complete());
    // a token that may not come is refused
    let mut matcher = compile(&Grammar::Regex("ab".into()));
    assert!(matcher.accept(end).is_err());
}

#[test]
fn strings_and_numbers_of_json_are_pieces() {
    let lark = crate::gbnf::to_lark(JSON).unwrap();
    let rules: Vec<&str> = lark.lines().filter(|line| line.starts_with('r')).collect();
    // no rule sees what is in a string: an escape, or a letter of true
    assert!(!rules.is_empty() && rules.iter().all(|rule| !rule.contains("x{5c}") && !rule.contains("x{74}")), "{lark}");
}

#[test]
fn literals_and_classes_may_have_line_ends_in_them() {
    let grammar = Grammar::Gbnf("root ::= \"a\nb\" [ \t\n]* \"c\"".into());
    assert!(accepts(compile(&grammar), "a\nb\n \tc"));
    assert!(!accepts(compile(&grammar), "a b c"));
}
