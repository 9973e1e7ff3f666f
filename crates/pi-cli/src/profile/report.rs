//! What a profile says, in numbers: a table for people, an object for programs.

use crate::output::printable;
use pi_engine::pi_predictor::profile::{Counts, LayerCounts, Profile};
use serde::Serialize;
use std::fmt::Write;

/// The share of neurons whose overlap between texts is looked at (paper §3.1).
pub const TOP: f64 = 0.2;

/// The object of `pi profile --json`. Shares are from 0 to 1.
#[derive(Serialize)]
pub struct Report {
    /// The model's name, and what tells it apart.
    pub model: String,
    pub fingerprint: String,
    /// Tokens that were counted.
    pub tokens: u64,
    /// Whether all texts were counted to their ends.
    pub complete: bool,
    /// All layers together: their neurons are ranked together.
    pub whole: Shares,
    /// By layer: only its own neurons are ranked.
    pub layers: Vec<Layer>,
    pub texts: Vec<Text>,
    /// Which most active neurons `overlap` is about.
    pub top_share: f64,
    /// For each pair of texts, the share of the most active neurons of the whole model that they have in common.
    pub overlap: Vec<Vec<f64>>,
    /// The same for the most active neurons of each layer, the layers' mean.
    pub overlap_in_layers: Vec<Vec<f64>>,
}

/// How activations are spread over neurons.
#[derive(Serialize)]
pub struct Shares {
    pub neurons: usize,
    /// Mean share of neurons that fire for a token.
    pub active_share: f64,
    /// Neurons that never fired.
    pub never_active: usize,
    /// The smallest shares of neurons that give 50, 80 and 90 % of the activations.
    pub share_for_50: f64,
    pub share_for_80: f64,
    pub share_for_90: f64,
}

#[derive(Serialize)]
pub struct Layer {
    /// Its number, from 0.
    pub layer: u32,
    #[serde(flatten)]
    pub shares: Shares,
}

#[derive(Serialize)]
pub struct Text {
    pub name: String,
    /// Tokens counted, and to be counted.
    pub tokens: u64,
    pub of: u64,
    pub active_share: f64,
    pub share_for_80: f64,
}

impl Shares {
    fn new(neurons: usize, never: usize, active: f64, share_for: impl Fn(f64) -> f64) -> Self {
        Self {
            neurons,
            active_share: active,
            never_active: never,
            share_for_50: share_for(0.5),
            share_for_80: share_for(0.8),
            share_for_90: share_for(0.9),
        }
    }

    fn of_layer(layer: &LayerCounts, tokens: u64) -> Self {
        let neurons = layer.fired().len();
        let all = (tokens as f64 * neurons as f64).max(1.0);
        Self::new(neurons, layer.idle(), layer.activations() as f64 / all, |part| layer.share_for(part))
    }

    fn row(&self, name: &str) -> String {
        format!(
            "{name:>6} {:>8.2} % {:>8} {:>7.1} % {:>7.1} % {:>7.1} %\n",
            100.0 * self.active_share,
            self.never_active,
            100.0 * self.share_for_50,
            100.0 * self.share_for_80,
            100.0 * self.share_for_90,
        )
    }
}

impl Report {
    /// What `profile` says.
    pub fn new(profile: &Profile) -> Self {
        let all = profile.merged();
        let never = all.layers().iter().map(LayerCounts::idle).sum();
        let layer = |l: &LayerCounts| Layer { layer: l.layer(), shares: Shares::of_layer(l, all.tokens()) };
        let texts = profile.texts();
        let text = texts.iter().map(|t| Text {
            name: t.name.clone(),
            tokens: t.counts.tokens(),
            of: t.length,
            active_share: t.counts.active_share(),
            share_for_80: t.counts.share_for(0.8),
        });
        let pairs = |overlap: fn(&Counts, &Counts) -> f64| {
            texts.iter().map(|a| texts.iter().map(|b| overlap(&a.counts, &b.counts)).collect()).collect()
        };
        Self {
            model: profile.model.clone(),
            fingerprint: format!("{:016x}", profile.fingerprint),
            tokens: all.tokens(),
            complete: texts.iter().all(|t| t.is_complete()),
            whole: Shares::new(all.neurons(), never, all.active_share(), |part| all.share_for(part)),
            layers: all.layers().iter().map(layer).collect(),
            texts: text.collect(),
            top_share: TOP,
            // texts of a profile have the same layers
            overlap: pairs(|a, b| a.overlap(b, TOP).unwrap_or_default()),
            overlap_in_layers: pairs(|a, b| {
                let layers = a.layers().iter().zip(b.layers());
                layers.map(|(a, b)| a.overlap(b, TOP)).sum::<f64>() / a.layers().len().max(1) as f64
            }),
        }
    }

    /// The numbers as tables. Names of models and texts do not steer the terminal.
    pub fn printable(&self) -> String {
        self.table().split_inclusive('\n').map(|line| printable(line.trim_end_matches('\n')) + "\n").collect()
    }

    fn table(&self) -> String {
        let plural = |n: usize, one: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") };
        let mut text = format!(
            "{}: {} of {}, {} tokens of {}\n\n",
            self.model,
            plural(self.layers.len(), "layer"),
            plural(self.whole.neurons, "neuron"),
            self.tokens,
            plural(self.texts.len(), "text"),
        );
        text += "                             share of neurons that gives\n";
        text += " layer    active    never    50 %      80 %      90 % of activations\n";
        for layer in &self.layers {
            text += &layer.shares.row(&layer.layer.to_string());
        }
        text += &self.whole.row("all");
        text += "\n  text    tokens    active\n";
        for (i, t) in self.texts.iter().enumerate() {
            let rest = if t.tokens < t.of { format!(" (of {})", t.of) } else { String::new() };
            let _ = writeln!(text, "{:>6} {:>9} {:>7.2} %  {}{rest}", i + 1, t.tokens, 100.0 * t.active_share, t.name);
        }
        if self.texts.len() > 1 {
            let _ = writeln!(text, "\nthe most active {:.0} % of all neurons, in common between texts:", 100.0 * TOP);
            let head: String = (1..=self.texts.len()).map(|i| format!("{i:>9}")).collect();
            let _ = writeln!(text, "      {head}");
            for (i, row) in self.overlap.iter().enumerate() {
                let row: String = row.iter().map(|v| format!("{:>7.1} %", 100.0 * v)).collect();
                let _ = writeln!(text, "{:>6}{row}", i + 1);
            }
        }
        text
    }
}
