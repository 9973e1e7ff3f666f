//! Which neurons are skipped, and why.

use pi_core::{Activation, Error, QuantType};
use std::{fmt, str::FromStr};

/// What the user wants skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Sparsity {
    /// [`Exact`](Self::Exact) where the activation allows it.
    #[default]
    Auto,
    /// Nothing: every neuron is computed.
    Off,
    /// The gate is computed for every neuron, the rest only where it fires. Same result as [`Off`](Self::Off) up to rounding.
    Exact,
    /// Only neurons that a predictor lets through are looked at, and of these only those computed whose gates fire. The result
    /// is a little wrong where the predictor is.
    Predictor,
}

impl FromStr for Sparsity {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        match s {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "exact" => Ok(Self::Exact),
            "predictor" => Ok(Self::Predictor),
            _ => Err(Error::unsupported(format!("sparsity {s:?}"), "known: auto, off, exact, predictor")),
        }
    }
}

/// What is skipped in a loaded model.
#[derive(Clone, Debug, PartialEq)]
pub struct SparsityReport {
    /// The activation it follows from.
    pub activation: Activation,
    /// Up rows of neurons that do not fire are not read.
    pub skips_up: bool,
    /// Their down rows are not read either.
    pub skips_down: bool,
    /// The kinds of predictors, layer by layer; `None` for layers that have none. Empty if predictors are not used.
    pub predictors: Vec<Option<String>>,
    /// Why something is not skipped; `None` if everything that can be is.
    pub reason: Option<String>,
}

impl SparsityReport {
    /// What can be skipped, from what is wanted and what the file has.
    ///
    /// `downs` gives, per layer, the type of the down matrix and whether it is stored neuron-major.
    ///
    /// # Errors
    /// If [`Sparsity::Exact`] is wanted of an activation that is never exactly 0.
    pub fn new(wanted: Sparsity, act: Activation, has_gate: bool, downs: &[(QuantType, bool)]) -> Result<Self, Error> {
        let report = |up, down, reason| {
            Ok(Self { activation: act, skips_up: up, skips_down: down, predictors: Vec::new(), reason })
        };
        match wanted {
            Sparsity::Off => return report(false, false, Some("sparsity is off".into())),
            Sparsity::Exact | Sparsity::Predictor if !act.is_sparse() => {
                return Err(Error::unsupported(
                    if wanted == Sparsity::Exact { "sparsity exact" } else { "sparsity predictor" },
                    format!("{act} is never exactly 0; only relu, relu2 and fatrelu leave neurons out"),
                ));
            }
            Sparsity::Auto if !act.is_sparse() => {
                return report(false, false, Some(format!("{act} is never exactly 0, so every neuron counts")));
            }
            _ => {}
        }
        let full: Vec<_> = downs.iter().filter(|&&down| !skippable(down)).map(|(ty, _)| *ty).collect();
        let Some(ty) = full.first() else { return report(has_gate, true, None) };
        let place = match full.len() {
            n if n == downs.len() => "ffn_down".into(),
            n => format!("ffn_down of {n} of {} layers", downs.len()),
        };
        let reason = format!(
            "{place} is stored as {ty} along the neurons, so it is read in full (an F16 file, or one with ffn_down_t, would \
             skip it too)"
        );
        report(has_gate, full.len() < downs.len(), Some(reason))
    }

    /// True if anything is skipped.
    pub fn is_on(&self) -> bool {
        self.skips_up || self.skips_down
    }
}

/// Whether the rows of idle neurons can be left out: stored neuron-major, or transposed without loss when loaded.
pub(crate) fn skippable((ty, neuron_major): (QuantType, bool)) -> bool {
    neuron_major || ty.is_float()
}

impl fmt::Display for SparsityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = self.predictors.iter().flatten().count();
        let mut kinds: Vec<&str> = self.predictors.iter().flatten().map(String::as_str).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if !kinds.is_empty() {
            write!(f, "predictor ({} in {with} of {} layers), then ", kinds.join(" and "), self.predictors.len())?;
        }
        match (self.skips_up, self.skips_down) {
            (true, true) => write!(f, "exact ({}: up and down rows of idle neurons are skipped)", self.activation)?,
            (true, false) => write!(f, "exact ({}: up rows of idle neurons are skipped)", self.activation)?,
            (false, true) => write!(f, "exact ({}: down rows of idle neurons are skipped)", self.activation)?,
            (false, false) => write!(f, "none")?,
        }
        self.reason.as_ref().map_or(Ok(()), |r| write!(f, "; {r}"))
    }
}
