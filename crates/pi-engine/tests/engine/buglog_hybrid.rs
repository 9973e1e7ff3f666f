//! Faults of hybrid inference that were reported in public about other engines, as cases for this one. The comments name the
//! rows of the list they come from.

use crate::common::{
    difference, exact, ids, logits_in,
    placed::{Hot, TOLERANCE, plan, sim, sim_of},
    predicted_models, same_bits,
};
use pi_core::{QuantType, Serial};
use pi_engine::{
    Engine, EngineBuilder, GenerateOptions, Predictors, SamplingParams, SessionOptions, Side, Sparsity, StepToken,
};
use pi_gguf::Kind;
use pi_sparse_cpu::{CpuDevice, Kernels};
use pi_testkit::{TinyModel, sim::SimOptions};
use std::{ops::ControlFlow, sync::Arc};

const SPLITS: [Hot; 4] = [Hot::None, Hot::One, Hot::Half, Hot::All];

fn predicted() -> TinyModel {
    predicted_models().next().unwrap().1
}

fn predicting() -> EngineBuilder {
    exact().sparsity(Sparsity::Predictor)
}

/// The last logits of a prompt.
fn after(engine: &Engine, tokens: &[u32]) -> Vec<f32> {
    let mut s = engine.session(&SessionOptions::default()).unwrap();
    s.feed(0, tokens).unwrap().to_vec()
}

// P03
#[test]
fn every_split_answers_prompts_of_all_lengths_as_the_dense_model_does() {
    for ty in [QuantType::F16, QuantType::Q4_0] {
        let file = TinyModel {
            kind: Kind::PowerInfer,
            hidden_act: None,
            neuron_major: true,
            rank: Some(256),
            neurons: 96,
            gate_shift: -0.5,
            ..TinyModel::wide(ty)
        }
        .file();
        let dense = exact().sparsity(Sparsity::Off).load(&file).unwrap();
        for n in [1, 2, 9, 33, 200] {
            let tokens = ids(n, n as u64);
            let want = [after(&dense, &tokens)];
            let oracle = || predicting().predictors(Predictors::Oracle);
            let real = [after(&predicting().load(&file).unwrap(), &tokens)];
            assert!(difference(&real, &want) > 1e-3, "random predictors leave out neurons that fire");
            for hot in SPLITS {
                for side in [Side::Cpu, Side::Accelerator] {
                    let on = |settings: EngineBuilder| {
                        let plan = plan(&dense, hot, side);
                        [after(&settings.accelerator(sim(SimOptions::default()), plan).load(&file).unwrap(), &tokens)]
                    };
                    let off = difference(&on(oracle()), &want);
                    assert!(off <= TOLERANCE, "{ty}, {n} tokens, {hot:?}, {side:?}: {off:e}");
                    let off = difference(&on(predicting()), &real);
                    assert!(off <= TOLERANCE, "{ty}, {n} tokens, {hot:?}, {side:?}, real predictor: {off:e}");
                }
            }
        }
    }
}

// P05
#[test]
fn batches_of_different_masks_equal_one_at_a_time() {
    let file = predicted().file();
    let cpu = predicting().load(&file).unwrap();
    for hot in SPLITS {
        for side in [Side::Cpu, Side::Accelerator] {
            let device = sim(SimOptions::default());
            let engine = predicting().accelerator(device, plan(&cpu, hot, side)).load(&file).unwrap();
            for batch in 2..=8usize {
                let prompts: Vec<Vec<u32>> = (0..batch).map(|i| ids(1 + 3 * i, 50 + i as u64)).collect();
                let alone: Vec<Vec<f32>> = prompts
                    .iter()
                    .zip(0u32..)
                    .map(|(prompt, i)| {
                        let mut s = engine.session(&SessionOptions::default()).unwrap();
                        s.feed(0, prompt).unwrap();
                        s.feed(0, &[40 + i]).unwrap().to_vec()
                    })
                    .collect();
                let options = SessionOptions { sequences: batch, batch, logits: batch, ..Default::default() };
                let mut s = engine.session(&options).unwrap();
                for (prompt, seq) in prompts.iter().zip(0..) {
                    s.feed(seq, prompt).unwrap();
                }
                let step: Vec<_> =
                    (0..batch as u32).map(|seq| StepToken { token: 40 + seq, seq, logits: true }).collect();
                s.step(&step).unwrap();
                let together = crate::common::rows(&mut s, batch);
                assert!(same_bits(&together, &alone), "{hot:?}, {side:?}, {batch} sequences");
                assert!(!same_bits(&together[..1], &together[1..2]), "different prompts");
            }
        }
    }
}

// P06
#[test]
fn a_prompt_of_1600_tokens_is_answered() {
    let file = TinyModel { context: 2048, layers: 2, ..predicted() }.file();
    let tokens = ids(1600, 17);
    let options = SessionOptions { context: Some(2048), ..Default::default() };
    let run = |engine: &Engine| {
        let mut s = engine.session(&options).unwrap();
        let mut seen = vec![s.feed(0, &tokens).unwrap().to_vec()];
        seen.push(s.feed(0, &[3]).unwrap().to_vec());
        let sampling = SamplingParams::greedy();
        let generate = GenerateOptions { max_tokens: Some(8), sampling, ignore_eos: true, ..Default::default() };
        let out = s.generate(0, &[4], &generate, &mut |_: &str| ControlFlow::Continue(())).unwrap();
        (seen, out.tokens)
    };
    for sparsity in [Sparsity::Exact, Sparsity::Predictor] {
        let settings = || exact().threads(2).sparsity(sparsity);
        let cpu = settings().load(&file).unwrap();
        let (want, text) = run(&cpu);
        assert_eq!(text.len(), 8);
        for (hot, side) in [(Hot::Half, Side::Accelerator), (Hot::Random(3), Side::Cpu)] {
            let device = sim(SimOptions::default());
            let engine = settings().accelerator(device, plan(&cpu, hot, side)).load(&file).unwrap();
            let (got, same) = run(&engine);
            let off = difference(&got, &want);
            assert!(off <= TOLERANCE, "{sparsity:?}, {hot:?}, {side:?}: {off:e}");
            assert_eq!(same, text);
        }
    }
}

// P18
#[test]
fn the_same_seed_gives_the_same_bits_twice() {
    let file = TinyModel { layers: 3, ..predicted() }.file();
    let cpu = predicting().load(&file).unwrap();
    let run = |threads: usize, seed: u64| {
        let device = sim_of(CpuDevice::new(Kernels::best(), Arc::new(Serial)), SimOptions::default());
        let settings = Engine::builder().threads(threads).sparsity(Sparsity::Predictor);
        let engine = settings.accelerator(device, plan(&cpu, Hot::Random(5), Side::Accelerator)).load(&file).unwrap();
        let mut s = engine.session(&SessionOptions::default()).unwrap();
        let sampling = SamplingParams { seed: Some(seed), temperature: 1.5, top_k: 0, ..Default::default() };
        let options = GenerateOptions { max_tokens: Some(60), sampling, ignore_eos: true, ..Default::default() };
        let out = s.generate(0, &ids(9, 2), &options, &mut |_: &str| ControlFlow::Continue(())).unwrap();
        (out.tokens, vec![s.logits(0).unwrap().to_vec()], logits_in(&engine, &ids(30, 4), 7))
    };
    for threads in [1, 2, 3] {
        let (tokens, last, all) = run(threads, 11);
        for _ in 0..3 {
            let (again, last2, all2) = run(threads, 11);
            assert_eq!(again, tokens);
            assert!(same_bits(&last, &last2) && same_bits(&all, &all2), "{threads} threads");
        }
        assert_ne!(run(threads, 12).0, tokens, "another seed");
    }
}
