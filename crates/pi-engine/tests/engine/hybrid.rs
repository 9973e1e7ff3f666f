//! The law of the engine: wherever neurons and layers are, the logits are those of the CPU alone.

use crate::common::{
    difference, exact, ids, logits_in,
    placed::{ALL, Hot, TOLERANCE, plan, sim, sim_of},
    predicted_models,
};
use pi_core::{NeuronSet, QuantType, Serial};
use pi_engine::{Engine, EngineBuilder, Observer, Plan, Predictors, SessionOptions, Side, Sparsity, StepToken};
use pi_gguf::File;
use pi_sparse_cpu::{CpuDevice, Crossover, Kernels};
use pi_testkit::{TinyModel, sim::SimOptions};
use std::{sync::Arc, time::Instant};

fn agree(what: &str, file: &File, settings: &dyn Fn() -> EngineBuilder, tolerance: f64) {
    let cpu = settings().load(file).unwrap();
    let tokens = ids(9, 5);
    let want: Vec<_> = [1, 4, 9].map(|batch| logits_in(&cpu, &tokens, batch)).into();
    for hot in ALL {
        for dense in [Side::Cpu, Side::Accelerator] {
            let device = sim(SimOptions::default());
            let plan = plan(&cpu, hot, dense);
            let both = settings().accelerator(device.clone(), plan).load(file).unwrap();
            for (batch, want) in [1, 4, 9].into_iter().zip(&want) {
                let off = difference(&logits_in(&both, &tokens, batch), want);
                assert!(off <= tolerance, "{what}, {hot:?} hot, dense parts on {dense:?}, steps of {batch}: {off:e}");
            }
            let used = !matches!((hot, dense), (Hot::None, Side::Cpu));
            assert_eq!(device.counts().launches > 0, used, "{what}, {hot:?}, {dense:?}");
        }
    }
}

#[test]
fn logits_do_not_depend_on_where_neurons_are() {
    for ty in [QuantType::F32, QuantType::F16, QuantType::Q4_0, QuantType::Q8_0, QuantType::Q4_K] {
        let model = TinyModel { neuron_major: true, ..TinyModel::wide(ty) };
        let file = model.file();
        for sparsity in [Sparsity::Off, Sparsity::Exact] {
            agree(&format!("{ty}, {sparsity:?}"), &file, &|| exact().sparsity(sparsity), TOLERANCE);
        }
    }
}

#[test]
fn logits_do_not_depend_on_where_neurons_are_when_predictors_choose_them() {
    for (name, model) in predicted_models() {
        let file = model.file();
        for predictors in [Predictors::default(), Predictors::Oracle, Predictors::Sign { margin: 0.0 }] {
            let what = format!("{name}, {predictors:?}");
            let settings = || exact().sparsity(Sparsity::Predictor).predictors(predictors.clone());
            agree(&what, &file, &settings, TOLERANCE);
        }
    }
}

#[test]
fn no_neuron_is_counted_twice_or_lost() {
    let file = TinyModel { neuron_major: true, ..TinyModel::default() }.file();
    let cpu = exact().sparsity(Sparsity::Exact).load(&file).unwrap();
    let counted = |engine: &Engine| {
        let mut s = engine.session(&SessionOptions::default()).unwrap();
        s.feed(0, &ids(7, 3)).unwrap();
        (s.stats().active, s.stats().marked)
    };
    let want = counted(&cpu);
    assert!(want.0.iter().all(|share| (0.05..0.95).contains(share)), "{want:?}");
    for hot in ALL {
        let plan = plan(&cpu, hot, Side::Accelerator);
        let both = exact().sparsity(Sparsity::Exact).accelerator(sim(SimOptions::default()), plan).load(&file).unwrap();
        assert_eq!(counted(&both), want, "{hot:?}");
    }
}

/// Paper §5.2: per hybrid layer, its input and its marks go down, the cold part goes up, and the host waits once; whatever is at
/// home moves nothing. So it is for one token and for several.
#[test]
fn a_hybrid_layer_waits_once_and_a_hot_one_never() {
    let (_, model) = predicted_models().next().unwrap();
    let file = model.file();
    let cpu = exact().load(&file).unwrap();
    let layers = cpu.config().layers as u64;
    let (here, there) = (Side::Accelerator, Side::Cpu);
    for (hot, dense, per_layer) in [
        (Hot::Half, here, (1, 2, 1)),
        (Hot::One, here, (1, 2, 1)),
        (Hot::All, here, (0, 0, 0)),
        (Hot::None, here, (1, 2, 1)),
        (Hot::Half, there, (2, 1, 1)),
        (Hot::All, there, (2, 1, 1)),
        (Hot::None, there, (0, 0, 0)),
    ] {
        let device = sim(SimOptions::default());
        let engine = exact()
            .sparsity(Sparsity::Predictor)
            .accelerator(device.clone(), plan(&cpu, hot, dense))
            .load(&file)
            .unwrap();
        let mut s = engine.session(&SessionOptions { sequences: 8, ..Default::default() }).unwrap();
        for tokens in [1, 2, 8, 1] {
            let before = device.counts();
            let step: Vec<_> = (0..tokens).map(|i| StepToken { token: 5 + i, seq: i, logits: false }).collect();
            s.step(&step).unwrap();
            let now = device.counts();
            let (up, down, waits) =
                (now.uploads - before.uploads, now.downloads - before.downloads, now.waits - before.waits);
            // the tokens' embeddings go up as well
            let first = u64::from(dense == here);
            assert_eq!(
                (up, down, waits),
                (first + layers * per_layer.0, layers * per_layer.1, layers * per_layer.2),
                "{hot:?}, {dense:?}, {tokens} tokens"
            );
        }
    }
}

/// Above the crossover neither side looks at single neurons.
#[test]
fn long_prompts_run_dense_on_both_sides() {
    let file = TinyModel { neuron_major: true, ..TinyModel::default() }.file();
    let cpu = exact().load(&file).unwrap();
    for (share, dense) in [(0.1, 1.0), (1.0, 0.0)] {
        let crossover = Crossover::uniform(share);
        let there = CpuDevice::new(Kernels::reference(), Arc::new(Serial)).with_crossover(crossover);
        let engine = exact()
            .sparsity(Sparsity::Exact)
            .crossover(crossover)
            .accelerator(sim_of(there, SimOptions::default()), plan(&cpu, Hot::Half, Side::Accelerator))
            .load(&file)
            .unwrap();
        let mut s = engine.session(&SessionOptions::default()).unwrap();
        // what was seen of the first prompt decides on the second
        let tokens = ids(60, 8);
        s.feed(0, &tokens[..20]).unwrap();
        s.reset_stats();
        s.feed(0, &tokens[20..]).unwrap();
        assert_eq!(s.stats().dense_share(), Some(dense), "crossover at {share}");
    }
}

/// With equal sides a layer takes little longer than one of them (at most 1.15 times), not as long as both.
#[test]
fn both_sides_work_at_the_same_time() {
    let file = TinyModel { neuron_major: true, layers: 1, ..TinyModel::default() }.file();
    let cpu = exact().load(&file).unwrap();
    let ffn = 3 * 4 * (cpu.config().dim * cpu.config().neurons) as u64;
    // as slow as it takes for the whole FFN to keep a side busy for a fifth of a second
    let slow = 5.0 * ffn as f64;
    let took = |hot, bandwidth| {
        let host = sim(SimOptions { name: "host".into(), bandwidth: slow, ..SimOptions::default() });
        let accelerator = sim(SimOptions { bandwidth, ..SimOptions::default() });
        let engine = exact()
            .sparsity(Sparsity::Off)
            .device(host)
            .accelerator(accelerator, plan(&cpu, hot, Side::Cpu))
            .load(&file)
            .unwrap();
        let mut s = engine.session(&SessionOptions::default()).unwrap();
        s.feed(0, &[1]).unwrap();
        let start = Instant::now();
        s.feed(0, &[2]).unwrap();
        start.elapsed().as_secs_f64()
    };
    // a busy machine may be late, so one of a few attempts has to do
    let mut seen = Vec::new();
    for _ in 0..6 {
        let rest = took(Hot::All, f64::INFINITY);
        let (whole, halves) = (took(Hot::None, slow) - rest, took(Hot::Half, slow) - rest);
        seen.push(halves / (whole / 2.0));
        if seen.last().is_some_and(|ratio| (0.8..=1.15).contains(ratio)) {
            return;
        }
    }
    panic!("{seen:?} times the slower side");
}

#[test]
fn a_device_that_is_lost_or_too_small_is_a_typed_error() {
    let file = TinyModel { neuron_major: true, ..TinyModel::default() }.file();
    let cpu = exact().load(&file).unwrap();
    let device = sim(SimOptions::default());
    let engine = exact().accelerator(device.clone(), plan(&cpu, Hot::Half, Side::Accelerator)).load(&file).unwrap();
    let mut s = engine.session(&SessionOptions::default()).unwrap();
    s.feed(0, &ids(3, 1)).unwrap();
    for left in 0..6 {
        device.lose_after(left);
        let e = s.feed(0, &[1]).unwrap_err().to_string();
        assert!(e.contains("sim:0") && e.contains("lost"), "{e}");
        assert_eq!(s.len(0), 3, "a failed step leaves the sequence as it was");
    }
    let needed = sim(SimOptions::default());
    drop(exact().accelerator(needed.clone(), Plan::whole(cpu.config(), Side::Accelerator)).load(&file).unwrap());
    assert_eq!(needed.used(), 0, "what is dropped is free again");
    let engine = exact().accelerator(needed.clone(), Plan::whole(cpu.config(), Side::Accelerator)).load(&file).unwrap();
    let weights = needed.used();
    drop(engine);
    for memory in [0, weights / 2, weights - 1, weights] {
        let small = sim(SimOptions { memory, ..SimOptions::default() });
        let plan = Plan::whole(cpu.config(), Side::Accelerator);
        let e = match exact().accelerator(small, plan).load(&file) {
            Err(e) => e.to_string(),
            Ok(engine) => engine.session(&SessionOptions::default()).err().expect("no room for a cache").to_string(),
        };
        assert!(e.contains("sim:0") && e.contains("no memory"), "{e}");
    }
}

/// Profiling and training look at what every neuron contributed with, wherever it is.
#[test]
fn observers_see_the_neurons_of_both_sides() {
    struct Seen(Vec<f32>);
    impl Observer for Seen {
        fn inputs(&mut self, _: usize, h: &[f32], x: &[f32]) {
            self.0.extend(h.iter().chain(x));
        }
        fn values(&mut self, _: usize, values: &[f32]) {
            self.0.extend(values);
        }
    }
    let file = TinyModel { neuron_major: true, ..TinyModel::default() }.file();
    let cpu = exact().sparsity(Sparsity::Exact).load(&file).unwrap();
    let seen = |engine: &Engine| {
        let (mut s, mut seen) = (engine.session(&SessionOptions::default()).unwrap(), Seen(Vec::new()));
        for part in [&[1, 2, 3][..], &[4]] {
            let step: Vec<_> = part.iter().map(|&token| StepToken { token, seq: 0, logits: false }).collect();
            s.step_with(&step, &mut seen).unwrap();
        }
        seen.0
    };
    let want = seen(&cpu);
    for hot in [Hot::One, Hot::Half, Hot::Random(3)] {
        for dense in [Side::Cpu, Side::Accelerator] {
            let both =
                exact().sparsity(Sparsity::Exact).accelerator(sim(SimOptions::default()), plan(&cpu, hot, dense));
            let off = difference(&[seen(&both.load(&file).unwrap())], std::slice::from_ref(&want));
            assert!(off <= TOLERANCE, "{hot:?}, {dense:?}: {off:e}");
        }
    }
}

#[test]
fn a_down_matrix_that_cannot_be_divided_is_an_error_with_its_name() {
    let file = TinyModel { neuron_major: false, ..TinyModel::wide(QuantType::Q4_0) }.file();
    let cpu = exact().load(&file).unwrap();
    let load = |hot| {
        let accelerated = exact().accelerator(sim(SimOptions::default()), plan(&cpu, hot, Side::Accelerator));
        accelerated.load(&file).map(|_| ()).map_err(|e| e.to_string())
    };
    let e = load(Hot::Half).unwrap_err();
    assert!(e.contains("blk.0.ffn_down.weight") && e.contains("neuron-major"), "{e}");
    assert_eq!((load(Hot::All), load(Hot::None)), (Ok(()), Ok(())));
}

#[test]
fn types_that_the_accelerator_lacks_stay_on_the_cpu() {
    let file = TinyModel { neuron_major: true, ..TinyModel::wide(QuantType::Q4_0) }.file();
    let cpu = exact().load(&file).unwrap();
    let device = sim(SimOptions { lacking: vec![QuantType::Q4_0], ..SimOptions::default() });
    let engine = exact().accelerator(device.clone(), Plan::whole(cpu.config(), Side::Accelerator)).load(&file).unwrap();
    assert!(device.used() < 64 << 10, "only norms may be there, not {} bytes", device.used());
    let tokens = ids(5, 2);
    assert!(difference(&logits_in(&engine, &tokens, 5), &logits_in(&cpu, &tokens, 5)) <= TOLERANCE);
    // predictors of another type than the rest
    let (_, model) = predicted_models().next().unwrap();
    let file = TinyModel { ty: QuantType::F16, ..model }.file();
    let settings = || exact().sparsity(Sparsity::Predictor);
    let cpu = settings().load(&file).unwrap();
    for lacking in [vec![QuantType::F16], vec![QuantType::F32], vec![QuantType::F16, QuantType::F32]] {
        let device = sim(SimOptions { lacking, ..SimOptions::default() });
        let both = settings().accelerator(device, plan(&cpu, Hot::Half, Side::Accelerator)).load(&file).unwrap();
        assert!(difference(&logits_in(&both, &tokens, 5), &logits_in(&cpu, &tokens, 5)) <= TOLERANCE);
    }
}

#[test]
fn a_plan_for_another_model_is_refused() {
    let file = TinyModel::default().file();
    let cpu = exact().load(&file).unwrap();
    let whole = Plan::whole(cpu.config(), Side::Accelerator);
    let mut short = whole.clone();
    short.layers.pop();
    let mut narrow = whole;
    narrow.layers[1].hot = NeuronSet::all(7);
    for (plan, named) in [(short, "layers"), (narrow, "layer 1")] {
        let e = exact().accelerator(sim(SimOptions::default()), plan).load(&file).unwrap_err().to_string();
        assert!(e.contains("plan") && e.contains(named), "{e}");
    }
}
