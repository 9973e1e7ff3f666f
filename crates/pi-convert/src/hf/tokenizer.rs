//! From a checkpoint's tokenizer to the keys of a model file.

use std::path::Path;

use pi_core::text::TokenKind;
use pi_gguf::Builder;
use serde_json::Value as Json;

use super::config::{Config, json};
use super::{bpe, sentencepiece};
use crate::error::{Error, Result};

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub text: Vec<u8>,
    pub score: f32,
    pub kind: TokenKind,
}

impl Token {
    pub(super) fn normal(text: &str) -> Self {
        Self { text: text.into(), score: 0.0, kind: TokenKind::Normal }
    }

    /// A row of the embedding that no text has.
    pub(super) fn unused(id: usize) -> Self {
        Self { text: format!("[PAD{id}]").into(), score: -10_000.0, kind: TokenKind::Unused }
    }
}

/// A vocabulary as a model file has it.
#[derive(Debug, Default)]
pub(super) struct Vocabulary {
    /// `llama` (SentencePiece) or `gpt2` (byte pairs).
    pub model: &'static str,
    pub pre: Option<String>,
    pub tokens: Vec<Token>,
    pub merges: Vec<String>,
    /// Keys of special tokens and their ids.
    pub ids: Vec<(&'static str, u32)>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub space_prefix: Option<bool>,
    pub chat_template: Option<String>,
}

/// Special tokens: what checkpoints call them, and files' keys.
const SPECIAL: [(&str, &str); 6] = [
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    ("sep", "tokenizer.ggml.seperator_token_id"), // sic: the key is misspelt in published files
    ("pad", "tokenizer.ggml.padding_token_id"),
    ("mask", "tokenizer.ggml.mask_token_id"),
];

impl Vocabulary {
    pub(super) fn set(&self, builder: &mut Builder) -> Result<()> {
        builder.set("tokenizer.ggml.model", self.model)?;
        if let Some(pre) = &self.pre {
            builder.set("tokenizer.ggml.pre", pre)?;
        }
        builder.set_strings("tokenizer.ggml.tokens", self.tokens.iter().map(|t| &t.text))?;
        if self.model == "llama" {
            let scores: Vec<_> = self.tokens.iter().map(|t| t.score).collect();
            builder.set_array("tokenizer.ggml.scores", &scores)?;
        }
        let kinds: Vec<_> = self.tokens.iter().map(|t| number(t.kind)).collect();
        builder.set_array("tokenizer.ggml.token_type", &kinds)?;
        if !self.merges.is_empty() {
            builder.set_strings("tokenizer.ggml.merges", &self.merges)?;
        }
        for (key, id) in &self.ids {
            builder.set(key, *id)?;
        }
        for (key, flag) in [
            ("tokenizer.ggml.add_bos_token", self.add_bos),
            ("tokenizer.ggml.add_eos_token", self.add_eos),
            ("tokenizer.ggml.add_space_prefix", self.space_prefix),
        ] {
            if let Some(flag) = flag {
                builder.set(key, flag)?;
            }
        }
        if let Some(template) = &self.chat_template {
            builder.set("tokenizer.chat_template", template)?;
        }
        Ok(())
    }

    fn find(&self, text: &str) -> Option<u32> {
        self.tokens.iter().position(|t| t.text == text.as_bytes()).map(|id| id as u32)
    }
}

/// SentencePiece's numbers.
fn number(kind: TokenKind) -> i32 {
    match kind {
        TokenKind::Normal => 1,
        TokenKind::Unknown => 2,
        TokenKind::Control => 3,
        TokenKind::UserDefined => 4,
        TokenKind::Unused => 5,
        TokenKind::Byte => 6,
        _ => 0,
    }
}

/// Reads the tokenizer of a checkpoint whose embedding has `rows` rows: `tokenizer.model`, else `tokenizer.json`, else
/// `vocab.json` with `merges.txt`.
pub(super) fn read(config: &Config, rows: usize, pre: Option<&str>) -> Result<Vocabulary> {
    let dir = &config.dir;
    let settings = json(&dir.join("tokenizer_config.json"))?.unwrap_or(Json::Null);
    let tidy = settings["clean_up_tokenization_spaces"].as_bool().unwrap_or(true);
    let mut vocabulary = match sentence_piece(dir)? {
        Some(vocabulary) => vocabulary,
        None => match bpe::tokenizer_json(&dir.join("tokenizer.json"), pre, tidy)? {
            Some(vocabulary) => vocabulary,
            None => bpe::vocab_and_merges(dir, pre)?.ok_or_else(|| {
                let what = "a tokenizer (tokenizer.model, tokenizer.json, or vocab.json with merges.txt)";
                Error::MissingFile { path: dir.clone(), what: what.into() }
            })?,
        },
    };
    if vocabulary.tokens.len() > rows {
        // Some vocabularies are padded at the end, with tokens that nothing was trained for.
        let got = format!("{} tokens", vocabulary.tokens.len());
        return Err(config.error("vocab_size", format!("at least as many as the tokenizer's {got}"), rows));
    }
    for id in vocabulary.tokens.len()..rows {
        vocabulary.tokens.push(Token::unused(id));
    }
    special(config, &settings, &mut vocabulary)?;
    let flag = |key: &str, there: Option<bool>| settings[key].as_bool().or(there);
    vocabulary.add_bos = flag("add_bos_token", vocabulary.add_bos);
    vocabulary.add_eos = flag("add_eos_token", vocabulary.add_eos);
    vocabulary.chat_template = chat_template(dir, &settings)?;
    Ok(vocabulary)
}

fn sentence_piece(dir: &Path) -> Result<Option<Vocabulary>> {
    let path = dir.join("tokenizer.model");
    if !path.exists() {
        return Ok(None);
    }
    let bytes = std::fs::read(&path).map_err(Error::io(&path, "read"))?;
    let model = sentencepiece::parse(&bytes).map_err(|what| Error::tokenizer(&path, what))?;
    let pieces = model.pieces.into_iter();
    let tokens = pieces.map(|piece| Token { text: piece.text, score: piece.score, kind: piece.kind }).collect();
    let space_prefix = model.space_prefix.filter(|&prefix| !prefix);
    let mut vocabulary = Vocabulary { model: "llama", tokens, space_prefix, ..Vocabulary::default() };
    // 1 and 2 are what readers assume.
    for (id, usual, (_, key)) in [(model.ids[0], 1, SPECIAL[0]), (model.ids[1], 2, SPECIAL[1])] {
        let known = id.and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocabulary.tokens.len());
        vocabulary.ids.extend(known.filter(|&id| id != usual).map(|id| (key, id)));
    }
    added(dir, &mut vocabulary)?;
    Ok(Some(vocabulary))
}

/// Tokens that were added to a SentencePiece vocabulary, which its file does not know.
fn added(dir: &Path, vocabulary: &mut Vocabulary) -> Result<()> {
    let mut all = Vec::new();
    let path = dir.join("added_tokens.json");
    if let Some(json) = json(&path)? {
        let entries = json.as_object().ok_or_else(|| Error::tokenizer(&path, "no object"))?;
        for (text, id) in entries {
            let id = id.as_u64().ok_or_else(|| Error::tokenizer(&path, format!("token {text:?} without a number")))?;
            all.push((path.clone(), id, text.clone(), TokenKind::UserDefined));
        }
    }
    let path = dir.join("tokenizer_config.json");
    let settings = json(&path)?.unwrap_or(Json::Null);
    for (id, token) in settings["added_tokens_decoder"].as_object().into_iter().flatten() {
        let wrong = || Error::tokenizer(&path, format!("added token {id}"));
        let text = token["content"].as_str().ok_or_else(wrong)?;
        let kind = if token["special"] == true { TokenKind::Control } else { TokenKind::UserDefined };
        all.push((path.clone(), id.parse().map_err(|_| wrong())?, text.into(), kind));
    }
    all.sort_by_key(|(_, id, ..)| *id);
    for (path, id, text, kind) in all {
        let len = vocabulary.tokens.len();
        match usize::try_from(id) {
            // What the vocabulary has already keeps its kind; its text may be another.
            Ok(id) if id < len => {
                let token = &mut vocabulary.tokens[id];
                if token.text != text.as_bytes() && !matches!(token.kind, TokenKind::Byte) {
                    *token = Token { kind, score: -1000.0, ..Token::normal(&text) };
                }
            }
            Ok(id) if id == len => vocabulary.tokens.push(Token { kind, score: -1000.0, ..Token::normal(&text) }),
            _ => {
                return Err(Error::tokenizer(
                    &path,
                    format!("token {text:?} has number {id}, but there are {len} before it"),
                ));
            }
        }
    }
    Ok(())
}

fn special(config: &Config, settings: &Json, vocabulary: &mut Vocabulary) -> Result<()> {
    let map = json(&config.dir.join("special_tokens_map.json"))?.unwrap_or(Json::Null);
    for (name, key) in SPECIAL {
        let token = format!("{name}_token");
        // A token is its text, or an object with that.
        let text = |json: &Json| json[&*token].as_str().or(json[&*token]["content"].as_str()).map(str::to_owned);
        let by_text = text(settings).or_else(|| text(&map)).and_then(|text| vocabulary.find(&text));
        let stated = &config.json[format!("{name}_token_id")];
        let stated = if stated.is_array() { &stated[0] } else { stated };
        let by_id = stated.as_u64().filter(|&id| id < vocabulary.tokens.len() as u64).map(|id| id as u32);
        if let Some(id) = by_text.or(by_id) {
            vocabulary.ids.retain(|(there, _)| *there != key);
            vocabulary.ids.push((key, id));
        }
    }
    Ok(())
}

/// The chat template: in a file of its own, or among the settings, there perhaps one of several.
fn chat_template(dir: &Path, settings: &Json) -> Result<Option<String>> {
    let path = dir.join("chat_template.jinja");
    if path.exists() {
        return std::fs::read_to_string(&path).map(Some).map_err(Error::io(&path, "read"));
    }
    let own = json(&dir.join("chat_template.json"))?.unwrap_or(Json::Null);
    let template = if own["chat_template"].is_null() { &settings["chat_template"] } else { &own["chat_template"] };
    let named = template.as_array().and_then(|list| list.iter().find(|entry| entry["name"] == "default"));
    Ok(template.as_str().or(named.and_then(|entry| entry["template"].as_str())).map(str::to_owned))
}
