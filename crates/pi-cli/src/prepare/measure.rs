//! Before and after.

use super::{PrepareFlags, shown};
use crate::{
    failure::{Failure, Result},
    loading::load_as,
    output::{self, size},
    progress::Progress,
};
use pi_engine::{
    Engine, Error, Sparsity,
    evaluate::{Comparison, EvaluateOptions, Evaluation, evaluate},
    pi_core::text::TokenId,
    train::{Timing, TrainOptions, Trained, decode_speeds},
};
use serde_json::{Value, json};
use std::{fmt::Write, fs, ops::ControlFlow};

/// One way to run a model.
struct Row {
    what: &'static str,
    bytes: u64,
    found: Evaluation,
    speed: f64,
}

/// What was measured.
pub struct Measured {
    /// The model as it was, with every neuron; what was made of it, exactly; the same with predictors, if it has any.
    rows: Vec<Row>,
    /// Of the predictors.
    pub timing: Timing,
}

/// Measures speed, size and perplexity of the model before, and of what was written. `exact` is the model that predictors were
/// trained for.
///
/// # Errors
/// If a model cannot be loaded or run.
pub fn measure(
    flags: &PrepareFlags,
    exact: &Engine,
    options: &TrainOptions,
    trained: &Trained,
    kept: &[TokenId],
) -> Result<Measured> {
    let failure = |e: Error| Failure::engine(&e, &flags.output);
    let dense = load_as(&flags.engine, Sparsity::Off, &flags.model)?;
    let bytes = |path| fs::metadata(path).map_or(0, |m| m.len());
    let (before, after) = (bytes(&flags.model), bytes(&flags.output));
    let mut ways = vec![("dense", before, dense.clone()), ("exact", after, exact.clone())];
    if trained.settled.trial.is_some() {
        ways.push(("predictor", after, load_as(&flags.engine, Sparsity::Predictor, &flags.output)?));
    }
    let engines: Vec<&Engine> = ways.iter().map(|w| &w.2).collect();
    let speeds = decode_speeds(&engines, kept).map_err(failure)?;
    let settings = EvaluateOptions { context: options.context, batch: options.batch, ..EvaluateOptions::default() };
    let mut rows = Vec::new();
    for ((what, bytes, engine), speed) in ways.into_iter().zip(speeds) {
        let base = (what != "dense").then_some(&dense);
        let mut bar = None;
        let found = evaluate(&engine, base, kept, &settings, &mut |now| {
            bar.get_or_insert_with(|| Progress::new(now.of as u64, "windows")).show(now.windows as u64, what);
            ControlFlow::Continue(())
        });
        rows.push(Row { what, bytes, found: found.map_err(failure)?, speed });
    }
    let timing = trained.time(exact, kept).map_err(failure)?;
    Ok(Measured { rows, timing })
}

impl Row {
    fn against(&self) -> Option<&Comparison> {
        self.found.against.as_ref()
    }

    fn growth(&self) -> Option<f64> {
        self.against().map(Comparison::perplexity_increase)
    }

    fn marked(&self) -> f64 {
        f64::from(self.found.stats.marked_share().unwrap_or(1.0))
    }

    fn active(&self) -> f64 {
        f64::from(self.found.stats.active_share().unwrap_or(1.0))
    }

    fn json(&self) -> Value {
        let [kl_median, kl_p99] = self.against().map_or([None; 2], |a| a.kl_quantiles([0.5, 0.99]).map(Some));
        json!({
            "mode": self.what,
            "bytes": self.bytes,
            "ppl": self.found.perplexity(),
            "ppl_growth": self.growth(),
            "ppl_growth_error": self.against().map(Comparison::perplexity_increase_error),
            "kl_mean": self.against().map(Comparison::kl_mean),
            "kl_median": kl_median,
            "kl_p99": kl_p99,
            "top1_agreement": self.against().map(Comparison::top1_agreement),
            "tps": self.speed,
            "marked_share": self.marked(),
            "active_share": self.active(),
        })
    }
}

impl Measured {
    /// For people.
    pub fn table(&self, flags: &PrepareFlags, seconds: f64) -> String {
        let mut text = String::from(
            "|                   | size    | perplexity            | KL      | tokens/s          | gates read | neurons computed |\n\
             | ----------------- | ------: | --------------------: | ------: | ----------------: | ---------: | ---------------: |\n",
        );
        let first = self.rows.first().map_or(1.0, |r| r.speed);
        for row in &self.rows {
            let title = if row.what == "dense" { "before" } else { "after" };
            let growth = row.growth().map_or_else(String::new, |g| format!(" ({})", output::growth(g)));
            let times = if row.what == "dense" { String::new() } else { format!(" ({:.2} x)", row.speed / first) };
            let _ = writeln!(
                text,
                "| {:<17} | {:>7} | {:>21} | {:>7} | {:>17} | {:>10} | {:>16} |",
                format!("{title}, {}", row.what),
                size(row.bytes),
                format!("{}{growth}", output::perplexity(row.found.perplexity())),
                row.against().map_or("-".into(), |a| format!("{:.5}", a.kl_mean())),
                format!("{:.1}{times}", row.speed),
                format!("{:.2} %", 100.0 * row.marked()),
                format!("{:.2} %", 100.0 * row.active()),
            );
        }
        let _ = writeln!(text, "{} and {}: written in {seconds:.0} s", shown(&flags.output), shown(&flags.profile()));
        let best = self.rows.iter().max_by(|a, b| a.speed.total_cmp(&b.speed)).map(|r| r.what);
        text += match best {
            Some("predictor") => "fastest here: pi run --sparsity predictor\n",
            Some("exact") => {
                "fastest here: pi run without --sparsity (exact): on this machine predictors cost more than they save\n"
            }
            _ => "fastest here: pi run --sparsity off: on this machine leaving neurons out costs more than it saves\n",
        };
        text
    }

    /// For programs.
    pub fn json(&self, flags: &PrepareFlags, layers: Value, seconds: f64) -> Value {
        let of = |what| self.rows.iter().find(|r| r.what == what).map(Row::json);
        json!({
            "model": shown(&flags.model),
            "output": shown(&flags.output),
            "profile": shown(&flags.profile()),
            "before": of("dense"),
            "exact": of("exact"),
            "after": of("predictor").or_else(|| of("exact")),
            "layers": layers,
            "seconds": seconds,
        })
    }
}
