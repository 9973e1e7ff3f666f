//! Placements, and a simulated accelerator to place things on.
#![allow(dead_code)] // each test file uses a part

use pi_core::{NeuronSet, Serial};
use pi_engine::{Engine, LayerPlan, Plan, Side};
use pi_sparse_cpu::{CpuDevice, Kernels};
use pi_testkit::{
    Random,
    sim::{SimDevice, SimOptions},
};
use std::sync::Arc;

pub fn sim(options: SimOptions) -> Arc<SimDevice> {
    sim_of(CpuDevice::new(Kernels::reference(), Arc::new(Serial)), options)
}

pub fn sim_of(cpu: CpuDevice, options: SimOptions) -> Arc<SimDevice> {
    Arc::new(SimDevice::new(Arc::new(cpu), options).expect("a thread"))
}

/// Which of a layer's neurons are hot.
#[derive(Clone, Copy, Debug)]
pub enum Hot {
    None,
    One,
    Half,
    All,
    Random(u64),
}

impl Hot {
    pub fn set(self, n: usize) -> NeuronSet {
        let some = |keep: &mut dyn FnMut(usize) -> bool| {
            NeuronSet::some(n, (0..n as u32).filter(|i| keep(*i as usize)).collect()).expect("ascending")
        };
        match self {
            Hot::None => NeuronSet::none(n),
            Hot::One => some(&mut |i| i == n / 3),
            Hot::Half => some(&mut |i| i % 2 == 0),
            Hot::All => NeuronSet::all(n),
            Hot::Random(seed) => {
                let mut random = Random(seed);
                some(&mut |_| random.below(3) == 0)
            }
        }
    }
}

pub const ALL: [Hot; 6] = [Hot::None, Hot::One, Hot::Half, Hot::All, Hot::Random(1), Hot::Random(2)];

/// The same in every layer (but for random ones).
pub fn plan(engine: &Engine, hot: Hot, dense: Side) -> Plan {
    let c = engine.config();
    let layers = (0..c.layers)
        .map(|i| {
            let hot = match hot {
                Hot::Random(seed) => Hot::Random(seed + 100 * i as u64),
                same => same,
            };
            LayerPlan { dense, hot: hot.set(c.neurons) }
        })
        .collect();
    Plan { layers, head: dense }
}

/// Something else in every layer.
pub fn any_plan(engine: &Engine, random: &mut Random) -> Plan {
    let c = engine.config();
    let side = |random: &mut Random| if random.below(2) == 0 { Side::Cpu } else { Side::Accelerator };
    let layers = (0..c.layers)
        .map(|_| {
            let hot = match random.below(5) {
                0 => Hot::None,
                1 => Hot::One,
                2 => Hot::Half,
                3 => Hot::All,
                _ => Hot::Random(random.below(1 << 30) as u64),
            };
            LayerPlan { dense: side(random), hot: hot.set(c.neurons) }
        })
        .collect();
    Plan { layers, head: side(random) }
}

/// Two orders of adding up in f32, nothing more: a share of the largest logit.
pub const TOLERANCE: f64 = 2e-5;
