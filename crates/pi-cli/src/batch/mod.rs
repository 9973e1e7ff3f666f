//! `pi run --prompts`: answers many prompts, several at a time.
//!
//! | file | what |
//! |---|---|
//! | `input` | the lines of the input, one by one |
//! | `request` | from a line to a request, from an answer to a line of the output |
//! | `settings` | what the answers depend on: an interrupted run goes on only with the same |
//! | `results` | the output in the input's order, and beside it what was ready too early |
//! | `drive` | so many requests at a time until none is left |
//!
//! The server computes the answers, without a network: slots, queue and the meaning of all fields are its own.

mod drive;
mod input;
mod request;
mod results;
mod settings;

use crate::{
    chat,
    failure::{Failure, Result},
    flags::RunFlags,
    form,
    interrupt::INTERRUPTED,
    output::say,
    prompt, serve,
    writing::check_other,
};
use drive::{Drive, Ended};
use input::Inputs;
use pi_server::{Server, ServerOptions};
use request::Defaults;
use results::Results;
use settings::Settings;
use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::Notify;

/// Prompts that are computed at the same time unless the options say otherwise.
const PARALLEL: usize = 4;

/// Answers the prompts of a file with the model at `path`.
///
/// # Errors
/// If files cannot be read or written, the model cannot be loaded, or an earlier run was made of something else. What was
/// answered until then is kept.
pub fn run(flags: &RunFlags, prompts: &Path, output: &Path, path: &Path) -> Result {
    if flags.escape && flags.reverse_prompt.is_empty() {
        return Err(Failure::Usage("--escape has nothing to act on: with --prompts it is for --reverse-prompt".into()));
    }
    flags.placing.kv_place()?;
    for written in [output, &*results::beside(output)] {
        check_other(written, [("the file of prompts", prompts), ("the model", path)])?;
    }
    let form = flags.form.grammar()?.map(|(grammar, from)| form::field(&grammar, &from)).transpose()?;
    let defaults = Defaults { stop: prompt::stops(flags)?, ignore_eos: flags.ignore_eos, form };
    let template = flags.batch.chat_template.as_deref().map(chat::source).transpose()?;
    chat::check_tools(flags.batch.chat_template.as_deref(), template.as_deref(), flags.batch.tool_format)?;
    let survey = input::survey(prompts)?;
    let settings = Settings::new(flags, &defaults, template.as_deref(), path, &survey)?;
    let asked = Asked::watch()?;

    let mut inputs = Inputs::open(prompts)?;
    let results = Results::open(output, &settings, flags.batch.overwrite, &mut inputs)?;
    let ready = results.ready();
    if ready > 0 {
        say(&format!("{}: {ready} of {} lines are there already", output.display(), survey.lines));
    }
    let parallel = flags.batch.parallel.map_or(PARALLEL, |n| n as usize);
    let options = ServerOptions {
        parallel,
        context: flags.engine.ctx_size.map(|n| n as usize),
        batch: flags.engine.batch_size as usize,
        queue: drive::ahead(parallel),
        timeout: None,
        body_limit: usize::MAX,
        sampling: flags.sampling.params(usize::MAX),
        max_tokens: usize::try_from(flags.n_predict).ok(),
        tool_format: flags.batch.tool_format,
        ..Default::default()
    };
    let failed = |e: std::io::Error| Failure::Work(format!("cannot answer: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let tools = flags.batch.tool_format;
    let load =
        serve::loader(flags.engine.clone(), flags.placing.clone(), parallel, path.to_path_buf(), template, tools);
    let ended = runtime.block_on(async {
        let server = Server::start(options, load).map_err(failed)?;
        tokio::select! {
            loaded = server.loaded() => loaded.map_err(Failure::Work)?,
            () = asked.came() => return Ok(Ended { interrupted: true, ..Ended::new(results) }),
        }
        let drive = Drive::new(server, parallel, inputs, results, defaults, flags.batch.fail_fast, &survey);
        drive.run(&asked).await
    });
    runtime.shutdown_background(); // what is still being prepared is not waited for
    finish(ended?, output, &survey, flags.batch.overwrite)
}

/// Says how it went, and ends the output if all is there.
fn finish(ended: Ended, output: &Path, survey: &input::Survey, overwrites: bool) -> Result {
    let shown = output.display();
    let done = ended.results.ready();
    if ended.interrupted {
        let command = if overwrites { "the same command without --overwrite" } else { "the same command" };
        say(&format!("interrupted: {done} of {} lines are done; {command} goes on from there", survey.lines));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if ended.sum != survey.sum {
        return Err(Failure::Work(format!(
            "the prompts changed while they were read: what is in {shown} belongs to no one file"
        )));
    }
    ended.results.finish()?;
    let speed = ended.tokens as f64 / ended.time.as_secs_f64().max(1e-9);
    say(&format!(
        "{shown}: {done} lines | {} tokens generated, {speed:.1} tokens/s | {} answered now, {} with errors",
        ended.tokens, ended.answered, ended.errors
    ));
    Ok(if ended.errors > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Whether the user wants it to end.
struct Asked {
    flag: AtomicBool,
    notify: Notify,
}

impl Asked {
    /// Takes Ctrl-C and SIGTERM over from the system. The second one ends the process.
    fn watch() -> Result<Arc<Self>> {
        let asked = Arc::new(Self { flag: AtomicBool::new(false), notify: Notify::new() });
        let shared = asked.clone();
        let handler = move || match shared.flag.swap(true, Ordering::SeqCst) {
            false => shared.notify.notify_one(),
            true => std::process::exit(INTERRUPTED.into()),
        };
        ctrlc::set_handler(handler).map_err(|e| Failure::Work(format!("cannot watch for signals: {e}")))?;
        Ok(asked)
    }

    /// Comes when the user does.
    async fn came(&self) {
        while !self.has_come() {
            self.notify.notified().await;
        }
    }

    fn has_come(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }
}
