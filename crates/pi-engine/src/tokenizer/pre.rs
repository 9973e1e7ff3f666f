//! How text is split before byte pair encoding, by the name a file gives (`tokenizer.ggml.pre`).
//!
//! A splitter is a list of stages; every stage splits the pieces of the one before. A stage tries its rules in order at
//! each position, and what no rule matches stays together as a piece of its own.

use super::error::{VocabError, VocabWarning};
use super::rules::{self, Rule, Window};
use super::unicode::{Codes, SPACE};

/// One pass over the pieces.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// The first rule that matches takes its match.
    Rules(&'static [Rule]),
    /// Splits off the white space at the end (`\s+$`).
    TrailingSpace,
    /// Splits numbers into threes, counted from the right (`(?=(\d{3})+(?!\d))`).
    Thousands,
    /// The same, but numbers are split off first, and only those without letters behind (`\d{1,3}(?=(?:\d{3})*\b)`).
    LoneThousands,
}
use Stage::Rules;

const GPT2: Stage = Rules(&[
    rules::contraction,
    rules::spaced_letters,
    rules::spaced_numbers,
    rules::spaced_others,
    rules::spaces_before,
    rules::spaces,
]);
const DIGIT: Stage = Rules(&[rules::number]);
const LLAMA3: Stage = Rules(&[
    rules::contraction_any_case,
    rules::word,
    rules::numbers_3,
    rules::others_line,
    rules::lines,
    rules::spaces_before,
    rules::spaces,
]);
const QWEN2: Stage = Rules(&[
    rules::contraction_any_case,
    rules::word,
    rules::number,
    rules::others_line,
    rules::lines,
    rules::spaces_before,
    rules::spaces,
]);
const DEEPSEEK3: Stage = Rules(&[
    rules::punctuated_ascii_word,
    rules::word_marks_not_symbols,
    rules::symbols_line,
    rules::lines,
    rules::spaces_before,
    rules::spaces,
]);

const STAGES_DEFAULT: &[Stage] =
    &[Rules(&[rules::punctuation]), GPT2, Rules(&[rules::numbers]), Rules(&[rules::three_digits])];
const STAGES_FALCON: &[Stage] = &[Rules(&[rules::punctuation_backtick]), GPT2, Rules(&[rules::three_digits])];
const STAGES_GPT2: &[Stage] = &[GPT2];
const STAGES_DIGITS: &[Stage] = &[DIGIT, GPT2];
const STAGES_LLAMA3: &[Stage] = &[LLAMA3];
const STAGES_QWEN2: &[Stage] = &[QWEN2];
const STAGES_QWEN35: &[Stage] = &[Rules(&[
    rules::contraction_any_case,
    rules::word_marks,
    rules::number,
    rules::others_but_marks_line,
    rules::lines,
    rules::spaces_before,
    rules::spaces,
])];
const STAGES_NO_CONTRACTION: &[Stage] =
    &[Rules(&[rules::word, rules::number, rules::others_line, rules::lines, rules::spaces_before, rules::spaces])];
const STAGES_MINICPM5: &[Stage] = &[
    Rules(&[rules::numbers_3]),
    Rules(&[
        rules::contraction_any_case,
        rules::word,
        rules::numbers,
        rules::others_line,
        rules::lines,
        rules::spaces_before,
        rules::spaces,
    ]),
];
const STAGES_SEED_CODER: &[Stage] = &[Rules(&[
    rules::contraction_any_case,
    rules::word,
    rules::number,
    rules::spaced_others,
    rules::lines,
    rules::spaces_before,
    rules::spaces,
])];
const STAGES_EXAONE_MOE: &[Stage] = &[Rules(&[
    rules::contraction_any_case,
    rules::words,
    rules::number,
    rules::others_one_line_slash,
    rules::lines,
    rules::spaces_before,
    rules::spaces,
])];
const STAGES_LAGUNA: &[Stage] = &[Rules(&[rules::not_newlines, rules::newlines]), QWEN2];
const STAGES_TEKKEN: &[Stage] = &[Rules(&[
    rules::word_cased,
    rules::number,
    rules::others_line_slash,
    rules::lines,
    rules::spaces_before,
    rules::spaces,
])];
const STAGES_GPT4O: &[Stage] = &[Rules(&[
    rules::word_cased_contraction,
    rules::numbers_3,
    rules::others_line_slash,
    rules::lines,
    rules::spaces_before,
    rules::spaces,
])];
const STAGES_GRANITE_EMBED: &[Stage] = &[Rules(&[
    rules::word_cased_marks_contraction,
    rules::numbers_3,
    rules::others_line_slash,
    rules::lines,
    rules::spaces_before,
    rules::spaces,
])];
const STAGES_TINY_AYA: &[Stage] = &[
    Stage::LoneThousands,
    Rules(&[
        rules::word_marks_contraction,
        rules::numbers_3,
        rules::others_line_slash,
        rules::lines,
        rules::spaces_before,
        rules::spaces,
    ]),
];
const STAGES_DEEPSEEK_LLM: &[Stage] = &[
    Rules(&[rules::line_break]),
    Rules(&[rules::any_space_cased_letters]),
    Rules(&[rules::any_space_ascii_punctuation]),
    Stage::TrailingSpace,
    Rules(&[rules::cjk_wide]),
    Rules(&[rules::numbers]),
];
const STAGES_DEEPSEEK_CODER: &[Stage] = &[
    Rules(&[rules::line_break]),
    Rules(&[rules::any_space_letters]),
    Rules(&[rules::any_space_punctuation]),
    Rules(&[rules::cjk_wide]),
    DIGIT,
];
const STAGES_DEEPSEEK3: &[Stage] = &[Rules(&[rules::numbers_3]), Rules(&[rules::cjk]), DEEPSEEK3];
const STAGES_PHRASES: &[Stage] = &[Rules(&[rules::spaced_phrase])];
const STAGES_VIKING: &[Stage] = &[Rules(&[rules::spaced_phrase]), DIGIT];
const STAGES_SUPERBPE: &[Stage] = &[Rules(&[rules::numbers]), Stage::Thousands];

/// A pre-tokenizer, and what else its name implies.
#[derive(Debug, Clone)]
pub(super) struct Pre {
    stages: &'static [Stage],
    /// A piece that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Texts begin with the begin-of-text token unless the file says otherwise.
    pub(super) add_bos: bool,
    /// There is no begin-of-text token unless the file says which.
    pub(super) no_default_bos: bool,
    /// Decoding tidies spaces.
    pub(super) clean_spaces: bool,
}

impl Pre {
    /// What SentencePiece vocabularies do: no splitting at all.
    pub(super) fn sentence_piece() -> Self {
        Self { stages: &[], ignore_merges: false, add_bos: true, no_default_bos: false, clean_spaces: false }
    }

    /// The pre-tokenizer of this name; without a name the default, with a warning.
    pub(super) fn named(name: Option<&str>, warnings: &mut Vec<VocabWarning>) -> Result<Self, VocabError> {
        let Some(name) = name else {
            warnings.push(VocabWarning::NoPre);
            return Self::named(Some("default"), warnings);
        };
        let (stages, clean_spaces) = match name {
            "default" => (STAGES_DEFAULT, true),
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
            | "jina-v5-nano" | "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => (STAGES_LLAMA3, true),
            "falcon" => (STAGES_FALCON, true),
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de" | "jina-v1-en" | "jina-v2-code"
            | "roberta-bpe" | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert" | "mpt" | "olmo" | "jais"
            | "exaone4" => (STAGES_GPT2, true),
            "trillion" | "granite-docling" => (STAGES_GPT2, false),
            "starcoder" | "refact" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => (STAGES_DIGITS, true),
            "command-r" | "smollm" => (STAGES_DIGITS, false),
            "stablelm2" | "megrez" => (STAGES_QWEN2, true),
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "hunyuan" | "solar-open" | "grok-2" | "bailingmoe"
            | "bailingmoe2" | "llada-moe" => (STAGES_QWEN2, false),
            "qwen35" => (STAGES_QWEN35, false),
            "ufakzeka" => (STAGES_NO_CONTRACTION, false),
            "minicpm5" => (STAGES_MINICPM5, true),
            "seed-coder" => (STAGES_SEED_CODER, false),
            "exaone-moe" => (STAGES_EXAONE_MOE, true),
            "laguna" => (STAGES_LAGUNA, false),
            "tekken" => (STAGES_TEKKEN, false),
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => (STAGES_GPT4O, false),
            "granite-embed-multi-97m" => (STAGES_GRANITE_EMBED, false),
            "tiny_aya" | "cohere2moe" => (STAGES_TINY_AYA, false),
            "deepseek-llm" => (STAGES_DEEPSEEK_LLM, false),
            "deepseek-coder" => (STAGES_DEEPSEEK_CODER, false),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => (STAGES_DEEPSEEK3, false),
            "poro-chat" => (STAGES_PHRASES, false),
            "bloom" | "gpt3-finnish" => (STAGES_PHRASES, true),
            "viking" => (STAGES_VIKING, false),
            "superbpe" => (STAGES_SUPERBPE, false),
            _ => return Err(VocabError::UnknownPre { pre: name.to_owned() }),
        };
        let llama3 = matches!(
            name,
            "llama3"
                | "llama-v3"
                | "llama-bpe"
                | "falcon3"
                | "falcon-h1"
                | "pixtral"
                | "midm-2.0"
                | "lfm2"
                | "jina-v5-nano"
        );
        Ok(Self {
            stages,
            ignore_merges: llama3 || matches!(name, "tekken" | "minicpm5" | "granite-embed-multi-97m"),
            add_bos: llama3 || name == "tekken",
            no_default_bos: matches!(name, "glm4" | "chatglm-bpe"),
            clean_spaces,
        })
    }

    /// Where the pieces of a text end, in code points. `scratch` is only room to work in.
    pub(super) fn split(&self, codes: &Codes, ends: &mut Vec<usize>, scratch: &mut Vec<usize>) {
        ends.clear();
        if !codes.codes.is_empty() {
            ends.push(codes.codes.len());
        }
        for stage in self.stages {
            std::mem::swap(ends, scratch);
            ends.clear();
            let mut start = 0;
            for &end in scratch.iter() {
                let window = Window { codes: &codes.codes[start..end], classes: &codes.classes[start..end] };
                stage.split(&window, start, ends);
                start = end;
            }
        }
    }
}

impl Stage {
    /// Appends where the pieces of `window` end, counted from `base`.
    fn split(&self, window: &Window<'_>, base: usize, ends: &mut Vec<usize>) {
        let len = window.len();
        match self {
            Self::Rules(rules) => {
                let mut unmatched = 0;
                let mut at = 0;
                while at < len {
                    match rules.iter().map(|rule| rule(window, at)).find(|&end| end > at) {
                        Some(end) => {
                            if at > unmatched {
                                ends.push(base + at);
                            }
                            ends.push(base + end);
                            (at, unmatched) = (end, end);
                        }
                        None => at += 1,
                    }
                }
                if len > unmatched {
                    ends.push(base + len);
                }
            }
            Self::TrailingSpace => {
                let start = window.classes.iter().rposition(|class| class & SPACE == 0).map_or(0, |last| last + 1);
                if start > 0 && start < len {
                    ends.push(base + start);
                }
                ends.push(base + len);
            }
            Self::Thousands | Self::LoneThousands => {
                let lone = matches!(self, Self::LoneThousands);
                let digit = |at: usize| (0x30..=0x39).contains(&window.codes[at]);
                let letter = |at: usize| {
                    let byte = window.codes.get(at).and_then(|&code| u8::try_from(code).ok());
                    byte.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
                };
                let mut last = 0;
                let mut cut = |at: usize| {
                    if at > last && at < len {
                        ends.push(base + at);
                        last = at;
                    }
                };
                let mut at = 0;
                while at < len {
                    let end = window.run_by(at, digit);
                    if end > at && !(lone && letter(end)) {
                        if lone {
                            cut(at);
                        }
                        (at..end).filter(|at| (end - at).is_multiple_of(3)).for_each(&mut cut);
                        if lone {
                            cut(end);
                        }
                    }
                    at = end + 1;
                }
                ends.push(base + len);
            }
        }
    }
}
