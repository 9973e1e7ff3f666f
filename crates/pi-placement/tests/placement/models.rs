//! Problems of the size of published models, with frequencies that fall off as measured ones do (paper §3.1).
#![allow(dead_code)]

use fastrand::Rng;
use pi_placement::{DEFAULT_BATCH, LayerSpec, Memory, PerNeuron, Problem, SyncTime};

/// A model's FFN layers: how many, their neurons, and the bytes of each neuron's rows.
#[derive(Clone, Copy)]
pub struct Shape {
    pub layers: usize,
    pub neurons: usize,
    pub bytes: u64,
}

/// OPT-175B in F16: two rows of 12,288 numbers and the up bias.
pub const OPT_175B: Shape = Shape { layers: 96, neurons: 49_152, bytes: 2 * 12_288 * 2 + 4 };
/// LLaMA-70B in Q4_0: three rows of 8,192 numbers, 18 bytes for 32.
pub const LLAMA_70B: Shape = Shape { layers: 80, neurons: 28_672, bytes: 3 * 8_192 / 32 * 18 };

/// A neuron that is read at 900 GB/s on the device and at 60 GB/s on the host.
pub fn sides(bytes: u64) -> (PerNeuron, PerNeuron) {
    (PerNeuron::read_at(bytes, 900e9), PerNeuron::read_at(bytes, 60e9))
}

/// Layers whose neurons fire like `exp(-x / skew)` of their rank x in 0..1, at random places; early layers are more skewed.
pub fn layers(shape: Shape, sync: f64, seed: u64) -> Vec<LayerSpec> {
    let mut random = Rng::with_seed(seed);
    let (device, host) = sides(shape.bytes);
    (0..shape.layers)
        .map(|l| {
            let skew = 0.03 + 0.25 * l as f64 / shape.layers as f64;
            let mut frequency: Vec<f32> = (0..shape.neurons)
                .map(|i| {
                    let x = i as f64 / shape.neurons as f64;
                    ((-x / skew).exp() * 0.95 * (0.8 + 0.2 * random.f64())) as f32
                })
                .collect();
            random.shuffle(&mut frequency);
            LayerSpec { neurons: shape.neurons, frequency, device, host, sync: SyncTime::host_layer(sync) }
        })
        .collect()
}

/// `share` of all bytes fit on the device.
pub fn problem(layers: Vec<LayerSpec>, share: f64) -> Problem {
    let total: u64 = layers.iter().map(|l| l.neurons as u64 * l.device.bytes).sum();
    Problem::new(layers, Memory::device((total as f64 * share) as u64), DEFAULT_BATCH).expect("valid")
}
