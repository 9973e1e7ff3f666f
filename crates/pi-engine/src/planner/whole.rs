//! Layers whose neurons cannot be divided.

use super::{Policy, neurons::Ground};
use pi_core::footprint::PartShape;

/// Those of `layers` whose neurons all go to the device, within `room` bytes. What does not fit is skipped.
pub(super) fn fill(ground: &Ground<'_>, mut layers: Vec<usize>, mut room: u64) -> Vec<usize> {
    let survey = ground.survey;
    let bytes = |i: usize| survey.taken(i, PartShape { neurons: survey.layers[i].ffn.neurons, has_first: true });
    // seconds per token that are saved
    let gain = |i: usize| {
        let ([device, host], sync) = (ground.seconds(i), ground.sync(i));
        let always = survey.layers[i].ffn.always;
        let n = survey.layers[i].ffn.neurons as f64;
        let read = always * n + (1.0 - always) * ground.statistics.fired_by_all(i);
        (host * read + sync.none) - (device * read + sync.all)
    };
    let best_first = |layers: &mut Vec<usize>, worth: &dyn Fn(usize) -> f64| {
        layers.sort_by(|&a, &b| worth(b).total_cmp(&worth(a)));
    };
    match ground.request.policy {
        Policy::Nothing => layers.clear(),
        Policy::InOrder => {}
        Policy::Random { seed } => {
            layers.sort_by_key(|&i| super::mixed(seed, i as u64));
        }
        Policy::Time => {
            layers.retain(|&i| gain(i) > 0.0);
            best_first(&mut layers, &|i| gain(i) / bytes(i).max(1) as f64);
        }
        Policy::Impact | Policy::Frequency => {
            best_first(&mut layers, &|i| ground.statistics.fired_by_all(i) / bytes(i).max(1) as f64);
        }
    }
    layers.retain(|&i| {
        let rest = room.checked_sub(bytes(i));
        room = rest.unwrap_or(room);
        rest.is_some()
    });
    layers
}
