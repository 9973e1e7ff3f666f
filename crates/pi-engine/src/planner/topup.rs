//! What a solver leaves, because it places neurons in groups.

use super::{Policy, neurons::Ground, times::Fires};
use pi_core::{NeuronSet, footprint::PartShape};
use std::cmp::Ordering;

/// A layer that is being filled.
struct Layer {
    is_hot: Vec<bool>,
    hot: usize,
    /// Bytes that its neurons take, and that they would take with one more.
    bytes: u64,
    more: u64,
    /// Seconds that each side needs for its neurons.
    device: f64,
    host: f64,
}

/// Adds neurons, one at a time or all of a layer, to layers that have some, within what `ground.room` leaves. With
/// [`Policy::Time`] only where no layer gets slower.
pub(super) fn fill(ground: &Ground<'_>, hot: &mut [NeuronSet]) {
    let policy = ground.request.policy;
    let open = |i: usize, set: &NeuronSet| {
        policy != Policy::Nothing && ground.survey.layers[i].ffn.divided && !set.is_empty() && !set.is_all()
    };
    let mut layers: Vec<Option<Layer>> =
        hot.iter().enumerate().map(|(i, set)| open(i, set).then(|| Layer::new(ground, i, set))).collect();
    let mut room = ground.room.saturating_sub(ground.taken(hot));
    complete(ground, &mut layers, &mut room);
    let mut cold: Vec<(usize, usize)> = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        let Some(layer) = layer else { continue };
        cold.extend((0..layer.is_hot.len()).filter(|&n| !layer.is_hot[n]).map(|n| (i, n)));
    }
    sort(ground, &mut cold);
    for (i, n) in cold {
        let Some(layer) = &mut layers[i] else { continue };
        // a layer's first neuron may bring the bias of the output
        let bytes = if n == 0 { layer.taken(ground, i, layer.hot + 1, true) } else { layer.more };
        let (device, host) = layer.with(ground, i, n);
        let slower = policy == Policy::Time && device.max(host) > layer.device.max(layer.host);
        if !slower && layer.exchange(bytes, &mut room) {
            (layer.device, layer.host, layer.is_hot[n]) = (device, host, true);
            layer.hot += 1;
            layer.more = layer.taken(ground, i, layer.hot + 1, layer.is_hot[0]);
        }
    }
    complete(ground, &mut layers, &mut room);
    for (set, layer) in hot.iter_mut().zip(&layers) {
        let Some(layer) = layer else { continue };
        let ids = (0..).zip(&layer.is_hot).filter(|(_, hot)| **hot).map(|(n, _)| n).collect();
        if let Ok(new) = NeuronSet::some(layer.is_hot.len(), ids) {
            *set = new;
        }
    }
}

impl Layer {
    fn new(ground: &Ground<'_>, i: usize, set: &NeuronSet) -> Self {
        let mut is_hot = vec![false; set.total()];
        set.iter().for_each(|n| is_hot[n] = true);
        let fires = Fires::new(&ground.survey.layers[i].ffn, ground.statistics, i);
        let [device, host] = ground.seconds(i);
        let (hot, all) = (fires.of(set), fires.of(&NeuronSet::all(set.total())));
        let (device, host) = (device * hot, host * (all - hot));
        let mut layer = Self { is_hot, hot: set.len(), bytes: 0, more: 0, device, host };
        layer.bytes = layer.taken(ground, i, layer.hot, layer.is_hot[0]);
        layer.more = layer.taken(ground, i, layer.hot + 1, layer.is_hot[0]);
        layer
    }

    /// Bytes that so many neurons of layer `i` take, with neuron 0 or without.
    fn taken(&self, ground: &Ground<'_>, i: usize, neurons: usize, has_first: bool) -> u64 {
        let neurons = neurons.min(self.is_hot.len());
        ground.survey.taken(i, PartShape { neurons, has_first: has_first || neurons == self.is_hot.len() })
    }

    /// Takes `bytes` in place of what it has, if there is room for that.
    fn exchange(&mut self, bytes: u64, room: &mut u64) -> bool {
        let rest = room.saturating_add(self.bytes).checked_sub(bytes);
        if let Some(rest) = rest {
            (*room, self.bytes) = (rest, bytes);
        }
        rest.is_some()
    }

    /// The two sides' seconds with one more neuron on the device.
    fn with(&self, ground: &Ground<'_>, i: usize, n: usize) -> (f64, f64) {
        let fires = Fires::new(&ground.survey.layers[i].ffn, ground.statistics, i).one(n);
        let [device, host] = ground.seconds(i);
        (self.device + device * fires, self.host - host * fires)
    }
}

/// Takes the rest of each layer where that fits.
fn complete(ground: &Ground<'_>, layers: &mut [Option<Layer>], room: &mut u64) {
    for (i, slot) in layers.iter_mut().enumerate() {
        let Some(layer) = slot else { continue };
        let (total, sync, [device, host]) = (layer.is_hot.len(), ground.sync(i), ground.seconds(i));
        if layer.hot == total {
            continue;
        }
        let all_bytes = layer.taken(ground, i, total, true);
        let all = layer.device + if host > 0.0 { layer.host / host * device } else { 0.0 };
        let slower = all + sync.all > layer.device.max(layer.host) + sync.split;
        if !(slower && ground.request.policy == Policy::Time) && layer.exchange(all_bytes, room) {
            layer.is_hot.fill(true);
            (layer.hot, layer.device, layer.host) = (total, all, 0.0);
        }
    }
}

/// The order in which neurons are tried.
fn sort(ground: &Ground<'_>, cold: &mut [(usize, usize)]) {
    let share = |(i, n): (usize, usize)| ground.statistics.layer(i)[n];
    match ground.request.policy {
        Policy::InOrder | Policy::Nothing => {}
        Policy::Random { seed } => cold.sort_by_key(|&(i, n)| super::mixed(seed, ((i as u64) << 32) | n as u64)),
        _ => cold.sort_by(|&a, &b| share(b).partial_cmp(&share(a)).unwrap_or(Ordering::Equal)),
    }
}
