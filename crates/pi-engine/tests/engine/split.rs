//! Whole layers, or everything but FFNs, on the accelerator: what is planned is allocated, and logits are those of the CPU.

use crate::common::{
    difference, exact, ids, logits_in,
    placed::{TOLERANCE, sim},
    predicted_models,
};
use pi_core::KvType;
use pi_engine::{
    LayerPlan, Predictors, SessionOptions, Side, Sparsity,
    planner::{self, Request, Split, split},
};
use pi_testkit::{TinyModel, sim::SimOptions};

const LAYERS: usize = 3;

/// Layers whose attention and FFN are on the device, and whether the output is.
fn placed(split: Split) -> ([[bool; 2]; LAYERS], bool) {
    match split {
        Split::Layers(n) => (std::array::from_fn(|i| [i + n >= LAYERS; 2]), n > LAYERS),
        Split::CpuFfns(n) => (std::array::from_fn(|i| [true, i >= n]), true),
        _ => unreachable!("there is no other"),
    }
}

fn splits() -> impl Iterator<Item = Split> {
    let numbers = [0, 1, 2, LAYERS, LAYERS + 1, 999];
    numbers.into_iter().flat_map(|n| [Split::Layers(n), Split::CpuFfns(n)])
}

#[test]
fn a_division_takes_what_is_planned_and_keeps_the_logits() {
    let tokens = ids(9, 5);
    for (name, model) in predicted_models() {
        let file = TinyModel { layers: LAYERS, neurons: 70, ..model }.file();
        for sparsity in [Sparsity::Off, Sparsity::Predictor] {
            let kv = KvType::F32.into();
            let want = logits_in(&exact().sparsity(sparsity).kv(KvType::F32).load(&file).unwrap(), &tokens, 4);
            for split in splits() {
                let what = format!("{name}, {sparsity:?}, {split}");
                let any = sim(SimOptions::default());
                let session = SessionOptions { batch: 4, logits: 4, context: Some(64), ..SessionOptions::default() };
                let predictors = Predictors::default();
                let request = Request {
                    session: session.clone(),
                    kv,
                    sparsity,
                    predictors: &predictors,
                    ..Request::new(&*any, u64::MAX)
                };
                let planned = planner::split(&file, &request, split).unwrap();
                let (layers, head) = placed(split);
                let is_there = |l: &LayerPlan| [l.dense == Side::Accelerator, l.hot.is_all()];
                assert_eq!(planned.plan.layers.iter().map(is_there).collect::<Vec<_>>(), layers, "{what}");
                assert!(planned.plan.layers.iter().all(|l| l.hot.is_all() || l.hot.is_empty()), "{what}");
                assert_eq!(planned.plan.head == Side::Accelerator, head, "{what}");
                // a device that has not a byte more
                let all = planned.memory.total();
                let device = sim(SimOptions { memory: all - planned.memory.runtime, ..SimOptions::default() });
                let settings = exact().sparsity(sparsity).kv(KvType::F32);
                let engine = settings.accelerator(device.clone(), planned.plan.clone()).load(&file).unwrap();
                assert_eq!(device.used(), planned.memory.weights(), "{what}: weights");
                let held = engine.session(&session).unwrap();
                assert_eq!(device.used() + planned.memory.runtime, all, "{what}: with a session");
                drop((held, engine));
                let roomy = sim(SimOptions::default());
                let settings = exact().sparsity(sparsity).kv(KvType::F32);
                let engine = settings.accelerator(roomy, planned.plan.clone()).load(&file).unwrap();
                let off = difference(&logits_in(&engine, &tokens, 4), &want);
                assert!(off <= TOLERANCE, "{what}: {off:e}");
            }
        }
    }
}

#[test]
fn a_division_that_does_not_fit_is_refused_with_both_numbers_of_bytes() {
    let file = TinyModel { layers: LAYERS, ..TinyModel::default() }.file();
    let device = sim(SimOptions::default());
    let of = |budget, division| split(&file, &Request::new(&*device, budget), division);
    for division in splits() {
        let need = of(u64::MAX, division).unwrap().memory.total();
        assert_eq!(need == 0, division == Split::Layers(0), "{division}");
        assert_eq!(of(need, division).unwrap().memory.total(), need, "{division}");
        if need > 0 {
            let e = of(need - 1, division).unwrap_err();
            let (name, text) = match &e {
                pi_engine::Error::Setting { name, .. } => (*name, e.to_string()),
                other => panic!("{other}"),
            };
            assert_eq!(name, "split");
            for part in [division.to_string(), format!("{need} bytes"), format!("budget of {} bytes", need - 1)] {
                assert!(text.contains(&part), "{text}");
            }
        }
    }
}
