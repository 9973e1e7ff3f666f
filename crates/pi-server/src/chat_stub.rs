//! Stand-in until the real module is merged.
#![allow(missing_docs)]
use pi_engine::{
    pi_core::text::{EncodeOptions, TokenId, Tokenizer},
    pi_gguf::Metadata,
};
use serde_json::{Map, Value};
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

pub struct Conversation {
    pub messages: Vec<Value>,
    pub tools: Option<Vec<Value>>,
    pub add_generation_prompt: bool,
    pub extra: Map<String, Value>,
}

pub struct ChatTemplate {
    tokenizer: Arc<dyn Tokenizer>,
}

impl ChatTemplate {
    pub fn of(_: &Metadata, tokenizer: Arc<dyn Tokenizer>) -> Result<Option<Self>, TemplateError> {
        Ok(Some(Self { tokenizer }))
    }

    pub fn new(source: &str, tokenizer: Arc<dyn Tokenizer>) -> Result<Self, TemplateError> {
        if source.is_empty() { Err(TemplateError("empty".into())) } else { Ok(Self { tokenizer }) }
    }

    pub fn render(&self, c: &Conversation) -> Result<String, TemplateError> {
        let mut text = String::new();
        for m in &c.messages {
            if m["role"] == "raise" {
                return Err(TemplateError("raised".into()));
            }
            text += &format!("{}: {}\n", m["role"].as_str().unwrap_or(""), m["content"].as_str().unwrap_or(""));
        }
        if c.add_generation_prompt {
            text += "assistant:";
        }
        Ok(text)
    }

    pub fn prompt(&self, c: &Conversation) -> Result<Vec<TokenId>, TemplateError> {
        let options = EncodeOptions { add_special: true, parse_special: false };
        self.tokenizer.encode(self.render(c)?.as_bytes(), options).map_err(|e| TemplateError(e.to_string()))
    }
}
