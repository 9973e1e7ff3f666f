//! `tokenizer.json`, and `vocab.json` with `merges.txt`: byte pair encoding.

use std::collections::HashMap;
use std::path::Path;

use pi_core::text::TokenKind;
use serde_json::Value as Json;

use super::config::json;
use super::tokenizer::{Token, Vocabulary};
use crate::error::{Error, Result};

/// More tokens than this are taken for damage.
const MAX_TOKENS: u64 = 1 << 24;

/// Reads `tokenizer.json`. `pre` is the way to split text, if the caller knows better; `tidy` is whether decoding tidies spaces.
pub(super) fn tokenizer_json(path: &Path, pre: Option<&str>, tidy: bool) -> Result<Option<Vocabulary>> {
    let Some(json) = json(path)? else { return Ok(None) };
    let wrong = |what: String| Error::tokenizer(path, what);
    let model = &json["model"];
    // Files of old versions do not say the type.
    let ty = model["type"].as_str().unwrap_or(if model["merges"].is_array() { "BPE" } else { "none" });
    if ty != "BPE" {
        return Err(wrong(format!("model of type {ty}: BPE is read")));
    }
    let mut tokens = table(path, model["vocab"].as_object())?;
    let merges = model["merges"].as_array().ok_or_else(|| wrong("no merges".into()))?;
    let merges: Vec<_> =
        merges.iter().map(|merge| pair(merge).ok_or_else(|| wrong(format!("merge {merge}")))).collect::<Result<_>>()?;
    let added = added(path, &json["added_tokens"])?;
    let (add_bos, add_eos) = post_processor(&json["post_processor"]);
    if model["byte_fallback"].as_bool() == Some(true) {
        return Ok(Some(sentence_piece(tokens, &merges, &added, &json, (add_bos, add_eos))));
    }
    let pre = match pre {
        Some(pre) => pre.to_owned(),
        None => pre_tokenizer(&json["pre_tokenizer"], tidy).map_err(wrong)?.into(),
    };
    apply(&mut tokens, &added);
    let merges = merges.iter().map(|(left, right)| format!("{} {}", spaceless(left), spaceless(right))).collect();
    let mut vocabulary = Vocabulary { model: "gpt2", pre: Some(pre), tokens, merges, ..Vocabulary::default() };
    (vocabulary.add_bos, vocabulary.add_eos) = (add_bos, add_eos);
    Ok(Some(vocabulary))
}

/// Reads `vocab.json` and `merges.txt`, GPT-2's files.
pub(super) fn vocab_and_merges(dir: &Path, pre: Option<&str>) -> Result<Option<Vocabulary>> {
    let path = dir.join("vocab.json");
    let Some(json) = json(&path)? else { return Ok(None) };
    let mut tokens = table(&path, json.as_object())?;
    let path = dir.join("merges.txt");
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
    let mut merges = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with("#version")) {
        if line.split(' ').count() != 2 {
            return Err(Error::tokenizer(&path, format!("line {line:?} is no pair")));
        }
        merges.push(line.to_owned());
    }
    // These files do not say which tokens are special: those in angle brackets are.
    for token in tokens.iter_mut().filter(|t| t.text.len() > 2 && t.text.starts_with(b"<") && t.text.ends_with(b">")) {
        token.kind = TokenKind::Control;
    }
    let pre = Some(pre.unwrap_or("gpt-2").to_owned());
    Ok(Some(Vocabulary { model: "gpt2", pre, tokens, merges, ..Vocabulary::default() }))
}

/// The tokens of a table from texts to ids; ids without a text are unused.
fn table(path: &Path, vocab: Option<&serde_json::Map<String, Json>>) -> Result<Vec<Token>> {
    let vocab = vocab.ok_or_else(|| Error::tokenizer(path, "no vocabulary"))?;
    let mut tokens = Vec::new();
    for (text, id) in vocab {
        // More ids than tokens would make much of little.
        let most = (4 * vocab.len() as u64 + 100_000).min(MAX_TOKENS);
        let id = id.as_u64().filter(|&id| id < most);
        let id =
            id.ok_or_else(|| Error::tokenizer(path, format!("token {text:?} without a number that can be used")))?;
        put(&mut tokens, id as usize, Token::normal(text));
    }
    Ok(tokens)
}

fn put(tokens: &mut Vec<Token>, id: usize, token: Token) {
    while tokens.len() <= id {
        tokens.push(Token::unused(tokens.len()));
    }
    tokens[id] = token;
}

/// The tokens added to a vocabulary: id, and what it is.
fn added(path: &Path, json: &Json) -> Result<Vec<(usize, Token)>> {
    let list = json.as_array().map_or(&[][..], |list| &list[..]);
    let one = |token: &Json| {
        let id = token["id"].as_u64().filter(|&id| id < MAX_TOKENS)?;
        let kind = if token["special"].as_bool()? { TokenKind::Control } else { TokenKind::UserDefined };
        Some((id as usize, Token { kind, ..Token::normal(token["content"].as_str()?) }))
    };
    let mut added: Vec<_> = list
        .iter()
        .map(|token| one(token).ok_or_else(|| Error::tokenizer(path, format!("added token {token}"))))
        .collect::<Result<_>>()?;
    added.sort_by_key(|(id, _)| *id);
    Ok(added)
}

fn apply(tokens: &mut Vec<Token>, added: &[(usize, Token)]) {
    for (id, token) in added {
        put(tokens, *id, token.clone());
    }
}

/// A merge is "left right", or, in newer files, ["left", "right"].
fn pair(merge: &Json) -> Option<(String, String)> {
    match merge {
        Json::String(text) => text.split_once(' ').map(|(left, right)| (left.into(), right.into())),
        Json::Array(parts) => match &parts[..] {
            [Json::String(left), Json::String(right)] => Some((left.clone(), right.clone())),
            _ => None,
        },
        _ => None,
    }
}

/// A file has pairs separated by a space: spaces within are written as bytes are.
fn spaceless(text: &str) -> String {
    text.replace(' ', "Ġ")
}

/// A vocabulary that was SentencePiece's: its order of merges becomes scores.
fn sentence_piece(
    mut tokens: Vec<Token>,
    merges: &[(String, String)],
    added: &[(usize, Token)],
    json: &Json,
    (add_bos, add_eos): (Option<bool>, Option<bool>),
) -> Vocabulary {
    let mut ranks = HashMap::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}").into_bytes()).or_insert(rank);
    }
    for token in &mut tokens {
        token.score = match ranks.get(&token.text) {
            Some(&rank) => -(rank as f32),
            None => -(merges.len() as f32) - 1.0,
        };
        let is_byte = token.text.len() == 6 && token.text.starts_with(b"<0x") && token.text.ends_with(b">");
        if is_byte && token.kind == TokenKind::Normal {
            (token.kind, token.score) = (TokenKind::Byte, 0.0);
        }
    }
    apply(&mut tokens, added);
    let unknown = json["model"]["unk_token"].as_str().map(str::as_bytes);
    for token in tokens.iter_mut().filter(|token| Some(&*token.text) == unknown) {
        token.kind = TokenKind::Unknown;
    }
    // A space in front of the text is put there by a normalizer that prepends, or a pre-tokenizer.
    let text = format!("{}{}", json["normalizer"], json["pre_tokenizer"]);
    let prefix = text.contains("\"Prepend\"")
        || text.contains("\"prepend_scheme\":\"first\"")
        || text.contains("\"prepend_scheme\":\"always\"");
    let space_prefix = if prefix { None } else { Some(false) };
    Vocabulary { model: "llama", tokens, add_bos, add_eos, space_prefix, ..Vocabulary::default() }
}

/// Whether texts get special tokens in front and behind, if the file says.
fn post_processor(json: &Json) -> (Option<bool>, Option<bool>) {
    match json["type"].as_str() {
        Some("TemplateProcessing") => {
            let single = json["single"].as_array().map_or(&[][..], |list| &list[..]);
            let special = |part: Option<&Json>| part.map(|part| part["SpecialToken"].is_object());
            (special(single.first()), special(single.last()))
        }
        Some("Sequence") => {
            let parts = json["processors"].as_array().map_or(&[][..], |list| &list[..]);
            let found = parts.iter().map(post_processor);
            found.fold((None, None), |a, b| (a.0.or(b.0), a.1.or(b.1)))
        }
        _ => (None, None),
    }
}

/// Regular expressions by which texts are split, and the names that files have for them.
const PATTERNS: [(&str, &str); 5] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "tekken",
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "gpt-4o",
    ),
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", "gpt-2"),
];

/// The name of a way to split text.
fn pre_tokenizer(json: &Json, tidy: bool) -> Result<&'static str, String> {
    let list = std::slice::from_ref(json);
    let steps =
        if json["type"] == "Sequence" { json["pretokenizers"].as_array().map_or(list, |l| &l[..]) } else { list };
    let shown = || format!("its way to split text is not recognised ({json}): say which it is (--pre)");
    // A step is known by its type, and whether it looks for GPT-2's pattern itself.
    let step = |step: &Json| match step["type"].as_str().unwrap_or_default() {
        "ByteLevel" if step["use_regex"].as_bool().unwrap_or(true) => "gpt2".to_owned(),
        "ByteLevel" => "bytes".into(),
        "Digits" if step["individual_digits"] == true => "digit".into(),
        "Digits" => "digits".into(),
        "Split" => step["pattern"]["Regex"].as_str().unwrap_or("?").to_owned(),
        other => other.to_owned(),
    };
    let steps: Vec<_> = steps.iter().map(step).collect();
    let steps: Vec<_> = steps.iter().map(String::as_str).collect();
    match steps[..] {
        ["gpt2"] => Ok("gpt-2"),
        ["digit", "gpt2"] => Ok(if tidy { "starcoder" } else { "smollm" }),
        ["Punctuation", "gpt2", "digits", "[0-9][0-9][0-9]"] => Ok("falcon"),
        ["Punctuation", "gpt2", "digits"] => Ok("default"),
        [pattern, "bytes"] | [pattern] => {
            PATTERNS.iter().find(|(known, _)| *known == pattern).map(|(_, name)| *name).ok_or_else(shown)
        }
        _ => Err(shown()),
    }
}
