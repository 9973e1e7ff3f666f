//! What the planner says of a CUDA device is what is allocated there, to the byte, and budgets are kept (row P08 of the list of faults
//! that others had). On the emulated driver, or with `PI_CUDA_TEST=real` on a GPU.

#[path = "../../pi-engine/tests/engine/common/mod.rs"]
mod common;

use common::{exact, ids, predicted_models};
use pi_core::{Device, KvType, QuantType};
use pi_cuda_emu::{Driver, driver};
use pi_engine::{
    Predictors, SessionOptions, Side, Sparsity,
    costs::{Costs, Figure},
    planner::{self, Planned, Policy, Request, Split},
};
use pi_gguf::File;
use pi_sparse_cuda::Cuda;
use pi_testkit::{TinyModel, synth::Family};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One test at a time, because each looks at all that is allocated.
fn alone() -> Option<(MutexGuard<'static, ()>, Option<&'static Driver>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match driver() {
        Ok(driver) => Some((turn, driver)),
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "{e}");
            eprintln!("SKIPPED: {e}");
            None
        }
    }
}

/// Costs with which it always pays to use the device.
fn quick() -> Costs {
    Costs { sync: Figure::measured(1e-12), link: Figure::measured(1e15), ..Costs::default() }
}

/// Plans within a budget, and [takes] it.
fn holds(what: &str, file: &File, request: &Request<'_>, emulated: bool) -> Planned {
    let planned = planner::plan(file, request).unwrap_or_else(|e| panic!("{what}: {e}"));
    takes(what, file, request, emulated, planned)
}

/// Loads what is planned, opens a session and computes its largest step.
fn takes(what: &str, file: &File, request: &Request<'_>, emulated: bool, planned: Planned) -> Planned {
    let (memory, budget) = (&planned.memory, request.budget);
    assert!(memory.total() <= budget, "{what}: {} of {budget}", memory.total());
    assert_eq!(planned.plan.uses_accelerator(), memory.total() > 0, "{what}");
    if memory.total() > 1 << 30 {
        return planned; // of more than a small device has, nothing is allocated
    }
    let cuda = Arc::new(Cuda::open(0).unwrap());
    let engine = exact()
        .kv(request.kv)
        .sparsity(request.sparsity)
        .predictors(request.predictors.clone())
        .accelerator(cuda.clone(), planned.plan.clone())
        .load(file)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(cuda.allocated(), memory.weights(), "{what}: weights");
    let mut session = engine.session(&request.session).unwrap_or_else(|e| panic!("{what}: {e}"));
    let passing = match request.predictors {
        Predictors::Oracle if planned.plan.layers.iter().any(|l| l.dense == Side::Accelerator) => {
            cuda.footprint().passing(session.batch(), engine.config().neurons)
        }
        _ => 0,
    };
    let all = memory.total() - memory.runtime;
    let kept = if all == 0 { 0 } else { all - passing };
    assert_eq!(cuda.allocated(), kept, "{what}: with a session");
    // the driver's own count, where nobody else uses the device
    cuda.synchronize().unwrap();
    let (free, total) = cuda.memory().unwrap();
    if emulated {
        // a few KiB more are of the runtime: where kernels count
        let all = total - free;
        assert!((kept..=kept + (64 << 10)).contains(&all), "{what}: {all} by the driver's count, {kept} by ours");
    }
    session
        .feed(0, &ids(session.batch().min(session.context() - 1).min(40), 3))
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(cuda.allocated(), kept, "{what}: after a step");
    assert!(cuda.most_allocated() <= all, "{what}: {} at once, {all} planned", cuda.most_allocated());
    drop((session, engine));
    assert_eq!(cuda.allocated(), 0, "{what}: when all is gone");
    planned
}

/// Budgets from nothing to a thousand GiB.
fn budgets(what: &str, file: &File, request: &Request<'_>, emulated: bool) {
    let everything = planner::plan(file, &Request { budget: u64::MAX >> 1, ..request.clone() }).unwrap();
    let need = everything.memory.total();
    for (name, budget) in [
        ("0", 0),
        ("tiny", need / 50),
        ("a quarter", need / 4),
        ("most", need - need / 8),
        ("the need", need),
        ("1000 GiB", 1000 << 30),
    ] {
        let what = format!("{what}, budget {name} ({budget})");
        let planned = holds(&what, file, &Request { budget, ..request.clone() }, emulated);
        if budget >= need && request.policy == Policy::Impact {
            assert_eq!(planned.plan, everything.plan, "{what}");
        }
        // the least time may be reached in several ways, and in whole pieces not each of them fits
        if budget >= need {
            assert!(
                planned.hot() as f64 >= 0.9 * everything.hot() as f64,
                "{what}: {} of {}",
                planned.hot(),
                everything.hot()
            );
        }
    }
}

#[test]
fn what_is_planned_is_what_is_allocated_for_every_family() {
    let Some((_turn, driver)) = alone() else { return };
    let device = Cuda::open(0).unwrap();
    for (i, (name, model)) in predicted_models().enumerate() {
        let file = TinyModel { neurons: 300, context: 600, ..model }.file();
        for (k, predictors) in
            [Predictors::default(), Predictors::Oracle, Predictors::Sign { margin: 0.0 }].iter().enumerate()
        {
            let batch = [1, 33, 512][(i + k) % 3];
            let request = Request {
                session: SessionOptions { batch, context: Some(513), logits: 1 + k, ..SessionOptions::default() },
                kv: KvType::F16.into(),
                sparsity: Sparsity::Predictor,
                predictors,
                policy: [Policy::Time, Policy::Impact][i % 2],
                costs: quick(),
                runtime: Some(0),
                ..Request::new(&device, 0)
            };
            budgets(&format!("{name}, {predictors:?}, batch {batch}"), &file, &request, driver.is_some());
        }
    }
}

#[test]
fn what_is_planned_is_what_is_allocated_for_every_type_and_layout() {
    let Some((_turn, driver)) = alone() else { return };
    let device = Cuda::open(0).unwrap();
    for (i, ty) in QuantType::ALL.into_iter().enumerate() {
        let (family, qkv_bias) = [(Family::Llama, true), (Family::Opt, false)][i % 2];
        let model = TinyModel { neuron_major: i % 3 > 0, family, qkv_bias, neurons: 256, ..TinyModel::wide(ty) };
        let file = model.file();
        let request = Request {
            session: SessionOptions { batch: 5, logits: 3, context: Some(64), sequences: 2 },
            kv: KvType::Q8_0.into(),
            sparsity: [Sparsity::Auto, Sparsity::Off][i / 2 % 2],
            policy: Policy::Impact,
            runtime: Some(0),
            ..Request::new(&device, 0)
        };
        budgets(&format!("{ty}, {family:?}, {}", model.neuron_major), &file, &request, driver.is_some());
    }
}

/// Memory comes in pieces, and the second half of an FFN needs more room for more neurons: a plan leaves little of a budget all the same.
#[test]
fn a_budget_is_used() {
    let Some((_turn, _)) = alone() else { return };
    let device = Cuda::open(0).unwrap();
    let file = TinyModel { neuron_major: true, neurons: 700, layers: 3, ..TinyModel::default() }.file();
    let session = SessionOptions { batch: 8, context: Some(64), ..SessionOptions::default() };
    let request = Request {
        session,
        policy: Policy::Impact,
        costs: quick(),
        runtime: Some(0),
        ..Request::new(&device, u64::MAX >> 1)
    };
    let everything = planner::plan(&file, &request).unwrap();
    let need = everything.memory.total();
    for part in [0.7, 0.85, 0.97] {
        let budget = (need as f64 * part) as u64;
        let planned = planner::plan(&file, &Request { budget, ..request.clone() }).unwrap();
        let used = planned.memory.total() as f64 / budget as f64;
        assert!(used > 0.95 && used <= 1.0, "{part}: {used}, {:?}", planned.memory);
    }
}

/// The runtime is a part of a budget, and what a device says of it is what the planner takes.
#[test]
fn the_runtime_is_planned() {
    let Some((_turn, _)) = alone() else { return };
    let device = Cuda::open(0).unwrap();
    let runtime = device.footprint().runtime();
    let file = TinyModel { neuron_major: true, ..TinyModel::default() }.file();
    let plan = |budget| planner::plan(&file, &Request { costs: quick(), ..Request::new(&device, budget) }).unwrap();
    assert!(runtime > 0 && device.reach().unwrap() <= device.memory().unwrap().1 + runtime);
    assert_eq!(plan(1 << 40).memory.runtime, runtime);
    assert!(!plan(runtime).plan.uses_accelerator());
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_the_bytes_it_wanted_and_those_that_are_free() {
    let Some((_turn, driver)) = alone() else { return };
    let Some(driver) = driver else { return eprintln!("SKIPPED: only the emulated device's memory can be set") };
    let file = TinyModel { neuron_major: true, ..TinyModel::default() }.file();
    let device = Cuda::open(0).unwrap();
    let request = Request { costs: quick(), runtime: Some(0), ..Request::new(&device, 1 << 40) };
    let planned = planner::plan(&file, &request).unwrap();
    let weights = planned.memory.weights();
    // as if somebody else had taken the rest after the plan was made
    for memory in [0, weights / 3, weights - 1, weights, planned.memory.total() - 1] {
        driver.set_memory(memory as usize);
        let cuda = Arc::new(Cuda::open(0).unwrap());
        let loaded = exact().accelerator(cuda.clone(), planned.plan.clone()).load(&file);
        let error = match loaded {
            Ok(engine) => {
                assert!(memory >= weights, "{memory}");
                engine.session(&request.session).map(drop).unwrap_err()
            }
            Err(e) => {
                assert!(memory < weights, "{memory}: {e}");
                e
            }
        };
        let message = error.to_string();
        assert!(
            message.contains("cuda:0") && message.contains("no memory for") && message.contains("are free"),
            "{message}"
        );
        assert_eq!(cuda.allocated(), 0, "{memory}: nothing stays");
    }
    driver.set_memory(1 << 30);
    assert!(exact().accelerator(Arc::new(device), planned.plan).load(&file).is_ok());
}

#[test]
fn whole_layers_and_everything_but_ffns_take_what_is_planned() {
    let Some((_turn, driver)) = alone() else { return };
    let device = Cuda::open(0).unwrap();
    let file = TinyModel { layers: 3, neurons: 300, neuron_major: true, ..TinyModel::wide(QuantType::Q4_0) }.file();
    let session = SessionOptions { batch: 33, context: Some(200), ..SessionOptions::default() };
    let request = Request { session, kv: KvType::F16.into(), ..Request::new(&device, 1 << 40) };
    for split in [0, 1, 3, 4].into_iter().flat_map(|n| [Split::Layers(n), Split::CpuFfns(n)]) {
        let planned = planner::split(&file, &request, split).unwrap();
        takes(&split.to_string(), &file, &request, driver.is_some(), planned);
    }
}
