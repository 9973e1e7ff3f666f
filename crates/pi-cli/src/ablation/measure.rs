//! Runs the rows: first to see that each computes what it should, then in turns, so that whatever else this machine does hits all.

use super::{
    Setting,
    machine::{Machine, Watched},
    plans::{Row, session},
    reference::{Reference, TOLERANCE, median, within},
};
use crate::failure::{Failure, Result};
use pi_engine::{Engine, Session, Sparsity, StepToken, pi_core::text::TokenId};
use pi_testkit::sim::SimCounts;
use std::time::Instant;

/// Largest mean KL of a row with predictors from the CPU with the same predictors, in nats: at a threshold, a rounding decides.
pub const SAME: f64 = 1e-3;

/// A row, and what was found.
pub struct Measured<'a> {
    pub row: &'a Row,
    /// Bytes taken on the device.
    pub used: u64,
    /// Of the simulated machine, one per run, seconds per token.
    pub seconds: Vec<f64>,
    pub median: f64,
    /// Share of what fires that is on the device.
    pub hit_rate: f64,
    /// Per token, if they are counted.
    pub waits: Option<f64>,
    pub moves: Option<f64>,
    pub moved: Option<f64>,
    /// From the CPU in the same mode, as a share of the largest logit.
    pub off_by: f64,
    /// KL(dense ‖ row) in nats, and the share of tokens after which both find the same one most likely.
    pub kl: f64,
    pub same: f64,
}

/// Checks and times all rows.
///
/// # Errors
/// If a row computes something else than the CPU does, or a model does not fit where it was planned.
pub fn measure<'a>(
    setting: &Setting<'_>,
    machine: &Machine,
    factor: f64,
    rows: &'a [Row],
    reference: &Reference,
) -> Result<Vec<Measured<'a>>> {
    let repetitions = setting.flags.repetitions;
    if machine.simulated().is_none() {
        // memory is as much as one row may have
        let one = |row| {
            let mut run = Run::new(setting, machine, factor, row, reference)?;
            (0..repetitions).try_for_each(|_| run.time(setting, factor, reference))?;
            Ok(run.done())
        };
        return rows.iter().map(one).collect();
    }
    let mut runs =
        rows.iter().map(|row| Run::new(setting, machine, factor, row, reference)).collect::<Result<Vec<_>>>()?;
    for _ in 0..repetitions {
        runs.iter_mut().try_for_each(|run| run.time(setting, factor, reference))?;
    }
    Ok(runs.into_iter().map(Run::done).collect())
}

/// A row at work.
struct Run<'a> {
    session: Session,
    found: Measured<'a>,
}

impl<'a> Run<'a> {
    fn new(setting: &Setting<'_>, machine: &Machine, factor: f64, row: &'a Row, reference: &Reference) -> Result<Self> {
        let sides = machine.sides(setting, factor)?;
        let loaded =
            setting.builder(row.sparsity)?.device(sides.host).accelerator(sides.device, row.planned.plan.clone());
        let engine: Engine = loaded.load(&setting.file).map_err(|e| setting.failure(&e))?;
        let tokens = &reference.tokens;
        let mut session = engine.session(&session(tokens.len())).map_err(|e| setting.failure(&e))?;
        let (logits, counts) = checked(&mut session, &sides.watched, tokens).map_err(|e| setting.failure(&e))?;
        let off_by = reference.off_by(row.sparsity, &logits);
        let (kl, same) = reference.divergence(&logits);
        let (far, fits) = match row.sparsity {
            Sparsity::Predictor => {
                let kl = reference.divergence_in(row.sparsity, &logits);
                (format!("KL {kl:.1e} from the CPU's, {SAME:.0e} is allowed"), within(kl, SAME))
            }
            _ => {
                let far = format!("off by {off_by:.1e} of the largest logit, {TOLERANCE:.0e} is allowed");
                (far, within(off_by, TOLERANCE))
            }
        };
        if !fits {
            let path = setting.path().display();
            return Err(Failure::Work(format!("{path}: the row '{}' computes something else: {far}", row.name)));
        }
        let each = |n: fn(&SimCounts) -> u64| counts.as_ref().map(|c| n(c) as f64 / tokens.len() as f64);
        let hot = row.planned.plan.layers.iter().map(|l| &l.hot);
        let found = Measured {
            row,
            used: sides.watched.used(),
            seconds: Vec::new(),
            median: f64::NAN,
            hit_rate: reference.hit_rate(row.sparsity, hot),
            waits: each(|c| c.waits),
            moves: each(|c| c.uploads + c.downloads),
            moved: each(|c| c.moved),
            off_by,
            kl,
            same,
        };
        Ok(Self { session, found })
    }

    /// Runs it once more.
    fn time(&mut self, setting: &Setting<'_>, factor: f64, reference: &Reference) -> Result<()> {
        let took = self.decode(&reference.tokens).map_err(|e| setting.failure(&e))?;
        self.found.seconds.push(took / factor);
        Ok(())
    }

    fn done(self) -> Measured<'a> {
        let mut found = self.found;
        found.median = median(&mut found.seconds.clone());
        found
    }

    /// Seconds per token on this machine's clock, as a whole: single tokens differ by what fires.
    fn decode(&mut self, tokens: &[TokenId]) -> pi_engine::Result<f64> {
        self.session.truncate(0, 0);
        let begun = Instant::now();
        for &token in tokens {
            self.session.step(&[StepToken { token, seq: 0, logits: true }])?;
            self.session.logits(0)?;
        }
        Ok(begun.elapsed().as_secs_f64() / tokens.len() as f64)
    }
}

/// The logits after each token, and what the device did for them.
fn checked(
    session: &mut Session,
    device: &Watched,
    tokens: &[TokenId],
) -> pi_engine::Result<(Vec<Vec<f32>>, Option<SimCounts>)> {
    let before = device.counts();
    let mut logits = Vec::new();
    for &token in tokens {
        session.step(&[StepToken { token, seq: 0, logits: true }])?;
        logits.push(session.logits(0)?.to_vec());
    }
    let difference = |(now, before): (SimCounts, SimCounts)| SimCounts {
        uploads: now.uploads - before.uploads,
        downloads: now.downloads - before.downloads,
        waits: now.waits - before.waits,
        launches: now.launches - before.launches,
        streamed: now.streamed - before.streamed,
        moved: now.moved - before.moved,
    };
    Ok((logits, device.counts().zip(before).map(difference)))
}
