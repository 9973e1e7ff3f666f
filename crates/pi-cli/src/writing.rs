//! What commands that write models share: progress, the interrupt, and the summary.

use crate::{
    failure::{Failure, Result},
    interrupt::{INTERRUPTED, Interrupt},
    output::{Output, say, size},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pi_convert::{Error, OnProgress, Progress, Report};
use pi_engine::pi_core::QuantType;
use std::{
    io::{self, IsTerminal},
    ops::ControlFlow,
    path::Path,
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
