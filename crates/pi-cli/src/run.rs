//! `pi run`: continues a text.

use crate::{
    batch, demo,
    failure::{Failure, Result},
    flags::{EngineFlags, RunFlags},
    form,
    interrupt::{INTERRUPTED, Interrupt},
    loading::{introduce, load},
    output::{Output, say},
    prompt,
    result::{Outcome, summary},
};
use pi_engine::{Engine, Error, GenerateOptions, Session, SessionOptions, Sink, StopReason, sampler::Chain};
use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Loads the model, continues the text, and says how it went.
///
/// # Errors
/// Whatever keeps it from doing that.
pub fn run(flags: &RunFlags) -> Result {
    if let Some((prompts, output)) = flags.batch.files()? {
        return batch::run(flags, prompts, output, &model(flags)?);
    }
    let text = prompt::bytes(flags)?;
    let stop = prompt::stops(flags)?;
    let grammar = flags.form.grammar()?;
    let interrupt = Interrupt::watch()?;
    let path = model(flags)?;
    let failure = |e: Error| Failure::engine(&e, &path);

    let session = |made_for| options(&flags.engine, made_for, flags.engine.batch_size as usize);
    let engine = load(&flags.engine, &flags.placing, flags.engine.sparsity, &session, &path)?;
    introduce(&engine, &path);
    let ids = prompt::tokens(&engine, &text, &path)?;
    let mut session = open(&engine, &flags.engine, ids.len(), &path)?;
    let max_tokens = usize::try_from(flags.n_predict).ok();
    check_length(&session, ids.len(), max_tokens)?;
    let sampling = flags.sampling.checked(session.context(), engine.vocab())?;
    let chain = Chain::new(sampling.clone(), engine.vocab()).map_err(failure)?;
    let seed = chain.seed();
    let mut sampler = form::sampler(chain, grammar, &engine)?;
    say(&format!("seed: {seed}"));

    let mut screen = Screen { out: Output::new(), interrupt, streams: !flags.json, failed: None };
    if !flags.json && !flags.no_display_prompt {
        screen.out.write(&text)?;
    }
    let options = GenerateOptions { max_tokens, sampling, stop, ignore_eos: flags.ignore_eos };
    let generated = session.generate_with(0, &ids, &options, &mut *sampler, &mut screen);
    let Screen { mut out, failed, .. } = screen;
    if let Some(loss) = session.device_loss() {
        say(&format!("the device failed, the CPU went on alone: {loss}"));
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    let mut generated = match generated {
        Ok(generated) => generated,
        Err(e) => {
            if !flags.json {
                out.end_line()?;
            }
            return Err(with_advice(&e, flags.engine.check, &path));
        }
    };
    generated.seed = seed;
    match flags.json {
        true => out.json(&Outcome::new(&generated, &path))?,
        false => out.end_line()?,
    }
    say(&summary(&generated));
    Ok(if generated.stop == StopReason::Cancelled { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// The model that is named, or the demo model.
fn model(flags: &RunFlags) -> Result<PathBuf> {
    if let Some(path) = &flags.model {
        return Ok(path.clone());
    }
    let path = demo::find()?;
    say(&format!("no model was named (-m): this is the demo model, {}", path.display()));
    Ok(path)
}

/// A session for a prompt of `prompt` tokens: larger batches than it needs would only cost memory.
fn open(engine: &Engine, flags: &EngineFlags, prompt: usize, path: &Path) -> Result<Session> {
    let trained = engine.config().context;
    let options = options(flags, trained, prompt.min(flags.batch_size as usize));
    if let Some(n) = options.context.filter(|&n| n > trained) {
        say(&format!("warning: the model was made for a context of {trained} positions, not for {n}"));
    }
    engine.session(&options).map_err(|e| Failure::engine(&e, path))
}

/// What a session is to hold, of a model that was made for so many positions.
fn options(flags: &EngineFlags, made_for: usize, batch: usize) -> SessionOptions {
    let context = flags.context(made_for);
    SessionOptions { context, batch, ..Default::default() }
}

/// The prompt and a token more must fit the context (the prompt alone if no token is wanted).
fn check_length(session: &Session, prompt: usize, max_tokens: Option<usize>) -> Result<()> {
    let needed = prompt + usize::from(max_tokens != Some(0));
    if needed <= session.context() {
        return Ok(());
    }
    let (context, made_for) = (session.context(), session.engine().config().context);
    let advice = if needed <= made_for { String::new() } else { format!(" (the model was made for {made_for})") };
    Err(Failure::Work(format!(
        "the prompt has {prompt} tokens and does not fit the context of {context}: it needs --ctx-size {needed} or \
         more{advice}"
    )))
}

fn with_advice(error: &Error, checked: bool, path: &Path) -> Failure {
    match (Failure::engine(error, path), error) {
        (Failure::Work(message), Error::Logits(_)) if !checked => {
            Failure::Work(format!("{message} (--check names the tensor or operator that they come from)"))
        }
        (failure, _) => failure,
    }
}

/// Shows text as it comes, and passes on the wish to stop.
struct Screen {
    out: Output,
    interrupt: Interrupt,
    streams: bool,
    failed: Option<Failure>,
}

impl Sink for Screen {
    fn text(&mut self, text: &str) -> ControlFlow<()> {
        if self.streams
            && let Err(failure) = self.out.write(text.as_bytes())
        {
            self.failed = Some(failure);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn proceed(&mut self) -> ControlFlow<()> {
        if self.interrupt.writing() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
