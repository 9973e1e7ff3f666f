//! What the planner says is what is allocated, and the budget is kept whatever it is.

use crate::common::{difference, exact, ids, logits_in, predicted_models};
use pi_core::{KvType, NeuronSet, QuantType, Serial};
use pi_engine::{
    Engine, LayerPlan, Predictors, SessionOptions, Sparsity,
    costs::{Costs, Figure},
    pi_predictor::profile::{LayerCounts, Profile},
    planner::{self, Planned, Policy, Request, hot_of_index, index_of_plan},
};
use pi_gguf::{File, LayerIndex, NeuronIndex};
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
                        runtime: Some(12_345),
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

/// Row P08: the KV cache of a long context and the scratch of large steps are within the budget.
#[test]
fn long_contexts_and_large_steps_keep_the_budget() {
    let (file, device) = (TinyModel { neuron_major: true, ..TinyModel::wide(QuantType::Q4_0) }.file(), of_memory(0));
    for (batch, context) in [(1, 512), (512, 512), (1, 32 << 10), (512, 32 << 10)] {
        let session = SessionOptions { batch, context: Some(context), ..SessionOptions::default() };
        let request = Request { session, policy: Policy::Impact, costs: quick(), ..Request::new(&*device, 0) };
        budgets(&format!("context {context}, batch {batch}"), &file, &request);
        for budget in [100 << 20, 1 << 30, 1000 << 30] {
            let planned = holds("fixed budgets", &file, &Request { budget, ..request.clone() });
            assert_eq!(planned.hot(), planned.neurons(), "{budget}");
        }
    }
}

#[test]
fn logits_do_not_depend_on_the_budget_or_the_policy() {
    let model = TinyModel { neuron_major: true, neurons: 320, layers: 3, ..TinyModel::default() };
    let (file, profile, any) = (model.file(), profile(3, 320), of_memory(0));
    let tokens = ids(9, 5);
    let want = logits_in(&exact().load(&file).unwrap(), &tokens, 4);
    let session = SessionOptions { batch: 4, logits: 4, ..SessionOptions::default() };
    let kv = KvType::F32.into();
    let request = Request { session, kv, profile: Some(&profile), ..Request::new(&*any, 1 << 40) };
    let need = planner::plan(&file, &Request { policy: Policy::Frequency, ..request.clone() }).unwrap().memory.total();
    for policy in
        [Policy::Time, Policy::Impact, Policy::Frequency, Policy::Random { seed: 1 }, Policy::InOrder, Policy::Nothing]
    {
        for part in [0, 40, 80, 90, 100] {
            let budget = need * part / 100;
            let planned = planner::plan(&file, &Request { budget, policy, ..request.clone() }).unwrap();
            let device = of_memory(budget);
            let off = difference(&logits_in(&engine(&request, &device, &planned, &file), &tokens, 4), &want);
            assert!(off <= 2e-5, "{policy}, {part} %: {off:e}");
        }
    }
}

/// A device on which synchronising costs next to nothing, as it does for layers of a usual size.
fn quick() -> Costs {
    Costs { sync: Figure::measured(1e-9), link: Figure::measured(1e12), ..Costs::default() }
}

#[test]
fn hit_rates_and_times_are_what_the_profile_says_and_policies_are_best_at_what_they_want() {
    let model = TinyModel { neuron_major: true, neurons: 640, layers: 4, ..TinyModel::default() };
    let (file, profile, device) = (model.file(), profile(4, 640), of_memory(0));
    let session = SessionOptions { batch: 1, context: Some(64), ..SessionOptions::default() };
    let request = Request { session, profile: Some(&profile), costs: quick(), ..Request::new(&*device, 1 << 40) };
    let need = planner::plan(&file, &request).unwrap().memory.total();
    let plan = |policy| planner::plan(&file, &Request { budget: need * 6 / 10, policy, ..request.clone() }).unwrap();
    let [time, impact, frequency, random, in_order] =
        [Policy::Time, Policy::Impact, Policy::Frequency, Policy::Random { seed: 1 }, Policy::InOrder].map(plan);
    // counted here once more, by the profile itself
    let counts = profile.merged();
    let fired = |planned: &Planned| {
        let of = |(l, layer): (&LayerCounts, &LayerPlan)| layer.hot.iter().map(|i| l.fired()[i]).sum::<u64>();
        counts.layers().iter().zip(&planned.plan.layers).map(of).sum::<u64>() as f64 / counts.activations() as f64
    };
    for planned in [&time, &impact, &frequency, &random, &in_order] {
        assert!((planned.hit_rate() - fired(planned)).abs() < 1e-6, "{} {}", planned.hit_rate(), fired(planned));
        assert!(planned.times.total() > 0.0 && planned.statistics.tokens() == Some(100));
        let slowest = planned.times.layers.iter().all(|l| l.total <= l.host + l.device + l.sync + 1e-15);
        assert!(slowest, "a layer takes no longer than its parts one after the other");
    }
    for other in [&random, &in_order] {
        assert!(impact.hit_rate() > other.hit_rate() + 0.05, "{} {}", impact.hit_rate(), other.hit_rate());
        assert!(time.times.total() < other.times.total());
    }
    assert!(impact.hit_rate() >= frequency.hit_rate() - 0.01 && time.times.total() <= impact.times.total() * 1.001);
    for (planned, solver) in [(&time, "exact-time"), (&impact, "exact")] {
        let choice = planned.choice.as_ref().unwrap();
        assert_eq!(choice.solver, solver);
        assert!(choice.gap.is_some_and(|gap| gap < 0.05), "{:?}", choice.gap);
    }
    assert!(random.choice.unwrap().gap.is_none());
    assert!(in_order.plan.layers[0].hot.is_all(), "whole layers come first");
}

#[test]
fn what_was_not_counted_or_measured_is_said() {
    let (file, device) = (TinyModel { neuron_major: true, ..TinyModel::default() }.file(), of_memory(0));
    let request = Request::new(&*device, 1 << 30);
    let planned = planner::plan(&file, &request).unwrap();
    assert!(
        !planned.statistics.is_known() && planned.notes.iter().any(|n| n.contains("pi profile")),
        "{:?}",
        planned.notes
    );
    assert!(!planned.times.is_measured());
    let dense = planner::plan(&file, &Request { sparsity: Sparsity::Off, ..request.clone() }).unwrap();
    assert!(dense.statistics.is_known() && !dense.notes.iter().any(|n| n.contains("profile")), "{:?}", dense.notes);
    let counted = profile(2, 96);
    let dense = Request { sparsity: Sparsity::Off, profile: Some(&counted), ..request };
    assert!(planner::plan(&file, &dense).unwrap().notes[0].contains("the profile changes nothing"));
}

#[test]
fn profiles_of_other_models_are_refused() {
    let (file, device) = (TinyModel { neuron_major: true, ..TinyModel::default() }.file(), of_memory(0));
    let refused = |profile: &Profile, fingerprint, said: &str| {
        let request = Request { profile: Some(profile), fingerprint, ..Request::new(&*device, 1 << 30) };
        let e = planner::plan(&file, &request).unwrap_err().to_string();
        assert!(e.contains(said), "{e}");
    };
    refused(&profile(3, 96), None, "expected 2 layers of 192 neurons in all, got 3 layers of 288");
    refused(&profile(2, 97), None, "got 2 layers of 194");
    refused(&profile(2, 96), Some(8), "got 0000000000000007 (tiny)");
    refused(&Profile::new("tiny", 7, &[96, 96]), Some(7), "expected 1 or more, got 0");
    let fits = profile(2, 96);
    let request = Request { profile: Some(&fits), fingerprint: Some(7), ..Request::new(&*device, 1 << 30) };
    assert!(planner::plan(&file, &request).unwrap().statistics.is_known());
}

#[test]
fn what_the_device_has_no_kernels_for_stays_on_the_cpu() {
    for ty in [QuantType::Q4_0, QuantType::F16] {
        let file = TinyModel { neuron_major: true, ..TinyModel::wide(ty) }.file();
        let lacking = sim(SimOptions { lacking: vec![ty], ..SimOptions::default() });
        let planned = planner::plan(&file, &Request::new(&*lacking, 1 << 30)).unwrap();
        // of the model's tensors only the norms are of another type, and they go where attention is
        assert_eq!((planned.hot(), planned.memory.total(), planned.plan.uses_accelerator()), (0, 0, false));
        let engine = engine(&Request::new(&*lacking, 1 << 30), &lacking, &planned, &file);
        assert_eq!((lacking.used(), engine.device().info().name.as_str()), (0, "cpu"));
        assert!(planned.notes.iter().any(|n| n.contains(&format!("no kernels for {ty}"))), "{:?}", planned.notes);
    }
}

#[test]
fn an_index_of_a_plan_leads_to_the_same_plan() {
    let model = TinyModel { neuron_major: true, neurons: 320, layers: 3, ..TinyModel::default() };
    let (file, profile, device) = (model.file(), profile(3, 320), of_memory(0));
    let session = SessionOptions { batch: 8, ..SessionOptions::default() };
    let base = Request {
        session,
        profile: Some(&profile),
        policy: Policy::Impact,
        costs: quick(),
        ..Request::new(&*device, 1 << 40)
    };
    let need = planner::plan(&file, &base).unwrap().memory.total();
    for part in [0, 20, 50, 70, 90, 100] {
        let budget = need * part / 100;
        let request = Request { budget, ..base.clone() };
        let planned = planner::plan(&file, &request).unwrap();
        let index = index_of_plan(&planned.plan, budget).unwrap();
        assert_eq!(index.vram_capacity, budget);
        let hot = hot_of_index(&index, &pi_engine::arch::detect(&file).unwrap().1).unwrap();
        let again = planner::plan(&file, &Request { hot: Some(&hot), ..request.clone() }).unwrap();
        assert_eq!((&again.plan, again.memory.total()), (&planned.plan, planned.memory.total()), "{part} %");
        assert!(again.choice.is_none());
        let assessed = planner::assess(&file, &request, planned.plan.clone()).unwrap();
        assert_eq!((assessed.memory, assessed.times), (planned.memory.clone(), planned.times.clone()));
        if budget > 0 && planned.plan.uses_accelerator() {
            let tight = Request { budget: planned.memory.total() - 1, ..request.clone() };
            let e = planner::assess(&file, &tight, planned.plan).unwrap_err().to_string();
            assert!(e.contains("keeps the budget"), "{e}");
        }
    }
}

#[test]
fn an_index_of_another_shape_or_size_is_refused() {
    let model = TinyModel { neuron_major: true, ..TinyModel::default() };
    let (file, device) = (model.file(), of_memory(0));
    let config = pi_engine::arch::detect(&file).unwrap().1;
    let layer = |n: u32| LayerIndex::new(n, vec![0, 5]).unwrap();
    for (layers, said) in [
        (vec![layer(96)], "expected one of 2 layers, as the model has, got one of 1 layers"),
        (vec![layer(96), layer(97)], "expected layers of 96 neurons, as the model has, got 97 in layer 1"),
        (vec![layer(64), layer(96)], "got 64 in layer 0"),
    ] {
        let e = hot_of_index(&NeuronIndex { vram_capacity: 0, layers }, &config).unwrap_err().to_string();
        assert!(e.contains(said), "{e}");
    }
    let all = [NeuronSet::all(96), NeuronSet::all(96)];
    let e = planner::plan(&file, &Request { hot: Some(&all), ..Request::new(&*device, 1000) }).unwrap_err().to_string();
    assert!(e.contains("budget of the device: expected") && e.contains("got 1000"), "{e}");
    let along = TinyModel { neuron_major: false, ty: QuantType::Q8_0, ..TinyModel::default() }.file();
    let some = [NeuronSet::some(96, vec![3]).unwrap(), NeuronSet::none(96)];
    let e = planner::plan(&along, &Request { hot: Some(&some), ..Request::new(&*device, 1 << 30) }).unwrap_err();
    assert!(e.to_string().contains("blk.0.ffn_down.weight") && e.to_string().contains("neuron-major"), "{e}");
}

/// PowerInfer's own index of its own model.
#[test]
fn an_index_of_powerinfer_is_a_plan() {
    let Some(folder) = pi_testkit::data::test_data("powerinfer-samples/small") else { return };
    let file = File::open(folder.join("small.powerinfer.gguf")).unwrap();
    let index = NeuronIndex::open(folder.join("small.powerinfer.gguf.generated.gpuidx")).unwrap();
    let hot = hot_of_index(&index, &pi_engine::arch::detect(&file).unwrap().1).unwrap();
    let device = of_memory(1 << 30);
    let request = Request { hot: Some(&hot), sparsity: Sparsity::Predictor, ..Request::new(&*device, 1 << 30) };
    let planned = planner::plan(&file, &request).unwrap();
    assert_eq!(planned.plan.layers.iter().map(|l| l.hot.clone()).collect::<Vec<_>>(), hot);
    let _held = engine(&request, &device, &planned, &file);
    assert_eq!(device.used(), planned.memory.weights());
    assert_eq!(index_of_plan(&planned.plan, index.vram_capacity).unwrap(), index);
}

#[test]
fn sessions_that_cannot_be_opened_are_no_panic_and_those_that_are_too_large_stay_on_the_cpu() {
    let (file, device) = (TinyModel { neuron_major: true, ..TinyModel::default() }.file(), of_memory(0));
    let most = 1 << 24;
    for session in [
        SessionOptions { batch: 0, ..SessionOptions::default() },
        SessionOptions { sequences: most + 1, ..SessionOptions::default() },
        SessionOptions { context: Some(usize::MAX), ..SessionOptions::default() },
        SessionOptions { logits: 0, ..SessionOptions::default() },
    ] {
        let e = planner::plan(&file, &Request { session, ..Request::new(&*device, 1 << 30) }).unwrap_err().to_string();
        assert!(e.contains("expected a number from 1 to 16777216"), "{e}");
    }
    let session = SessionOptions { context: Some(most), batch: most, sequences: most, logits: most };
    let request = Request { session, ..Request::new(&*device, 1 << 30) };
    let planned = planner::plan(&file, &request).unwrap();
    assert!(!planned.plan.uses_accelerator() && planned.notes.iter().any(|n| n.contains("nothing is placed")));
    assert!(planner::plan(&file, &Request { budget: u64::MAX, ..request }).unwrap().memory.total() > 0);
    let opt = TinyModel { family: Family::Opt, tied: true, ..TinyModel::default() }.file();
    let session = SessionOptions { context: Some(1 << 20), ..SessionOptions::default() };
    let e = planner::plan(&opt, &Request { session, ..Request::new(&*device, 1 << 30) }).unwrap_err().to_string();
    assert!(e.contains("as many positions as the model has learned"), "{e}");
}
