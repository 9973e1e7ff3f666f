//! How often each neuron of a layer fires.

use super::{
    error::{Result, SynthError},
    math::{bisect, cdf, density, quantile},
};

/// The largest spread that is tried: beyond, a neuron fires always or never.
const WIDEST: f64 = 5.0;
/// Points at which a distribution of thresholds is examined.
const POINTS: usize = 1000;
/// What the hot neurons give.
const HOT: f64 = 0.8;

/// Thresholds of the neurons of a layer, in standard deviations of their inputs: normally distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub spread: f64,
}

impl Thresholds {
    /// Thresholds with which a neuron fires for `active` of the tokens on average, and the most active `skew` of the neurons
    /// give 80 % of the activations. Without a skew, `usual` or what comes nearest to it.
    ///
    /// # Errors
    /// If `active` is not between 0.001 and 0.999, or no spread gives the skew.
    pub fn new(active: f64, skew: Option<f64>, usual: f64) -> Result<Self> {
        if !(0.001..=0.999).contains(&active) {
            return Err(SynthError::setting("active", "a share from 0.001 to 0.999", active));
        }
        let normal: Vec<f64> = (0..POINTS).map(|i| quantile((i as f64 + 0.5) / POINTS as f64)).collect();
        let share = |spread: f64| {
            let thresholds = Self::spread(active, spread);
            hot_share(normal.iter().map(|x| cdf(-(thresholds.mean + spread * x))).collect())
        };
        let (least, most) = (share(WIDEST), share(0.0));
        let skew = match skew {
            None => usual.clamp(least, most),
            Some(skew) if (least..=most + 1e-3).contains(&skew) => skew,
            Some(skew) => {
                let expected = format!("a share from {least:.3} to {most:.3} (for {active} active neurons)");
                return Err(SynthError::setting("skew", expected, skew));
            }
        };
        Ok(Self::spread(active, bisect(0.0, WIDEST, |spread| share(spread) > skew)))
    }

    /// Of a normal input less a normal threshold, the share above 0 is known.
    fn spread(active: f64, spread: f64) -> Self {
        Self { mean: -quantile(active) * (1.0 + spread * spread).sqrt(), spread }
    }

    /// The thresholds of `n` neurons, ascending: at equal distances in probability, so that their mean does not depend on
    /// chance.
    pub(super) fn of(self, n: usize) -> Vec<f64> {
        (0..n).map(|i| self.mean + self.spread * quantile((i as f64 + 0.5) / n as f64)).collect()
    }
}

/// The share of neurons, from the most active on, that give 80 % of the activations.
pub(super) fn hot_share(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(|a, b| b.total_cmp(a));
    let wanted = HOT * rates.iter().sum::<f64>();
    let mut sum = 0.0;
    let few = rates.iter().take_while(|&&rate| {
        sum += rate;
        sum < wanted
    });
    (few.count() + 1).min(rates.len()) as f64 / rates.len().max(1) as f64
}

/// The threshold to use where mean and deviation are estimated from `n` values, so that the share above it is that of
/// `t` where they are known.
///
/// The next value, less the mean and in units of the deviation, then follows Student's distribution with `n − 1` degrees of
/// freedom, widened by the error of the mean; to first order in 1/n its quantiles are these.
pub(super) fn widened(t: f64, n: usize) -> f64 {
    let n = n as f64;
    t * (1.0 + 1.0 / n).sqrt() * (1.0 + (t * t + 1.0) / (4.0 * (n - 1.0)))
}

/// The share of firing neurons that a predictor finds which sees all of a neuron's input but noise of `noise` times the
/// deviation of the rest, and knows the threshold.
pub fn expected_recall(thresholds: Thresholds, noise: f64) -> f64 {
    const STEPS: usize = 800;
    let total = (1.0 + noise * noise).sqrt();
    let step = 12.0 / STEPS as f64;
    let grid = (0..STEPS).map(|i| -6.0 + (i as f64 + 0.5) * step);
    let (mut found, mut all) = (0.0, 0.0);
    for t in thresholds.of(200) {
        let t = t * total;
        all += cdf(-t / total);
        // What the predictor sees exceeds the threshold, and so does the sum with the noise.
        found +=
            grid.clone().filter(|&s| s > t).map(|s| density(s) * cdf((s - t) / noise.max(1e-9))).sum::<f64>() * step;
    }
    found / all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_rate_and_the_hot_share_are_as_asked() {
        for (active, skew) in [(0.1, 0.43), (0.1, 0.26), (0.3, 0.6), (0.02, 0.2), (0.9, 0.75), (0.1, 0.8)] {
            let thresholds = Thresholds::new(active, Some(skew), 0.5).unwrap();
            let rates: Vec<f64> = thresholds.of(4001).into_iter().map(|t| cdf(-t)).collect();
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            assert!((mean / active - 1.0).abs() < 0.01, "{active} {skew}: {mean}");
            assert!((hot_share(rates) - skew).abs() < 0.01, "{active} {skew}");
        }
    }

    #[test]
    fn impossible_shares_are_refused_and_usual_ones_adapted() {
        for active in [-0.1, 0.0, 1.0, 2.0, f64::NAN] {
            assert!(Thresholds::new(active, None, 0.43).is_err(), "{active}");
        }
        let error = Thresholds::new(0.5, Some(0.2), 0.43).unwrap_err().to_string();
        assert!(error.starts_with("skew: expected a share from 0.4"), "{error}");
        assert!(Thresholds::new(0.1, Some(0.9), 0.43).is_err());
        assert!(Thresholds::new(0.1, Some(f64::NAN), 0.43).is_err());
        assert!(Thresholds::new(0.9, None, 0.43).is_ok());
    }

    #[test]
    fn a_predictor_without_noise_finds_all_and_noise_hides_some() {
        let thresholds = Thresholds::new(0.1, None, 0.43).unwrap();
        let recall = [0.0, 0.1, 0.3, 1.0].map(|noise| expected_recall(thresholds, noise));
        assert!(recall[0] > 0.99, "{recall:?}");
        assert!(recall.is_sorted_by(|a, b| a > b) && recall[3] > 0.1, "{recall:?}");
    }
}
