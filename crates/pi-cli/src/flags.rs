//! The options of `pi run`. Names and meanings are those of llama.cpp where it has the same option.

use crate::{
    failure::{Failure, Result},
    form::FormFlags,
    placing::PlacingFlags,
    predictor::PredictorFlags,
    repack::Repack,
    values::{self, Seed},
};
use clap::{ArgGroup, Args, ValueHint, builder::NonEmptyStringValueParser, value_parser};
use pi_engine::{
    SamplingParams, Sparsity,
    pi_core::{Activation, KvType, KvTypes, text::TokenId},
};
use pi_server::ToolFormat;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// llama.cpp's options of one dash and several letters, which would otherwise be read as one letter and its value.
const ONE_DASH: [(&str, &str); 5] = [
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-pg", "--pg"),
    ("-ub", "--ubatch-size"),
    ("-ngl", "--n-gpu-layers"),
];

/// Options whose values may look like options.
const TAKE_TEXT: [&str; 5] = ["-p", "--prompt", "-r", "--reverse-prompt", "--stop"];

/// The command line's words, with llama.cpp's short names for options spelled out.
pub fn spelled_out(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut is_text = false;
    let spell = |word: OsString| {
        let known = ONE_DASH.iter().find(|(short, _)| !is_text && word == *short);
        is_text = TAKE_TEXT.iter().any(|option| !is_text && word == *option);
        known.map_or(word, |(_, long)| long.into())
    };
    words.into_iter().map(spell).collect()
}

/// Most positions that a context can have.
const MOST: i64 = 1 << 24;

/// The options of `pi run`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("text").required(true).args(["prompt", "file", "prompts"])))]
pub struct RunFlags {
    /// Model file: GGUF or PowerInfer; of a split model, any part [default: the demo model of the repository]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub model: Option<PathBuf>,
    /// Text to continue; any bytes
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<OsString>,
    /// File with the text to continue; any bytes. One line feed at its end is left out
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// In TEXT and stop strings, \n \r \t \' \" \\ and \xHH stand for the characters and bytes they name
    #[arg(short, long)]
    pub escape: bool,
    /// Print only the generated text, not the prompt before it
    #[arg(long)]
    pub no_display_prompt: bool,
    /// Print one JSON object instead of text
    #[arg(long, conflicts_with = "no_display_prompt")]
    pub json: bool,
    #[command(flatten)]
    pub batch: BatchFlags,

    /// Most tokens to generate; -1: until the model stops or the context is full
    #[arg(short, long, visible_alias = "predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true,
          value_parser = value_parser!(i64).range(-1..=i64::from(i32::MAX)), help_heading = "Generation")]
    pub n_predict: i64,
    /// Text that ends the generation; not part of the result. May be given several times
    #[arg(short, long = "reverse-prompt", visible_alias = "stop", value_name = "TEXT", allow_hyphen_values = true,
          value_parser = NonEmptyStringValueParser::new(), help_heading = "Generation")]
    pub reverse_prompt: Vec<String>,
    /// Go on after the model's end-of-text tokens
    #[arg(long, help_heading = "Generation")]
    pub ignore_eos: bool,

    #[command(flatten)]
    pub form: FormFlags,
    #[command(flatten)]
    pub sampling: SamplingFlags,
    #[command(flatten)]
    pub engine: EngineFlags,
    #[command(flatten)]
    pub placing: PlacingFlags,
}

/// Many prompts at once.
#[derive(Args, Debug)]
#[command(next_help_heading = "Many prompts")]
pub struct BatchFlags {
    /// File of prompts, one JSON object a line: a `prompt` or `messages`, and whatever else /v1/completions or
    /// /v1/chat/completions take (max_tokens, temperature, seed, stop, ...); an `id` comes back with the answer. Interrupted, the
    /// same command goes on
    #[arg(long, value_name = "FILE.jsonl", value_hint = ValueHint::FilePath, requires = "output",
          conflicts_with_all = ["json", "no_display_prompt"])]
    pub prompts: Option<PathBuf>,
    /// Where the answers go, one JSON object a line, in the order of the prompts. While they are made, there is a FILE.partial beside it
    #[arg(short, long, value_name = "FILE.jsonl", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Prompts that are computed at the same time [default: 4]. Each has --ctx-size positions of its own. Answers do not depend on it
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(1..=1024))]
    pub parallel: Option<u32>,
    /// End at the first line that gets an error instead of an answer
    #[arg(long)]
    pub fail_fast: bool,
    /// Replace an output that is there
    #[arg(long)]
    pub overwrite: bool,
    /// How `messages` are written, instead of the template in the file: a name (chatml, llama2, llama3, gemma, plain) or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub chat_template: Option<String>,
    /// How the model writes calls of functions, where its chat template shows no known way [hermes, llama3, mistral]
    #[arg(long, value_name = "NAME")]
    pub tool_format: Option<ToolFormat>,
}

impl BatchFlags {
    /// The file of prompts and that of answers, if that is what is wanted.
    ///
    /// # Errors
    /// If an option is given that means nothing without them.
    pub fn files(&self) -> Result<Option<(&Path, &Path)>> {
        // clap would not say so: it drops what an option requires where something else excludes it
        let given = [
            ("--output", self.output.is_some()),
            ("--parallel", self.parallel.is_some()),
            ("--fail-fast", self.fail_fast),
            ("--overwrite", self.overwrite),
            ("--chat-template", self.chat_template.is_some()),
            ("--tool-format", self.tool_format.is_some()),
        ];
        match (&self.prompts, given.iter().find(|(_, given)| *given)) {
            (Some(prompts), _) => Ok(self.output.as_deref().map(|output| (prompts.as_path(), output))),
            (None, Some((name, _))) => Err(Failure::Usage(format!("{name} is for --prompts"))),
            (None, None) => Ok(None),
        }
    }
}

/// How tokens are chosen.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    /// Temperature; 0 takes the most likely token
    #[arg(long, visible_alias = "temperature", value_name = "T", default_value_t = SamplingParams::default().temperature,
          allow_negative_numbers = true, value_parser = values::from_zero)]
    pub temp: f32,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true,
          value_parser = value_parser!(u32).range(0..=i64::from(i32::MAX)))]
    pub top_k: u32,
    /// Keep the fewest tokens whose probabilities sum to P; 1 keeps all
    #[arg(long, value_name = "P", default_value_t = SamplingParams::default().top_p, allow_negative_numbers = true,
          value_parser = values::share)]
    pub top_p: f32,
    /// Keep tokens at least P times as likely as the most likely one; 0 keeps all
    #[arg(long, value_name = "P", default_value_t = SamplingParams::default().min_p, allow_negative_numbers = true,
          value_parser = values::share)]
    pub min_p: f32,
    /// Make tokens less likely that occurred lately; 1 is off
    #[arg(long, value_name = "X", default_value_t = SamplingParams::default().repeat_penalty,
          allow_negative_numbers = true, value_parser = values::positive)]
    pub repeat_penalty: f32,
    /// How many tokens "lately" is for all penalties; 0 switches them off, -1 is the whole context
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true,
          value_parser = value_parser!(i64).range(-1..=MOST))]
    pub repeat_last_n: i64,
    /// Subtracted from the logits of tokens that occurred lately
    #[arg(long, value_name = "X", default_value_t = SamplingParams::default().presence_penalty,
          allow_negative_numbers = true, value_parser = values::finite)]
    pub presence_penalty: f32,
    /// Subtracted for every time they did
    #[arg(long, value_name = "X", default_value_t = SamplingParams::default().frequency_penalty,
          allow_negative_numbers = true, value_parser = values::finite)]
    pub frequency_penalty: f32,
    /// Add to a token's logit: 15043+1, 15043-1; 15043-inf forbids it. May be given several times
    #[arg(long, value_name = "TOKEN_ID(+/-)BIAS", value_parser = values::logit_bias)]
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Seed of the random draws; -1: a random one, which is printed
    #[arg(short, long, value_name = "SEED", default_value = "-1", allow_negative_numbers = true,
          value_parser = values::seed)]
    pub seed: Seed,
}

/// How the model is loaded and computed.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub struct EngineFlags {
    /// Threads, 1 to 1024; never more than the cores this process may use, which is the default
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Positions of the context; 0: as many as the model was made for [default: the same, but at most 4096]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(0..=MOST))]
    pub ctx_size: Option<u32>,
    /// Most tokens of the prompt computed at once
    #[arg(short, long, value_name = "N", default_value_t = 512, allow_negative_numbers = true,
          value_parser = value_parser!(u32).range(1..=MOST))]
    pub batch_size: u32,
    /// Read the file into memory instead of mapping it
    #[arg(long)]
    pub no_mmap: bool,
    /// Which neurons are left out: auto (idle ones, where the activation allows it), off (none), exact (idle ones, or an
    /// error if the activation does not allow it), predictor (those that a predictor thinks idle: faster, and a little wrong)
    #[arg(long, value_name = "auto|off|exact|predictor", default_value = "auto")]
    pub sparsity: Sparsity,
    #[command(flatten)]
    pub predictor: PredictorFlags,
    /// Share of active neurons from which every neuron is computed: faster there, with the same result [default: what pi
    /// doctor measured, or 0.9]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = values::share)]
    pub crossover: Option<f32>,
    /// Keep weights a second time in the layout that the CPU is fastest with: auto (as far as half of the free memory goes),
    /// on, off. Texts may differ between the two where two tokens are all but equally likely
    #[arg(long, value_enum, value_name = "auto|on|off", default_value_t)]
    pub repack: Repack,
    /// Another activation than the file says: silu, gelu, gelu_tanh, relu, relu2, fatrelu(THRESHOLD)
    #[arg(long, value_name = "NAME")]
    pub activation: Option<Activation>,
    /// How keys and values are kept [default: f16]. q8_0 takes half the memory of f16; heads must then be multiples of 32
    #[arg(long, value_name = "f16|f32|q8_0", conflicts_with_all = ["cache_type_k", "cache_type_v"])]
    pub kv: Option<KvType>,
    /// How keys are kept; also -ctk
    #[arg(long, value_name = "f16|f32|q8_0")]
    pub cache_type_k: Option<KvType>,
    /// How values are kept; also -ctv
    #[arg(long, value_name = "f16|f32|q8_0")]
    pub cache_type_v: Option<KvType>,
    /// Look for numbers that are not finite in every tensor and after every operator, and name the first place. Slow
    #[arg(long)]
    pub check: bool,
}

impl SamplingFlags {
    /// [`params`](Self::params), for a vocabulary of so many tokens.
    ///
    /// # Errors
    /// If a bias is for a token beyond it: the only setting that the options' own ranges do not cover.
    pub fn checked(&self, context: usize, vocab: usize) -> Result<SamplingParams> {
        if let Some((id, _)) = self.logit_bias.iter().find(|(id, _)| *id as usize >= vocab) {
            let why = format!("the vocabulary has tokens below {vocab}");
            return Err(Failure::value(id.to_string(), "--logit-bias", why));
        }
        Ok(self.params(context))
    }

    /// The engine's settings, for a context of `context` positions.
    pub fn params(&self, context: usize) -> SamplingParams {
        SamplingParams {
            temperature: self.temp,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_last_n: usize::try_from(self.repeat_last_n).unwrap_or(context),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.0,
        }
    }
}

impl EngineFlags {
    /// Positions of the context of a model that was made for so many; `None`: what the engine takes.
    pub fn context(&self, made_for: usize) -> Option<usize> {
        self.ctx_size.map(|n| if n == 0 { made_for } else { n as usize })
    }

    /// How keys and values are to be kept.
    pub fn kv_types(&self) -> KvTypes {
        let of = |one: Option<KvType>| one.or(self.kv).unwrap_or_default();
        KvTypes { keys: of(self.cache_type_k), values: of(self.cache_type_v) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_of_several_letters_are_spelled_out_but_not_in_texts() {
        let spelled = |line: &str| spelled_out(line.split(' ').map(OsString::from)).join(&OsString::from(" "));
        assert_eq!(spelled("pi run -ctk f16 -ctv f16"), "pi run --cache-type-k f16 --cache-type-v f16");
        assert_eq!(spelled("pi run -p -ctk -ctk f32"), "pi run -p -ctk --cache-type-k f32");
        assert_eq!(spelled("pi run -p -p -ctv f32"), "pi run -p -p --cache-type-v f32");
    }

    #[test]
    fn defaults_that_are_written_out_are_those_of_the_engine() {
        let engine = SamplingParams::default();
        assert_eq!((engine.top_k, engine.repeat_last_n), (40, 64));
        assert_eq!(pi_engine::SessionOptions::default().batch, 512);
    }
}
