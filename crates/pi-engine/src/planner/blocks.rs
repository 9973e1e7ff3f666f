//! In which order a device's memory is filled. See [the module](super).

use super::{
    Choice, MemoryUse, Request,
    neurons::{self, Ground},
    statistics::Statistics,
    survey::Survey,
};
use crate::{Error, LayerPlan, Plan, Result, Side};
use pi_core::NeuronSet;

/// The plan, how its neurons were chosen (`None` if they were given), and what is to be said.
pub(super) fn place(
    survey: &Survey,
    statistics: &Statistics,
    request: &Request<'_>,
    notes: &mut Vec<String>,
) -> Result<(Plan, Option<Choice>)> {
    let mut plan = Plan::whole(&survey.config, Side::Cpu);
    let base = survey.base();
    if let Some(hot) = request.hot {
        give(survey, &mut plan, hot, request.budget, notes)?;
    }
    let taken = base.saturating_add(MemoryUse::of(survey, &plan).layers().total());
    let Some(mut room) = request.budget.checked_sub(taken) else {
        notes.push(format!(
            "nothing is placed: the session's hidden states and the runtime alone take {base} bytes of the device, the budget is {}",
            request.budget
        ));
        return Ok((plan, None));
    };
    let mut skipped = 0;
    for (s, l) in survey.layers.iter().zip(&mut plan.layers) {
        match room.checked_sub(s.block()) {
            _ if s.lacking.is_some() => {}
            None => skipped += 1,
            Some(rest) => (room, l.dense) = (rest, Side::Accelerator),
        }
    }
    if skipped > 0 {
        notes.push(format!("attention, norms and predictors of {skipped} layers do not fit the budget"));
    }
    match room.checked_sub(survey.head.bytes) {
        _ if survey.head.lacking.is_some() => {}
        None => notes.push("the output does not fit the budget".into()),
        Some(rest) => (room, plan.head) = (rest, Side::Accelerator),
    }
    if request.hot.is_some() {
        return Ok((plan, None));
    }
    let homes = plan.layers.iter().map(|l| l.dense).collect();
    let choice = neurons::choose(&Ground { survey, statistics, request, homes, room }, notes)?;
    for (l, hot) in plan.layers.iter_mut().zip(&choice.hot) {
        l.hot.clone_from(hot);
    }
    Ok((plan, Some(choice)))
}

/// Puts the caller's neurons into the plan.
fn give(survey: &Survey, plan: &mut Plan, hot: &[NeuronSet], budget: u64, notes: &mut Vec<String>) -> Result<()> {
    let layers = hot.iter().map(|hot| LayerPlan { dense: Side::Cpu, hot: hot.clone() }).collect();
    let given = Plan { layers, head: Side::Cpu };
    given.check(&survey.config)?;
    survey.check_divided(&given)?;
    *plan = given;
    let mut lost = 0;
    for (s, l) in survey.layers.iter().zip(&mut plan.layers).filter(|(s, _)| s.ffn.lacking.is_some()) {
        lost += l.hot.len();
        l.hot = NeuronSet::none(s.ffn.neurons);
    }
    if lost > 0 {
        notes.push(format!("{lost} of the given neurons stay on the CPU: the device has no kernels for their type"));
    }
    let needed = MemoryUse::of(survey, plan).total();
    if needed > budget {
        let expected = format!("{needed} bytes or more, which the given hot neurons take with what a session needs");
        return Err(Error::setting("budget of the device", expected, budget));
    }
    Ok(())
}
