//! The forms in which models write calls.

use pi_engine::pi_core::text::{TokenId, TokenKind, Tokenizer};
use std::{fmt, str::FromStr};

/// How a model writes that it calls a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call: Hermes, Qwen and others.
    Hermes,
    /// `{"name": …, "parameters": {…}}` as the whole answer, one call: Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`: Mistral.
    Mistral,
}

impl ToolFormat {
    /// All of them, by name.
    pub const ALL: [(&str, Self); 3] = [("hermes", Self::Hermes), ("llama3", Self::Llama3), ("mistral", Self::Mistral)];

    /// The form that a chat template shows, if it is one of these.
    pub fn of(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        if has("[TOOL_CALLS]") {
            // later templates write names and arguments without JSON around them
            return (!has("[ARGS]")).then_some(Self::Mistral);
        }
        if has("<tool_call>") {
            let json = has("\"name\"") && has("\"arguments\"") && !has("<function=") && !has("<arg_key>");
            return json.then_some(Self::Hermes);
        }
        has("{\"name\": function name, \"parameters\":").then_some(Self::Llama3)
    }

    /// What announces a call.
    pub(super) fn open(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("<tool_call>"),
            Self::Mistral => Some("[TOOL_CALLS]"),
            Self::Llama3 => None,
        }
    }

    /// What ends a call.
    pub(super) fn close(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("</tool_call>"),
            Self::Mistral | Self::Llama3 => None,
        }
    }

    /// The name of the arguments.
    pub(super) fn arguments(self) -> &'static str {
        match self {
            Self::Hermes | Self::Mistral => "arguments",
            Self::Llama3 => "parameters",
        }
    }

    /// Whether an answer can have several calls.
    pub(super) fn takes_several(self) -> bool {
        self != Self::Llama3
    }

    /// The control tokens that calls are written with. Elsewhere the text of control tokens is left out, but here it tells of calls.
    pub(crate) fn controls(self, tokenizer: &dyn Tokenizer) -> Vec<TokenId> {
        [self.open(), self.close()].into_iter().flatten().filter_map(|text| control(tokenizer, text)).collect()
    }

    /// A new name for a call. Mistral's templates take nothing but nine letters and digits.
    pub(crate) fn id(self, random: u64) -> String {
        match self {
            Self::Mistral => {
                let digits = b"0123456789abcdefghijklmnopqrstuvwxyz";
                (0..9).map(|i| char::from(digits[(random / 36u64.pow(i) % 36) as usize])).collect()
            }
            Self::Hermes | Self::Llama3 => format!("call_{random:016x}"),
        }
    }
}

/// The control token of this text, if it is one.
pub(super) fn control(tokenizer: &dyn Tokenizer, text: &str) -> Option<TokenId> {
    tokenizer.find(text.as_bytes()).filter(|&id| tokenizer.kind(id) == Some(TokenKind::Control))
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::ALL.iter().find(|(_, format)| format == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

impl FromStr for ToolFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        let found = Self::ALL.iter().find(|(n, _)| *n == name);
        found.map(|(_, format)| *format).ok_or_else(|| format!("expected one of {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pi_testkit::data::test_data;

    #[test]
    fn published_templates_are_known_by_the_form_that_they_show() {
        let Some(folder) = test_data("goldens/chat/templates") else { return };
        let of = |name: &str| ToolFormat::of(&std::fs::read_to_string(folder.join(name)).unwrap());
        for (name, format) in [
            ("Qwen-Qwen2.5-7B-Instruct.jinja", Some(ToolFormat::Hermes)),
            ("Qwen-QwQ-32B.jinja", Some(ToolFormat::Hermes)),
            ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja", Some(ToolFormat::Hermes)),
            ("meta-llama-Llama-3.3-70B-Instruct.jinja", Some(ToolFormat::Llama3)),
            ("meta-llama-Llama-3.2-3B-Instruct.jinja", Some(ToolFormat::Llama3)),
            // other forms
            ("Mistral-Small-3.2-24B-Instruct-2506.jinja", None),
            ("Qwen3-Coder.jinja", None),
            ("GLM-4.6.jinja", None),
            ("openai-gpt-oss-120b.jinja", None),
            ("google-gemma-2-2b-it.jinja", None),
        ] {
            assert_eq!(of(name), format, "{name}");
        }
        let mistral =
            "{{ '[TOOL_CALLS] [' }}{% for call in message.tool_calls %}{{ call.function|tojson }}{% endfor %}]";
        assert_eq!(ToolFormat::of(mistral), Some(ToolFormat::Mistral));
    }

    #[test]
    fn ids_of_calls_are_as_templates_want_them() {
        let id = ToolFormat::Mistral.id(u64::MAX);
        assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
        assert!(ToolFormat::Hermes.id(7).starts_with("call_"));
    }
}
