//! Checkpoints of every family, and what they become.

use crate::common::{decoded, error, same_tensors};
use pi_convert::{ConvertOptions, Error, TorchTensor, convert, torch_dict};
use pi_core::QuantType;
use pi_gguf::{File, Kind};
use pi_testkit::data::test_data;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value as Json, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A checkpoint in the making. Shapes are PyTorch's.
#[derive(Clone)]
struct Checkpoint {
    config: Json,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    ty: Dtype,
}

impl Checkpoint {
    fn new(config: Json) -> Self {
        Self { config, tensors: BTreeMap::new(), ty: Dtype::F32 }
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        let seed = name.len() + 31 * self.tensors.len();
        let count = shape.iter().product::<usize>();
        self.tensors.insert(
            name.into(),
            (shape.into(), (0..count).map(|i| ((i * 37 + seed) % 101) as f32 / 64.0 - 0.75).collect()),
        );
    }

    fn bytes(&self, numbers: &[f32]) -> Vec<u8> {
        let f16 = |x: &f32| half::f16::from_f32(*x).to_le_bytes().to_vec();
        let bf16 = |x: &f32| half::bf16::from_f32(*x).to_le_bytes().to_vec();
        match self.ty {
            Dtype::F16 => numbers.iter().flat_map(f16).collect(),
            Dtype::BF16 => numbers.iter().flat_map(bf16).collect(),
            Dtype::F64 => numbers.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect(),
            Dtype::I64 => numbers.iter().flat_map(|x| (*x as i64).to_le_bytes()).collect(),
            _ => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// Writes the folder, in so many files, with the samples' tokenizer of 512 tokens if there is none.
    fn write(&self, dir: &Path, shards: usize) {
        fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        if !dir.join("tokenizer.model").exists() && !dir.join("tokenizer.json").exists() {
            let vocab = json!({"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "ab": 5});
            let tokenizer = json!({
                "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]},
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
                "added_tokens": [{"id": 1, "content": "<s>", "special": true}, {"id": 5, "content": "ab", "special": false}],
            });
            fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        }
        let encoded: Vec<_> = self.tensors.iter().map(|(name, (shape, x))| (name, shape, self.bytes(x))).collect();
        let mut index = serde_json::Map::new();
        for part in 0..shards {
            let file = match shards {
                1 => "model.safetensors".into(),
                _ => format!("model-{:05}-of-{shards:05}.safetensors", part + 1),
            };
            let tensors = encoded.iter().enumerate().filter(|(i, _)| i % shards == part);
            let views = tensors.map(|(_, (name, shape, bytes))| {
                index.insert((*name).clone(), file.clone().into());
                ((*name).clone(), TensorView::new(self.ty, (*shape).clone(), bytes).unwrap())
            });
            let bytes = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
            fs::write(dir.join(file), bytes).unwrap();
        }
        if shards > 1 {
            fs::write(dir.join("model.safetensors.index.json"), json!({"weight_map": index}).to_string()).unwrap();
        }
    }

    fn dir(&self) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        self.write(dir.path(), 1);
        dir
    }
}

/// A checkpoint of the LLaMA family; `extra` goes into its config.
fn llama(extra: Json) -> Checkpoint {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 8, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6, "hidden_act": "relu",
    });
    config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let mut checkpoint = Checkpoint::new(config);
    for (name, shape) in [("model.embed_tokens", vec![8, 32]), ("model.norm", vec![32]), ("lm_head", vec![8, 32])] {
        checkpoint.add(&format!("{name}.weight"), &shape);
    }
    for i in 0..2 {
        for (name, shape) in [
            ("input_layernorm", vec![32]),
            ("post_attention_layernorm", vec![32]),
            ("self_attn.q_proj", vec![32, 32]),
            ("self_attn.k_proj", vec![16, 32]),
            ("self_attn.v_proj", vec![16, 32]),
            ("self_attn.o_proj", vec![32, 32]),
            ("mlp.gate_proj", vec![64, 32]),
            ("mlp.up_proj", vec![64, 32]),
            ("mlp.down_proj", vec![32, 64]),
        ] {
            checkpoint.add(&format!("model.layers.{i}.{name}.weight"), &shape);
        }
    }
    checkpoint
}

fn f32_options() -> ConvertOptions {
    ConvertOptions { matrices: Some(QuantType::F32), ..ConvertOptions::default() }
}

/// Converts to a new file, kept as long as the folder.
fn converted(dir: &Path, options: &ConvertOptions) -> pi_convert::Result<File> {
    let path = dir.join("out.gguf");
    convert(dir, &path, options, None)?;
    Ok(File::open(path).unwrap())
}

fn text(file: &File, key: &str) -> String {
    file.metadata().value(key).map_or("nothing".into(), |value| value.to_string())
}

#[test]
fn the_samples_folder_becomes_its_powerinfer_file_byte_by_byte() {
    let Some(samples) = test_data("powerinfer-samples/small") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.powerinfer.gguf");
    let options = ConvertOptions { predictors: Some(samples.join("predictor")), ..ConvertOptions::default() };
    let report = convert(samples.join("hf"), &path, &options, None).unwrap();
    let expected = samples.join("small.powerinfer.gguf");
    let (a, b) = (File::open(&expected).unwrap(), File::open(&path).unwrap());
    same_tensors(&a, &b);
    for (key, value) in a.metadata().iter() {
        assert_eq!(b.metadata().value(key), Some(value), "{key}");
    }
    assert!(fs::read(&expected).unwrap() == fs::read(&path).unwrap(), "the order of keys or tensors differs");
    assert_eq!(report.notes, Vec::<String>::new());
}

#[test]
fn the_demo_models_checkpoint_becomes_its_file() {
    let Some(demo) = test_data("demo-model") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.gguf");
    for (ty, name) in [(QuantType::F32, "f32"), (QuantType::F16, "f16"), (QuantType::Q8_0, "q8_0")] {
        let options =
            ConvertOptions { matrices: Some(ty), name: Some("tiny-reglu-6m".into()), ..ConvertOptions::default() };
        convert(demo.join("hf"), &path, &options, None).unwrap();
        let (a, b) = (File::open(demo.join(format!("tiny-reglu-6m-{name}.gguf"))).unwrap(), File::open(&path).unwrap());
        same_tensors(&a, &b);
        for (key, value) in a.metadata().iter() {
            // Prose, and keys that say what follows from others.
            let free =
                ["general.description", "general.license", "llama.vocab_size", "tokenizer.ggml.add_space_prefix"];
            assert!(
                b.metadata().value(key) == Some(value) || free.contains(&key),
                "{key} of {name}: {}",
                text(&b, key)
            );
        }
    }
}

/// The sample of a family is taken apart into a checkpoint and a folder of predictors; these must give it again.
fn round_trip(sample: &Path, config: Json, names: impl Fn(&str) -> String, rows: impl Fn(&str, usize) -> usize) {
    let expected = File::open(sample).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let predictors = dir.path().join("predictor");
    fs::create_dir(&predictors).unwrap();
    let mut checkpoint = Checkpoint::new(config);
    let mut fc1 = Vec::new();
    for tensor in expected.tensors() {
        let (name, cols) = (tensor.name(), tensor.cols());
        let numbers = decoded(&expected, name);
        let mut shape: Vec<_> = tensor.dims().iter().rev().copied().collect();
        if name.ends_with("fc1.weight") {
            fc1 = numbers;
        } else if name.ends_with("fc2.weight") {
            let layer = name.split('.').nth(1).unwrap();
            let both = [
                ("fc1.weight", TorchTensor { shape: &[cols, fc1.len() / cols], data: &fc1 }),
                ("fc2.weight", TorchTensor { shape: &shape, data: &numbers }),
            ];
            fs::write(predictors.join(format!("model_{layer}.pt")), torch_dict("m", &both).unwrap()).unwrap();
        } else if name.ends_with("ffn_down_t.weight") {
            let neurons = tensor.rows();
            shape.reverse();
            let transposed =
                (0..cols).flat_map(|o| (0..neurons).map(move |n| n * cols + o)).map(|i| numbers[i]).collect();
            checkpoint.tensors.insert(names(name), (shape, transposed));
        } else {
            let mut moved = numbers.clone();
            for (i, row) in numbers.chunks(cols).enumerate() {
                let to = if tensor.dims().len() == 1 { i } else { rows(name, i) };
                moved[to * cols..(to + 1) * cols].copy_from_slice(row);
            }
            checkpoint.tensors.insert(names(name), (shape, moved));
        }
    }
    fs::copy(sample.parent().unwrap().join("small/hf/tokenizer.model"), dir.path().join("tokenizer.model")).unwrap();
    checkpoint.write(dir.path(), 3);
    let options = ConvertOptions { predictors: Some(predictors), name: Some("hf".into()), ..ConvertOptions::default() };
    let made = converted(dir.path(), &options).unwrap();
    assert_eq!(made.kind(), Kind::PowerInfer);
    same_tensors(&expected, &made);
    for (key, value) in expected.metadata().iter() {
        // The original counts the two rows of positions that are never used.
        assert!(
            made.metadata().value(key) == Some(value) || key == "opt.context_length",
            "{key}: {}",
            text(&made, key)
        );
    }
}

/// Where row `i` of a file's query or key matrix is in a checkpoint.
fn halves(i: usize, head_dim: usize) -> usize {
    let (head, within) = (i / head_dim, i % head_dim);
    head * head_dim + within % 2 * (head_dim / 2) + within / 2
}

fn with(map: &[(&str, &str)], name: &str) -> String {
    let (layer, rest) = match name.strip_prefix("blk.") {
        Some(rest) => rest.split_once('.').unwrap(),
        None => ("", name),
    };
    let (part, kind) = rest.rsplit_once('.').unwrap();
    let to = map.iter().find(|(from, _)| *from == part).unwrap_or_else(|| panic!("{name}")).1;
    format!("{}.{kind}", to.replace('#', layer))
}

#[test]
fn bamboos_sample_survives_the_way_through_a_checkpoint() {
    let Some(sample) = test_data("powerinfer-samples/bamboo_sparse.gguf") else { return };
    let config = json!({
        "architectures": ["BambooForCausalLM"], "model_type": "bamboo", "hidden_size": 256, "intermediate_size": 1280,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 512,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    });
    let names = [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
        ("attn_norm", "model.layers.#.input_layernorm"),
        ("ffn_norm", "model.layers.#.post_attention_layernorm"),
        ("attn_q", "model.layers.#.self_attn.q_proj"),
        ("attn_k", "model.layers.#.self_attn.k_proj"),
        ("attn_v", "model.layers.#.self_attn.v_proj"),
        ("attn_output", "model.layers.#.self_attn.o_proj"),
        ("ffn_gate", "model.layers.#.mlp.gate_proj"),
        ("ffn_up", "model.layers.#.mlp.up_proj"),
        ("ffn_down_t", "model.layers.#.mlp.down_proj"),
    ];
    let rows = |name: &str, i| if name.contains("attn_q") || name.contains("attn_k") { halves(i, 32) } else { i };
    round_trip(&sample, config, |name| with(&names, name), rows);
}

#[test]
fn falcons_sample_survives_the_way_through_a_checkpoint() {
    let Some(sample) = test_data("powerinfer-samples/falcon_sparse.gguf") else { return };
    let config = json!({
        "architectures": ["FalconForCausalLM"], "hidden_size": 256, "ffn_hidden_size": 1280, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_kv_heads": 2, "vocab_size": 512, "new_decoder_architecture": true,
        "layer_norm_epsilon": 1e-5, "activation": "relu",
    });
    let names = [
        ("token_embd", "transformer.word_embeddings"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
        ("attn_norm", "transformer.h.#.input_layernorm"),
        ("attn_qkv", "transformer.h.#.self_attention.query_key_value"),
        ("attn_output", "transformer.h.#.self_attention.dense"),
        ("ffn_up", "transformer.h.#.mlp.dense_h_to_4h"),
        ("ffn_down_t", "transformer.h.#.mlp.dense_4h_to_h"),
    ];
    // Eight queries, two keys, two values in the file; in the checkpoint twice four queries, a key, a value.
    const HEADS: [usize; 12] = [0, 1, 2, 3, 6, 7, 8, 9, 4, 10, 5, 11];
    let rows = |name: &str, i: usize| if name.contains("qkv") { HEADS[i / 32] * 32 + i % 32 } else { i };
    round_trip(&sample, config, |name| with(&names, name), rows);
}

#[test]
fn opts_sample_survives_the_way_through_a_checkpoint() {
    let Some(sample) = test_data("powerinfer-samples/opt_sparse.gguf") else { return };
    let config = json!({
        "architectures": ["OPTForCausalLM"], "hidden_size": 256, "ffn_dim": 1280, "num_hidden_layers": 2,
        "num_attention_heads": 8, "vocab_size": 512, "max_position_embeddings": 2048, "do_layer_norm_before": true,
        "activation_function": "relu", "word_embed_proj_dim": 256,
    });
    let names = [
        ("token_embd", "model.decoder.embed_tokens"),
        ("position_embd", "model.decoder.embed_positions"),
        ("output_norm", "model.decoder.final_layer_norm"),
        ("attn_norm", "model.decoder.layers.#.self_attn_layer_norm"),
        ("ffn_norm", "model.decoder.layers.#.final_layer_norm"),
        ("attn_q", "model.decoder.layers.#.self_attn.q_proj"),
        ("attn_k", "model.decoder.layers.#.self_attn.k_proj"),
        ("attn_v", "model.decoder.layers.#.self_attn.v_proj"),
        ("attn_output", "model.decoder.layers.#.self_attn.out_proj"),
        ("ffn_up", "model.decoder.layers.#.fc1"),
        ("ffn_down_t", "model.decoder.layers.#.fc2"),
    ];
    round_trip(&sample, config, |name| with(&names, name), |_, i| i);
}

#[test]
fn shards_and_number_types_do_not_change_the_result() {
    let whole = llama(json!({}));
    let dir = whole.dir();
    let first = converted(dir.path(), &f32_options()).unwrap();
    for (ty, shards) in [(Dtype::F32, 3), (Dtype::F16, 1), (Dtype::BF16, 1), (Dtype::F64, 2)] {
        // The numbers are multiples of 1/64 of few bits: every type holds them.
        let dir = tempfile::tempdir().unwrap();
        Checkpoint { ty, ..whole.clone() }.write(dir.path(), shards);
        same_tensors(&first, &converted(dir.path(), &f32_options()).unwrap());
        // Without being told, matrices stay as they are, or become F16.
        let automatic = converted(dir.path(), &ConvertOptions::default()).unwrap();
        let matrix = automatic.tensor("blk.0.ffn_up.weight").unwrap().ty().name();
        assert_eq!(matrix, if ty == Dtype::BF16 { "BF16" } else { "F16" });
        assert_eq!(automatic.tensor("blk.0.ffn_norm.weight").unwrap().ty().name(), "F32");
    }
}

#[test]
fn checkpoints_in_pytorchs_own_format_are_read_as_well() {
    let whole = llama(json!({}));
    let expected_dir = whole.dir();
    let expected = converted(expected_dir.path(), &f32_options()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    whole.write(dir.path(), 1);
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    let tensors: Vec<_> =
        whole.tensors.iter().map(|(name, (shape, data))| (&**name, TorchTensor { shape, data })).collect();
    for (i, part) in tensors.chunks(10).enumerate() {
        let file = format!("pytorch_model-{:05}-of-{:05}.bin", i + 1, tensors.len().div_ceil(10));
        fs::write(dir.path().join(file), torch_dict("archive", part).unwrap()).unwrap();
    }
    same_tensors(&expected, &converted(dir.path(), &f32_options()).unwrap());
}

#[test]
fn what_the_config_says_is_in_the_keys() {
    let config = json!({
        "architectures": ["SparseLlamaForCausalLM"], "model_type": "sparsellama", "hidden_act": "fatrelu",
        "hidden_act_param": 0.01, "rope_theta": 5e5, "head_dim": 8, "sliding_window": 32, "tie_word_embeddings": true,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        "bos_token_id": 1, "eos_token_id": [2, 0],
    });
    let dir = llama(config).dir();
    fs::write(
        dir.path().join("tokenizer_config.json"),
        r#"{"unk_token": {"content": "<unk>"}, "add_bos_token": false,
        "chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]}"#,
    )
    .unwrap();
    let path = dir.path().join("out.gguf");
    let report = convert(dir.path(), &path, &f32_options(), None).unwrap();
    assert_eq!(report.notes, ["attention to the last 32 tokens only is not kept: longer texts see all"]);
    let file = File::open(&path).unwrap();
    assert!(file.tensor("output.weight").is_none(), "the head is the embedding");
    for (key, value) in [
        ("general.architecture", "llama"),
        ("general.file_type", "0"),
        ("llama.context_length", "64"),
        ("llama.attention.head_count_kv", "2"),
        ("llama.attention.key_length", "8"),
        ("llama.rope.freq_base", "500000"),
        ("llama.rope.scaling.type", "yarn"),
        ("llama.rope.scaling.factor", "4"),
        ("llama.rope.scaling.original_context_length", "16"),
        ("llama.hidden_act", "fatrelu"),
        ("llama.hidden_act_threshold", "0.01"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "gpt-2"),
        ("tokenizer.ggml.merges", r#"["a b"]"#),
        ("tokenizer.ggml.bos_token_id", "1"),
        ("tokenizer.ggml.eos_token_id", "2"),
        ("tokenizer.ggml.unknown_token_id", "0"),
        ("tokenizer.ggml.add_bos_token", "false"),
        ("tokenizer.chat_template", "d"),
    ] {
        assert_eq!(text(&file, key).trim_matches('"'), value.trim_matches('"'), "{key}");
    }
    let tokens: Vec<&str> = file.metadata().require("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens, ["<unk>", "<s>", "</s>", "a", "b", "ab", "[PAD6]", "[PAD7]"]);
    let kinds: Vec<i32> = file.metadata().require("tokenizer.ggml.token_type").unwrap();
    assert_eq!(kinds, [1, 3, 1, 1, 1, 4, 5, 5]);
    // SiLU is what is assumed of GGUF files, ReLU of PowerInfer's.
    let dir = llama(json!({"hidden_act": "silu", "architectures": ["MistralForCausalLM"]})).dir();
    assert_eq!(text(&converted(dir.path(), &f32_options()).unwrap(), "llama.hidden_act"), "nothing");
    let pwri = ConvertOptions { kind: Some(Kind::PowerInfer), ..f32_options() };
    assert_eq!(text(&converted(dir.path(), &pwri).unwrap(), "llama.hidden_act").trim_matches('"'), "silu");
}

#[test]
fn llama_3s_stretched_frequencies_become_divisors() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16});
    let dir = llama(json!({"rope_theta": 10000.0, "rope_scaling": scaling})).dir();
    let file = converted(dir.path(), &f32_options()).unwrap();
    let divisors = decoded(&file, "rope_freqs.weight");
    assert_eq!(divisors.len(), 4);
    // 16 positions are 2.5 turns of the first frequency, between 1 and 4; 0.25 of the second.
    let turns = 16.0 / (2.0 * std::f64::consts::PI);
    let share = (turns - 1.0) / 3.0;
    let first = 1.0 / ((1.0 - share) / 8.0 + share);
    assert!((f64::from(divisors[0]) - first).abs() < 1e-6 && divisors[1..] == [8.0; 3], "{divisors:?}");
}

#[test]
fn down_matrices_of_a_gguf_file_are_transposed_if_asked_for() {
    let dir = llama(json!({})).dir();
    let plain = converted(dir.path(), &f32_options()).unwrap();
    let down = decoded(&plain, "blk.0.ffn_down.weight");
    drop(plain);
    let file = converted(dir.path(), &ConvertOptions { transpose_down: true, ..f32_options() }).unwrap();
    assert_eq!((file.kind(), file.tensor("blk.0.ffn_down_t.weight").unwrap().dims()), (Kind::Gguf, &[32, 64][..]));
    let down_t = decoded(&file, "blk.0.ffn_down_t.weight");
    assert!((0..64 * 32).all(|i| down_t[i] == down[i % 32 * 64 + i / 32]));
}

#[test]
fn what_is_wrong_with_a_checkpoint_is_named() {
    let refusal = |checkpoint: &Checkpoint| error(converted(checkpoint.dir().path(), &f32_options()));
    for (extra, said) in [
        (
            json!({"architectures": ["GPT2LMHeadModel"]}),
            "architecture 'GPT2LMHeadModel' is not known (known: LlamaForCausalLM, ",
        ),
        (json!({"architectures": null}), "key 'architectures': expected one of LlamaForCausalLM, "),
        (json!({"hidden_size": null}), "config.json: key 'hidden_size': expected a number, got nothing"),
        (json!({"hidden_size": -1}), "key 'hidden_size': expected a number from 1 to 16777216, got -1"),
        (json!({"num_hidden_layers": 1e9}), "key 'num_hidden_layers': expected a number from 1 to 16777216"),
        (json!({"num_hidden_layers": 3}), "'model.layers.2.input_layernorm.weight': expected shape [32], got none"),
        (
            json!({"num_hidden_layers": 1}),
            "'model.layers.1.input_layernorm.weight': expected the tensors of a model of family llama",
        ),
        (json!({"num_key_value_heads": 3}), "key 'num_key_value_heads': expected a divisor of 4 heads, got 3"),
        (json!({"num_attention_heads": 3, "num_key_value_heads": 3}), "expected a divisor of the width 32, got 3"),
        (json!({"num_key_value_heads": 4}), "k_proj.weight': expected shape [32, 32], got shape [16, 32]"),
        (json!({"rms_norm_eps": null}), "key 'rms_norm_eps': expected a number, got nothing"),
        (json!({"rms_norm_eps": "x"}), "key 'rms_norm_eps': expected a finite number above 0, got \"x\""),
        (
            json!({"hidden_act": "mish"}),
            "key 'hidden_act': expected silu, gelu, gelu_new, relu, relu2 or fatrelu, got \"mish\"",
        ),
        (
            json!({"hidden_act": "fatrelu", "hidden_act_param": -1}),
            "key 'hidden_act_param': expected a number from 0 on",
        ),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2}}),
            "key 'rope_scaling.rope_type': expected default, linear",
        ),
        (
            json!({"rope_scaling": {"type": "linear"}}),
            "key 'rope_scaling.factor': expected a finite number above 0, got null",
        ),
        (json!({"vocab_size": 5}), "key 'vocab_size': expected at least as many as the tokenizer's 6 tokens, got 5"),
        (json!({"tie_word_embeddings": "yes"}), "key 'tie_word_embeddings': expected true or false"),
    ] {
        // The vocabulary is read after the shapes are known, so that one check has a matching table.
        let mut checkpoint = llama(extra.clone());
        if extra["vocab_size"] == 5 {
            for name in ["model.embed_tokens.weight", "lm_head.weight"] {
                checkpoint.add(name, &[5, 32]);
            }
        }
        let got = refusal(&checkpoint);
        assert!(got.contains(said), "{got}\nexpected {said}");
    }
    assert!(refusal(&llama(json!({"head_dim": 7}))).contains("key 'head_dim': expected an even number, got 7"));
    let mut integers = llama(json!({}));
    integers.ty = Dtype::I64;
    assert!(refusal(&integers).contains("expected F16, BF16, F32 or F64, got I64"));
    let mut missing = llama(json!({}));
    missing.tensors.remove("model.layers.1.mlp.up_proj.weight");
    assert!(refusal(&missing).contains("'model.layers.1.mlp.up_proj.weight': expected shape [64, 32], got none"));
    let mut more = llama(json!({}));
    more.add("model.layers.1.self_attn.q_norm.weight", &[8]);
    assert!(
        refusal(&more)
            .contains("'model.layers.1.self_attn.q_norm.weight': expected the tensors of a model of family llama")
    );
    let mut more = llama(json!({}));
    more.add("model.layers.1.self_attn.rotary_emb.inv_freq", &[4]);
    more.add("model.layers.1.self_attn.q_proj.bias", &[32]);
    let dir = more.dir();
    let bias = decoded(&converted(dir.path(), &f32_options()).unwrap(), "blk.1.attn_q.bias");
    let stored = &more.tensors["model.layers.1.self_attn.q_proj.bias"].1;
    assert!((0..32).all(|i| bias[i] == stored[halves(i, 8)]), "a bias moves with its rows");
}

#[test]
fn missing_and_damaged_files_are_named() {
    let whole = llama(json!({}));
    let fresh = || {
        let dir = tempfile::tempdir().unwrap();
        whole.write(dir.path(), 3);
        dir
    };
    let refusal = |spoil: &dyn Fn(PathBuf)| {
        let dir = fresh();
        spoil(dir.path().to_owned());
        let said = error(converted(dir.path(), &f32_options()));
        assert!(!dir.path().join("out.gguf").exists());
        assert!(fs::read_dir(dir.path()).unwrap().all(|e| !e.unwrap().file_name().to_string_lossy().ends_with(".tmp")));
        said
    };
    let second = "model-00002-of-00003.safetensors";
    let said = refusal(&|dir| fs::remove_file(dir.join(second)).unwrap());
    assert!(
        said.contains(second) && said.ends_with("a part that model.safetensors.index.json lists is missing"),
        "{said}"
    );
    let said = refusal(&|dir| {
        fs::remove_file(dir.join("model.safetensors.index.json")).unwrap();
        fs::remove_file(dir.join(second)).unwrap();
    });
    assert!(said.ends_with("a part (there are 2 of 3) is missing"), "{said}");
    let said = refusal(&|dir| {
        fs::write(dir.join("model.safetensors.index.json"), r#"{"weight_map": {"x": "../x"}}"#).unwrap()
    });
    assert!(said.contains("key 'x': expected a file name"), "{said}");
    for (file, what) in
        [("config.json", "the model's config is missing"), ("tokenizer.json", "a tokenizer (tokenizer.model, ")]
    {
        let said = refusal(&|dir| fs::remove_file(dir.join(file)).unwrap());
        assert!(said.contains(what), "{said}");
        let said = refusal(&|dir| fs::write(dir.join(file), "{").unwrap());
        assert!(said.contains(&format!("{file}: not JSON")), "{said}");
    }
    for len in [0, 4, 8, 100, 1000] {
        let said = refusal(&|dir| {
            let bytes = fs::read(dir.join(second)).unwrap();
            fs::write(dir.join(second), &bytes[..len]).unwrap();
        });
        assert!(said.contains(second), "{said}");
    }
    let said = refusal(&|dir| {
        let bytes = fs::read(dir.join(second)).unwrap();
        fs::write(dir.join(second), &bytes[..bytes.len() - 1]).unwrap();
    });
    assert!(said.contains(second), "{said}");
    let said = error(convert("/nowhere", "/nowhere/out.gguf", &f32_options(), None));
    assert!(said.contains("/nowhere") && said.contains("config.json: the model's config is missing"), "{said}");
}

#[test]
fn predictors_must_fit_and_need_their_container() {
    let dir = llama(json!({})).dir();
    let predictors = dir.path().join("p");
    fs::create_dir(&predictors).unwrap();
    let write = |i: usize, neurons: usize| {
        let (a, b) = (vec![0.5; 16 * 32], vec![0.25; neurons * 16]);
        let both = [
            ("fc1.weight", TorchTensor { shape: &[16, 32], data: &a }),
            ("fc2.weight", TorchTensor { shape: &[neurons, 16], data: &b }),
        ];
        fs::write(predictors.join(format!("model_{i}.pt")), torch_dict("m", &both).unwrap()).unwrap();
    };
    write(0, 64);
    let options = ConvertOptions { predictors: Some(predictors.clone()), ..f32_options() };
    let said = error(converted(dir.path(), &options));
    assert!(said.ends_with("predictors (model_N.pt): expected layers 0 to 1, missing: 1"), "{said}");
    write(1, 63);
    let said = error(converted(dir.path(), &options));
    assert!(said.ends_with("model_1.pt: tensor 'fc2.weight': expected shape [64, 16], got shape [63, 16]"), "{said}");
    write(1, 64);
    fs::write(predictors.join("config.json"), r#"{"sparse_threshold": -0.5}"#).unwrap();
    let file = converted(dir.path(), &options).unwrap();
    assert_eq!((file.kind(), text(&file, "powerinfer.sparse_threshold")), (Kind::PowerInfer, "-0.5".into()));
    assert_eq!(file.tensor("blk.1.fc2.weight").unwrap().dims(), [16, 64]);
    assert!(decoded(&file, "blk.0.fc1.weight").iter().all(|&x| x == 0.5));
    drop(file);
    // Rows of 16 do not divide into blocks of 32.
    let q8 = ConvertOptions { matrices: Some(QuantType::Q8_0), ..options.clone() };
    let report = convert(dir.path(), dir.path().join("q8.gguf"), &q8, None).unwrap();
    assert!(report.notes[0].contains("blk.0.fc2.weight: rows of 16 do not divide into blocks of Q8_0, stored as F16"));
    let gguf = ConvertOptions { kind: Some(Kind::Gguf), ..options };
    assert!(matches!(convert(dir.path(), dir.path().join("x"), &gguf, None), Err(Error::Choice(_))));
}
