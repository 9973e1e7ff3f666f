//! The tokens that all rows decode, and what the CPU alone makes of them: logits, which neurons fire, and how long it takes.

use super::{Setting, plans::session};
use crate::{
    failure::{Failure, Result},
    prompt,
};
use pi_engine::{
    Engine, ModelConfig, Observer, Sparsity, StepToken,
    pi_core::{NeuronSet, text::TokenId},
    sampler::argmax,
};
use std::time::Instant;

/// What is known before any row is run.
pub struct Reference {
    pub config: ModelConfig,
    pub tokens: Vec<TokenId>,
    dense: Run,
    sparse: Run,
    /// How far sparse logits are from dense ones where nothing is predicted: 0 but for roundings.
    pub exact: f64,
    /// Whether some layer's predictor is computed by this machine's CPU, off the simulated clock.
    pub signs: bool,
}

/// What one mode does with the tokens.
struct Run {
    /// After each token.
    logits: Vec<Vec<f32>>,
    /// Per layer, how often each neuron fired.
    fired: Vec<Vec<u32>>,
    /// Per token, the median.
    seconds: f64,
}

/// Largest difference between logits, as a share of the largest logit, that other orders of adding up may make: activations are rounded
/// to 15 bits, and a sum on the other side of a rounding is one step off.
pub const TOLERANCE: f64 = 2e-3;

impl Reference {
    /// Runs the model on the CPU alone, dense and sparse.
    ///
    /// # Errors
    /// If it cannot be loaded, there is no text, or leaving out idle neurons changes what it says.
    pub fn new(setting: &Setting<'_>) -> Result<Self> {
        let load = |sparsity| {
            let engine = setting.builder(sparsity)?.device(setting.cpu.clone()).load(&setting.file);
            engine.map_err(|e| setting.failure(&e))
        };
        let off = load(Sparsity::Off)?;
        let tokens = tokens(setting, &off)?;
        let dense = Run::new(&off, &tokens, setting)?;
        let mut exact = Run::new(&load(Sparsity::Exact)?, &tokens, setting)?;
        let off_by = difference(&exact.logits, &dense.logits);
        if !within(off_by, TOLERANCE) {
            return Err(Failure::Work(format!(
                "{}: without idle neurons logits are off by {off_by:.1e} of the largest; {TOLERANCE:.0e} is allowed",
                setting.path().display()
            )));
        }
        let mut signs = false;
        if setting.sparse == Sparsity::Predictor {
            let engine = load(Sparsity::Predictor)?;
            signs = engine.sparsity().predictors.iter().flatten().any(|kind| kind == "sign");
            exact = Run::new(&engine, &tokens, setting)?;
        }
        Ok(Self { config: off.config().clone(), tokens, dense, sparse: exact, exact: off_by, signs })
    }

    fn run(&self, sparsity: Sparsity) -> &Run {
        if sparsity == Sparsity::Off { &self.dense } else { &self.sparse }
    }

    /// What this machine needs for a token.
    pub fn seconds(&self, sparsity: Sparsity) -> f64 {
        self.run(sparsity).seconds
    }

    /// The share of what fires that is in `hot`, a set per layer.
    pub fn hit_rate<'a>(&self, sparsity: Sparsity, hot: impl Iterator<Item = &'a NeuronSet>) -> f64 {
        let (mut hits, mut all) = (0, 0);
        for (fired, hot) in self.run(sparsity).fired.iter().zip(hot) {
            hits += hot.iter().map(|i| u64::from(fired[i])).sum::<u64>();
            all += fired.iter().map(|n| u64::from(*n)).sum::<u64>();
        }
        hits as f64 / (all as f64).max(1.0)
    }

    /// How far logits are from those of the CPU in the same mode, as a share of the largest.
    pub fn off_by(&self, sparsity: Sparsity, logits: &[Vec<f32>]) -> f64 {
        difference(logits, &self.run(sparsity).logits)
    }

    /// Mean KL(CPU ‖ row) in nats, of the CPU in the same mode.
    pub fn divergence_in(&self, sparsity: Sparsity, logits: &[Vec<f32>]) -> f64 {
        let pairs = self.run(sparsity).logits.iter().zip(logits);
        pairs.map(|(base, row)| divergence(base, row)).sum::<f64>() / logits.len().max(1) as f64
    }

    /// Mean KL(dense ‖ row) in nats, and whether the same token is the most likely, as a share.
    pub fn divergence(&self, logits: &[Vec<f32>]) -> (f64, f64) {
        let pairs = || self.dense.logits.iter().zip(logits);
        let n = logits.len().max(1) as f64;
        let kl = pairs().map(|(base, row)| divergence(base, row)).sum::<f64>() / n;
        let same = pairs().filter(|(base, row)| argmax(base).ok() == argmax(row).ok()).count() as f64 / n;
        (kl, same)
    }
}

/// Whether a difference is allowed. NaN is not.
pub fn within(difference: f64, allowed: f64) -> bool {
    difference <= allowed
}

/// Of the text, or what the model writes by itself.
fn tokens(setting: &Setting<'_>, engine: &Engine) -> Result<Vec<TokenId>> {
    let n = (setting.flags.tokens as usize).min(engine.config().context);
    let failure = |e| setting.failure(&e);
    if let Some(path) = &setting.flags.text {
        let text = prompt::read(path)?;
        let mut tokens = engine.encode_prompt(&text).map_err(|e| Failure::text(&e, path.display(), setting.path()))?;
        if tokens.len() < n {
            let got = tokens.len();
            return Err(Failure::Work(format!("{}: expected at least {n} tokens, got {got}", path.display())));
        }
        tokens.truncate(n);
        return Ok(tokens);
    }
    let mut session = engine.session(&session(n)).map_err(failure)?;
    let mut tokens = vec![engine.tokenizer().special().bos.unwrap_or(0)];
    while tokens.len() < n {
        let last = tokens[tokens.len() - 1];
        session.step(&[StepToken { token: last, seq: 0, logits: true }]).map_err(failure)?;
        let next = argmax(session.logits(0).map_err(failure)?).map_err(failure)?;
        tokens.push(next);
    }
    Ok(tokens)
}

struct Fired(Vec<Vec<u32>>);

impl Observer for Fired {
    fn inputs(&mut self, _: usize, _: &[f32], _: &[f32]) {}

    fn values(&mut self, layer: usize, values: &[f32]) {
        self.0[layer].iter_mut().zip(values).for_each(|(n, v)| *n += u32::from(*v != 0.0));
    }
}

impl Run {
    fn new(engine: &Engine, tokens: &[TokenId], setting: &Setting<'_>) -> Result<Self> {
        let failure = |e| setting.failure(&e);
        let c = engine.config();
        let mut session = engine.session(&session(tokens.len())).map_err(failure)?;
        let (mut logits, mut fired) = (Vec::new(), Fired(vec![vec![0; c.neurons]; c.layers]));
        for &token in tokens {
            session.step_with(&[StepToken { token, seq: 0, logits: true }], &mut fired).map_err(failure)?;
            logits.push(session.logits(0).map_err(failure)?.to_vec());
        }
        session.truncate(0, 0);
        let mut times = Vec::new();
        for &token in tokens {
            let begun = Instant::now();
            session.step(&[StepToken { token, seq: 0, logits: true }]).map_err(failure)?;
            times.push(begun.elapsed().as_secs_f64());
        }
        Ok(Self { logits, fired: fired.0, seconds: median(&mut times) })
    }
}

/// The middle one.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The largest difference, as a share of the largest logit.
fn difference(got: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
    let largest = want.iter().flatten().fold(0.0, |m: f64, v| m.max(f64::from(v.abs())));
    let pairs = got.iter().flatten().zip(want.iter().flatten());
    let off = |(a, b): (&f32, &f32)| f64::from((a - b).abs());
    // `f64::max` would pass over NaN
    let most = pairs.map(off).fold(0.0, |m: f64, v| if v > m || v.is_nan() { v } else { m });
    most / largest.max(f64::MIN_POSITIVE)
}

/// KL(base ‖ row) in nats.
fn divergence(base: &[f32], row: &[f32]) -> f64 {
    let log_sum = |logits: &[f32]| {
        let most = logits.iter().fold(f64::NEG_INFINITY, |m, v| m.max(f64::from(*v)));
        most + logits.iter().map(|v| (f64::from(*v) - most).exp()).sum::<f64>().ln()
    };
    let (a, b) = (log_sum(base), log_sum(row));
    let one = |(p, q): (&f32, &f32)| {
        let p = f64::from(*p) - a;
        p.exp() * (p - (f64::from(*q) - b))
    };
    base.iter().zip(row).map(one).sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_and_divergences_are_what_they_are_by_hand() {
        let (a, b) = (vec![vec![1.0, -4.0]], vec![vec![1.5, -4.0]]);
        assert_eq!(difference(&a, &b), 0.125);
        assert!(difference(&[vec![f32::NAN, 0.0]], &b).is_nan());
        assert!(divergence(&[0.5, 2.0], &[1.5, 3.0]) < 1e-12, "a constant changes nothing");
        // (1/2, 1/2) and (1/4, 3/4)
        let kl = divergence(&[0.0, 0.0], &[0.0, 3f32.ln()]);
        assert!((kl - 0.5 * (4.0f64 / 3.0).ln()).abs() < 1e-6, "{kl}");
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    }
}
