//! From messages to a prompt.
//!
//! A [`ChatTemplate`] is what a model's file says of how conversations are written, in the language of Jinja2 as Hugging Face uses it.
//! Templates come with models, so they are not trusted: they read no file, no variable and no network, and their work and memory are
//! bounded. Messages come from people, so they are not trusted either: their text never becomes a control token.
//!
//! | file | what |
//! |---|---|
//! | `messages` | the messages of OpenAI's interface, as templates expect them |
//! | `python` | the language around templates |
//! | `quoting` | keeping text from people apart from control tokens |
//! | `stack` | room for what templates nest |
//! | `presets` | templates for files that have none |

mod error;
mod messages;
mod python;
mod quoting;
mod stack;

pub use error::TemplateError;

use minijinja::{Environment, value::Serde};
use pi_engine::{
    pi_core::text::{EncodeOptions, TokenId, TokenKind, Tokenizer},
    pi_gguf::Metadata,
};
use quoting::{Care, Control};
use serde_json::{Map, Value};
use std::{sync::Arc, time::Duration};

/// What is to be written as a prompt.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Messages in the form of OpenAI's interface: objects with a `role` and mostly a `content`.
    pub messages: Vec<Value>,
    /// The functions that the model may call, in the same form.
    pub tools: Option<Vec<Value>>,
    /// Whether the prompt ends where an answer begins.
    pub add_generation_prompt: bool,
    /// Further variables of the template.
    pub extra: Map<String, Value>,
}

/// Writes conversations as a model was trained to see them. `Send + Sync`; rendering changes nothing.
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    timed: stack::Timed,
    /// Longest time of a rendering.
    time: Duration,
    source: String,
    preset: Option<&'static str>,
    /// A second template that the file has for conversations with tools.
    with_tools: Option<String>,
    tokenizer: Arc<dyn Tokenizer>,
    control: Control,
}

/// The templates that have a name of their own, for files without one.
pub const PRESETS: [(&str, &str); 5] = [
    ("chatml", include_str!("presets/chatml.jinja")),
    ("llama2", include_str!("presets/llama2.jinja")),
    ("llama3", include_str!("presets/llama3.jinja")),
    ("gemma", include_str!("presets/gemma.jinja")),
    ("plain", include_str!("presets/plain.jinja")),
];

/// Most bytes of a template; published ones have up to 17,000.
const LONGEST: usize = 1 << 17;

/// Longest time of a rendering: a hundred times what the longest prompts need.
const TIME: Duration = Duration::from_secs(10);

const MAIN: &str = "chat template";
const TOOLS: &str = "chat template for tools";

impl ChatTemplate {
    /// The template of a model's file. A file without one gets the preset whose control tokens its vocabulary has; a vocabulary
    /// that has none of them (a model that was not trained on conversations) gets `plain`: messages are lines, and answers go on with them.
    ///
    /// # Errors
    /// If the template cannot be read.
    pub fn of(metadata: &Metadata, tokenizer: Arc<dyn Tokenizer>) -> Result<Self, TemplateError> {
        let text = |key: &str| {
            let text = metadata.get::<&str>(key).map_err(|e| TemplateError::Syntax(e.to_string()))?;
            Ok::<_, TemplateError>(text.filter(|text| !text.trim().is_empty()))
        };
        let Some(source) = text("tokenizer.chat_template")? else {
            let has = |token: &str| tokenizer.find(token.as_bytes()).is_some();
            let named = [("<|im_start|>", "chatml"), ("<|start_header_id|>", "llama3"), ("<start_of_turn>", "gemma")];
            let name = named.into_iter().find(|(token, _)| has(token)).map_or("plain", |(_, name)| name);
            return Self::new(name, tokenizer);
        };
        let mut template = Self::new(source, tokenizer)?;
        if let Some(source) = text("tokenizer.chat_template.tool_use")? {
            template.add(TOOLS, source)?;
            template.with_tools = Some(source.into());
        }
        Ok(template)
    }

    /// The template of this text, or the preset of this name.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn new(source: &str, tokenizer: Arc<dyn Tokenizer>) -> Result<Self, TemplateError> {
        Self::with_clock(source, tokenizer, python::clock)
    }

    fn with_clock(source: &str, tokenizer: Arc<dyn Tokenizer>, clock: python::Clock) -> Result<Self, TemplateError> {
        let preset = PRESETS.into_iter().find(|(name, _)| *name == source);
        let (preset, source) = preset.map_or((None, source), |(name, source)| (Some(name), source));
        let environment = Arc::new(python::environment(clock).map_err(|e| TemplateError::Syntax(e.to_string()))?);
        let control = Control::of(&*tokenizer)?;
        let (timed, source) = (stack::Timed::default(), source.to_string());
        let mut template =
            Self { environment, timed, time: TIME, source, preset, with_tools: None, tokenizer, control };
        template.add(MAIN, &template.source.clone())?;
        Ok(template)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<(), TemplateError> {
        if source.len() > LONGEST {
            return Err(TemplateError::Syntax(format!("it has {} bytes, more than {LONGEST}", source.len())));
        }
        let source = python::known_tags(source);
        let environment = Arc::get_mut(&mut self.environment);
        let environment = environment.ok_or_else(|| TemplateError::Syntax("it is in use already".into()))?;
        stack::large(move || {
            environment.add_template_owned(name, source).map_err(|e| TemplateError::Syntax(e.to_string()))
        })?
    }

    /// The text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The name of the preset that this is, if it is one.
    pub fn preset(&self) -> Option<&'static str> {
        self.preset
    }

    /// The text of the template for conversations with tools: mostly the same.
    pub fn source_for_tools(&self) -> &str {
        self.with_tools.as_deref().unwrap_or(&self.source)
    }

    /// Whether the template does something with tools.
    pub fn takes_tools(&self) -> bool {
        self.with_tools.is_some() || Self::has_tools(&self.source)
    }

    /// The same of a text that may become a template.
    pub fn has_tools(source: &str) -> bool {
        source.contains("tools")
    }

    /// The prompt as text, as the template writes it.
    ///
    /// # Errors
    /// If the template refuses the conversation, or takes too much work.
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        self.write(&messages::normal(conversation)?)
    }

    /// The prompt as tokens. Control tokens come from the template alone; there is one begin-of-text token if the vocabulary asks for
    /// it, whether the template writes it or not.
    ///
    /// # Errors
    /// As [`render`](Self::render); also if the vocabulary lacks tokens for the text.
    pub fn prompt(&self, conversation: &Conversation) -> Result<Vec<TokenId>, TemplateError> {
        let plain = messages::normal(conversation)?;
        let (messages, tools) =
            (Value::from(plain.messages.clone()).to_string(), Value::from(plain.tools.clone()).to_string());
        let extra = Value::Object(plain.extra.clone()).to_string();
        let Some(mark) = quoting::unused_mark([&*messages, &*tools, &*extra, &*self.source].into_iter()) else {
            return Err(TemplateError::Message {
                field: "messages".into(),
                why: "they have all of Unicode's noncharacters from U+FDD0 to U+FDEF".into(),
            });
        };
        let marked = |care| {
            let all =
                |values: &[Value]| values.iter().map(|v| self.control.mark_all(v, mark, care)).collect::<Vec<_>>();
            Conversation {
                messages: all(&plain.messages),
                tools: plain.tools.as_deref().map(all),
                add_generation_prompt: plain.add_generation_prompt,
                extra: all(&[Value::Object(plain.extra.clone())])[0].as_object().cloned().unwrap_or_default(),
            }
        };
        let (whole, every) = (marked(Care::Whole), marked(Care::Every));
        let tokens = self.tokens(&whole, mark)?;
        if (&whole.messages, &whole.tools, &whole.extra) == (&every.messages, &every.tools, &every.extra) {
            return Ok(tokens);
        }
        // Whatever a template makes of texts that were cut up: with a mark behind every first character there are no more control
        // tokens than the template's own.
        match self.tokens(&every, mark) {
            Ok(sure) if self.controls(&sure) != self.controls(&tokens) => Ok(sure),
            _ => Ok(tokens),
        }
    }

    fn controls(&self, tokens: &[TokenId]) -> Vec<TokenId> {
        let control = |id: &TokenId| self.tokenizer.kind(*id) == Some(TokenKind::Control);
        tokens.iter().copied().filter(control).collect()
    }

    fn tokens(&self, conversation: &Conversation, mark: char) -> Result<Vec<TokenId>, TemplateError> {
        let (text, quoted) = quoting::unmarked(&self.write(conversation)?, mark);
        let options = EncodeOptions { add_special: false, parse_special: true };
        let tokens = self.tokenizer.encode_quoting(text.as_bytes(), &quoted, options)?;
        let special = self.tokenizer.special();
        let Some(bos) = special.bos else { return Ok(tokens) };
        let written = tokens.iter().take_while(|&&token| token == bos).count();
        let first = (special.add_bos || written > 0).then_some(bos);
        Ok(first.into_iter().chain(tokens[written..].iter().copied()).collect())
    }

    fn write(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let name = if self.with_tools.is_some() && conversation.tools.is_some() { TOOLS } else { MAIN };
        let special = self.tokenizer.special();
        let piece = |id: Option<TokenId>| {
            let bytes = id.and_then(|id| self.tokenizer.piece(id, true)).unwrap_or_default();
            Value::from(String::from_utf8_lossy(bytes))
        };
        let mut variables = conversation.extra.clone();
        variables.insert("messages".into(), Value::from(conversation.messages.clone()));
        if let Some(tools) = &conversation.tools {
            variables.insert("tools".into(), Value::from(tools.clone()));
        }
        variables.insert("add_generation_prompt".into(), Value::Bool(conversation.add_generation_prompt));
        variables.insert("bos_token".into(), piece(special.bos));
        variables.insert("eos_token".into(), piece(special.eos));
        let environment = self.environment.clone();
        self.timed.run(self.time, move || {
            let rendered = environment.get_template(name).and_then(|template| template.render(Serde(&variables)));
            rendered.map_err(|e| TemplateError::of_rendering(&e))
        })?
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
