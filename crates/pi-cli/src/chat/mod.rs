//! `pi chat`: a conversation in the terminal.
//!
//! | file | what |
//! |---|---|
//! | `lines` | what the user types: editing and history on a terminal, plain lines else |
//! | `command` | the words that begin with a slash |
//! | `talk` | the conversation, and answers to it |
//!
//! Answers go to standard output, everything else to standard error.

mod command;
mod lines;
mod talk;

use crate::{
    demo,
    failure::{Failure, Result},
    flags::{EngineFlags, SamplingFlags},
    interrupt::Interrupt,
    loading::{introduce, load},
    output::say,
    placing::PlacingFlags,
};
use clap::{Args, ValueHint, value_parser};
use command::{Command, HELP};
use lines::{Line, Lines};
use pi_engine::{Engine, Error, SessionOptions, pi_gguf::File};
use pi_server::{
    ToolFormat,
    chat::{ChatTemplate, PRESETS},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};
use talk::{Settings, Talk};

/// The options of `pi chat`.
#[derive(Args, Debug)]
pub struct ChatFlags {
    /// Model file: GGUF or PowerInfer; of a split model, any part [default: the demo model of the repository]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub model: Option<PathBuf>,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// How conversations are written, instead of the template in the file: a name (chatml, llama2, llama3, gemma, plain) or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub chat_template: Option<String>,
    /// Keep what was typed in this file, for the arrow keys of the next time
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub history: Option<PathBuf>,
    /// Most tokens of an answer; -1: until the model stops or the context is full
    #[arg(short, long, visible_alias = "predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true,
          value_parser = value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    pub n_predict: i64,

    #[command(flatten)]
    pub sampling: SamplingFlags,
    #[command(flatten)]
    pub engine: EngineFlags,
    #[command(flatten)]
    pub placing: PlacingFlags,
}

/// Loads the model and talks until the user has had enough.
///
/// # Errors
/// If the model cannot be loaded, or nobody reads the answers.
pub fn chat(flags: &ChatFlags) -> Result {
    let interrupt = Interrupt::watch()?;
    let path = match &flags.model {
        Some(path) => path.clone(),
        None => demo::find()?,
    };
    let session = |made_for| options(&flags.engine, made_for);
    let engine = load(&flags.engine, &flags.placing, flags.engine.sparsity, &session, &path)?;
    introduce(&engine, &path);
    let template = template(flags.chat_template.as_deref(), &engine, &path)?;
    let session = engine.session(&options(&flags.engine, engine.config().context));
    let session = session.map_err(|e| Failure::engine(&e, &path))?;
    let sampling = flags.sampling.checked(session.context(), engine.vocab())?;
    let settings = Settings { sampling, max_tokens: usize::try_from(flags.n_predict).ok() };
    let mut lines = Lines::new(flags.history.as_deref())?;
    say("/help shows the commands; Ctrl-C stops an answer; Ctrl-D or /quit ends");
    let mut talk = Talk::new(session, template, settings, interrupt, flags.system.clone());
    loop {
        interrupt.idle();
        match lines.next()? {
            Line::End => break,
            Line::Nothing => {}
            Line::Text(text) => match Command::read(&text) {
                None => talk.say(text)?,
                Some(Err(wrong)) => say(&wrong),
                Some(Ok(Command::Quit)) => break,
                Some(Ok(Command::Help)) => say(HELP),
                Some(Ok(command)) => talk.obey(command)?,
            },
        }
    }
    lines.keep();
    Ok(ExitCode::SUCCESS)
}

fn options(flags: &EngineFlags, made_for: usize) -> SessionOptions {
    SessionOptions { context: flags.context(made_for), batch: flags.batch_size as usize, ..Default::default() }
}

/// How conversations are written: as the option says, or the model's file.
///
/// # Errors
/// If there is no such template, or it cannot be read.
fn template(given: Option<&str>, engine: &Engine, path: &Path) -> Result<ChatTemplate> {
    let tokenizer = engine.tokenizer().clone();
    let wrong = |of: &str, e: &dyn std::fmt::Display| Failure::Work(format!("{of}: {e}"));
    let Some(given) = given else {
        let metadata = File::open(path).map_err(|e| Failure::engine(&Error::from(e), path))?.metadata().clone();
        let template = ChatTemplate::of(&metadata, tokenizer).inspect(chosen);
        return template.map_err(|e| wrong(&path.display().to_string(), &e));
    };
    ChatTemplate::new(&source(given)?, tokenizer).map_err(|e| wrong(given, &e))
}

/// Says which template a file without one gets.
pub fn chosen(template: &ChatTemplate) {
    if let Some(name) = template.preset() {
        say(&format!(
            "chat: the file has no chat template; by its vocabulary, {name} is used (--chat-template names another)"
        ));
    }
}

/// What `--chat-template` names: a preset's name, or the text in a file.
///
/// # Errors
/// If it is neither.
pub fn source(given: &str) -> Result<String> {
    if PRESETS.iter().any(|(name, _)| *name == given) {
        return Ok(given.into());
    }
    fs::read_to_string(given).map_err(|e| {
        let names = PRESETS.map(|(name, _)| name).join(", ");
        Failure::value(given, "--chat-template <NAME|FILE>", format!("neither a name ({names}) nor a file: {e}"))
    })
}

/// Refuses a form of calls together with a template (`source`, as `given`) that has no place for tools.
///
/// # Errors
/// Naming both options.
pub fn check_tools(given: Option<&str>, source: Option<&str>, format: Option<ToolFormat>) -> Result<()> {
    let (Some(given), Some(source), Some(format)) = (given, source, format) else { return Ok(()) };
    let text = PRESETS.iter().find(|(name, _)| *name == source).map_or(source, |(_, text)| text);
    match ChatTemplate::has_tools(text) {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "--tool-format {format} has nothing to act on: --chat-template {given} has no place for tools"
        ))),
    }
}
