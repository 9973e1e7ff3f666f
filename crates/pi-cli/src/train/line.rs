//! How far a training is.

use crate::output::{growth, say};
use pi_engine::train::{Candidate, Progress};
use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// One line on standard error that is written anew; where that is not a terminal, a line per layer and trial.
pub struct Line {
    layers: usize,
    is_terminal: bool,
    shown: Option<Instant>,
}

impl Line {
    /// For a model of so many layers.
    pub fn new(layers: usize) -> Self {
        Self { layers, is_terminal: io::stderr().is_terminal(), shown: None }
    }

    /// Shows what is being done.
    pub fn show(&mut self, now: &Progress<'_>) {
        match now {
            Progress::Fitted(l) => {
                self.clear();
                let found: Vec<String> = l.candidates.iter().map(found).collect();
                say(&format!(
                    "layer {} of {}: {:.2} % fire; 98 % of the magnitudes are in {}",
                    l.layer + 1,
                    self.layers,
                    100.0 * l.active,
                    found.join(", ")
                ));
            }
            Progress::Tried(t) => {
                self.clear();
                say(&format!(
                    "{} layers with predictors, {:.2} % of the neurons: perplexity {}",
                    t.layers,
                    100.0 * t.marked,
                    growth(t.growth())
                ));
            }
            _ if !self.is_terminal || self.shown.is_some_and(|t| t.elapsed() < Duration::from_millis(200)) => {}
            now => {
                let text = match now {
                    Progress::Collecting { layers, tokens, of } => {
                        format!("watching layers {} to {}: {tokens} of {of} tokens", layers.start + 1, layers.end)
                    }
                    Progress::Fitting { layer, rank, done } => {
                        format!("layer {}, rank {rank}: {:.0} %", layer + 1, 100.0 * done)
                    }
                    Progress::Evaluating { windows, of } => format!("measuring perplexity: {windows} of {of} windows"),
                    _ => return,
                };
                let _ = write!(io::stderr(), "\r{text:60}");
                self.shown = Some(Instant::now());
            }
        }
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if self.is_terminal && self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r{:60}\r", "");
        }
    }
}

/// As in `15.02 % of the neurons (rank 64)`.
fn found(candidate: &Candidate) -> String {
    let share = 100.0 * candidate.curve.with_recall(0.98).share;
    let what = candidate.rank().map_or_else(|| candidate.kind().to_string(), |rank| format!("rank {rank}"));
    format!("{share:.2} % of the neurons ({what})")
}
