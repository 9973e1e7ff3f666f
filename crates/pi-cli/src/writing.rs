//! What commands that write files share: what is not replaced; progress, the interrupt and the summary of those that write models.

use crate::{
    failure::{Failure, Result},
    interrupt::{INTERRUPTED, Interrupt},
    output::{Output, say, size},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pi_convert::{Error, OnProgress, Progress, Report};
use pi_engine::{pi_core::QuantType, pi_gguf::AtomicFile};
use std::{
    fs,
    io::{self, IsTerminal},
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// Reads the name of a number type.
///
/// # Errors
/// If there is none of this name.
pub fn quant_type(name: &str) -> Result<QuantType, String> {
    let known = || QuantType::ALL.map(QuantType::name).join(", ");
    QuantType::from_name(name).ok_or_else(|| format!("known: {}", known()))
}

/// What cannot be written is said before the work, and what is read is not replaced. `kept` are files with what they are, such as
/// "the model". Nothing is left of the trial.
///
/// # Errors
/// If `output` cannot be written, or is one of `kept`, by whatever name.
pub fn check_output<'a>(output: &Path, kept: impl IntoIterator<Item = (&'a str, &'a Path)>) -> Result<()> {
    let refuse = |why: &str| Err(Failure::Work(format!("{}: {why}", output.display())));
    let parent = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return refuse("cannot be written: its folder is not there");
    }
    if output.is_dir() {
        return refuse("cannot be written: it is a folder");
    }
    check_other(output, kept)?;
    let tried = Interrupt::watch()?.after(|| AtomicFile::create(output).map(drop));
    tried.map_err(|e| Failure::Work(e.to_string()))
}

/// What is read is not replaced.
///
/// # Errors
/// If `output` is one of `kept`, by whatever name.
pub fn check_other<'a>(output: &Path, kept: impl IntoIterator<Item = (&'a str, &'a Path)>) -> Result<()> {
    let place = resolved(output);
    match kept.into_iter().find(|(_, path)| resolved(path) == place) {
        Some((what, _)) => Err(Failure::Work(format!("{}: this is {what}, and is not replaced", output.display()))),
        None => Ok(()),
    }
}

/// The same for a folder that files are written into, and that is made if it is not there.
///
/// # Errors
/// If no file can be written there.
pub fn check_folder(folder: &Path) -> Result<()> {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    if folder.is_dir() {
        return check_output(&folder.join("activation_0.pt"), []);
    }
    // the first of its folders that is to be made
    let missing = folder.ancestors().take_while(|f| f.symlink_metadata().is_err()).last();
    match missing {
        Some(missing) => check_output(missing, []),
        None => Err(Failure::Work(format!("{}: cannot be written into: it is no folder", folder.display()))),
    }
}

/// One name for a file, whether it is there or not.
fn resolved(path: &Path) -> PathBuf {
    let there = |path: &Path| fs::canonicalize(path).ok();
    let beside = || {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(there(parent)?.join(path.file_name()?))
    };
    there(path).or_else(beside).unwrap_or_else(|| path.to_owned())
}

/// Runs `make`, which writes the model `path`: with progress on standard error, so that Ctrl-C and SIGTERM leave nothing behind,
/// and with a summary on standard output.
///
/// # Errors
/// What `make` reports.
pub fn write(path: &Path, make: impl FnOnce(OnProgress<'_>) -> Result<Report, Error>) -> Result {
    let interrupt = Interrupt::watch()?;
    interrupt.writing(); // from here on there is something to clean up
    let begun = Instant::now();
    let mut shown = Shown::new();
    let done = make(&mut |now: &Progress<'_>| {
        if interrupt.writing() {
            return ControlFlow::Break(());
        }
        shown.show(now);
        ControlFlow::Continue(())
    });
    shown.end();
    let report = match done {
        Err(Error::Cancelled) => {
            say("interrupted: nothing was written");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Err(error @ Error::Choice(_)) => return Err(Failure::Work(error.to_string())),
        done => done.map_err(|e| Failure::Work(e.to_string()))?,
    };
    report.notes.iter().for_each(|note| say(&format!("note: {note}")));
    Output::new().write(summary(path, &report, begun.elapsed()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn summary(path: &Path, report: &Report, time: Duration) -> String {
    let (before, after) = (report.bytes_before, report.bytes_after);
    let mut text = format!(
        "{}: {} of tensors from {} ({:.1} %) in {:.1} s\n",
        path.display(),
        size(after),
        size(before),
        100.0 * after as f64 / before.max(1) as f64,
        time.as_secs_f64(),
    );
    for (ty, tensors, bytes) in &report.types {
        text += &format!("  {:<7} {tensors:>5} tensors {:>9}\n", ty.name(), size(*bytes));
    }
    let percent = |error: f64| format!("{:.3} %", 100.0 * error);
    if let Some(worst) = report.transposed.iter().max_by(|a, b| a.error.total_cmp(&b.error)) {
        let count = report.transposed.len();
        let mean = |of: &dyn Fn(&pi_convert::Transposed) -> Option<f64>| {
            let sum: Option<f64> = report.transposed.iter().map(of).sum();
            sum.map(|sum| sum / count as f64)
        };
        let error = mean(&|t| Some(t.error)).unwrap_or_default();
        let plain = mean(&|t| t.plain).map_or_else(String::new, |x| format!("; without transposing {}", percent(x)));
        text += &format!(
            "down matrices transposed: {count}, relative error {} on average{plain}, most {} ({})\n",
            percent(error),
            percent(worst.error),
            worst.tensor
        );
    }
    text
}

/// How far it is: a bar on a terminal, else a line now and then.
struct Shown {
    bar: Option<ProgressBar>,
    /// Tenths that were told of, where there is no terminal.
    tenths: u64,
}

impl Shown {
    fn new() -> Self {
        let style = ProgressStyle::with_template(
            "{bar:30} {percent:>3} % {decimal_bytes} of {decimal_total_bytes}, {eta} left {msg}",
        );
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            match style {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self { bar, tenths: 0 }
    }

    fn show(&mut self, now: &Progress<'_>) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(now.total);
                bar.set_position(now.bytes);
                bar.set_message(crate::output::printable(now.tensor));
            }
            None => {
                let tenths = 10 * now.bytes / now.total.max(1);
                if tenths > self.tenths {
                    self.tenths = tenths;
                    say(&format!(
                        "{} of {} tensors, {} of {}",
                        now.done,
                        now.tensors,
                        size(now.bytes),
                        size(now.total)
                    ));
                }
            }
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
