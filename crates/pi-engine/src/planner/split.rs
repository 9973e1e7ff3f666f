//! Divisions that look at nothing but how many layers there are: what other engines offer, to compare with.

use super::{Planned, Request, finish, memory::MemoryUse, statistics::Statistics, survey::Survey};
use crate::{Error, LayerPlan, ModelConfig, Plan, Result, Side, source::WeightSource};
use pi_core::NeuronSet;
use std::fmt;

/// A division by whole layers or whole FFNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Split {
    /// So many whole layers are on the accelerator, from the last one on; of one more than there are, what gives logits as well. As
    /// llama.cpp's `--n-gpu-layers`.
    Layers(usize),
    /// Everything is on the accelerator but for the FFNs of so many layers, from the first one on. As llama.cpp's `--n-cpu-moe`, for FFNs
    /// without experts.
    CpuFfns(usize),
}

impl Split {
    /// The plan, for a model of this shape. Larger numbers than there are layers mean all of them.
    pub fn plan(self, config: &ModelConfig) -> Plan {
        match self {
            Self::Layers(n) => {
                let mut plan = Plan::whole(config, Side::Cpu);
                plan.layers.iter_mut().rev().take(n).for_each(|layer| {
                    *layer = LayerPlan { dense: Side::Accelerator, hot: NeuronSet::all(config.neurons) };
                });
                if n > config.layers {
                    plan.head = Side::Accelerator;
                }
                plan
            }
            Self::CpuFfns(n) => {
                let mut plan = Plan::whole(config, Side::Accelerator);
                plan.layers.iter_mut().take(n).for_each(|layer| layer.hot = NeuronSet::none(config.neurons));
                plan
            }
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layers(n) => write!(f, "the last {n} layers on the device"),
            Self::CpuFfns(n) => write!(f, "the FFNs of the first {n} layers on the CPU"),
        }
    }
}

/// What is known of a division. The request's policy and neurons are not asked.
///
/// # Errors
/// If the model cannot be loaded with these settings, the profile is of another model, or the division takes more than the request's
/// budget ([`Error::Setting`] with both numbers of bytes).
pub fn split(source: &dyn WeightSource, request: &Request<'_>, split: Split) -> Result<Planned> {
    let survey = Survey::new(source, request)?;
    let plan = split.plan(&survey.config);
    let used = MemoryUse::of(&survey, &plan).total();
    if used > request.budget {
        let expected = format!("one that keeps the budget of {} bytes", request.budget);
        return Err(Error::setting("split", expected, format!("{split}: {used} bytes")));
    }
    let statistics = Statistics::new(&survey, request)?;
    let notes = statistics.notes(request);
    Ok(finish(survey, statistics, plan, None, request, notes))
}
