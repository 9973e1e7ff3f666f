//! The law of this engine: any placement, any predictor, any number of threads, any batch and any prompt give the logits of the
//! CPU alone. Cases are drawn from a generator with a fixed seed, so that every run sees the same ones.

mod common;

use common::{
    difference, exact, ids,
    placed::{ALL, TOLERANCE, any_plan, plan, sim, sim_of},
};
use pi_core::{KvType, QuantType, Serial};
use pi_engine::{Engine, EngineBuilder, Plan, Predictors, SessionOptions, Side, Sparsity, StepToken, Streaming};
use pi_gguf::Kind;
use pi_sparse_cpu::{CpuDevice, Kernels};
use pi_testkit::{Random, TinyModel, sim::SimOptions, synth::Family};
use std::sync::Arc;

/// A conversation in several sequences: how long each prompt is, in which pieces it is computed, how many steps follow.
#[derive(Clone, Debug)]
struct Talk {
    prompts: Vec<usize>,
    piece: usize,
    steps: usize,
    seed: u64,
}

impl Talk {
    /// Up to 8 sequences, prompts of 1 to 70 tokens; of many sequences shorter ones, for the sake of time.
    fn any(random: &mut Random) -> Self {
        let sequences = 1 + random.below(8);
        let longest = [70, 70, 40, 20][(sequences - 1) / 2];
        Self {
            prompts: (0..sequences).map(|_| 1 + random.below(longest)).collect(),
            piece: 1 + random.below(70),
            steps: 1 + random.below(3),
            seed: random.below(1 << 30) as u64,
        }
    }

    /// Every logit, and how many neurons were let through and contributed, per layer.
    fn hold(&self, engine: &Engine) -> (Vec<Vec<f32>>, Vec<[u64; 2]>) {
        let sequences = self.prompts.len();
        let options = SessionOptions { context: Some(80), batch: self.piece.max(8), sequences, logits: 8 };
        let mut s = engine.session(&options).expect("a session");
        let mut seen = Vec::new();
        for (seq, &len) in (0u32..).zip(&self.prompts) {
            let tokens = ids(len, self.seed + u64::from(seq));
            for (i, part) in tokens.chunks(self.piece).enumerate() {
                let last = (i + 1) * self.piece >= len;
                let logits = |k| last && k + 1 == part.len();
                let step: Vec<_> =
                    part.iter().enumerate().map(|(k, &token)| StepToken { token, seq, logits: logits(k) }).collect();
                s.step(&step).expect("a step");
            }
            seen.push(s.logits(0).expect("logits").to_vec());
        }
        for i in 0..self.steps {
            let token = |seq: u32| (self.seed as u32 / 7 + 31 * i as u32 + 13 * seq) % 288;
            let step: Vec<_> =
                (0..sequences as u32).map(|seq| StepToken { token: token(seq), seq, logits: true }).collect();
            s.step(&step).expect("a step");
            seen.extend((0..sequences).map(|k| s.logits(k).expect("logits").to_vec()));
        }
        let (stats, of) = (s.stats(), engine.config().neurons);
        let count = |share: f32| (f64::from(share) * stats.tokens as f64 * of as f64).round() as u64;
        let counts = stats.marked.iter().zip(&stats.active).map(|(m, a)| [count(*m), count(*a)]).collect();
        (seen, counts)
    }
}

/// A family, as its files are.
fn family(random: &mut Random, ty: QuantType) -> TinyModel {
    let base = TinyModel {
        ty,
        layers: 1 + random.below(3),
        neurons: 40 + random.below(120),
        neuron_major: true,
        rank: Some(256),
        kind: Kind::PowerInfer,
        hidden_act: None,
        gate_shift: -0.5,
        seed: random.below(1 << 20) as u64,
        ..TinyModel::wide(ty)
    };
    match random.below(6) {
        0 => base,
        1 => TinyModel { qkv_bias: true, ..base },
        2 => TinyModel { family: Family::Bamboo, ..base },
        3 => TinyModel { family: Family::Falcon, ..base },
        4 => TinyModel { family: Family::Falcon, two_norms: true, ..base },
        _ => TinyModel { family: Family::Opt, kv_heads: 4, tied: true, ..base },
    }
}

fn skipping(random: &mut Random) -> (Sparsity, Predictors) {
    match random.below(5) {
        0 => (Sparsity::Off, Predictors::default()),
        1 => (Sparsity::Exact, Predictors::default()),
        2 => (Sparsity::Predictor, Predictors::default()),
        3 => (Sparsity::Predictor, Predictors::Oracle),
        _ => (Sparsity::Predictor, Predictors::Sign { margin: 0.0 }),
    }
}

#[derive(Debug)]
struct Case {
    model: TinyModel,
    skipping: (Sparsity, Predictors),
    kv: KvType,
    threads: usize,
    talk: Talk,
}

impl Case {
    fn any(random: &mut Random, ty: QuantType) -> Self {
        Self {
            model: family(random, ty),
            skipping: skipping(random),
            kv: [KvType::F32, KvType::F16, KvType::Q8_0][random.below(3)],
            threads: 1 + random.below(4),
            talk: Talk::any(random),
        }
    }

    fn settings(&self) -> EngineBuilder {
        let (sparsity, predictors) = self.skipping.clone();
        exact().sparsity(sparsity).predictors(predictors).kv(self.kv)
    }

    /// How many of so many neurons may have a gate, or a predicted one, that is all but 0, so that it falls on either side of it.
    fn flips(&self, of: u64) -> u64 {
        match self.kv {
            KvType::F32 => 1,
            _ => 1 + of / 500,
        }
    }

    /// Keys and values that are rounded may be rounded the other way.
    fn tolerance(&self) -> f64 {
        match self.kv {
            KvType::F32 => TOLERANCE,
            _ => 2e-3,
        }
    }
}

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
        let model = common::predicted_models().nth(family).unwrap().1;
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
