//! What an FFN allocates, before it does.

use crate::{
    linear::{self, MANY},
    memory::room,
    shared::taken,
};
use pi_core::{
    Limits,
    footprint::{FfnShape, LinearShape, PartShape},
};

/// Most slices of neurons of the second half.
const SLICES: usize = 16;
/// Neurons that a slice should have at least.
const MIN_SLICE: usize = 256;

/// Slices of so many neurons that blocks of the second half have: enough blocks for a large device with one token, and fewer with more
/// tokens, so that parts of SLICES tokens are all that scratch has to hold.
pub(super) fn slices(neurons: usize, tokens: usize) -> usize {
    neurons.div_ceil(MIN_SLICE).clamp(1, (SLICES / tokens.max(1)).max(1))
}

/// Rows of parts that a step of a run may need, whose sums are made in slices.
pub(super) fn parts(neurons: usize, limits: &Limits) -> usize {
    (1..MANY.min(limits.tokens + 1)).map(|n| n * slices(neurons, n)).max().unwrap_or(0)
}

/// What both halves of a gated FFN need of the room that operators share, if steps may be long; in bytes, `None` if that is too much.
pub(super) fn shared(neurons: usize, gated: bool, limits: &Limits) -> Option<usize> {
    if limits.tokens >= MANY && gated { neurons.checked_mul(4 * super::run::CHUNK.min(limits.tokens)) } else { Some(0) }
}

/// What the arrays of [`CudaFfn::new`] take.
pub(crate) fn bytes(shape: &FfnShape, part: PartShape) -> u64 {
    let n = part.neurons;
    let rows = |l: &LinearShape| {
        let bias = if l.bias { room::<f32>([n, 1]) } else { 0 };
        room::<u8>([n, l.weight.row_bytes() as usize]) + bias
    };
    let first: u64 = shape.gate.iter().chain([&shape.up]).map(rows).sum();
    let weight = LinearShape { bias: false, ..shape.down };
    let down = if shape.neuron_major { rows(&weight) } else { linear::bytes(&weight) };
    let ids = if n == shape.neurons() { 0 } else { room::<i32>([n, 1]) };
    let bias = if shape.down.bias && part.has_first { room::<f32>([shape.dim(), 1]) } else { 0 };
    first + down + ids + bias
}

/// What the arrays of a run take.
pub(crate) fn scratch_bytes(shape: &FfnShape, neurons: usize, limits: &Limits) -> u64 {
    let rows = if shape.neuron_major { parts(neurons, limits) } else { 0 };
    let arrays = room::<f32>([limits.tokens, neurons]).saturating_add(room::<f32>([rows, shape.dim()]));
    arrays.saturating_add(room::<u32>([1, 1]))
}

/// What a run needs of the room that operators share.
pub(crate) fn shared_bytes(shape: &FfnShape, neurons: usize, limits: &Limits) -> u64 {
    taken(shared(neurons, shape.gate.is_some(), limits))
}
