//! What a plan's times are made of: figures of the machine, measured or assumed (paper §6.3, eq. 4 and 5).

use pi_core::QuantType;
use std::collections::BTreeMap;

/// Where a figure is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Measured on this machine.
    Measured,
    /// Assumed, as nothing was measured.
    Assumed,
}

/// A number that a plan's times are made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// In the unit that its place says. Above 0 and finite.
    pub value: f64,
    /// Where it is from.
    pub origin: Origin,
}

impl Figure {
    /// A measured number.
    pub const fn measured(value: f64) -> Self {
        Self { value, origin: Origin::Measured }
    }

    /// An assumed number.
    pub const fn assumed(value: f64) -> Self {
        Self { value, origin: Origin::Assumed }
    }
}

/// How fast one side is, with all of its threads.
#[derive(Clone, Debug, PartialEq)]
pub struct SideCosts {
    /// Bytes per second of weights that are read in order: dense matrices of one token.
    pub bandwidth: Figure,
    /// Bytes per second of neurons that fire here and there, by the type of their rows.
    pub neurons: BTreeMap<QuantType, Figure>,
    /// Multiply-adds per second when many tokens share the weights: the dense path of a long prompt.
    pub prompt: Figure,
}

impl SideCosts {
    /// Bytes per second of neurons of a type: as measured, or else [`bandwidth`](Self::bandwidth) as an assumption.
    pub fn neurons(&self, ty: QuantType) -> Figure {
        self.neurons.get(&ty).copied().unwrap_or(Figure::assumed(self.bandwidth.value))
    }
}

/// Figures of a machine with an accelerator.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The CPU.
    pub host: SideCosts,
    /// The accelerator.
    pub device: SideCosts,
    /// Bytes per second between the two.
    pub link: Figure,
    /// Seconds from asking for a small result of the accelerator to having it, when nothing is left to be computed: `T_sync`.
    pub sync: Figure,
}

impl Default for Costs {
    /// Two channels of DDR4, and a small accelerator on PCIe 4.0: nothing of it was measured.
    fn default() -> Self {
        let side = |bandwidth, prompt| SideCosts {
            bandwidth: Figure::assumed(bandwidth),
            neurons: BTreeMap::new(),
            prompt: Figure::assumed(prompt),
        };
        let (host, device) = (side(25e9, 2e11), side(300e9, 2e13));
        Self { host, device, link: Figure::assumed(12e9), sync: Figure::assumed(30e-6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_said_to_be_assumed() {
        let mut costs = Costs::default();
        costs.host.bandwidth = Figure::measured(20e9);
        costs.host.neurons.insert(QuantType::Q4_0, Figure::measured(12e9));
        assert_eq!(costs.host.neurons(QuantType::Q4_0), Figure::measured(12e9));
        assert_eq!(costs.host.neurons(QuantType::F16), Figure::assumed(20e9));
    }
}
