//! Neurons of the CPU that are sent to the accelerator for long prompts: the logits stay, the budget is kept, and it is done when it pays.

use crate::common::{
    difference, exact, ids, logits_in,
    placed::{Hot, TOLERANCE, plan, sim},
    predicted_models,
};
use pi_core::QuantType;
use pi_engine::{
    Engine, EngineBuilder, Error, Observer, OnDeviceLoss, SessionOptions, Side, Sparsity, StepToken, Streaming,
    costs::{Costs, Figure},
    planner::{self, Request},
};
use pi_gguf::File;
use pi_testkit::{
    TinyModel,
    sim::{SimDevice, SimOptions},
};
use std::{sync::Arc, time::Instant};

fn always(from: usize) -> Option<Streaming> {
    Some(Streaming { from, memory: u64::MAX })
}

fn tiny() -> File {
    TinyModel { neuron_major: true, ..TinyModel::wide(QuantType::Q8_0) }.file()
}

fn placed(
    settings: EngineBuilder,
    file: &File,
    (hot, dense): (Hot, Side),
    streaming: Option<Streaming>,
    options: SimOptions,
) -> (Engine, Arc<SimDevice>) {
    let device = sim(options);
    let plan = plan(&exact().load(file).unwrap(), hot, dense);
    (settings.streaming(streaming).accelerator(device.clone(), plan).load(file).unwrap(), device)
}

/// In steps of all tokens, and how many layers' neurons were sent to the device for them.
fn agree(what: &str, file: &File, settings: &dyn Fn() -> EngineBuilder) {
    let cpu = settings().load(file).unwrap();
    for tokens in [1, 9, 40, 70] {
        let tokens = ids(tokens, 7);
        let want = logits_in(&cpu, &tokens, tokens.len());
        for place in [(Hot::Half, Side::Accelerator), (Hot::Random(2), Side::Cpu), (Hot::None, Side::Accelerator)] {
            for from in [1, 8, 33] {
                let what = format!("{what}, {place:?}, {} tokens, streaming from {from}", tokens.len());
                let (both, device) = placed(settings(), file, place, always(from), SimOptions::default());
                let off = difference(&logits_in(&both, &tokens, tokens.len()), &want);
                assert!(off <= TOLERANCE, "{what}: {off:e}");
                let sent = if tokens.len() >= from { cpu.config().layers as u64 } else { 0 };
                assert_eq!(device.counts().streamed, sent, "{what}");
            }
        }
    }
}

#[test]
fn logits_are_those_of_the_cpu_and_streaming_begins_at_the_stated_number() {
    let file = tiny();
    for sparsity in [Sparsity::Off, Sparsity::Exact] {
        agree(&format!("{sparsity:?}"), &file, &|| exact().sparsity(sparsity));
    }
    for (name, model) in predicted_models() {
        agree(name, &model.file(), &|| exact().sparsity(Sparsity::Predictor));
    }
}

#[test]
fn neurons_of_the_cpu_are_counted_and_observed_as_before() {
    struct Seen(Vec<f32>);
    impl Observer for Seen {
        fn inputs(&mut self, _: usize, _: &[f32], _: &[f32]) {}
        fn values(&mut self, _: usize, values: &[f32]) {
            self.0.extend(values);
        }
    }
    let file = tiny();
    let settings = || exact().sparsity(Sparsity::Exact);
    let look = |engine: &Engine| {
        let (mut s, mut seen) = (engine.session(&SessionOptions::default()).unwrap(), Seen(Vec::new()));
        s.step_with(&steps(&ids(9, 2)), &mut seen).unwrap();
        (seen.0, s.stats().active, s.stats().marked)
    };
    let want = look(&settings().load(&file).unwrap());
    for place in [(Hot::Half, Side::Accelerator), (Hot::None, Side::Accelerator), (Hot::One, Side::Cpu)] {
        let (both, device) = placed(settings(), &file, place, always(2), SimOptions::default());
        let got = look(&both);
        assert!(device.counts().streamed > 0, "{place:?}");
        assert!(difference(&[got.0], std::slice::from_ref(&want.0)) <= TOLERANCE, "{place:?}");
        assert_eq!((&got.1, &got.2), (&want.1, &want.2), "{place:?}");
    }
}

fn steps(ids: &[u32]) -> Vec<StepToken> {
    ids.iter().map(|&token| StepToken { token, seq: 0, logits: false }).collect()
}

#[test]
fn the_memory_that_is_left_is_never_exceeded_and_one_layer_is_there_at_a_time() {
    let file = tiny();
    let place = (Hot::Half, Side::Accelerator);
    let (cpu, tokens) = (exact().load(&file).unwrap(), ids(40, 3));
    let want = logits_in(&cpu, &tokens, 40);
    let c = cpu.config();
    // half of the neurons, of three rows each, and scratch for 40 tokens
    let half = c.neurons as u64 / 2;
    let one = half * 3 * QuantType::Q8_0.row_bytes(c.dim).unwrap() as u64 + 4 * 40 * (half + c.dim as u64);
    let most = |streaming: Option<Streaming>, memory| {
        let options = SimOptions { memory, ..SimOptions::default() };
        let (both, device) = placed(exact(), &file, place, streaming, options);
        let mut s = both.session(&SessionOptions { batch: 40, logits: 40, ..Default::default() }).unwrap();
        s.step(&crate::common::step(0, &tokens)).unwrap();
        assert!(difference(&crate::common::rows(&mut s, 40), &want) <= TOLERANCE);
        let (stats, layers) = (s.stats(), cpu.config().layers as u64);
        assert_eq!(stats.streamed + stats.not_streamed, if streaming.is_some() { layers } else { 0 });
        if memory == 1 << 30 {
            assert_eq!(stats.streamed, device.counts().streamed);
        } else {
            let fits = memory >= device.used() + one;
            assert_eq!((stats.streamed, stats.not_streamed), if fits { (layers, 0) } else { (0, layers) });
        }
        (device.most_used(), device.counts().streamed)
    };
    let (without, none) = most(None, 1 << 30);
    assert_eq!(none, 0);
    let layers = c.layers as u64;
    assert_eq!(most(always(8), 1 << 30), (without + one, layers), "what is sent is dropped again");
    // a device that has no more than that, and a setting that allows no more than that
    let allowed = |memory| Some(Streaming { from: 8, memory });
    for room in [0, one / 2, one - 1, one, 2 * one] {
        let sent = if room < one { 0 } else { layers };
        let (used, streamed) = most(allowed(room), 1 << 30);
        assert_eq!((used <= without + room, streamed), (true, sent), "{room} of {one} allowed");
        let (used, streamed) = most(always(8), without + room);
        assert!(used <= without + room, "{used} of {}", without + room);
        // weights without scratch may be on their way before it is known
        assert!(streamed == sent || room < one, "{room} of {one} there: {streamed}");
    }
}

#[test]
fn a_device_that_is_lost_is_a_typed_error_or_the_cpu_goes_on() {
    let file = tiny();
    let place = (Hot::Half, Side::Accelerator);
    let (cpu, tokens) = (exact().load(&file).unwrap(), ids(9, 3));
    let want = logits_in(&cpu, &tokens, 9);
    let mut failed = 0;
    for left in 0..40 {
        let (both, device) = placed(exact(), &file, place, always(2), SimOptions::default());
        let mut s = both.session(&SessionOptions::default()).unwrap();
        device.lose_after(left);
        match s.feed(0, &tokens).map(|l| l.to_vec()) {
            Ok(got) => assert!(difference(&[got], &want[8..]) <= TOLERANCE),
            Err(e) => {
                assert!(matches!(&e, Error::Core(pi_core::Error::Device { .. })), "{e}");
                assert!([0, 9].contains(&s.len(0)), "a step is all or nothing, and its logits may be lost after it");
                failed += 1;
            }
        }
        let settings = exact().on_device_loss(OnDeviceLoss::Cpu);
        let (both, device) = placed(settings, &file, place, always(2), SimOptions::default());
        let mut s = both.session(&SessionOptions::default()).unwrap();
        device.lose_after(left);
        let got = s.feed(0, &tokens).unwrap().to_vec();
        assert!(difference(&[got], &want[8..]) <= TOLERANCE, "lost after {left}");
    }
    assert!(failed > 5, "{failed}");
}

fn costs(link: f64) -> Costs {
    let mut costs = Costs { link: Figure::measured(link), ..Costs::default() };
    (costs.host.prompt, costs.device.prompt) = (Figure::measured(1e9), Figure::measured(1e12));
    costs
}

#[test]
fn the_plan_says_from_when_on_it_pays_and_what_it_takes() {
    let file = tiny();
    let device = sim(SimOptions::default());
    let session = SessionOptions { batch: 64, context: Some(64), ..SessionOptions::default() };
    let hot: Vec<_> = {
        let cpu = exact().load(&file).unwrap();
        plan(&cpu, Hot::Half, Side::Cpu).layers.into_iter().map(|l| l.hot).collect()
    };
    let request = |link| Request {
        session: session.clone(),
        kv: pi_core::KvType::F32.into(),
        costs: costs(link),
        hot: Some(&hot),
        ..Request::new(&*device, 1 << 28)
    };
    let planned = planner::plan(&file, &request(1e9)).unwrap();
    let found = planned.streaming.expect("it pays");
    assert!((2..=64).contains(&found.from), "{found:?}");
    assert_eq!(planned.affordable_streaming(), Some(found));
    // half the link's speed: twice the tokens
    let half = planner::plan(&file, &request(0.5e9)).unwrap().streaming.expect("it pays");
    assert!(half.from.abs_diff(2 * found.from) <= 1, "{half:?}, {found:?}");
    assert_eq!(planner::plan(&file, &request(1e6)).unwrap().streaming, None, "a slow link");
    let mut slow = request(1e12);
    slow.costs.device.prompt = Figure::measured(1.5e9);
    assert_eq!(
        planner::plan(&file, &slow).unwrap().streaming,
        None,
        "half of the work, and a device that is no quicker for all"
    );

    // what is said of the memory is what is taken, and a budget without it does not have it
    let need = planned.memory.total();
    let tight =
        planner::assess(&file, &Request { budget: need + found.memory - 1, ..request(1e9) }, planned.plan.clone());
    let tight = tight.unwrap();
    assert_eq!((tight.streaming, tight.affordable_streaming()), (Some(found), None));
    let own = sim(SimOptions { memory: need + found.memory, ..SimOptions::default() });
    let engine = exact().streaming(Some(found)).accelerator(own.clone(), planned.plan).load(&file).unwrap();
    let mut s = engine.session(&session).unwrap();
    s.feed(0, &ids(63, 1)).unwrap();
    assert_eq!(own.counts().streamed, engine.config().layers as u64);
    s.truncate(0, 0);
    s.feed(0, &ids(found.from - 1, 1)).unwrap();
    assert_eq!(own.counts().streamed, engine.config().layers as u64);
    s.truncate(0, 0);
    s.feed(0, &ids(64, 1)).unwrap();
    assert_eq!(own.most_used(), need + found.memory);
}

#[test]
fn a_prompt_is_shorter_with_a_fast_link_and_longer_with_a_slow_one() {
    let file = TinyModel { neuron_major: true, layers: 1, ..TinyModel::default() }.file();
    let cpu = exact().load(&file).unwrap();
    let ffn = 3.0 * 4.0 * (cpu.config().dim * cpu.config().neurons) as f64;
    // the CPU takes a fifth of a second for half of the neurons, and the link so many seconds
    let took = |streaming, seconds: f64| {
        let host = sim(SimOptions { name: "host".into(), bandwidth: 2.5 * ffn, ..SimOptions::default() });
        let link = if seconds > 0.0 { ffn / 2.0 / seconds } else { f64::INFINITY };
        let accelerator = sim(SimOptions { link, ..SimOptions::default() });
        let plan = plan(&cpu, Hot::Half, Side::Accelerator);
        let settings = exact().sparsity(Sparsity::Off).streaming(streaming).device(host);
        let engine = settings.accelerator(accelerator.clone(), plan).load(&file).unwrap();
        let mut s = engine.session(&SessionOptions::default()).unwrap();
        let start = Instant::now();
        s.feed(0, &ids(8, 1)).unwrap();
        (start.elapsed().as_secs_f64(), accelerator.counts().moved)
    };
    let ((without, moved), (fast, more), (slow, _)) = (took(None, 0.0), took(always(8), 0.0), took(always(8), 0.6));
    assert!(fast + 0.1 < without, "{fast} s with, {without} s without");
    assert!(slow > without + 0.2, "{slow} s with a slow link, {without} s without");
    assert!(more as f64 >= moved as f64 / 2.0 + ffn / 2.0, "weights are counted: {moved}, {more}");
}
