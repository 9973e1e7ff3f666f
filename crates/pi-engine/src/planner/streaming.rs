//! From how many tokens on weights are worth sending.

use super::survey::Survey;
use crate::{Plan, Streaming, costs::Costs};

/// From how many tokens of a step on it pays to send the neurons that a plan leaves on the CPU. Sending takes as long as the link needs for
/// the bytes; then the device has the work of all neurons, where else the CPU has that of its own and the device works meanwhile.
pub(super) fn pays(survey: &Survey, plan: &Plan, costs: &Costs) -> Option<Streaming> {
    if !plan.uses_accelerator() {
        return None;
    }
    let (mut send, mut here, mut there, mut memory) = (0.0, 0.0, 0.0, 0);
    let layers = survey.layers.iter().zip(&plan.layers).enumerate();
    for (i, (s, l)) in layers.filter(|(_, (s, _))| s.ffn.lacking.is_none()) {
        let cold = l.hot.others();
        if cold.is_empty() {
            continue;
        }
        // multiply-adds of a neuron and a token
        let work = (s.ffn.rows.len() * survey.config.dim) as f64;
        let [bytes, scratch] = survey.neurons(i, (&cold).into());
        send += bytes as f64 / costs.link.value;
        here += cold.len() as f64 * work / costs.host.prompt.value;
        there += s.ffn.neurons as f64 * work / costs.device.prompt.value;
        memory = memory.max(bytes.saturating_add(scratch));
    }
    let gain = here - there;
    // a number that is too large, or none
    let from = (send / gain).floor() + 1.0;
    let pays = gain > 0.0 && from <= survey.limits.tokens as f64;
    pays.then_some(Streaming { from: from as usize, memory })
}
