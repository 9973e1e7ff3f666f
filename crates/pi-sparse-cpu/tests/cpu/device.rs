//! The CPU device against the conformance suite, with every instruction set and several numbers of threads.

use pi_core::{
    Attention, AttentionSpec, Dense, Device, DeviceInfo, Executor, FfnWeights, Hidden, LinearSpec, MlpSpec, NeuronSet,
    NormSpec, Predictor, QuantType, Result, Serial, SparseFfn,
};
use pi_sparse_cpu::{CpuDevice, Isa, Kernels, Pool};
use pi_testkit::{
    device::check,
    sim::{SimDevice, SimOptions},
};
use std::sync::Arc;

fn conforms(exec: Arc<dyn Executor>) {
    for isa in Isa::available() {
        let kernels = Kernels::for_isa(isa).expect("available");
        check(&CpuDevice::new(kernels, exec.clone()))
            .unwrap_or_else(|e| panic!("{isa}, {} threads: {e}", exec.width()));
    }
}

#[test]
fn the_device_conforms_without_threads() {
    conforms(Arc::new(Serial));
}

#[test]
fn the_device_conforms_with_two_threads() {
    conforms(Arc::new(Pool::new(2).expect("threads")));
}

#[test]
fn the_device_conforms_with_three_threads() {
    conforms(Arc::new(Pool::new(3).expect("threads")));
}

/// The CPU device with a fault of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    NoBias,
    NoEps,
    NoRotation,
    AllNeurons,
    NoDownBias,
    AlwaysSkips,
    NoThreshold,
}

struct Faulty(CpuDevice, Fault);

impl Device for Faulty {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn supports(&self, ty: QuantType) -> bool {
        ty.is_float()
    }

    fn hidden(&self, max_tokens: usize, dim: usize) -> Result<Hidden> {
        self.0.hidden(max_tokens, dim)
    }

    fn norm(&self, spec: &NormSpec) -> Result<Arc<dyn Dense>> {
        let mut spec = spec.clone();
        if let (NormSpec::Layer { eps, .. }, Fault::NoEps) = (&mut spec, self.1) {
            *eps = 0.0;
        }
        self.0.norm(&spec)
    }

    fn linear(&self, spec: &LinearSpec) -> Result<Arc<dyn Dense>> {
        let mut spec = spec.clone();
        spec.bias.take_if(|b| self.1 == Fault::NoBias && b.len() == spec.weight.rows());
        self.0.linear(&spec)
    }

    fn attention(&self, spec: &AttentionSpec) -> Result<Arc<dyn Attention>> {
        spec.check()?;
        let mut spec = spec.clone();
        spec.rope.take_if(|_| self.1 == Fault::NoRotation);
        self.0.attention(&spec)
    }

    fn sparse_ffn(&self, weights: &FfnWeights, neurons: &NeuronSet) -> Result<Arc<dyn SparseFfn>> {
        weights.check()?;
        let mut w = weights.clone();
        w.down_bias.take_if(|_| self.1 == Fault::NoDownBias);
        w.skip |= self.1 == Fault::AlwaysSkips && w.act.is_sparse();
        let all = NeuronSet::all(neurons.total());
        self.0.sparse_ffn(&w, if self.1 == Fault::AllNeurons { &all } else { neurons })
    }

    fn mlp(&self, spec: &MlpSpec) -> Result<Arc<dyn Predictor>> {
        spec.check()?;
        let threshold = if self.1 == Fault::NoThreshold { 0.0 } else { spec.threshold };
        self.0.mlp(&MlpSpec { threshold, ..spec.clone() })
    }
}

#[test]
fn a_device_with_a_fault_is_found_out() {
    let cpu = CpuDevice::new(Kernels::reference(), Arc::new(Serial));
    check(&Faulty(cpu.clone(), Fault::None)).expect("no fault");
    for fault in [
        Fault::NoBias,
        Fault::NoEps,
        Fault::NoRotation,
        Fault::AllNeurons,
        Fault::NoDownBias,
        Fault::AlwaysSkips,
        Fault::NoThreshold,
    ] {
        let e = check(&Faulty(cpu.clone(), fault)).expect_err("a fault");
        println!("{fault:?}: {e}");
    }
}

/// What the simulated accelerator adds to the device that computes for it must not change what comes out.
#[test]
fn a_simulated_accelerator_computes_what_the_device_behind_it_does() {
    let cpu = Arc::new(CpuDevice::new(Kernels::reference(), Arc::new(Serial)));
    check(&SimDevice::new(cpu, SimOptions::default()).unwrap()).unwrap();
}
