//! The demo model and a PowerInfer file against numbers from elsewhere.

use pi_core::{KvType, text::EncodeOptions};
use pi_engine::{Engine, EngineBuilder, GenerateOptions, SamplingParams, SessionOptions, Sparsity, StepToken};
use pi_sparse_cpu::Kernels;
use pi_testkit::{data::test_data, golden};
use serde::Deserialize;
use std::{ops::ControlFlow, path::Path};

#[derive(Deserialize)]
struct Demo {
    prompts: Vec<Prompt>,
    tokenizer: Vec<Tokenized>,
}

#[derive(Deserialize)]
struct Prompt {
    text: String,
    ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    greedy_text: String,
}

#[derive(Deserialize)]
struct Tokenized {
    text: String,
    ids: Vec<u32>,
}

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn demo_goldens() -> Demo {
    golden::read(&repository("models/tiny-reglu-6m/goldens/goldens.json"))
}

/// A file of little-endian f32 numbers.
fn floats(path: &Path) -> Vec<f32> {
    std::fs::read(path).unwrap().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn exact() -> EngineBuilder {
    Engine::builder().kernels(Kernels::reference()).threads(2).kv(KvType::F32)
}

/// All logits after every token, row by row, computed in one step.
fn logits(engine: &Engine, ids: &[u32]) -> Vec<f32> {
    let mut s = engine.session(&SessionOptions { logits: ids.len(), ..Default::default() }).unwrap();
    let step: Vec<_> = ids.iter().map(|&token| StepToken { token, seq: 0, logits: true }).collect();
    s.step(&step).unwrap();
    (0..ids.len()).flat_map(|i| s.logits(i).unwrap().to_vec()).collect()
}

#[test]
fn the_demo_models_tokenizer_gives_the_ids_of_the_checkpoint() {
    let engine = exact().open(repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf")).unwrap();
    let goldens = demo_goldens();
    for case in &goldens.tokenizer {
        assert_eq!(
            engine.tokenizer().encode(case.text.as_bytes(), EncodeOptions::PLAIN).unwrap(),
            case.ids,
            "{:?}",
            case.text
        );
    }
    for case in &goldens.prompts {
        assert_eq!(engine.encode_prompt(&case.text).unwrap(), case.ids, "{:?}", case.text);
    }
}

#[test]
fn the_demo_model_in_f32_equals_its_goldens_with_and_without_skipping() {
    let Some(file) = test_data("demo-model/tiny-reglu-6m-f32.gguf") else { return };
    for sparsity in [Sparsity::Exact, Sparsity::Off] {
        let engine = exact().sparsity(sparsity).open(&file).unwrap();
        for (i, want) in demo_goldens().prompts.iter().enumerate() {
            let expected = floats(&repository(&format!("models/tiny-reglu-6m/goldens/prompt_{i}.logits.f32")));
            let got = logits(&engine, &want.ids);
            assert_eq!(got.len(), expected.len());
            let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-3, "prompt {i}, {sparsity:?}: a logit is off by {worst}");

            let mut s = engine.session(&SessionOptions::default()).unwrap();
            let options = GenerateOptions {
                max_tokens: Some(want.greedy_ids.len()),
                sampling: SamplingParams::greedy(),
                ignore_eos: true,
                ..Default::default()
            };
            let out = s.generate(0, &want.ids, &options, &mut |_: &str| ControlFlow::Continue(())).unwrap();
            assert_eq!((out.tokens, out.text), (want.greedy_ids.clone(), want.greedy_text.clone()), "prompt {i}");
        }
    }
}

/// Relative RMS of the logits of a PowerInfer sample, computed with every neuron, against the original's.
fn powerinfer_error(file: &str, gold: &str, builder: EngineBuilder) -> Option<f64> {
    let file = test_data(&format!("powerinfer-samples/small/{file}"))?;
    let gold = floats(&test_data(&format!("powerinfer-samples/gold/{gold}"))?);
    let ids = std::fs::read_to_string(test_data("powerinfer-samples/gold/ids.txt")?).unwrap();
    let ids: Vec<u32> = ids.trim().split(',').map(|id| id.parse().unwrap()).collect();
    let engine = builder.open(&file).unwrap();
    let got = logits(&engine, &ids);
    assert_eq!(got.len(), gold.len());
    let square = |v: f32| (v as f64).powi(2);
    let error: f64 = got.iter().zip(&gold).map(|(a, b)| square(a - b)).sum();
    Some((error / gold.iter().map(|&v| square(v)).sum::<f64>()).sqrt())
}

#[test]
fn a_powerinfer_file_computed_with_every_neuron_equals_the_original() {
    for sparsity in [Sparsity::Exact, Sparsity::Off] {
        let gold = "small_small.powerinfer.thr-1e30.one.f32";
        let Some(rms) = powerinfer_error("small.powerinfer.gguf", gold, exact().sparsity(sparsity)) else { return };
        assert!(rms <= 3e-3, "{sparsity:?}: relative RMS {rms}");
    }
}

#[test]
fn a_quantised_powerinfer_file_stays_close_to_the_original() {
    for kernels in [Kernels::reference(), Kernels::best()] {
        let gold = "small_q_Q4_0.powerinfer.thr-1e30.one.f32";
        let builder = Engine::builder().kernels(kernels).kv(KvType::F32);
        let Some(rms) = powerinfer_error("small.Q4_0.powerinfer.gguf", gold, builder) else { return };
        // The original rounds activations, and what a neuron contributes, to 8 bits.
        assert!(rms <= 5e-2, "relative RMS {rms}");
    }
}

#[test]
fn two_generations_continue_like_one() {
    let engine = exact().open(repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf")).unwrap();
    let prompt = engine.encode_prompt("Once upon a time").unwrap();
    let mut quiet = |_: &str| ControlFlow::Continue(());
    let options = |n| GenerateOptions { max_tokens: Some(n), sampling: SamplingParams::greedy(), ..Default::default() };
    let session = || engine.session(&SessionOptions::default()).unwrap();
    let whole = session().generate(0, &prompt, &options(30), &mut quiet).unwrap();

    let mut s = session();
    let first = s.generate(0, &prompt, &options(10), &mut quiet).unwrap();
    let second = s.generate(0, &[], &options(20), &mut quiet).unwrap();
    assert_eq!([first.tokens, second.tokens].concat(), whole.tokens);
    assert_eq!(first.text + &second.text, whole.text);

    // A token that was taken back is not put in front of the next prompt.
    s.truncate(0, 0);
    assert_eq!(s.generate(0, &prompt, &options(30), &mut quiet).unwrap().tokens, whole.tokens);
}

#[test]
fn an_engine_can_be_shared_between_threads_that_each_have_a_session() {
    fn shared<T: Send + Sync>(_: &T) {}
    let engine = Engine::open(repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf")).unwrap();
    shared(&engine);
    let prompt = engine.encode_prompt("Once upon a time").unwrap();
    let options = GenerateOptions { max_tokens: Some(20), sampling: SamplingParams::greedy(), ..Default::default() };
    let run = || {
        let mut session = engine.session(&SessionOptions::default()).unwrap();
        session.generate(0, &prompt, &options, &mut |_: &str| ControlFlow::Continue(())).unwrap().text
    };
    let alone = run();
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|_| s.spawn(run)).collect();
        threads.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), alone));
    });
}
