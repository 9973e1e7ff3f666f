//! What placing neurons costs in time: the paper's equations 4 and 5, and the expected time of a layer.

use crate::{Layer, LayerSpec};

/// `C_l`: the smallest number of neurons for which `C · T_device + T_sync <= C · T_host` (eq. 4). `None` if there is none within the
/// layer: the device is no faster, or too little for this synchronisation.
pub(crate) fn min_hot(spec: &LayerSpec) -> Option<usize> {
    let (device, host, sync) = (spec.device.seconds, spec.host.seconds, spec.sync.split);
    let pays = |count: f64| count * device + sync <= count * host;
    if pays(0.0) {
        return (device <= host).then_some(0);
    }
    let quotient = (sync / (host - device)).ceil();
    // The difference may be 0 or negative, and infinity is a possible synchronisation.
    if device >= host || quotient > spec.neurons as f64 {
        return None;
    }
    // The quotient is rounded: the inequality itself decides.
    let count = if pays(quotient - 1.0) { quotient - 1.0 } else { quotient };
    let count = if pays(count) { count } else { count + 1.0 };
    (pays(count) && count <= spec.neurons as f64).then_some(count as usize)
}

/// Seconds per token with `count` neurons on the device that fire `mass` times per token together.
///
/// Both sides work at the same time and the slower one counts. It is the time of an average token, a little less than the average
/// time of tokens, because the slower side changes from token to token.
pub(crate) fn layer_time(layer: &Layer, count: usize, mass: f64) -> f64 {
    let spec = layer.spec();
    if spec.neurons == 0 {
        return 0.0;
    }
    let total = layer.total_mass();
    if count == 0 {
        spec.host.seconds * total + spec.sync.none
    } else if count == spec.neurons {
        spec.device.seconds * total + spec.sync.all
    } else {
        (spec.host.seconds * (total - mass)).max(spec.device.seconds * mass) + spec.sync.split
    }
}
