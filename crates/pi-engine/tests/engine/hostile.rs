//! Files that are odd or made to harm: they load or are refused, and nothing panics, hangs or takes memory without end.

use crate::common::exact;
use pi_engine::{GenerateOptions, SessionOptions, Sparsity, inspect};
use pi_gguf::{File, Kind, Value};
use pi_testkit::{TinyModel, synth::Family, tiny};
use proptest::{prelude::*, sample::select};
use std::ops::ControlFlow;

/// Keys, those of families as LLaMA has them.
const KEYS: [&str; 34] = [
    "general.architecture",
    "llama.context_length",
    "llama.embedding_length",
    "llama.block_count",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.original_context_length",
    "llama.rope.scaling.yarn_ext_factor",
    "llama.rope.scaling.yarn_attn_factor",
    "llama.rope.scaling.yarn_beta_fast",
    "llama.rope.scaling.yarn_beta_slow",
    "llama.expert_count",
    "llama.attention.layer_norm_epsilon",
    "llama.attention.max_alibi_bias",
    "llama.alibi",
    "llama.use_parallel_residual",
    "llama.do_layer_norm_before",
    "llama.word_embed_proj_dim",
    "powerinfer.sparse_threshold",
    "llama.hidden_act",
    "llama.hidden_act_threshold",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.add_bos_token",
];

#[derive(Clone, Debug)]
enum Odd {
    Missing,
    Value(Value<'static>),
}

fn odd() -> impl Strategy<Value = Odd> {
    let numbers = select(vec![0u32, 1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 96, 256, 287, 288, 1 << 24, u32::MAX]);
    let floats =
        select(vec![0.0f32, -1.0, 1.0, 1e-30, 1e30, f32::MAX, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.5]);
    let texts = select(vec![
        "",
        "llama",
        "falcon",
        "opt",
        "bamboo",
        "gpt2",
        "yarn",
        "linear",
        "none",
        "relu",
        "silu",
        "fatrelu(0.5)",
        "x",
        "\u{0}",
    ]);
    prop_oneof![
        1 => Just(Odd::Missing),
        6 => numbers.clone().prop_map(|v| Odd::Value(v.into())),
        3 => floats.prop_map(|v| Odd::Value(v.into())),
        3 => texts.prop_map(|v| Odd::Value(v.into())),
        1 => any::<i64>().prop_map(|v| Odd::Value(Value::I64(v))),
        1 => any::<u64>().prop_map(|v| Odd::Value(Value::U64(v))),
        1 => any::<bool>().prop_map(|v| Odd::Value(v.into())),
        1 => any::<u32>().prop_map(|v| Odd::Value(v.into())),
    ]
}

/// Loads a file if it can be loaded, and generates a little.
fn run(file: &File, sparsity: Sparsity) {
    let report = inspect(file);
    let Ok(engine) = exact().sparsity(sparsity).load(file) else {
        assert!(
            matches!(sparsity, Sparsity::Exact | Sparsity::Predictor)
                || !report.problems.is_empty()
                || report.config.is_some()
        );
        return;
    };
    assert!(report.config.is_some());
    let Ok(mut s) = engine.session(&SessionOptions { batch: 3, ..Default::default() }) else { return };
    let options = GenerateOptions { max_tokens: Some(3), ..Default::default() };
    let _ = s.generate(0, &[1, 5, 6, 7], &options, &mut |_: &str| ControlFlow::Continue(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_with_odd_metadata_load_or_are_refused(
        changes in prop::collection::vec((select(KEYS.to_vec()), odd()), 1..4),
        scaling in select(vec![None, Some(("yarn", 4.0, 64))]),
        kind in select(vec![Kind::Gguf, Kind::PowerInfer]), qkv_bias in any::<bool>(),
        sparsity in select(vec![Sparsity::Auto, Sparsity::Off, Sparsity::Exact, Sparsity::Predictor]),
        family in select(Family::ALL.to_vec()), rank in select(vec![None, Some(32)]),
    ) {
        let model = TinyModel { family, rank, layers: 1, rope_scaling: scaling, kind, qkv_bias, ..TinyModel::default() };
        let own = |key: &str| key.replace("llama.", &format!("{family}."));
        let changes: Vec<_> = changes.iter().map(|(key, change)| (own(key), change)).collect();
        let mut keys: Vec<(&str, Option<Value<'_>>)> = Vec::new();
        for (key, change) in &changes {
            if !keys.iter().any(|(k, _)| *k == key) {
                keys.push((key.as_str(), match change { Odd::Missing => None, Odd::Value(v) => Some(*v) }));
            }
        }
        if let Ok(file) = File::from_bytes(tiny::rewrite(&model.file(), &keys, |_, _| true), "odd.gguf") {
            run(&file, sparsity);
        }
    }

    #[test]
    fn files_with_missing_and_damaged_tensors_load_or_are_refused(
        lost in prop::option::of(0usize..24), spoiled in 0usize..24, seed in any::<u64>(), all in any::<bool>(),
        act in select(vec!["relu", "silu", "fatrelu"]), neuron_major in any::<bool>(),
        family in select(Family::ALL.to_vec()), two_norms in any::<bool>(),
        sparsity in select(vec![Sparsity::Auto, Sparsity::Predictor]),
    ) {
        let rank = (sparsity == Sparsity::Predictor).then_some(32);
        let model = TinyModel {
            family, two_norms, rank, layers: 1, hidden_act: Some(act), neuron_major, ..TinyModel::default()
        };
        let mut rng = pi_testkit::Random(seed);
        let mut i = 0;
        let bytes = tiny::rewrite(&model.file(), &[], |_, bytes| {
            i += 1;
            if i - 1 == spoiled {
                for b in bytes.iter_mut() {
                    if all || rng.below(100) == 0 {
                        *b = rng.bits() as u8;
                    }
                }
            }
            Some(i - 1) != lost
        });
        if let Ok(file) = File::from_bytes(bytes, "odd.gguf") {
            run(&file, sparsity);
        }
    }

    #[test]
    fn files_with_flipped_bytes_in_the_header_load_or_are_refused(
        flips in prop::collection::vec((0.0f64..1.0, any::<u8>()), 1..6),
    ) {
        let model = TinyModel { layers: 1, ..TinyModel::default() };
        let mut bytes = model.build().unwrap();
        let file = model.file();
        let header = file.tensors().map(|t| t.range().start).min().unwrap();
        for (at, flip) in flips {
            bytes[(at * header as f64) as usize] ^= flip;
        }
        if let Ok(file) = File::from_bytes(bytes, "odd.gguf") {
            run(&file, Sparsity::Auto);
        }
    }
}

#[test]
fn empty_and_tiny_vocabularies_load_or_are_refused() {
    for n in [0usize, 1, 2, 3, 4] {
        for model in ["llama", "gpt2"] {
            let tiny = TinyModel { layers: 1, rows: Some(5), vocab: 259, ..TinyModel::default() };
            let file = tiny.file();
            let arrays = ["tokens", "scores", "token_type"].map(|k| format!("tokenizer.ggml.{k}"));
            let mut keys: Vec<(&str, Option<Value<'_>>)> = arrays.iter().map(|k| (k.as_str(), None)).collect();
            keys.push(("tokenizer.ggml.model", Some(model.into())));
            for k in ["bos", "eos", "unknown"] {
                keys.push((Box::leak(format!("tokenizer.ggml.{k}_token_id").into_boxed_str()), None));
            }
            let bare = File::from_bytes(tiny::rewrite(&file, &keys, |_, _| true), "odd.gguf").unwrap();
            let mut b = pi_gguf::Builder::new(Kind::Gguf);
            for (key, value) in bare.metadata().iter() {
                b.set(key, value).unwrap();
            }
            b.set_strings("tokenizer.ggml.tokens", (0..n).map(|i| format!("t{i}"))).unwrap();
            b.set_array("tokenizer.ggml.scores", &vec![0.0f32; n]).unwrap();
            b.set_array("tokenizer.ggml.token_type", &vec![1i32; n]).unwrap();
            for t in bare.tensors() {
                b.tensor(t.name(), t.ty(), t.dims()).unwrap();
            }
            let mut w = b.start(Vec::new()).unwrap();
            for t in bare.tensors() {
                w.write(t.name(), t.data()).unwrap();
            }
            run(&File::from_bytes(w.finish().unwrap(), "odd.gguf").unwrap(), Sparsity::Auto);
        }
    }
}
