//! The rows, and what is where in each of them.

use super::{Setting, machine::Machine, reference::Reference};
use crate::failure::Result;
use pi_engine::{
    Predictors, SessionOptions, Sparsity,
    pi_core::Device,
    planner::{self, Planned, Policy, Request, Split},
    profile::model_fingerprint,
};

/// One way to run the model.
pub struct Row {
    pub name: &'static str,
    pub sparsity: Sparsity,
    pub planned: Planned,
}

/// All rows: each group has one part more than those before it.
///
/// # Errors
/// If the model cannot be divided, or the profile is of another one.
pub fn rows(setting: &Setting<'_>, machine: &Machine, reference: &Reference) -> Result<Vec<Row>> {
    let device = machine.sides(setting, 1.0)?.device;
    let planner = Planner { setting, machine, device: &*device, reference };
    let sparse = setting.sparse;
    let operators = match sparse {
        Sparsity::Predictor => "+ predictor and operators",
        _ => "+ operators",
    };
    let mut rows = vec![
        Row { name: "base", sparsity: Sparsity::Off, planned: planner.by_layers(Sparsity::Off)? },
        Row { name: operators, sparsity: sparse, planned: planner.by_layers(sparse)? },
    ];
    for (name, policy) in [
        ("+ hybrid engine: in order", Policy::InOrder),
        ("+ hybrid engine: random", Policy::Random { seed: 1 }),
        ("+ policy: frequency", Policy::Frequency),
        ("+ policy: impact (eq. 2)", Policy::Impact),
        ("+ policy: time", Policy::Time),
    ] {
        rows.push(Row { name, sparsity: sparse, planned: planner.by_neurons(policy)? });
    }
    Ok(rows)
}

struct Planner<'a> {
    setting: &'a Setting<'a>,
    machine: &'a Machine,
    device: &'a dyn Device,
    reference: &'a Reference,
}

impl Planner<'_> {
    fn with<T>(&self, sparsity: Sparsity, policy: Policy, then: impl FnOnce(&Request<'_>) -> T) -> Result<T> {
        let setting = self.setting;
        let predictors = match sparsity {
            Sparsity::Predictor => setting.flags.predictor.predictors(sparsity)?,
            _ => Predictors::default(), // not used
        };
        let mut request = Request::new(self.device, setting.budget);
        request.session = session(self.reference.tokens.len());
        request.sparsity = sparsity;
        request.predictors = &predictors;
        request.activation = setting.flags.activation;
        request.profile = setting.profile.as_ref();
        request.fingerprint = Some(model_fingerprint(&setting.file, self.reference.config.activation));
        request.costs = self.machine.costs();
        request.policy = policy;
        Ok(then(&request))
    }

    fn by_neurons(&self, policy: Policy) -> Result<Planned> {
        let planned = self.with(self.setting.sparse, policy, |r| planner::plan(&self.setting.file, r))?;
        planned.map_err(|e| self.setting.failure(&e))
    }

    /// As many whole layers as there is room for, from the last one on as llama.cpp's -ngl has it, and the head with them if all are there.
    fn by_layers(&self, sparsity: Sparsity) -> Result<Planned> {
        let c = &self.reference.config;
        let found = self.with(sparsity, Policy::InOrder, |request| {
            let plan = |k| planner::split(&self.setting.file, request, Split::Layers(k));
            // what keeps none from being planned has nothing to do with room
            let mut best = plan(0)?;
            for k in 1..=c.layers + 1 {
                match plan(k) {
                    Ok(planned) => best = planned,
                    Err(_) => break,
                }
            }
            Ok(best)
        })?;
        found.map_err(|e| self.setting.failure(&e))
    }
}

/// A session that decodes so many tokens one by one.
pub fn session(tokens: usize) -> SessionOptions {
    SessionOptions { context: Some(tokens), batch: 1, ..SessionOptions::default() }
}
