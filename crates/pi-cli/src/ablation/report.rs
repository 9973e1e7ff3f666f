//! The table, and the same as an object.

use super::{
    Setting,
    machine::{Machine, MachineFlags},
    measure::{Measured, SAME},
    reference::{Reference, TOLERANCE},
};
use crate::output::{growth, printable, size};
use pi_engine::Sparsity;
use serde::Serialize;
use std::fmt::Write;

/// All that was found. Shares are from 0 to 1, times in seconds of the simulated machine.
#[derive(Serialize)]
pub struct Report {
    model: String,
    profile: Option<String>,
    budget_bytes: u64,
    tokens: usize,
    repetitions: u32,
    /// The devices are simulated, the numbers of waits and moves and the results are not. Null: they are this machine's.
    simulated: Option<MachineFlags>,
    /// The machine for people; of a real one the GPU.
    machine: String,
    slow_motion: f64,
    /// Predictors from signs run on this CPU, off the simulated clock: their time is all but left out.
    signs_not_simulated: bool,
    /// Between dense and exact sparse logits on the CPU, as a share of the largest, and what is allowed.
    exact_difference: f64,
    tolerance: f64,
    /// Mean KL that is allowed between a row with predictors and the CPU with the same ones.
    predictor_tolerance: f64,
    rows: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    name: &'static str,
    sparsity: &'static str,
    tokens_per_second: f64,
    /// Fastest and slowest of the runs.
    tokens_per_second_most: f64,
    tokens_per_second_least: f64,
    /// Of the first row.
    speedup: f64,
    /// What the planner expected.
    expected_tokens_per_second: f64,
    hit_rate: f64,
    expected_hit_rate: f64,
    /// Share of the neurons on the device.
    hot_share: f64,
    device_bytes: u64,
    planned_bytes: u64,
    /// Null where they are not counted.
    waits_per_token: Option<f64>,
    moves_per_token: Option<f64>,
    bytes_moved_per_token: Option<f64>,
    difference: f64,
    kl: f64,
    top1_agreement: f64,
}

impl Report {
    pub fn new(
        setting: &Setting<'_>,
        machine: &Machine,
        factor: f64,
        reference: &Reference,
        measured: &[Measured<'_>],
    ) -> Self {
        let base = measured.first().map_or(f64::NAN, |m| m.median);
        let line = |m: &Measured<'_>| {
            let (least, most) = m.seconds.iter().fold((f64::MAX, 0.0), |(l, h): (f64, f64), s| (l.min(*s), h.max(*s)));
            let planned = &m.row.planned;
            Line {
                name: m.row.name,
                sparsity: match m.row.sparsity {
                    Sparsity::Off => "off",
                    Sparsity::Predictor => "predictor",
                    _ => "exact",
                },
                tokens_per_second: 1.0 / m.median,
                tokens_per_second_most: 1.0 / least,
                tokens_per_second_least: 1.0 / most,
                speedup: base / m.median,
                expected_tokens_per_second: 1.0 / planned.times.total(),
                hit_rate: m.hit_rate,
                expected_hit_rate: planned.hit_rate(),
                hot_share: planned.hot_share(),
                device_bytes: m.used,
                planned_bytes: planned.memory.total(),
                waits_per_token: m.waits,
                moves_per_token: m.moves,
                bytes_moved_per_token: m.moved,
                difference: m.off_by,
                kl: m.kl,
                top1_agreement: m.same,
            }
        };
        let shown = |path: &std::path::Path| path.display().to_string();
        Self {
            model: shown(setting.path()),
            profile: setting.flags.profile.as_deref().map(shown),
            budget_bytes: setting.budget,
            tokens: reference.tokens.len(),
            repetitions: setting.flags.repetitions,
            simulated: machine.simulated().cloned(),
            machine: machine.shown(),
            slow_motion: factor,
            signs_not_simulated: reference.signs && machine.simulated().is_some(),
            exact_difference: reference.exact,
            tolerance: TOLERANCE,
            predictor_tolerance: SAME,
            rows: measured.iter().map(line).collect(),
        }
    }

    /// The same for people.
    pub fn text(&self) -> String {
        let (model, tokens, runs) = (printable(&self.model), self.tokens, self.repetitions);
        let mut t = match self.simulated {
            Some(_) => format!(
                "{model}: {tokens} tokens, one by one, {runs} runs of each row in turns, medians\n\
                 Simulated: {}; {:.0} times slower, and divided by that.\n\
                 Counted, not simulated: what fires, waits, moves, bytes, logits.\n\n",
                self.machine, self.slow_motion
            ),
            None => format!(
                "{model}: {tokens} tokens, one by one, {runs} runs of each row, one row after the other, medians\n\
                 Measured with this CPU and {}.\n\n",
                printable(&self.machine)
            ),
        };
        let counted = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.1}"));
        if self.signs_not_simulated {
            t.insert_str(t.len() - 1, "Neither: predictors from signs, which this CPU computes off the clock; their time is all but left out.\n");
        }
        t += "|                           | tokens/s |   to base | expected | hit rate | hot neurons |   on device | waits | moves | moved per token |       KL |\n";
        t += "| ------------------------- | -------: | --------: | -------: | -------: | ----------: | ----------: | ----: | ----: | --------------: | -------: |\n";
        for r in &self.rows {
            let _ = writeln!(
                t,
                "| {:<25} | {:>8.1} | {:>9} | {:>8.1} | {:>6.1} % | {:>9.1} % | {:>11} | {:>5} | {:>5} | {:>15} | {:>8.1e} |",
                r.name,
                r.tokens_per_second,
                format!("{:.2} x", r.speedup),
                r.expected_tokens_per_second,
                100.0 * r.hit_rate,
                100.0 * r.hot_share,
                size(r.device_bytes),
                counted(r.waits_per_token),
                counted(r.moves_per_token),
                r.bytes_moved_per_token.map_or("-".into(), |n| size(n as u64)),
                r.kl,
            );
        }
        let spread = self.rows.iter().map(|r| r.tokens_per_second_most / r.tokens_per_second_least - 1.0);
        let _ = writeln!(
            t,
            "\nLogits: sparse and dense differ by {:.1e} of the largest on the CPU ({:.0e} is allowed); all rows give what the CPU gives.\n\
             KL is from the dense model, in nats. Runs of a row differ by at most {}.",
            self.exact_difference,
            self.tolerance,
            growth(spread.fold(0.0, f64::max)).trim_start_matches('+'),
        );
        t
    }
}
