//! Answers are written by chance, under a form, and looked at by code that knows nothing of how the form was compiled.

mod aside;
mod hostile;
mod languages;
mod schema_parts;
mod schemas;

use crate::{Compiler, Grammar, Matcher};
use pi_engine::{
    Constraint,
    pi_core::text::{DecodeOptions, EncodeOptions, TokenId, Tokenizer},
    pi_gguf::File,
    tokenizer,
};
use pi_testkit::Random;
use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

/// The vocabulary of the demo model: 2,048 tokens, every byte among them.
fn vocabulary() -> &'static Arc<dyn Tokenizer> {
    static ALL: OnceLock<Arc<dyn Tokenizer>> = OnceLock::new();
    ALL.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf");
        tokenizer::load(File::open(path).unwrap().metadata()).unwrap().tokenizer
    })
}

fn compiler() -> &'static Compiler {
    static ALL: OnceLock<Compiler> = OnceLock::new();
    ALL.get_or_init(|| Compiler::new(&**vocabulary()).unwrap())
}

pub(crate) fn compile(grammar: &Grammar) -> Matcher {
    compiler().compile(grammar).unwrap_or_else(|e| panic!("{grammar:?}: {e}"))
}

/// The tokens that may come next.
fn allowed(matcher: &mut Matcher) -> Vec<TokenId> {
    let mut logits = vec![0.0; vocabulary().len()];
    matcher.mask(&mut logits).unwrap();
    (0..).zip(logits).filter(|(_, l)| *l == 0.0).map(|(id, _)| id).collect()
}

fn is_end(token: TokenId) -> bool {
    vocabulary().special().is_eog(token)
}

/// A text of the form: any allowed token is as likely as any other, but the end comes as soon as it may after `patience` tokens.
/// `None` if that takes too long.
fn by_chance(matcher: &mut Matcher, random: &mut Random, patience: usize) -> Option<String> {
    let mut tokens = Vec::new();
    while !matcher.is_complete() && tokens.len() < 400 {
        let allowed = allowed(matcher);
        assert!(!allowed.is_empty());
        let end = allowed.iter().copied().find(|&token| is_end(token) && tokens.len() >= patience);
        let token = end.unwrap_or_else(|| allowed[random.below(allowed.len())]);
        if is_end(token) {
            return Some(text(&tokens));
        }
        matcher.accept(token).unwrap();
        tokens.push(token);
    }
    matcher.is_complete().then(|| text(&tokens))
}

fn text(tokens: &[TokenId]) -> String {
    String::from_utf8(vocabulary().decode(tokens, DecodeOptions::default()).unwrap()).unwrap()
}

/// Whether a text has the form, token by token.
fn accepts(mut matcher: Matcher, text: &str) -> bool {
    for token in vocabulary().encode(text.as_bytes(), EncodeOptions::PLAIN).unwrap() {
        if matcher.is_complete() || !allowed(&mut matcher).contains(&token) {
            return false;
        }
        matcher.accept(token).unwrap();
    }
    matcher.is_complete() || allowed(&mut matcher).into_iter().any(is_end)
}
