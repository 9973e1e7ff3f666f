//! The law of the engine with a CUDA device: any placement gives the logits of the CPU alone, the same text, and the same bits each time. On the
//! emulated driver, or with `PI_CUDA_TEST=real` on a GPU.

#[path = "../../pi-engine/tests/engine/common/mod.rs"]
mod common;

use common::{
    cases::{Case, Talk},
    difference, exact, ids,
    placed::{ALL, Hot, TOLERANCE, any_plan, plan},
    predicted_models, same_bits,
};
use pi_core::{KvType, QuantType};
use pi_cuda_emu::use_driver;
use pi_engine::{Engine, GenerateOptions, Plan, Predictors, SamplingParams, SessionOptions, Side, Sparsity, Streaming};
use pi_gguf::Kind;
use pi_sparse_cuda::{Cuda, CudaOptions, TensorCores};
use pi_testkit::{Random, TinyModel};
use std::{ops::ControlFlow, sync::Arc};

/// The device, shared by all tests of this process: `None` where there is no emulator, which CI does not accept.
fn cuda() -> Option<Arc<Cuda>> {
    match use_driver() {
        Ok(()) => Some(Arc::new(Cuda::open(0).unwrap())),
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "{e}");
            eprintln!("SKIPPED: {e}");
            None
        }
    }
}

/// What the most likely tokens make of a prompt.
fn text(engine: &Engine) -> Vec<u32> {
    let mut s = engine.session(&SessionOptions { context: Some(32), batch: 4, ..Default::default() }).unwrap();
    let options = GenerateOptions {
        max_tokens: Some(6),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..Default::default()
    };
    s.generate(0, &ids(7, 3), &options, &mut |_: &str| ControlFlow::Continue(())).unwrap().tokens
}

/// Small: every CUDA thread is emulated.
fn talk(random: &mut Random) -> Talk {
    Talk {
        prompts: (0..1 + random.below(3)).map(|_| 1 + random.below(9)).collect(),
        piece: 1 + random.below(6),
        steps: 1,
        seed: random.below(1 << 30) as u64,
    }
}

/// Every kind of placement: neurons, dense parts of both layers and the head on either side, and what chooses neurons.
#[test]
fn every_kind_of_placement_gives_the_logits_and_the_text_of_the_cpu() {
    let Some(cuda) = cuda() else { return };
    let mut random = Random(7);
    let talk = Talk { prompts: vec![6, 1, 3], piece: 4, steps: 1, seed: 5 };
    let side = |on: bool| if on { Side::Accelerator } else { Side::Cpu };
    let mut worst = 0.0f64;
    for (family, model) in predicted_models() {
        let file = TinyModel { layers: 2, neurons: 70, ..model }.file();
        let ways = [
            (Sparsity::Off, Predictors::default()),
            (Sparsity::Exact, Predictors::default()),
            (Sparsity::Predictor, Predictors::default()),
            (Sparsity::Predictor, Predictors::Oracle),
            (Sparsity::Predictor, Predictors::Sign { margin: 0.0 }),
        ];
        for (way, (sparsity, predictors)) in ways.into_iter().enumerate() {
            let settings = || exact().sparsity(sparsity).predictors(predictors.clone());
            let cpu = settings().load(&file).unwrap();
            let ((want, counts), wanted) = (talk.hold(&cpu), text(&cpu));
            // all kinds of hot sets, and over the ways all combinations of sides
            for (i, hot) in ALL.into_iter().enumerate() {
                let bits = (way * ALL.len() + i) % 8;
                let mut placed = plan(&cpu, hot, side(bits & 1 > 0));
                placed.layers[1].dense = side(bits & 2 > 0);
                placed.layers[1].hot = ALL[random.below(ALL.len())].set(70);
                placed.head = side(bits & 4 > 0);
                let both = settings().accelerator(cuda.clone(), placed.clone()).load(&file).unwrap();
                let (got, counted) = talk.hold(&both);
                let off = difference(&got, &want);
                assert!(off <= TOLERANCE, "{off:e}: {family}, {sparsity:?}, {predictors:?}, {placed:?}");
                assert_eq!(counted, counts, "{family}, {sparsity:?}, {predictors:?}, {placed:?}");
                worst = worst.max(off);
                if i % 3 == way % 3 {
                    assert_eq!(text(&both), wanted, "{family}, {sparsity:?}, {predictors:?}, {placed:?}");
                }
            }
        }
    }
    println!("at most {worst:e} of the largest logit off");
}

#[test]
fn any_placement_of_any_type_gives_the_logits_of_the_cpu() {
    let Some(cuda) = cuda() else { return };
    let mut random = Random(2025);
    let mut worst = 0.0f64;
    for ty in QuantType::ALL {
        let any = Case::any(&mut random, ty);
        let model = TinyModel { layers: 2, neurons: 33 + random.below(40), ..any.model };
        let case = Case { kv: KvType::F32, talk: talk(&mut random), model, ..any };
        let file = case.model.file();
        let cpu = case.settings().load(&file).unwrap();
        let (want, _) = case.talk.hold(&cpu);
        let mut placed = any_plan(&cpu, &mut random);
        placed.layers[0].dense = Side::Accelerator; // so that the type is used
        let both = case.settings().accelerator(cuda.clone(), placed.clone()).load(&file).unwrap();
        let off = difference(&case.talk.hold(&both).0, &want);
        assert!(off <= case.tolerance(), "{off:e}: {case:?}, {placed:?}");
        worst = worst.max(off);
    }
    println!("at most {worst:e} of the largest logit off");
}

/// Neurons of the CPU are sent for long steps, and computed there.
#[test]
fn streamed_neurons_give_the_logits_of_the_cpu() {
    let Some(cuda) = cuda() else { return };
    for (family, model) in predicted_models() {
        let file = TinyModel { layers: 2, neurons: 70, ..model }.file();
        let settings = || exact().sparsity(Sparsity::Predictor);
        let cpu = settings().load(&file).unwrap();
        let talk = Talk { prompts: vec![7], piece: 6, steps: 1, seed: 9 };
        let (want, counts) = talk.hold(&cpu);
        for hot in [ALL[0], ALL[2]] {
            let placed = plan(&cpu, hot, Side::Accelerator);
            let streaming = Some(Streaming { from: 5, memory: u64::MAX });
            let both = settings().streaming(streaming).accelerator(cuda.clone(), placed).load(&file).unwrap();
            let (got, counted) = talk.hold(&both);
            let off = difference(&got, &want);
            assert!(off <= TOLERANCE, "{off:e}: {family}, {hot:?}");
            assert_eq!(counted, counts, "{family}, {hot:?}");
        }
    }
}

/// Row P03 of the list of faults that others had, at the lengths where prompts are computed in tiles: with tensor cores and without.
#[test]
fn prompts_of_33_and_200_tokens_give_the_logits_of_the_cpu() {
    let Some(_) = cuda() else { return };
    let after = |engine: &Engine, tokens: &[u32]| {
        let mut s = engine.session(&SessionOptions { context: Some(208), ..Default::default() }).unwrap();
        [s.feed(0, tokens).unwrap().to_vec()]
    };
    let mut worst = [0.0f64; 2];
    for ty in [QuantType::F16, QuantType::Q4_0] {
        let file = TinyModel {
            kind: Kind::PowerInfer,
            hidden_act: None,
            neuron_major: true,
            rank: Some(32),
            neurons: 96,
            layers: 1,
            gate_shift: -0.5,
            context: 256,
            ..TinyModel::wide(ty)
        }
        .file();
        let settings = |predictors| exact().sparsity(Sparsity::Predictor).predictors(predictors);
        let dense = exact().sparsity(Sparsity::Off).load(&file).unwrap();
        for (n, ways) in [
            (33, &[(Hot::One, Side::Accelerator), (Hot::Half, Side::Cpu), (Hot::All, Side::Accelerator)][..]),
            (200, &[(Hot::Half, Side::Accelerator)]),
        ] {
            let tokens = ids(n, n as u64);
            let want = after(&dense, &tokens);
            let real = after(&settings(Predictors::default()).load(&file).unwrap(), &tokens);
            for &(hot, side) in ways {
                for (i, cores) in [TensorCores::Auto, TensorCores::Off].into_iter().enumerate() {
                    let cuda = Cuda::open_with(0, &CudaOptions::default().tensor_cores(cores)).unwrap();
                    assert_eq!(cuda.has_tensor_cores(), i == 0);
                    let on = |predictors| {
                        let both = settings(predictors).accelerator(Arc::new(cuda.clone()), plan(&dense, hot, side));
                        after(&both.load(&file).unwrap(), &tokens)
                    };
                    for (predictors, want) in [(Predictors::Oracle, &want), (Predictors::default(), &real)] {
                        let off = difference(&on(predictors.clone()), want);
                        let what = format!("{ty}, {n} tokens, {hot:?}, {side:?}, {cores:?}, {predictors:?}");
                        assert!(off <= TOLERANCE, "{what}: {off:e}");
                        worst[i] = worst[i].max(off);
                    }
                }
            }
        }
    }
    println!("at most {:e} of the largest logit off with tensor cores, {:e} without", worst[0], worst[1]);
}

/// Rows P18 and N14 of the list of faults that others had: sums whose order depends on who is first.
#[test]
fn the_same_run_twice_gives_the_same_bits() {
    let Some(cuda) = cuda() else { return };
    let mut random = Random(31);
    for (family, model) in predicted_models() {
        // more neurons than a slice of the second half has
        let file = TinyModel { layers: 2, neurons: 600, ..model }.file();
        let settings = || exact().sparsity(Sparsity::Predictor).threads(2);
        let talk = Talk { prompts: vec![5, 2], piece: 3, steps: 2, seed: 11 };
        let placed: Plan = any_plan(&settings().load(&file).unwrap(), &mut random);
        let run = || {
            let engine = settings().accelerator(cuda.clone(), placed.clone()).load(&file).unwrap();
            talk.hold(&engine).0
        };
        assert!(same_bits(&run(), &run()), "{family}: {placed:?}");
    }
}
