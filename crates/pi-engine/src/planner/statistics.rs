//! How often neurons fire, as far as it is known.

use super::{Request, survey::Survey};
use crate::{Error, Result};
use pi_core::NeuronSet;
use pi_predictor::profile::ProfileError;

/// The share of tokens for which a neuron is taken to fire where nothing was counted.
const ASSUMED: f32 = 0.2;

/// Where it is known from how often neurons fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Counted { tokens: u64 },
    Uniform,
    Always,
}

/// How often the neurons of a model fire.
#[derive(Clone, Debug)]
pub struct Statistics {
    origin: Origin,
    layers: Vec<Vec<f32>>,
}

impl Statistics {
    pub(super) fn new(survey: &Survey, request: &Request<'_>) -> Result<Self> {
        let c = &survey.config;
        let same = |origin, share| Self { origin, layers: vec![vec![share; c.neurons]; c.layers] };
        let profile = request.profile.map(|p| counted(survey, request, p)).transpose()?;
        Ok(match profile {
            _ if survey.layers.iter().all(|l| l.ffn.always >= 1.0) => same(Origin::Always, 1.0),
            Some(profile) => profile,
            None => same(Origin::Uniform, ASSUMED),
        })
    }

    /// Whether it was counted (or is certain, because every neuron is computed), and not assumed.
    pub fn is_known(&self) -> bool {
        self.origin != Origin::Uniform
    }

    /// Tokens along which it was counted; `None` if it was not.
    pub fn tokens(&self) -> Option<u64> {
        match self.origin {
            Origin::Counted { tokens } => Some(tokens),
            _ => None,
        }
    }

    /// The share of tokens for which each neuron of a layer fires, 0 to 1.
    pub fn layer(&self, i: usize) -> &[f32] {
        &self.layers[i]
    }

    /// Neurons of a set that fire per token, on average.
    pub(super) fn fired(&self, layer: usize, set: &NeuronSet) -> f64 {
        if set.is_all() {
            return self.fired_by_all(layer);
        }
        set.iter().map(|i| f64::from(self.layers[layer][i])).sum()
    }

    pub(super) fn fired_by_all(&self, layer: usize) -> f64 {
        self.layers[layer].iter().map(|f| f64::from(*f)).sum()
    }

    pub(super) fn notes(&self, request: &Request<'_>) -> Vec<String> {
        match (self.origin, request.profile) {
            (Origin::Uniform, _) => vec![format!(
                "no profile says how often neurons fire: all are taken to fire for {:.0} % of the tokens (pi profile counts)",
                100.0 * ASSUMED
            )],
            (Origin::Always, Some(_)) => {
                vec!["every neuron is computed for every token, so the profile changes nothing".to_string()]
            }
            _ => Vec::new(),
        }
    }
}

/// What a profile says.
fn counted(survey: &Survey, request: &Request<'_>, profile: &pi_predictor::profile::Profile) -> Result<Statistics> {
    let c = &survey.config;
    let refused = |source| Error::Profile { path: "the profile".into(), source };
    let neurons = u32::try_from(c.neurons).unwrap_or(u32::MAX);
    let shape: Vec<_> = (0..c.layers as u32).map(|i| (i, neurons)).collect();
    profile.expect_model(request.fingerprint.unwrap_or(profile.fingerprint), &shape).map_err(refused)?;
    let merged = profile.merged();
    let tokens = merged.tokens();
    if tokens == 0 {
        return Err(refused(ProfileError::mismatch("tokens that were counted", "1 or more", 0)));
    }
    let share = |&n: &u64| (n as f64 / tokens as f64).min(1.0) as f32;
    let layers = merged.layers().iter().map(|l| l.fired().iter().map(share).collect()).collect();
    Ok(Statistics { origin: Origin::Counted { tokens }, layers })
}
