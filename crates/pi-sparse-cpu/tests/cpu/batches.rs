//! Tokens of a batch get the bits that they get alone, whatever kernels were put together.

use pi_core::{
    Activation, ActiveSet, Device, Down, FfnWeights, Gating, Hidden, Limits, Matrix, NeuronSet, QuantType, Serial,
    Write,
};
use pi_sparse_cpu::{CpuDevice, Isa, Kernels, TypeKernels};
use pi_testkit::Random;
use std::sync::Arc;

const DIM: usize = 256;
const NEURONS: usize = 96;

fn outputs(kernels: &Kernels, weights: &FfnWeights, x: &[f32]) -> Vec<f32> {
    let tokens = x.len() / DIM;
    let device = CpuDevice::new(kernels.clone(), Arc::new(Serial));
    let op = device.sparse_ffn(weights, &NeuronSet::all(NEURONS)).unwrap();
    let mut run = op.open(&Limits { tokens, sequences: 1, context: 1 }).unwrap();
    let (mut h, mut y) = (Hidden::new(tokens, DIM), Hidden::new(tokens, DIM));
    h.host_overwrite().copy_from_slice(x);
    let mut active = ActiveSet::new(tokens, NEURONS);
    active.set_all(tokens).unwrap();
    run.submit(&mut h, &mut active).unwrap();
    run.collect(&mut y, Write::Set).unwrap();
    y.host().unwrap().to_vec()
}

#[test]
fn an_ffn_gives_a_token_of_a_batch_the_bits_that_it_gets_alone() {
    let mut random = Random(3);
    let mut numbers = |n: usize| (0..n).map(|_| random.normal()).collect::<Vec<f32>>();
    let x = numbers(7 * DIM);
    for ty in QuantType::ALL {
        let mut matrix = |name: &str| Matrix::encode(name, ty, NEURONS, DIM, &numbers(NEURONS * DIM)).unwrap();
        let weights = FfnWeights {
            gate: Some(matrix("gate")),
            up: matrix("up"),
            down: Down::NeuronMajor(matrix("down")),
            gate_bias: None,
            up_bias: None,
            down_bias: None,
            gating: Gating::Gated,
            act: Activation::Relu,
            skip: true,
        };
        let plain = *Kernels::reference().get(ty);
        let own = TypeKernels { tile: None, axpy4: None, axpy: plain.axpy, ..*Kernels::best().get(ty) };
        let tables = Isa::available().into_iter().map(|isa| Kernels::for_isa(isa).unwrap());
        for kernels in tables.chain([Kernels::best().with(ty, plain), Kernels::best().with(ty, own)]) {
            let batch = outputs(&kernels, &weights, &x);
            for (t, (x, y)) in x.chunks(DIM).zip(batch.chunks(DIM)).enumerate() {
                let alone = outputs(&kernels, &weights, x);
                assert!(
                    alone.iter().zip(y).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{ty} with {}: token {t} differs from what it is alone",
                    kernels.isa()
                );
            }
        }
    }
}
