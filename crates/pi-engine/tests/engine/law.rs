//! The law of this engine: any placement, any predictor, any number of threads, any batch and any prompt give the logits of the
//! CPU alone. Cases are drawn from a generator with a fixed seed, so that every run sees the same ones.

use crate::common::{
    cases::{Case, Talk},
    difference, exact,
    placed::{ALL, TOLERANCE, any_plan, plan, sim, sim_of},
};
use pi_core::{KvType, QuantType, Serial};
use pi_engine::{Engine, Plan, Predictors, Side, Sparsity, Streaming};
use pi_sparse_cpu::{CpuDevice, Kernels};
use pi_testkit::{Random, TinyModel, sim::SimOptions};
use std::sync::Arc;

#[test]
fn any_placement_gives_the_logits_of_the_cpu_and_counts_every_neuron_once() {
    let mut random = Random(2024);
    let (mut cases, mut worst) = (0, 0.0f64);
    for _ in 0..4 {
        for ty in QuantType::ALL {
            let case = Case::any(&mut random, ty);
            let file = case.model.file();
            let cpu = case.settings().load(&file).unwrap();
            let (want, counts) = case.talk.hold(&cpu);
            for _ in 0..2 {
                let plan = any_plan(&cpu, &mut random);
                let device = sim(SimOptions::default());
                // every third sends what is on the CPU there for steps of 5 tokens or more
                let streaming = (random.below(3) == 0).then_some(Streaming { from: 5, memory: u64::MAX });
                let settings = case.settings().threads(case.threads).streaming(streaming);
                let both = settings.accelerator(device, plan.clone()).load(&file).unwrap();
                let (got, counted) = case.talk.hold(&both);
                let off = difference(&got, &want);
                assert!(off <= case.tolerance(), "{off:e}: {case:?}, {plan:?}");
                for (got, want) in counted.iter().flatten().zip(counts.iter().flatten()) {
                    let near = got.abs_diff(*want) <= case.flips(*want);
                    assert!(near, "{counted:?} instead of {counts:?}: {case:?}, {plan:?}");
                }
                worst = worst.max(if case.kv == KvType::F32 { off } else { 0.0 });
                cases += 1;
            }
        }
    }
    println!("{cases} cases, at most {worst:e} of the largest logit off");
    assert!(cases >= 8 * QuantType::ALL.len());
}

/// Both norms, attention and its cache, predictors, the head and the neurons, on either side in all combinations.
#[test]
fn all_combinations_of_sides_give_the_logits_of_the_cpu() {
    let mut random = Random(7);
    let talk = Talk { prompts: vec![11, 1, 4], piece: 8, steps: 2, seed: 5 };
    for family in 0..5 {
        let model = crate::common::predicted_models().nth(family).unwrap().1;
        let file = TinyModel { layers: 2, neurons: 70, ..model }.file();
        for (sparsity, predictors) in [
            (Sparsity::Off, Predictors::default()),
            (Sparsity::Exact, Predictors::default()),
            (Sparsity::Predictor, Predictors::default()),
            (Sparsity::Predictor, Predictors::Oracle),
            (Sparsity::Predictor, Predictors::Sign { margin: 0.0 }),
        ] {
            let settings = || exact().sparsity(sparsity).predictors(predictors.clone());
            let cpu = settings().load(&file).unwrap();
            let (want, counts) = talk.hold(&cpu);
            let side = |bit: usize| if bit == 0 { Side::Cpu } else { Side::Accelerator };
            for bits in 0..8 {
                let (first, second, head) = (side(bits & 1), side(bits & 2), side(bits & 4));
                for hot in ALL {
                    let mut placed = plan(&cpu, hot, first);
                    placed.layers[1].dense = second;
                    placed.layers[1].hot = ALL[random.below(ALL.len())].set(70);
                    placed.head = head;
                    let engine =
                        settings().accelerator(sim(SimOptions::default()), placed.clone()).load(&file).unwrap();
                    let (got, counted) = talk.hold(&engine);
                    let off = difference(&got, &want);
                    assert!(off <= TOLERANCE, "{off:e}: {family}, {sparsity:?}, {predictors:?}, {placed:?}");
                    assert_eq!(counted, counts, "{family}, {sparsity:?}, {predictors:?}, {placed:?}");
                }
            }
        }
    }
}

/// With the kernels of this CPU activations are rounded to 15 bits, and another order of sums may round some the other way.
#[test]
fn fast_kernels_on_both_sides_keep_the_law() {
    let mut random = Random(99);
    for ty in QuantType::ALL {
        let model = TinyModel { layers: 2, neurons: 130, neuron_major: true, ..TinyModel::wide(ty) };
        let file = model.file();
        let settings = || Engine::builder().sparsity(Sparsity::Exact).kv(KvType::F32);
        let cpu = settings().threads(2).load(&file).unwrap();
        let talk = Talk::any(&mut random);
        let (want, _) = talk.hold(&cpu);
        for threads in 1..=4 {
            let plan: Plan = any_plan(&cpu, &mut random);
            let device = sim_of(CpuDevice::new(Kernels::best(), Arc::new(Serial)), SimOptions::default());
            let both = settings().threads(threads).accelerator(device, plan.clone()).load(&file).unwrap();
            let off = difference(&talk.hold(&both).0, &want);
            assert!(off <= 1e-3, "{off:e}: {ty}, {threads} threads, {talk:?}, {plan:?}");
        }
    }
}
