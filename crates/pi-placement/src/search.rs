//! From the bound to a choice: filling what is left, then a search over layers that leaves out what the bound excludes.

use crate::dual::Dual;
use crate::table::Table;
use std::collections::BTreeMap;

/// The best choice that was found, and what no choice can exceed.
pub(crate) struct Found {
    pub choice: Option<Vec<usize>>,
    pub bound: f64,
}

/// Makes the dual's choice keep both limits, and uses what room is left. `None` if that does not succeed.
pub(crate) fn round(table: &Table, dual: &Dual) -> Option<Vec<usize>> {
    let mut choice = dual.choice.clone();
    let (mut device, mut host) = table.bytes(&choice);
    // A pass over all choices per step; steps are few because the dual's choice is within one layer's step of the limits.
    while host > table.host {
        let missing = host - table.host;
        let mut best: Option<(f64, usize, usize)> = None;
        for (l, layer) in table.layers.iter().enumerate() {
            let now = choice[l];
            for j in now + 1..layer.count.len() {
                let freed = (layer.host_bytes(now) - layer.host_bytes(j)).min(missing);
                if freed == 0 || device - layer.device_bytes(now) + layer.device_bytes(j) > table.device {
                    continue;
                }
                let loss = (layer.value[now] - layer.value[j]) / freed as f64;
                if best.is_none_or(|(least, ..)| loss < least) {
                    best = Some((loss, l, j));
                }
            }
        }
        let (_, l, j) = best?;
        choice[l] = j;
        (device, host) = table.bytes(&choice);
    }
    loop {
        let mut best = (0.0, 0, 0);
        for (l, layer) in table.layers.iter().enumerate() {
            let now = choice[l];
            let room = table.device - (device - layer.device_bytes(now));
            let host_room = table.host - (host - layer.host_bytes(now));
            for j in 0..layer.count.len() {
                let gain = layer.value[j] - layer.value[now];
                if gain > best.0 && layer.device_bytes(j) <= room && layer.host_bytes(j) <= host_room {
                    best = (gain, l, j);
                }
            }
        }
        if best.0 <= 0.0 {
            return Some(choice);
        }
        choice[best.1] = best.2;
        (device, host) = table.bytes(&choice);
    }
}

/// Choices for the first layers.
#[derive(Clone, Copy)]
struct State {
    value: f64,
    /// How far they are below the dual's optimum.
    deficit: f64,
    device: u64,
    host: u64,
    parent: u32,
    choice: u32,
}

/// What the layers that are still to come can use.
#[derive(Clone, Copy, Default)]
struct Rest {
    device_least: u64,
    device_most: u64,
    host_least: u64,
}

/// Searches layer by layer (dynamic programming over sets of states) for choices better than `known`. States that the bound excludes
/// or that another state dominates are dropped. About `effort` states are looked at: if more would be needed, the least promising ones
/// are left out, and the bound accounts for them.
pub(crate) fn search(table: &Table, dual: &Dual, known: Option<Vec<usize>>, effort: u64) -> Found {
    let known_value = known.as_ref().map(|c| table.value(c));
    // A little more than the gap, so that rounding never excludes the optimum.
    let gap =
        known_value.map_or(f64::INFINITY, |v| (dual.bound - v).max(0.0) * (1.0 + 1e-9) + 1e-13 * dual.bound.abs());
    let quota = usize::try_from(effort / table.layers.len().max(1) as u64).unwrap_or(usize::MAX).clamp(1, 1 << 28);

    let mut rest = vec![Rest::default(); table.layers.len() + 1];
    for (l, layer) in table.layers.iter().enumerate().rev() {
        let (next, last) = (rest[l + 1], layer.count.len() - 1);
        rest[l] = Rest {
            device_least: next.device_least + layer.device_bytes(0),
            device_most: next.device_most + layer.device_bytes(last),
            host_least: next.host_least + layer.host_bytes(last),
        };
    }

    let mut dropped = f64::INFINITY; // the least deficit of what was left out
    let mut trail: Vec<Vec<State>> = Vec::with_capacity(table.layers.len());
    let mut states = vec![State { value: 0.0, deficit: 0.0, device: 0, host: 0, parent: 0, choice: 0 }];
    for (l, layer) in table.layers.iter().enumerate() {
        let deficits = dual.deficits(table, l);
        let mut options: Vec<usize> = (0..deficits.len()).filter(|&j| deficits[j] <= gap).collect();
        options.sort_by(|&a, &b| deficits[a].total_cmp(&deficits[b]));
        if let Some(&first) = options.get(quota) {
            dropped = dropped.min(deficits[first]);
            options.truncate(quota);
        }
        let keep = (quota / options.len().max(1)).max(1);
        if states.len() > keep {
            states.select_nth_unstable_by(keep, |a, b| a.deficit.total_cmp(&b.deficit));
            dropped = states[keep..].iter().map(|s| s.deficit).fold(dropped, f64::min);
            states.truncate(keep);
        }
        let rest = rest[l + 1];
        let mut next = Vec::with_capacity(states.len() * options.len());
        for (parent, s) in states.iter().enumerate() {
            for &j in &options {
                let (device, host) = (s.device + layer.device_bytes(j), s.host + layer.host_bytes(j));
                let deficit = s.deficit + deficits[j];
                // Room on the device that the other layers cannot use costs its price.
                let idle = dual.lambda * table.device.saturating_sub(device + rest.device_most) as f64;
                let keeps_limits = device + rest.device_least <= table.device && host + rest.host_least <= table.host;
                if keeps_limits && deficit + idle <= gap {
                    let (parent, choice) = (parent as u32, j as u32);
                    next.push(State { value: s.value + layer.value[j], deficit, device, host, parent, choice });
                }
            }
        }
        trail.push(states);
        states = undominated(next);
    }

    let best = states.iter().enumerate().max_by(|a, b| a.1.value.total_cmp(&b.1.value)).map(|(i, _)| i);
    let found = best.map(|end| walk_back(&trail, &states, end));
    let choice = match (known, found) {
        (Some(a), Some(b)) => Some(if table.value(&b) > table.value(&a) { b } else { a }),
        (a, b) => a.or(b),
    };
    let value = choice.as_ref().map_or(f64::NEG_INFINITY, |c| table.value(c));
    // What was left out is worth at most the dual's bound less its deficit.
    Found { choice, bound: dual.bound.min(dual.bound - dropped).max(value) }
}

/// Without the states that take no less memory than another one and are worth no more.
fn undominated(mut states: Vec<State>) -> Vec<State> {
    states.sort_unstable_by(|a, b| {
        a.device
            .cmp(&b.device)
            .then(a.host.cmp(&b.host))
            .then(b.value.total_cmp(&a.value))
            .then(a.parent.cmp(&b.parent))
    });
    // Of the states so far, which have no more bytes on the device: the best value for at most so many bytes on the host. Values are
    // kept as ordered integers so that the map ascends in both.
    let mut best: BTreeMap<u64, f64> = BTreeMap::new();
    states.retain(|s| {
        if best.range(..=s.host).next_back().is_some_and(|(_, &v)| v >= s.value) {
            return false;
        }
        while let Some((&host, &v)) = best.range(s.host..).next() {
            if v > s.value {
                break;
            }
            best.remove(&host);
        }
        best.insert(s.host, s.value);
        true
    });
    states
}

fn walk_back(trail: &[Vec<State>], last: &[State], end: usize) -> Vec<usize> {
    let mut choice = vec![0; trail.len()];
    let (mut states, mut at) = (last, end);
    for l in (0..trail.len()).rev() {
        choice[l] = states[at].choice as usize;
        at = states[at].parent as usize;
        states = &trail[l];
    }
    choice
}
