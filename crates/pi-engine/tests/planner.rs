//! What the planner says is what is allocated, and the budget is kept whatever it is.

mod common;

use common::{exact, ids, predicted_models};
use pi_core::{KvType, QuantType, Serial};
use pi_engine::{
    Engine, Predictors, SessionOptions, Sparsity,
    costs::{Costs, Figure},
    pi_predictor::profile::Profile,
    planner::{self, Planned, Policy, Request},
};
use pi_gguf::File;
use pi_sparse_cpu::{CpuDevice, Kernels};
use pi_testkit::{
    Random, TinyModel,
    sim::{SimDevice, SimOptions},
    synth::Family,
};
use std::sync::Arc;

fn sim(options: SimOptions) -> Arc<SimDevice> {
    let cpu = CpuDevice::new(Kernels::reference(), Arc::new(Serial));
    Arc::new(SimDevice::new(Arc::new(cpu), options).expect("a thread"))
}

fn of_memory(memory: u64) -> Arc<SimDevice> {
    sim(SimOptions { memory, ..SimOptions::default() })
}

/// The engine that a request describes, on this device.
fn engine(request: &Request<'_>, device: &Arc<SimDevice>, planned: &Planned, file: &File) -> Engine {
    exact()
        .kv(request.kv)
        .sparsity(request.sparsity)
        .predictors(request.predictors.clone())
        .accelerator(device.clone(), planned.plan.clone())
        .load(file)
        .unwrap_or_else(|e| panic!("{e}"))
}

/// A profile in which neurons differ.
fn profile(layers: usize, neurons: usize) -> Profile {
    let mut profile = Profile::new("tiny", 7, &vec![neurons as u32; layers]);
    let text = profile.begin("text", 1, 100);
    let counts = &mut profile.text_mut(text).unwrap().counts;
    let mut random = Random(4);
    for layer in 0..layers {
        for t in 0..100 {
            let row: Vec<f32> = (0..neurons)
                .map(|i| if random.below(100) < 90 * (i * 7 % neurons) / neurons && t > 0 { 1.0 } else { 0.0 })
                .collect();
            counts.layer_mut(layer).unwrap().count(&row);
        }
    }
    counts.count_tokens(100);
    profile
}

/// Plans, loads and opens a session on a device that has not a byte more than the budget.
fn holds(what: &str, file: &File, request: &Request<'_>) -> Planned {
    let planned = planner::plan(file, request).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (memory, budget) = (&planned.memory, request.budget);
    assert!(memory.total() <= budget, "{what}: {} of {budget}", memory.total());
    assert_eq!(planned.plan.uses_accelerator(), memory.total() > 0, "{what}");
    let device = of_memory(budget - memory.runtime);
    let engine = engine(request, &device, &planned, file);
    assert_eq!(device.used(), memory.weights(), "{what}: weights");
    let mut session = engine.session(&request.session).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(device.used() + memory.runtime, memory.total(), "{what}: with a session");
    // the largest step takes no more
    session.feed(0, &ids(session.batch().min(session.context() - 1), 3)).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(device.used() + memory.runtime, memory.total(), "{what}: after a step");
    planned
}

/// Budgets from nothing to everything, for a request whose device is replaced.
fn budgets(what: &str, file: &File, request: &Request<'_>) {
    let everything = planner::plan(file, &Request { budget: u64::MAX >> 1, ..request.clone() }).unwrap();
    let need = everything.memory.total();
    for (name, budget) in [
        ("0", 0),
        ("1", 1),
        ("tiny", need / 100),
        ("a tenth", need / 10),
        ("a third", need / 3),
        ("half", need / 2),
        ("most", need - need / 8),
        ("a byte less", need - 1),
        ("the need", need),
        ("huge", need * 1000),
    ] {
        let what = format!("{what}, budget {name} ({budget})");
        let planned = holds(&what, file, &Request { budget, ..request.clone() });
        if budget >= need {
            assert_eq!(planned.plan, everything.plan, "{what}");
        }
    }
}

#[test]
fn what_is_planned_is_what_is_allocated_for_every_family_and_budget() {
    let device = of_memory(0);
    for (name, model) in predicted_models() {
        let file = model.file();
        for predictors in [Predictors::default(), Predictors::Oracle, Predictors::Sign { margin: 0.0 }] {
            for batch in [1, 512] {
                let request = Request {
                    session: SessionOptions { batch, context: Some(128), sequences: 2, ..SessionOptions::default() },
                    kv: KvType::F16.into(),
                    sparsity: Sparsity::Predictor,
                    predictors: &predictors,
                    policy: Policy::Impact,
                    ..Request::new(&*device, 0)
                };
                budgets(&format!("{name}, {predictors:?}, batch {batch}"), &file, &request);
            }
        }
    }
}

#[test]
fn what_is_planned_is_what_is_allocated_for_every_type_and_layout() {
    let device = of_memory(0);
    for ty in QuantType::ALL.into_iter().filter(|ty| !matches!(ty, QuantType::Q8_1 | QuantType::Q8_K)) {
        for neuron_major in [true, false] {
            for (family, qkv_bias) in [(Family::Llama, true), (Family::Opt, false)] {
                let model = TinyModel { neuron_major, family, qkv_bias, ..TinyModel::wide(ty) };
                let file = model.file();
                for sparsity in [Sparsity::Auto, Sparsity::Off] {
                    let request = Request {
                        session: SessionOptions { batch: 33, logits: 33, ..SessionOptions::default() },
                        kv: KvType::Q8_0.into(),
                        sparsity,
                        policy: Policy::Impact,
                        runtime: 12_345,
                        ..Request::new(&*device, 0)
                    };
                    budgets(&format!("{ty}, {family:?}, {neuron_major}, {sparsity:?}"), &file, &request);
                }
            }
        }
    }
}

/// Row P21 of the list of faults that others had: PowerInfer reckons a neuron's bytes from the wrong side of the matrix, so that it is
/// right for one shape only.
#[test]
fn the_budget_is_used_whatever_the_shape_is() {
    let device = of_memory(0);
    for (dim, neurons) in [(256, 688), (256, 896), (256, 384), (128, 1024)] {
        let model = TinyModel { dim, neurons, neuron_major: true, layers: 4, ..TinyModel::wide(QuantType::F16) };
        let (file, profile) = (model.file(), profile(4, neurons));
        for policy in [Policy::Impact, Policy::Frequency, Policy::Random { seed: 3 }, Policy::InOrder] {
            let request = Request { policy, profile: Some(&profile), ..Request::new(&*device, 0) };
            let session = SessionOptions { batch: 1, context: Some(64), ..SessionOptions::default() };
            // synchronising that costs next to nothing, or it would not pay for such small layers (eq. 4)
            let costs = Costs { sync: Figure::measured(1e-12), link: Figure::measured(1e15), ..Costs::default() };
            let request = Request { session, costs, ..request };
            let need = planner::plan(&file, &Request { budget: 1 << 40, ..request.clone() }).unwrap().memory.total();
            for part in [0.55, 0.75, 0.95] {
                let budget = (need as f64 * part) as u64;
                let what = format!("{neurons}/{dim}, {policy}, {part}");
                let planned = holds(&what, &file, &Request { budget, ..request.clone() });
                let used = planned.memory.total() as f64 / budget as f64;
                assert!(used > 0.95, "{what}: {used}");
                let l = planned.memory.layers[0];
                if !planned.plan.layers[0].hot.is_empty() {
                    assert_eq!(l.neurons, (planned.plan.layers[0].hot.len() * 3 * 2 * dim) as u64, "{what}");
                }
            }
        }
    }
}
