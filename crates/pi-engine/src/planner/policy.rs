//! What chooses the neurons.

use crate::Error;
use pi_placement::{Exact, Frequency, InOrder, Nothing, Random, Solver};
use std::{fmt, str::FromStr};

/// What chooses the neurons that fill what is left of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Policy {
    /// The least expected time per token.
    #[default]
    Time,
    /// The most activations on the device: the integer program of the paper (§6.3, eq. 2 to 8).
    Impact,
    /// Those that fire most often, whatever synchronising costs.
    Frequency,
    /// Any. The same seed gives the same ones.
    Random {
        /// The seed.
        seed: u64,
    },
    /// Whole layers from the first one on, as offloading by layers does.
    InOrder,
    /// None.
    Nothing,
}

impl Policy {
    /// The solver of the placement problem. The exact ones stop within a ten-thousandth of the bound.
    pub(crate) fn solver(self) -> Box<dyn Solver> {
        const GAP: f64 = 1e-4;
        match self {
            Self::Time => Box::new(Exact { gap: GAP, ..Exact::time() }),
            Self::Impact => Box::new(Exact { gap: GAP, ..Exact::impact() }),
            Self::Frequency => Box::new(Frequency),
            Self::Random { seed } => Box::new(Random { seed }),
            Self::InOrder => Box::new(InOrder),
            Self::Nothing => Box::new(Nothing),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time => f.pad("time"),
            Self::Impact => f.pad("impact"),
            Self::Frequency => f.pad("frequency"),
            Self::Random { seed: 0 } => f.pad("random"),
            Self::Random { seed } => f.pad(&format!("random:{seed}")),
            Self::InOrder => f.pad("in-order"),
            Self::Nothing => f.pad("nothing"),
        }
    }
}

impl FromStr for Policy {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(s: &str) -> Result<Self, Error> {
        match s {
            "time" => Ok(Self::Time),
            "impact" => Ok(Self::Impact),
            "frequency" => Ok(Self::Frequency),
            "random" => Ok(Self::Random { seed: 0 }),
            "in-order" => Ok(Self::InOrder),
            "nothing" => Ok(Self::Nothing),
            _ => match s.strip_prefix("random:").and_then(|seed| seed.parse().ok()) {
                Some(seed) => Ok(Self::Random { seed }),
                None => {
                    let known = "time, impact, frequency, random, random:SEED, in-order or nothing";
                    Err(Error::setting("policy", known, format!("{s:?}")))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        let random = [0, 7].map(|seed| Policy::Random { seed });
        for policy in [Policy::Time, Policy::Impact, Policy::Frequency, Policy::InOrder, Policy::Nothing]
            .into_iter()
            .chain(random)
        {
            assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
        }
        for wrong in ["", "Time", "random:", "random:x", "exact"] {
            assert!(wrong.parse::<Policy>().unwrap_err().to_string().contains("in-order"), "{wrong}");
        }
    }
}
