//! A decoded token allocates nothing: no operator, no sampler, no pool asks for memory once everything is warm.

#[path = "engine/common/mod.rs"]
mod common;
#[path = "engine/common/counting.rs"]
mod counting;

use common::{exact, ids, load, predicted_models, predicting, with_isa};
use counting::requests;
use pi_core::{KvType, QuantType};
use pi_engine::{GenerateOptions, Sampler, SamplingParams, SessionOptions, Sink, Sparsity, StepToken, sampler::Chain};
use pi_sparse_cpu::Isa;
use pi_testkit::TinyModel;
use std::ops::ControlFlow;

fn samplers() -> Vec<SamplingParams> {
    let sampled = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    vec![
        SamplingParams::greedy(),
        sampled.clone(),
        SamplingParams { repeat_penalty: 1.2, frequency_penalty: 0.1, repeat_last_n: 8, ..sampled },
    ]
}

// One test, because the counter counts for all threads of the process.
#[test]
fn decoding_and_sampling_allocate_nothing_per_token() {
    assert!(requests() > 0, "the counter counts");
    for ty in [QuantType::F32, QuantType::Q4_0, QuantType::Q4_1, QuantType::Q4_K] {
        let file = TinyModel { layers: 1, gate_shift: -0.5, ..TinyModel::wide(ty) }.file();
        for isa in Isa::available() {
            for (threads, sparsity) in
                [(1, Sparsity::Exact), (2, Sparsity::Exact), (1, Sparsity::Off), (2, Sparsity::Off)]
            {
                let builder = with_isa(isa).threads(threads).sparsity(sparsity).kv(KvType::F16);
                let engine = load(builder, &file);
                for params in samplers() {
                    let what = format!("{ty}, {isa}, {threads} threads, {sparsity:?}, {params:?}");
                    let mut chain = Chain::new(params, engine.vocab()).expect("a chain");
                    let mut s = engine.session(&SessionOptions::default()).expect("a session");
                    // Past the first block of 64 positions, so that the second is warm as well.
                    s.feed(0, &ids(60, 1)).expect("a prompt");
                    let mut decode = |n: usize| {
                        for _ in 0..n {
                            let token = chain.sample(s.logits(0).expect("logits")).expect("a token");
                            chain.accept(token);
                            s.step(&[StepToken { token, seq: 0, logits: true }]).expect("a step");
                        }
                    };
                    decode(3);
                    let before = requests();
                    decode(20);
                    let requests = requests() - before;
                    assert_eq!(requests, 0, "{what}: {requests} requests for memory in 20 tokens");
                }
            }
        }
    }
    families();
    several_sequences();
    whole_generations();
}

/// The same for the other families, with predictors.
fn families() {
    for (name, model) in predicted_models() {
        for ty in [QuantType::F16, QuantType::Q4_0] {
            let file = TinyModel { ty, ..model.clone() }.file();
            for isa in Isa::available() {
                let engine = load(predicting(isa, None).threads(2), &file);
                let mut s = engine.session(&SessionOptions::default()).expect("a session");
                s.feed(0, &ids(70, 1)).expect("a prompt");
                let mut decode = |n: u32| {
                    (0..n).for_each(|token| s.step(&[StepToken { token, seq: 0, logits: true }]).expect("a step"));
                };
                decode(3);
                let before = requests();
                decode(20);
                let requests = requests() - before;
                assert_eq!(requests, 0, "{name}, {ty}, {isa}: {requests} requests for memory in 20 tokens");
            }
        }
    }
}

/// From the first tokens on, `generate` allocates nothing either: text, stop strings and the list of tokens included.
fn whole_generations() {
    let engine = load(exact().threads(2), &TinyModel::default().file());
    for sampling in samplers() {
        let mut s = engine.session(&SessionOptions::default()).expect("a session");
        let stop = vec!["this text never comes".into(), "\u{1F999}".into()];
        let options = GenerateOptions { max_tokens: Some(120), ignore_eos: true, sampling, stop };
        let mut seen = Vec::with_capacity(200);
        let mut sink = Watch(&mut seen);
        s.generate(0, &ids(5, 1), &options, &mut sink).expect("a generation");
        assert!(seen.len() >= 100, "{} looks", seen.len());
        // Past the second block of 64 positions nothing is new.
        let (warm, end) = (seen[70], seen[seen.len() - 1]);
        assert_eq!(end - warm, 0, "{options:?}: {} requests for memory in {} tokens", end - warm, seen.len() - 71);
    }
}

/// Writes down the number of requests before each token.
struct Watch<'a>(&'a mut Vec<usize>);

impl Sink for Watch<'_> {
    fn text(&mut self, _: &str) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn proceed(&mut self) -> ControlFlow<()> {
        self.0.push(requests());
        ControlFlow::Continue(())
    }
}

/// The same for steps of several conversations, after each has been decoded once.
fn several_sequences() {
    let engine = load(exact().threads(2), &TinyModel::default().file());
    let options = SessionOptions { sequences: 3, batch: 3, logits: 3, ..Default::default() };
    let mut s = engine.session(&options).expect("a session");
    let step = [0, 1, 2].map(|seq| StepToken { token: 5 + seq, seq, logits: true });
    s.step(&step).expect("a step");
    let before = requests();
    for _ in 0..20 {
        s.step(&step).expect("a step");
        s.truncate(1, 1);
        let _ = s.logits(2).expect("logits");
    }
    assert_eq!(requests() - before, 0, "steps of three sequences");
}
