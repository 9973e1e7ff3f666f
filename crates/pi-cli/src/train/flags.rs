//! What `pi train-predictor` and `pi prepare` are told alike.

use crate::{
    failure::{Failure, Result},
    flags::EngineFlags,
    loading::window,
    prompt, values,
    writing::check_output,
};
use clap::{Args, ValueHint, value_parser};
use pi_engine::{
    Engine, Sparsity,
    pi_core::{QuantType, text::TokenId},
    pi_predictor::profile::fingerprint,
    train::{PredictorKind, TrainOptions},
};
use std::path::{Path, PathBuf};

/// What is trained on, and how.
#[derive(Args, Debug)]
pub struct TrainingFlags {
    /// Text to train on. May be given several times
    #[arg(long, required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text: Vec<PathBuf>,
    /// Text that perplexity is measured on [default: a tenth of the text, in pieces from all over it, which is not trained on
    /// then]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub eval_text: Option<PathBuf>,
    /// By how much perplexity may grow, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.1, allow_negative_numbers = true,
          value_parser = values::from_zero, help_heading = "Training")]
    pub loss: f32,
    /// Kinds of predictors to choose from: mlp (two trained matrices), sign (signs of the gate's weights, nothing is trained).
    /// A layer gets the one that reads least, or none if none pays
    #[arg(long, value_name = "mlp,sign", value_delimiter = ',', default_value = "mlp,sign", help_heading = "Training")]
    pub kinds: Vec<PredictorKind>,
    /// Tokens to train each layer on, if the text has as many
    #[arg(long, value_name = "N", default_value_t = TrainOptions::default().samples, allow_hyphen_values = true,
          help_heading = "Training")]
    pub samples: usize,
    /// Widths of matrices to be tried [default: found for each layer, from its sparsity]
    #[arg(long, value_name = "N,…", value_delimiter = ',', help_heading = "Training")]
    pub rank: Vec<usize>,
    /// Times that every sample is seen
    #[arg(long, value_name = "N", default_value_t = TrainOptions::default().fit.epochs as u32,
          value_parser = value_parser!(u32).range(1..=1000), help_heading = "Training")]
    pub epochs: u32,
    /// Most memory for samples, in MiB. If it does not suffice for all layers, the text is gone through several times
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = value_parser!(u32).range(1..),
          help_heading = "Training")]
    pub memory: u32,
    /// Of the first weights and the order of samples
    #[arg(short, long, value_name = "SEED", default_value_t = 1, help_heading = "Training")]
    pub seed: u64,
}

/// Options of the engine that are not listed: predictors are made here, not used.
pub const MEANINGLESS: [&str; 5] = ["sparsity", "predictor", "predictor_file", "threshold", "margin"];

/// Help for the engine's option -c.
pub const CONTEXT: &str =
    "Tokens that are computed together from an empty context; 0: as many as the model was made for [default: 512]";

/// Refuses the options that are not listed.
///
/// # Errors
/// If one is given.
pub fn refuse_meaningless(flags: &EngineFlags) -> Result<()> {
    let p = &flags.predictor;
    let given = [
        ("--sparsity", flags.sparsity != Sparsity::Auto),
        ("--predictor", p.predictor.is_some()),
        ("--predictor-file", p.predictor_file.is_some()),
        ("--threshold", p.threshold.is_some()),
        ("--margin", p.margin.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Failure::Usage(format!(
            "{flag} means nothing here: predictors are made, from what the model does without any"
        ))),
        None => Ok(()),
    }
}

impl TrainingFlags {
    /// The engine's options, for predictors stored as `ty`.
    pub fn options(&self, engine: &Engine, flags: &EngineFlags, ty: QuantType) -> TrainOptions {
        let mut options = TrainOptions {
            samples: self.samples,
            context: window(flags, engine),
            batch: flags.batch_size as usize,
            memory: u64::from(self.memory) << 20,
            loss: f64::from(self.loss) / 100.0,
            kinds: self.kinds.clone(),
            ranks: self.rank.clone(),
            ty,
            ..TrainOptions::default()
        };
        (options.fit.epochs, options.fit.seed) = (self.epochs as usize, self.seed);
        options
    }

    /// The tokens of the texts, of which some windows of `context` tokens are kept back unless there is a text for that.
    ///
    /// # Errors
    /// If a file cannot be read, or has what the vocabulary has no tokens for.
    pub fn read(&self, engine: &Engine, context: usize) -> Result<Texts> {
        let read = |path: &PathBuf| -> Result<Text> {
            let bytes = prompt::read(path)?;
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            let tokens = engine.encode_plain(&bytes).map_err(|e| Failure::engine(&e, path))?;
            Ok(Text { name, fingerprint: fingerprint([&bytes[..]]), tokens })
        };
        let all: Vec<_> = self.text.iter().map(read).collect::<Result<_, _>>()?;
        let (mut train, mut kept) = (Vec::new(), Vec::new());
        match &self.eval_text {
            Some(path) => {
                train.extend(all.iter().flat_map(|t| &t.tokens));
                kept = read(path)?.tokens;
            }
            None => all.iter().for_each(|t| split(&t.tokens, context, &mut train, &mut kept)),
        }
        Ok(Texts { all, train, kept })
    }

    /// What cannot be written is said before hours of work, and what is read is not replaced.
    ///
    /// # Errors
    /// If `output` cannot be written, or is the model or a text.
    pub fn check_output(&self, output: &Path, model: &Path) -> Result<()> {
        let texts = self.text.iter().chain(&self.eval_text).map(|p| ("a text", p.as_path()));
        check_output(output, texts.chain([("the model", model)]))
    }

    /// What is too short is said by its name, before any work.
    ///
    /// # Errors
    /// If there is too little to train on or to measure on, or an option is out of range; `model` is named then.
    pub fn check_texts(&self, engine: &Engine, options: &TrainOptions, texts: &Texts, model: &Path) -> Result<()> {
        let names: Vec<_> = self.text.iter().map(|path| path.display().to_string()).collect();
        let names = names.join(", ");
        pi_engine::train::check(engine, texts.train.len(), options).map_err(|e| Failure::text(&e, &names, model))?;
        let special = engine.tokenizer().special();
        let window = options.context - usize::from(special.add_bos && special.bos.is_some());
        let got = texts.kept.len();
        match &self.eval_text {
            _ if got >= window => Ok(()),
            Some(path) => Err(Failure::Work(format!(
                "{}: text to measure on: expected at least {window} tokens, got {got}",
                path.display()
            ))),
            None => Err(Failure::Work(format!(
                "{names}: too short to keep a window of {window} tokens back: give more, or --eval-text, or a smaller -c"
            ))),
        }
    }
}

/// One piece in so many is kept back.
const PIECES: usize = 10;

/// Divides a text into what is trained on and what is kept back: pieces of a window, so that what is kept is as varied as the text.
fn split(text: &[TokenId], window: usize, train: &mut Vec<TokenId>, kept: &mut Vec<TokenId>) {
    for (i, piece) in text.chunks(window.max(1)).enumerate() {
        // the middle one of ten, so that a short text keeps one back, too
        let into = if i % PIECES == PIECES / 2 { &mut *kept } else { &mut *train };
        into.extend_from_slice(piece);
    }
}

/// A text.
pub struct Text {
    /// Its file's.
    pub name: String,
    /// Of its bytes: tells it apart from others.
    pub fingerprint: u64,
    /// All of it.
    pub tokens: Vec<TokenId>,
}

/// Tokens of the texts.
pub struct Texts {
    /// The texts that were given to train on, whole.
    pub all: Vec<Text>,
    /// What is trained on.
    pub train: Vec<TokenId>,
    /// What perplexity is measured on.
    pub kept: Vec<TokenId>,
}
