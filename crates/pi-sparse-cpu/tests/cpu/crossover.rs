//! The dense and the sparse path of an FFN: the same bits, other work.

use pi_core::{
    Activation, ActiveSet, Device, Down, FfnWeights, Gating, Hidden, Limits, Matrix, NeuronSet, OpStats, QuantType,
    Write,
};
use pi_sparse_cpu::{CpuDevice, Crossover, Isa, Kernels, Pool};
use pi_testkit::Random;
use std::sync::Arc;

/// No multiples of four or of a word of bits.
const NEURONS: usize = 150;
const DIM: usize = 256;
const TOKENS: usize = 3;

fn device(isa: Isa, crossover: f32) -> CpuDevice {
    let pool = Arc::new(Pool::new(2).expect("threads"));
    CpuDevice::new(Kernels::for_isa(isa).expect("available"), pool).with_crossover(Crossover::uniform(crossover))
}

fn weights(ty: QuantType, gating: Gating, act: Activation) -> FfnWeights {
    let mut rng = Random(3);
    let mut matrix = |name: &str| {
        let data: Vec<f32> = (0..NEURONS * DIM).map(|_| rng.normal() / 16.0).collect();
        Matrix::encode(name, ty, NEURONS, DIM, &data).expect("whole blocks")
    };
    let (gate, up, down) = (matrix("gate"), matrix("up"), Down::NeuronMajor(matrix("down")));
    let mut bias = |n: usize| Some((0..n).map(|_| rng.normal() / 4.0).collect());
    let (gate_bias, up_bias, down_bias) = (bias(NEURONS), bias(NEURONS), bias(DIM));
    let gated = gating != Gating::UpOnly;
    FfnWeights {
        gate: gated.then_some(gate),
        up,
        down,
        gate_bias: gate_bias.filter(|_| gated),
        up_bias,
        down_bias,
        gating,
        act,
        skip: true,
    }
}

/// Outputs of two steps as bits, and what was counted in the second.
fn steps(device: &CpuDevice, w: &FfnWeights, neurons: &NeuronSet, marks: Option<u64>) -> (Vec<u32>, OpStats) {
    let limits = Limits { tokens: TOKENS, sequences: 1, context: 1 };
    let mut run = device.sparse_ffn(w, neurons).expect("an ffn").open(&limits).expect("a run");
    let (mut x, mut y) = (Hidden::new(TOKENS, DIM), Hidden::new(TOKENS, DIM));
    let (mut active, mut bits, mut stats) = (ActiveSet::new(TOKENS, NEURONS), Vec::new(), OpStats::default());
    for step in 0..2 {
        let mut rng = Random(40 + step);
        x.host_overwrite().iter_mut().for_each(|v| *v = rng.normal());
        active.set_all(TOKENS).expect("room");
        if let Some(percent) = marks {
            let words = active.words();
            let rows = active.marks(TOKENS).expect("room");
            rows.fill(0);
            for (t, i) in (0..TOKENS).flat_map(|t| (0..NEURONS).map(move |i| (t, i))) {
                if (rng.below(100) as u64) < percent {
                    rows[t * words + i / 64] |= 1 << (i % 64);
                }
            }
        }
        run.submit(&mut x, &mut active).expect("a step");
        run.collect(&mut y, Write::Set).expect("a step");
        stats = run.take_stats();
        bits.extend(y.host().expect("on the host").iter().map(|v| v.to_bits()));
    }
    (bits, stats)
}

#[test]
fn the_dense_path_gives_the_bits_of_the_sparse_one_for_every_type_and_instruction_set() {
    let all = NeuronSet::all(NEURONS);
    for isa in Isa::available() {
        for ty in QuantType::ALL {
            let w = weights(ty, Gating::Gated, Activation::Relu);
            for marks in [None, Some(60)] {
                let (sparse, s) = steps(&device(isa, 1.0), &w, &all, marks);
                let (dense, d) = steps(&device(isa, 0.0), &w, &all, marks);
                assert_eq!(sparse, dense, "{isa} {ty} {marks:?}");
                assert_eq!((s.dense, d.dense), (0, (NEURONS * TOKENS) as u64), "{isa} {ty} {marks:?}");
                assert_eq!((s.active, s.neurons), (d.active, d.neurons), "{isa} {ty} {marks:?}");
                assert!(s.bytes < d.bytes, "{isa} {ty} {marks:?}: {} and {} bytes", s.bytes, d.bytes);
            }
        }
    }
}

#[test]
fn nor_does_it_matter_for_other_gatings_activations_and_parts_of_the_neurons() {
    let isa = *Isa::available().last().expect("the reference at least");
    let part = NeuronSet::some(NEURONS, (0..NEURONS as u32).filter(|i| i % 9 < 6).collect()).expect("ascending");
    for gating in [Gating::Gated, Gating::Symmetric, Gating::UpOnly] {
        for act in [Activation::Relu, Activation::ReluSquared, Activation::FatRelu(0.3)] {
            let w = weights(QuantType::F16, gating, act);
            for neurons in [&NeuronSet::all(NEURONS), &part] {
                for marks in [None, Some(30), Some(100)] {
                    let sparse = steps(&device(isa, 1.0), &w, neurons, marks).0;
                    let dense = steps(&device(isa, 0.0), &w, neurons, marks).0;
                    assert_eq!(sparse, dense, "{gating:?} {act} {marks:?}");
                }
            }
        }
    }
}

#[test]
fn the_share_of_marks_or_of_earlier_steps_decides() {
    let isa = *Isa::available().last().expect("the reference at least");
    let (w, all) = (weights(QuantType::Q4_0, Gating::Gated, Activation::Relu), NeuronSet::all(NEURONS));
    let dense = |crossover, marks| steps(&device(isa, crossover), &w, &all, marks).1.dense > 0;
    assert!(!dense(0.5, Some(30)) && dense(0.5, Some(70)));
    // About half of the gates let through.
    assert!(dense(0.3, None) && !dense(0.7, None));
}

#[test]
fn a_layer_from_which_nothing_may_be_left_out_counts_as_dense() {
    let w = FfnWeights { skip: false, ..weights(QuantType::F16, Gating::Gated, Activation::Relu) };
    let stats = steps(&device(Isa::Reference, 1.0), &w, &NeuronSet::all(NEURONS), None).1;
    assert_eq!((stats.dense, stats.active), ((NEURONS * TOKENS) as u64, (NEURONS * TOKENS) as u64));
}
