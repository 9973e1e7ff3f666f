//! What an answer with calls may look like, in llguidance's kind of Lark.
//!
//! There the text is cut into the longest pieces that terminals (capital letters) match, so that text and calls must not begin alike:
//! the text before a call ends with what announces it, as one piece.

use super::{Choice, Function, ToolFormat, Tools, format::control};
use pi_engine::pi_core::text::Tokenizer;
use pi_grammar::{Grammar, Part};
use serde_json::Value;
use std::fmt::Write;

/// A little room between parts, as models were trained to leave it.
const SPACE: &str = "[ \\n]{0,4}";

/// The grammar for answers with calls of these functions. `answer` is what they look like without calls: a schema and whether it is
/// strict, or any text.
pub(crate) fn grammar(
    format: ToolFormat,
    tools: &Tools,
    answer: Option<(&Value, bool)>,
    tokenizer: &dyn Tokenizer,
) -> Grammar {
    let (mut out, mut schemas) = (String::new(), Vec::new());
    let callable: Vec<usize> = match tools.choice {
        Choice::Named(one) => vec![one],
        Choice::Auto | Choice::Required => (0..tools.functions.len()).collect(),
    };
    let several = tools.parallel && format.takes_several() && !matches!(tools.choice, Choice::Named(_));
    let calls = calls(&mut out, format, several, tokenizer);
    for &i in &callable {
        let Function { name, parameters, strict } = &tools.functions[i];
        let (name, key) = (escaped(name), format.arguments());
        let parts = ["\\{", "\"name\"", ":", &format!("\"{name}\""), ",", &format!("\"{key}\""), ":", ""].join(SPACE);
        let _ = writeln!(out, "HEAD{i}: /{SPACE}{parts}/");
        schemas.push(Part { name: format!("f{i}"), schema: Value::Object(parameters.clone()), strict: *strict });
    }
    let call: Vec<String> = callable.iter().map(|i| format!("HEAD{i} @f{i} TAIL")).collect();
    let _ = writeln!(out, "TAIL: /{SPACE}\\}}/\ncall: {}", call.join(" | "));
    let start = match (&tools.choice, answer) {
        (Choice::Required | Choice::Named(_), _) => format!("{}{}", calls.open, calls.rest),
        (Choice::Auto, Some((schema, strict))) => {
            schemas.push(Part { name: "answer".into(), schema: schema.clone(), strict });
            format!("@answer | {}{}", calls.open, calls.rest)
        }
        (Choice::Auto, None) => {
            out += &calls.text;
            format!("| TEXT | {}{}", calls.behind_text, calls.rest)
        }
    };
    let _ = writeln!(out, "start: {start}");
    Grammar::LarkWithSchemas { lark: out, schemas }
}

/// How calls begin and go on.
struct Calls {
    /// Before the first call.
    open: String,
    /// The same behind a text, which is a part of it.
    behind_text: String,
    /// From the first call on.
    rest: String,
    /// Terminals for text.
    text: String,
}

fn calls(out: &mut String, format: ToolFormat, several: bool, tokenizer: &dyn Tokenizer) -> Calls {
    let any = "/(?s:.*)/";
    if format == ToolFormat::Llama3 {
        // an answer that begins as a call is one
        let text = "TEXT: /(?s:.+)/ & ~/[ \\n]*\\{[ \\n]*\"name\"(?s:.*)/\n".to_string();
        return Calls { open: String::new(), behind_text: String::new(), rest: "call".into(), text };
    }
    let marker = |text: &str| match control(tokenizer, text) {
        Some(id) => (format!("<[{id}]>"), true),
        None => (format!("\"{text}\""), false),
    };
    let open = format.open().unwrap_or_default();
    let (mark, is_control) = marker(open);
    let (behind_text, text) = if is_control {
        (format!("TEXT? {mark} "), "TEXT: /(?s:.+)/\n".into())
    } else {
        let no_mark = format!("~/(?s:.*){}(?s:.*)/", escaped(open));
        let text = format!("TEXT: /(?s:.+)/ & {no_mark}\nBEFORE: ( {any} & {no_mark} ) {mark}\n");
        ("BEFORE ".into(), text)
    };
    let rest = match format.close() {
        Some(close) => {
            let close = marker(close).0;
            let _ = writeln!(out, "GAP: /[ \\n]{{1,4}}/");
            let again = if several { format!(" ( GAP? {mark} call GAP? {close} )*") } else { String::new() };
            format!("call GAP? {close}{again}")
        }
        None => {
            let _ = writeln!(out, "BEGIN: /{SPACE}\\[/\nEND: /{SPACE}\\]/\nCOMMA: /{SPACE},/");
            let again = if several { "( COMMA call )* " } else { "" };
            format!("BEGIN call {again}END")
        }
    };
    Calls { open: format!("{mark} "), behind_text, rest, text }
}

/// For a regular expression between slashes.
fn escaped(text: &str) -> String {
    let means = |c| "\\.+*?()|[]{}^$/".contains(c);
    text.chars().flat_map(|c| if means(c) { vec!['\\', c] } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Recogniser;
    use super::*;
    use pi_engine::{
        Constraint,
        pi_core::text::{EncodeOptions, TokenId, TokenKind},
        pi_gguf::File,
        tokenizer::{self, Vocab, VocabModel},
    };
    use pi_grammar::Compiler;
    use serde_json::json;
    use std::{path::Path, sync::Arc};

    fn demo() -> Arc<dyn Tokenizer> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf");
        tokenizer::load(File::open(path).unwrap().metadata()).unwrap().tokenizer
    }

    fn tools(choice: Choice, parallel: bool) -> Tools {
        let schema = |value: Value| value.as_object().unwrap().clone();
        let parameters = schema(
            json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}),
        );
        let none = schema(json!({"type": "object", "additionalProperties": false}));
        let functions = vec![
            Function { name: "get".into(), parameters, strict: true },
            Function { name: "get.all".into(), parameters: none, strict: false },
        ];
        Tools { functions, choice, parallel, list: Vec::new() }
    }

    /// Whether the grammar lets these tokens come and then an end.
    fn accepts(compiler: &Compiler, grammar: &Grammar, tokens: &[TokenId], tokenizer: &dyn Tokenizer) -> bool {
        let mut matcher = compiler.compile(grammar).unwrap_or_else(|e| panic!("{e}\n{grammar:?}"));
        let mut logits = vec![0.0; tokenizer.len()];
        for &token in tokens {
            logits.fill(0.0);
            if matcher.is_complete() || matcher.mask(&mut logits).is_err() || logits[token as usize] != 0.0 {
                return false;
            }
            matcher.accept(token).unwrap();
        }
        logits.fill(0.0);
        matcher.is_complete()
            || matcher.mask(&mut logits).is_ok() && tokenizer.special().eog.iter().any(|&id| logits[id as usize] == 0.0)
    }

    const HERMES: &str = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 3}}\n</tool_call>";
    const ALL: &str = "<tool_call>{\"name\":\"get.all\",\"arguments\":{}}</tool_call>";

    #[test]
    fn texts_and_calls_are_told_apart_and_calls_are_whole() {
        let tokenizer = demo();
        let compiler = Compiler::new(&*tokenizer).unwrap();
        let two = format!("{HERMES}\n{ALL}");
        let text = "Look < here </tool_call> <tool\n\nat 日本 {\"name\": 3}";
        let llama = "{\"name\": \"get\", \"parameters\": {\"n\": -12}}";
        let mistral =
            "[TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"n\": 1}}, {\"name\": \"get.all\", \"arguments\": {}}]";
        // format, choice, several, text, fits, calls
        let cases = [
            (ToolFormat::Hermes, Choice::Auto, true, "".into(), true, 0),
            (ToolFormat::Hermes, Choice::Auto, true, text.into(), true, 0),
            (ToolFormat::Hermes, Choice::Auto, true, HERMES.into(), true, 1),
            (ToolFormat::Hermes, Choice::Auto, true, format!("{text}\n{HERMES}"), true, 1),
            (ToolFormat::Hermes, Choice::Auto, true, format!("a <tool_call{two}"), true, 2),
            (ToolFormat::Hermes, Choice::Auto, false, two.clone(), false, 2),
            (ToolFormat::Hermes, Choice::Auto, true, format!("{HERMES} and more"), false, 0),
            (ToolFormat::Hermes, Choice::Auto, true, "a <tool_call> b".into(), false, 0),
            (ToolFormat::Hermes, Choice::Auto, true, HERMES.replace("get", "put"), false, 0),
            (ToolFormat::Hermes, Choice::Auto, true, HERMES.replace('3', "\"3\""), false, 0),
            (ToolFormat::Hermes, Choice::Auto, true, HERMES.replace("\"n\": 3", ""), false, 0),
            (ToolFormat::Hermes, Choice::Required, true, two.clone(), true, 2),
            (ToolFormat::Hermes, Choice::Required, true, "".into(), false, 0),
            (ToolFormat::Hermes, Choice::Required, true, format!("a{HERMES}"), false, 0),
            (ToolFormat::Hermes, Choice::Named(0), true, HERMES.into(), true, 1),
            (ToolFormat::Hermes, Choice::Named(1), true, HERMES.into(), false, 0),
            (ToolFormat::Hermes, Choice::Named(0), true, two, false, 0),
            (ToolFormat::Llama3, Choice::Auto, true, text.into(), true, 0),
            (ToolFormat::Llama3, Choice::Auto, true, "{\"n\": 3}".into(), true, 0),
            (ToolFormat::Llama3, Choice::Auto, true, llama.into(), true, 1),
            (ToolFormat::Llama3, Choice::Auto, true, llama.replace("get", "put"), false, 0),
            (ToolFormat::Llama3, Choice::Required, true, llama.into(), true, 1),
            (ToolFormat::Llama3, Choice::Required, true, "{\"n\": 3}".into(), false, 0),
            (ToolFormat::Mistral, Choice::Auto, true, mistral.into(), true, 2),
            (ToolFormat::Mistral, Choice::Auto, true, format!("Well. {mistral}"), true, 2),
            (ToolFormat::Mistral, Choice::Required, true, mistral.into(), true, 2),
            (ToolFormat::Mistral, Choice::Required, false, mistral.into(), false, 2),
            (ToolFormat::Mistral, Choice::Auto, true, mistral.trim_end_matches(']').into(), false, 0),
        ];
        for (format, choice, several, text, fits, calls) in cases {
            let grammar = grammar(format, &tools(choice.clone(), several), None, &*tokenizer);
            let tokens = tokenizer.encode(text.as_bytes(), EncodeOptions::PLAIN).unwrap();
            assert_eq!(
                accepts(&compiler, &grammar, &tokens, &*tokenizer),
                fits,
                "{format:?} {choice:?} {text}\n{grammar:?}"
            );
            if fits {
                let mut recogniser = Recogniser::new(format);
                let parts = recogniser.push(&text);
                let found = parts.iter().filter(|part| matches!(part, super::super::Part::Call(_))).count();
                assert_eq!((found, recogniser.has_called()), (calls, calls > 0), "{text}");
            }
        }
    }

    #[test]
    fn calls_that_are_announced_by_a_control_token_begin_with_it() {
        let bytes = (33..127u8).map(|b| char::from(b).to_string()).chain(["Ġ".into(), "Ċ".into()]);
        let mut vocab = Vocab::new(VocabModel::Bpe, bytes.chain(["[TOOL_CALLS]".into(), "</s>".into()]));
        vocab.pre = Some("gpt-2".into());
        vocab.merges = ["a b"].into_iter().collect();
        let n = vocab.tokens.len();
        vocab.kinds = vec![TokenKind::Normal; n];
        vocab.kinds[n - 2..].fill(TokenKind::Control);
        vocab.special.eos = Some(n as TokenId - 1);
        let tokenizer = tokenizer::build(vocab).unwrap().tokenizer;
        let compiler = Compiler::new(&*tokenizer).unwrap();
        assert_eq!(ToolFormat::Mistral.controls(&*tokenizer), [n as TokenId - 2]);
        let grammar = grammar(ToolFormat::Mistral, &tools(Choice::Auto, true), None, &*tokenizer);
        let call = "[{\"name\": \"get\", \"arguments\": {\"n\": 1}}]";
        let as_text = format!("[TOOL_CALLS]{call}");
        for (text, parse_special, fits) in [
            (&*as_text, true, true),
            ("hello", true, true),
            ("x[TOOL_CALLS]y", true, false),
            ("x[TOOL_CALLS]y", false, true),
        ] {
            let options = EncodeOptions { add_special: false, parse_special };
            let tokens = tokenizer.encode(text.as_bytes(), options).unwrap();
            assert_eq!(accepts(&compiler, &grammar, &tokens, &*tokenizer), fits, "{text}\n{grammar:?}");
        }
    }
}
