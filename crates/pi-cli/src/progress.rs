//! How far a command is: a bar on a terminal, now and then a line elsewhere.

use crate::output::{printable, say};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

/// Between two lines where standard error is no terminal.
const LINES: Duration = Duration::from_secs(10);

/// The progress of a command on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    unit: &'static str,
    done: u64,
    of: u64,
    said: Instant,
}

impl Progress {
    /// Nothing done of `of` units.
    pub fn new(of: u64, unit: &'static str) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(of), ProgressDrawTarget::stderr_with_hz(5));
            let template = format!("[{{bar:30}}] {{pos}} of {{len}} {unit}, {{eta}} left  {{msg}}");
            // A template that cannot be read would be our mistake: the bar then looks as indicatif's own.
            let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style.progress_chars("=> "));
            bar
        });
        Self { bar, unit, done: 0, of, said: Instant::now() }
    }

    /// `done` units were done before this began: they say nothing about the speed.
    pub fn begin_at(&mut self, done: u64) {
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.reset_eta();
        }
    }

    /// `done` units are done; `note` says how it looks so far.
    pub fn show(&mut self, done: u64, note: &str) {
        self.done = done;
        match &self.bar {
            Some(bar) => {
                bar.set_message(printable(note));
                bar.set_position(done);
            }
            None if self.said.elapsed() >= LINES => {
                say(&format!("{done} of {} {}  {note}", self.of, self.unit));
                self.said = Instant::now();
            }
            None => {}
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
