//! What the logits after one token are worth, and sums over many.

use crate::{Result, sampler::argmax};
use pi_core::text::TokenId;

/// Negative log-likelihoods of tokens, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Tokens that counted.
    pub tokens: u64,
    sum: f64,
    squares: f64,
}

impl Score {
    pub(crate) fn add(&mut self, nll: f64) {
        self.tokens += 1;
        self.sum += nll;
        self.squares += nll * nll;
    }

    /// Mean negative log-likelihood of a token, in nats; NaN if nothing was scored.
    pub fn mean_nll(&self) -> f64 {
        self.sum / self.tokens as f64
    }

    /// Standard error of [`mean_nll`](Self::mean_nll), as if tokens were independent; NaN for fewer than two tokens.
    pub fn nll_error(&self) -> f64 {
        let mean = self.mean_nll();
        error_of_mean(self.squares / self.tokens as f64 - mean * mean, self.tokens)
    }

    /// `exp` of the mean; NaN if nothing was scored.
    pub fn perplexity(&self) -> f64 {
        self.mean_nll().exp()
    }

    /// Standard error of [`perplexity`](Self::perplexity), to first order.
    pub fn perplexity_error(&self) -> f64 {
        self.perplexity() * self.nll_error()
    }
}

fn error_of_mean(variance: f64, n: u64) -> f64 {
    if n < 2 { f64::NAN } else { (variance.max(0.0) / (n - 1) as f64).sqrt() }
}

/// How far a model's distributions are from those of another, the *base*, after the same tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The base's own score.
    pub base: Score,
    /// Kullback–Leibler divergence KL(base ‖ model) in nats, of each token that counted, in the text's order.
    pub kl: Vec<f64>,
    same: u64,
    /// Differences of negative log-likelihoods, model − base: the two are correlated, so their errors cannot be added.
    difference: Score,
}

impl Comparison {
    pub(crate) fn add(&mut self, kl: f64, same: bool, difference: f64) {
        self.kl.push(kl);
        self.same += u64::from(same);
        self.difference.add(difference);
    }

    /// Mean divergence in nats; NaN if nothing was compared.
    pub fn kl_mean(&self) -> f64 {
        self.kl.iter().sum::<f64>() / self.kl.len() as f64
    }

    /// Standard error of the mean divergence.
    pub fn kl_error(&self) -> f64 {
        let mean = self.kl_mean();
        let variance = self.kl.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / self.kl.len() as f64;
        error_of_mean(variance, self.kl.len() as u64)
    }

    /// Divergences that shares `at` (0 to 1) of the tokens do not exceed, interpolated; NaN if nothing was compared.
    pub fn kl_quantiles<const N: usize>(&self, at: [f64; N]) -> [f64; N] {
        let mut sorted = self.kl.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        at.map(|share| {
            let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
            let place = share.clamp(0.0, 1.0) * last as f64;
            let (below, part) = (place as usize, place.fract());
            sorted[below] + part * (sorted[(below + 1).min(last)] - sorted[below])
        })
    }

    /// Share of the tokens after which both models find the same token most likely; NaN if nothing was compared.
    pub fn top1_agreement(&self) -> f64 {
        self.same as f64 / self.kl.len() as f64
    }

    /// Perplexity of the model over that of the base, less 1; NaN if nothing was compared.
    pub fn perplexity_increase(&self) -> f64 {
        self.difference.mean_nll().exp_m1()
    }

    /// Standard error of the increase.
    pub fn perplexity_increase_error(&self) -> f64 {
        self.difference.mean_nll().exp() * self.difference.nll_error()
    }
}

/// The distribution after one token.
pub(crate) struct Row<'a> {
    logits: &'a [f32],
    /// Log of the sum of the exponentials.
    norm: f64,
    /// The most likely token.
    pub best: TokenId,
}

impl<'a> Row<'a> {
    /// # Errors
    /// If a logit is NaN or +∞, or none is finite.
    pub fn new(logits: &'a [f32]) -> Result<Self> {
        let best = argmax(logits)?;
        let max = f64::from(logits[best as usize]);
        let sum: f64 = logits.iter().map(|&v| (f64::from(v) - max).exp()).sum();
        Ok(Self { logits, norm: max + sum.ln(), best })
    }

    /// Negative log-likelihood of `token`, which the step has checked to be one.
    pub fn nll(&self, token: TokenId) -> f64 {
        self.norm - f64::from(self.logits[token as usize])
    }
}

/// KL(a ‖ b) in nats. Roundings can make it negative where it is 0: then it is 0.
pub(crate) fn divergence(a: &Row<'_>, b: &Row<'_>) -> f64 {
    let pair = |(&a_, &b_): (&f32, &f32)| {
        let (log_a, log_b) = (f64::from(a_) - a.norm, f64::from(b_) - b.norm);
        // what a never says adds nothing, whatever b says
        if log_a < -700.0 { 0.0 } else { log_a.exp() * (log_a - log_b) }
    };
    a.logits.iter().zip(b.logits).map(pair).sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_has_the_textbook_mean_and_error() {
        let mut score = Score::default();
        assert!(score.perplexity().is_nan() && score.nll_error().is_nan());
        [1.0, 2.0, 3.0, 6.0].iter().for_each(|&v| score.add(v));
        assert_eq!((score.tokens, score.mean_nll(), score.perplexity()), (4, 3.0, 3f64.exp()));
        // sample variance 14 / 3, over 4
        assert!((score.nll_error() - (14.0f64 / 12.0).sqrt()).abs() < 1e-12);
        assert!((score.perplexity_error() - 3f64.exp() * (14.0f64 / 12.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn a_divergence_is_that_of_the_probabilities() {
        let (p, q) = ([0.5f64, 0.25, 0.25], [0.25f64, 0.25, 0.5]);
        // logits may be off by a constant
        let logits = |p: [f64; 3], off: f64| p.map(|p| (p.ln() + off) as f32);
        let (a, b) = (logits(p, 3.0), logits(q, -40.0));
        let (a, b) = (Row::new(&a).unwrap(), Row::new(&b).unwrap());
        let want: f64 = p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum();
        assert!((divergence(&a, &b) - want).abs() < 1e-6);
        assert_eq!(divergence(&a, &a), 0.0);
        assert!((a.nll(0) - 2f64.ln()).abs() < 1e-6 && (a.best, b.best) == (0, 2));
        // a token that the base forbids does not make the sum NaN
        let forbidden = [0.0, f32::NEG_INFINITY];
        let forbidden = Row::new(&forbidden).unwrap();
        assert_eq!(divergence(&forbidden, &forbidden), 0.0);
    }

    #[test]
    fn quantiles_are_interpolated_and_agreement_is_a_share() {
        let mut c = Comparison::default();
        for (kl, same) in [(3.0, true), (1.0, true), (0.0, false), (2.0, true)] {
            c.add(kl, same, 0.1);
        }
        assert_eq!(c.kl_quantiles([0.0, 0.5, 1.0]), [0.0, 1.5, 3.0]);
        assert!((c.kl_quantiles([0.99])[0] - 2.97).abs() < 1e-12);
        assert_eq!((c.kl_mean(), c.top1_agreement()), (1.5, 0.75));
        assert!((c.kl_error() - (5.0f64 / 12.0).sqrt()).abs() < 1e-12);
        assert!((c.perplexity_increase() - 0.1f64.exp_m1()).abs() < 1e-12 && c.perplexity_increase_error() < 1e-6);
    }
}
