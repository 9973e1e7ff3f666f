//! Faults that were reported in public about other engines, as cases for this one. The comments name the rows of the list
//! they come from: G files, N numbers, P sparsity, C context, S sampling and streaming.

use crate::common::{difference, exact, ids, load, logits, logits_in, refusal, same_bits, step, with_isa};
use pi_core::{
    Activation, KvType, Matrix, QuantType, RopeKind, RopeScaling, RopeSpec,
    text::{DecodeOptions, TokenId},
};
use pi_engine::{
    Engine, Error, GenerateOptions, Generated, Predictors, Result, Sampler, SamplingParams, Session, SessionOptions,
    Sparsity, StepToken, StopReason,
};
use pi_gguf::{File, Value};
use pi_sparse_cpu::{Isa, Rope};
use pi_testkit::{TinyModel, naive, tiny};
use std::ops::ControlFlow;

/// The tiny model with some keys changed.
fn with_keys(keys: &[(&str, Option<Value<'_>>)]) -> File {
    changed(&TinyModel::default().file(), keys, |_, _| true)
}

fn changed(file: &File, keys: &[(&str, Option<Value<'_>>)], tensor: impl FnMut(&str, &mut Vec<u8>) -> bool) -> File {
    File::from_bytes(tiny::rewrite(file, keys, tensor), "odd.gguf").expect("a file")
}

fn without(names: &[&str]) -> File {
    changed(&TinyModel::default().file(), &[], |name, _| !names.iter().any(|n| name.starts_with(n)))
}

/// Every message names the file and what is wrong in it.
fn assert_names(e: &Error, what: &[&str]) {
    let message = e.to_string();
    for part in what {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

// G11
#[test]
fn special_tokens_outside_the_vocabulary_are_a_load_error() {
    for key in ["bos", "eos", "unknown"] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        for id in [288, u32::MAX] {
            let e = refusal(exact(), &with_keys(&[(&key, Some(id.into()))]));
            assert_names(&e, &["odd.gguf", &key, &id.to_string()]);
        }
    }
}

// G12
#[test]
fn shapes_that_are_zero_damaged_or_of_another_type_are_a_load_error_naming_the_key() {
    let sizes = [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
    ];
    for name in sizes {
        let key = format!("llama.{name}");
        let mut bad: Vec<Value<'_>> = vec![0u32.into(), u32::MAX.into(), ((1u32 << 24) + 1).into(), "2".into()];
        bad.extend([Value::I32(-1), Value::F32(2.0), Value::Bool(true), Value::U64(1 << 40)]);
        for value in bad {
            let e = refusal(exact(), &with_keys(&[(&key, Some(value))]));
            assert_names(&e, &["odd.gguf", &key]);
        }
        if !["attention.head_count_kv", "attention.key_length"].contains(&name) {
            assert_names(&refusal(exact(), &with_keys(&[(&key, None)])), &["odd.gguf", &key, "missing"]);
        }
    }
    let e = refusal(exact(), &with_keys(&[("llama.attention.head_count_kv", Some(3u32.into()))]));
    assert_names(&e, &["head_count_kv", "divisor of 4", "got 3"]);
    let keys = [("llama.attention.head_count", Some(5u32.into())), ("llama.attention.key_length", None)];
    let keys = [keys[0], keys[1], ("llama.attention.head_count_kv", Some(1u32.into()))];
    assert_names(&refusal(exact(), &with_keys(&keys)), &["attention.head_count", "divisor of the width 64"]);
    for (key, bad) in [("llama.rope.dimension_count", 3u32), ("llama.rope.dimension_count", 18)] {
        assert_names(&refusal(exact(), &with_keys(&[(key, Some(bad.into()))])), &[key, "even number up to 16"]);
    }
    for (key, bad) in [
        ("llama.rope.freq_base", 0.0f32),
        ("llama.rope.freq_base", f32::NAN),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama.rope.scaling.factor", f32::INFINITY),
    ] {
        assert_names(&refusal(exact(), &with_keys(&[(key, Some(bad.into()))])), &["odd.gguf", key]);
    }
}

// G12
#[test]
fn missing_tensors_are_a_load_error_naming_the_first() {
    let cases: [(&[&str], &str); 9] = [
        (&["blk.0."], "blk.0."),
        (&["blk.1."], "blk.1.attn_norm.weight"),
        (&["blk."], "blk.0."),
        (&["blk.0.ffn_down"], "blk.0.ffn_down.weight"),
        (&["blk.1.ffn_gate"], "blk.1.ffn_gate.weight"),
        (&["blk.1.ffn_up"], "blk.1.ffn_up.weight"),
        (&["blk.0.attn_k"], "blk.0.attn_k.weight"),
        (&["token_embd"], "token_embd.weight"),
        (&["output_norm"], "output_norm.weight"),
    ];
    for (names, first) in cases {
        assert_names(&refusal(exact(), &without(names)), &["odd.gguf", first, "missing"]);
    }
    let several = without(&["blk.0.attn_q", "blk.0.ffn_up", "blk.1.attn_q"]);
    for _ in 0..10 {
        assert_names(&refusal(exact(), &several), &["blk.0.attn_q.weight"]);
    }
    let more = with_keys(&[("llama.block_count", Some((1u32 << 24).into()))]);
    let start = std::time::Instant::now();
    assert_names(&refusal(exact(), &more), &["blk.2.attn_norm.weight", "missing"]);
    assert!(start.elapsed().as_secs() < 5, "16 million layers that are not there");
}

#[test]
fn tensors_of_another_shape_are_a_load_error_naming_the_tensor() {
    for (key, value, tensor) in [
        ("llama.embedding_length", 32u32, "token_embd.weight"),
        ("llama.feed_forward_length", 95, "ffn_up.weight"),
        ("llama.attention.head_count", 2, "attn_q.weight"),
        ("llama.attention.head_count_kv", 4, "attn_k.weight"),
    ] {
        assert_names(&refusal(exact(), &with_keys(&[(key, Some(value.into()))])), &[tensor, "expected"]);
    }
    let factors = TinyModel { rope_factors: Some(vec![1.0; 7]), ..TinyModel::default() };
    assert_names(&refusal(exact(), &factors.file()), &["rope_freqs.weight", "8", "7"]);
}

// G22
#[test]
fn a_known_architecture_loads_and_an_unknown_one_lists_those_that_are_known() {
    assert_eq!(load(exact(), &TinyModel::default().file()).config().architecture, "llama");
    for name in ["gpt-j", "", "LLAMA", "llama2"] {
        let e = refusal(exact(), &with_keys(&[("general.architecture", Some(name.into()))]));
        assert!(matches!(e, Error::Architecture { .. }), "{e}");
        for known in pi_engine::arch::names() {
            assert_names(&e, &["odd.gguf", &format!("{name:?}"), known]);
        }
    }
    assert_names(
        &refusal(exact(), &with_keys(&[("general.architecture", None)])),
        &["general.architecture", "missing"],
    );
}

#[test]
fn features_that_are_not_built_are_refused_by_name() {
    let cases: [(&str, Value<'_>, &str); 7] = [
        ("llama.expert_count", 8u32.into(), "mixtures of experts are not supported"),
        ("llama.rope.scaling.type", "longrope".into(), "none, linear or yarn"),
        ("llama.hidden_act", "tanhish".into(), "silu, gelu"),
        ("llama.hidden_act_threshold", (-0.5f32).into(), "not negative"),
        ("llama.hidden_act_threshold", f32::NAN.into(), "a finite number"),
        ("llama.hidden_act_threshold", f32::INFINITY.into(), "a finite number"),
        ("llama.attention.value_length", 8u32.into(), "as the keys"),
    ];
    for (key, value, why) in cases {
        assert_names(&refusal(exact(), &with_keys(&[(key, Some(value))])), &["odd.gguf", key, why]);
    }
    let silu = TinyModel { hidden_act: Some("silu"), threshold: Some(0.1), ..TinyModel::default() };
    assert_names(&refusal(exact(), &silu.file()), &["hidden_act_threshold", "no threshold beside silu"]);
    load(exact(), &with_keys(&[("llama.expert_count", Some(0u32.into()))]));
    let none = with_keys(&[("llama.rope.scaling.type", Some("none".into()))]);
    assert!(same_bits(&logits(&load(exact(), &none), &[1, 2, 3]), &logits(&tiny_engine(), &[1, 2, 3])));
}

fn tiny_engine() -> Engine {
    load(exact(), &TinyModel::default().file())
}

// N01
#[test]
fn the_rotated_pairs_follow_from_the_architecture() {
    assert_eq!(tiny_engine().config().rope.as_ref().unwrap().kind, RopeKind::Interleaved);
    // and the file's numbers say so as well: `invariance.rs` compares with neighbours rotated in f64
}

// N02, N03
#[test]
fn rotations_are_those_of_f64_at_any_position_with_and_without_divisors() {
    let factors: Vec<f32> = (0..32).map(|i| [1.0, 7.5, 32.0][(i / 15usize).min(2)]).collect();
    for kind in [RopeKind::Interleaved, RopeKind::SplitHalf] {
        for factors in [None, Some(factors.clone())] {
            let spec = RopeSpec {
                kind,
                dims: 64,
                base: 500_000.0,
                scaling: RopeScaling::None,
                factors: factors.clone().map(Into::into),
            };
            let rope = Rope::new(&spec);
            for pos in [0u32, 1, 100, 9000, 30_000, 131_071, 1 << 24] {
                let mut table = vec![0.0; rope.table_len()];
                rope.table(pos, &mut table);
                for (i, cs) in table.chunks_exact(2).enumerate() {
                    let divisor = factors.as_ref().map_or(1.0, |f| f64::from(f[i]));
                    let angle = f64::from(pos) * 500_000f64.powf(-(i as f64) / 32.0) / divisor;
                    let off = (f64::from(cs[0]) - angle.cos()).abs().max((f64::from(cs[1]) - angle.sin()).abs());
                    assert!(off < 1e-7, "pair {i} at {pos}: {off:e}");
                }
            }
        }
    }
}

// N02: a model with divisors differs from one without from position 1 on, and each is right.
#[test]
fn rope_divisors_in_the_file_are_used() {
    let plain = TinyModel::default();
    let scaled = TinyModel { rope_factors: Some((0..8).map(|i| 1.0 + i as f32).collect()), ..plain.clone() };
    let tokens = ids(101, 3);
    let (a, b) = (logits(&load(exact(), &plain.file()), &tokens), logits(&load(exact(), &scaled.file()), &tokens));
    assert!(same_bits(&a[..1], &b[..1]), "position 0 is not rotated");
    assert!(difference(&a[100..], &b[100..]) > 0.01);
    assert!(difference(&b, &naive::logits(&scaled.file(), &tokens)) < 1e-5);
}

// N06
#[test]
fn activations_of_seventy_thousand_stay_finite_and_right() {
    let tokens = ids(6, 4);
    let types = [QuantType::F32, QuantType::F16, QuantType::BF16, QuantType::Q8_0, QuantType::Q4_0];
    for ty in types.into_iter().chain([QuantType::Q4_1, QuantType::Q5_1, QuantType::Q4_K, QuantType::Q6_K]) {
        let file = TinyModel { up_scale: 2e5, layers: 1, ..TinyModel::wide(ty) }.file();
        let want = naive::logits(&file, &tokens);
        for isa in Isa::available() {
            for sparsity in [Sparsity::Exact, Sparsity::Off] {
                let engine = load(with_isa(isa).sparsity(sparsity).check(true), &file);
                let off = difference(&logits(&engine, &tokens), &want);
                let rounded = !ty.is_float() && isa != Isa::Reference;
                let tolerance = if rounded { 1e-3 } else { 1e-5 };
                assert!(off < tolerance, "{ty}, {isa}, {sparsity:?}: {off:e}");
            }
        }
    }
}

// N06: keys and values in F16 end at 65504. Beyond, the request ends with an error that says so; F32 computes it.
#[test]
fn values_beyond_half_precision_are_right_in_an_f32_cache_and_an_error_in_an_f16_one() {
    let model = TinyModel { layers: 1, ..TinyModel::default() };
    let file = changed(&model.file(), &[], |name, bytes| {
        if name == "blk.0.attn_v.weight" {
            let scaled = |b: &mut [u8; 4]| *b = (1e5 * f32::from_le_bytes(*b)).to_le_bytes();
            bytes.as_chunks_mut().0.iter_mut().for_each(scaled);
        }
        true
    });
    let tokens = ids(6, 4);
    let got = logits(&load(exact(), &file), &tokens);
    assert!(difference(&got, &naive::logits(&file, &tokens)) < 1e-5);
    let engine = load(exact().kv(KvType::F16), &file);
    let mut s = engine.session(&SessionOptions::default()).unwrap();
    let e = s.generate(0, &tokens, &GenerateOptions::default(), &mut silent()).unwrap_err();
    assert!(matches!(e, Error::Logits(_)), "{e}");
    let mut s = load(exact().kv(KvType::F16).check(true), &file).session(&SessionOptions::default()).unwrap();
    assert_names(&s.feed(0, &tokens).unwrap_err(), &["attention", "layer 0"]);
}

// N07: row counts are in the conformance suite of devices; here prompts of all lengths over ragged matrices.
#[test]
fn prompts_of_1_to_130_tokens_equal_one_token_at_a_time() {
    let model = TinyModel { dim: 36, neurons: 53, head_dim: 6, layers: 1, vocab: 263, ..TinyModel::default() };
    let file = model.file();
    let tokens: Vec<u32> = ids(130, 5).into_iter().map(|t| t % 263).collect();
    for isa in Isa::available() {
        let engine = load(with_isa(isa).threads(2), &file);
        let want = logits_in(&engine, &tokens, 1);
        assert!(difference(&want, &naive::logits(&file, &tokens)) < 1e-5);
        let mut s = engine.session(&SessionOptions::default()).unwrap();
        for n in 1..=130 {
            s.truncate(0, 0);
            let got = vec![s.feed(0, &tokens[..n]).unwrap().to_vec()];
            assert!(same_bits(&got, &want[n - 1..n]), "{isa}, {n} tokens");
        }
    }
}

// N08
#[test]
fn rows_that_blocks_do_not_divide_are_a_load_error_naming_the_tensor() {
    let mut bytes = TinyModel::wide(QuantType::Q4_K).build().unwrap();
    let name = b"blk.0.ffn_gate.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4;
    assert_eq!(bytes[at..at + 8], 256u64.to_le_bytes());
    bytes[at..at + 8].copy_from_slice(&100u64.to_le_bytes());
    let message = match File::from_bytes(bytes, "odd.gguf") {
        Err(e) => e.to_string(),
        Ok(file) => refusal(exact(), &file).to_string(),
    };
    assert!(message.contains("blk.0.ffn_gate.weight") && message.contains("256"), "{message}");
    let e = TinyModel { dim: 100, heads: 1, kv_heads: 1, ty: QuantType::Q4_K, ..TinyModel::default() }.build();
    assert!(e.unwrap_err().to_string().contains("rows of 100"));
}

// N10
#[test]
fn without_a_head_the_embedding_is_used() {
    let tied = TinyModel { tied: true, ..TinyModel::default() }.file();
    assert!(tied.tensor("output.weight").is_none());
    let tokens = ids(5, 6);
    assert!(difference(&logits(&load(exact(), &tied), &tokens), &naive::logits(&tied, &tokens)) < 1e-5);
}

// N11
#[test]
fn rows_beyond_the_vocabulary_are_never_sampled_and_a_vocabulary_beyond_the_rows_is_refused() {
    // The head's extra rows are large, so that they would win.
    let more = TinyModel { rows: Some(300), ..TinyModel::default() }.file();
    let more = changed(&more, &[], |name, bytes| {
        if name == "output.weight" {
            bytes[288 * 256..].as_chunks_mut().0.iter_mut().for_each(|b| *b = 1e3f32.to_le_bytes());
        }
        true
    });
    let engine = load(exact(), &more);
    let mut s = engine.session(&SessionOptions::default()).unwrap();
    assert_eq!(s.feed(0, &[5]).unwrap().len(), 288);
    for sampling in [SamplingParams::greedy(), SamplingParams { seed: Some(1), top_k: 0, ..Default::default() }] {
        s.truncate(0, 0);
        let options = GenerateOptions { max_tokens: Some(30), sampling, ignore_eos: true, ..Default::default() };
        let out = s.generate(0, &[299, 5], &options, &mut silent()).unwrap();
        assert!(out.tokens.iter().all(|t| *t < 288), "{:?}", out.tokens);
    }
    let fewer = TinyModel { rows: Some(287), ..TinyModel::default() }.file();
    assert_names(&refusal(exact(), &fewer), &["tiny.gguf", "token_embd.weight", "288", "287"]);
    let head = TinyModel { rows: Some(300), ..TinyModel::default() };
    let (_, mut tensors) = head.parts().unwrap();
    let mut other = pi_gguf::Builder::new(head.kind);
    let plain = head.file();
    for (key, value) in plain.metadata().iter() {
        other.set(key, value).unwrap();
    }
    for m in &mut tensors {
        if m.name() == "output.weight" {
            *m = Matrix::encode("output.weight", QuantType::F32, 290, 64, &vec![0.0; 290 * 64]).unwrap();
        }
        let dims = if m.rows() == 1 { vec![m.cols()] } else { vec![m.cols(), m.rows()] };
        other.tensor(m.name(), m.ty(), &dims).unwrap();
    }
    let file = File::from_bytes(tiny::write(other, &tensors), "odd.gguf").unwrap();
    assert_names(&refusal(exact(), &file), &["output.weight", "300 rows", "290 rows"]);
}

/// The file with the `at`-th number (of four bytes) of tensor `name` replaced.
fn planted(model: &TinyModel, name: &str, at: usize, value: f32) -> File {
    changed(&model.file(), &[], |n, bytes| {
        if n == name {
            bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
        }
        true
    })
}

// N13
#[test]
fn check_mode_names_the_first_bad_tensor_and_the_first_bad_operator() {
    let model = TinyModel::default();
    for name in [
        "token_embd.weight",
        "output.weight",
        "output_norm.weight",
        "blk.0.attn_norm.weight",
        "blk.1.attn_v.weight",
        "blk.1.ffn_gate.weight",
        "blk.0.ffn_down.weight",
    ] {
        for bad in [f32::NAN, f32::INFINITY] {
            let e = refusal(exact().check(true), &planted(&model, name, 7, bad));
            assert_names(&e, &["odd.gguf", name, &bad.to_string(), "row 0, column 7"]);
        }
    }
    let both = changed(&planted(&model, "blk.1.attn_q.weight", 0, f32::NAN), &[], |n, bytes| {
        if n == "blk.0.ffn_up.weight" {
            bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        true
    });
    assert_names(&refusal(exact().check(true), &both), &["blk.0.ffn_up.weight"]);

    // Finite weights whose products are not: only a step finds out. Without check mode, the sampler does.
    for (name, what, layer) in [("blk.1.ffn_up.weight", "ffn", 1), ("blk.0.attn_v.weight", "attention", 0)] {
        let file = changed(&model.file(), &[], |n, bytes| {
            if n == name {
                bytes.as_chunks_mut().0.iter_mut().for_each(|b| *b = 3e38f32.to_le_bytes());
            }
            true
        });
        let engine = load(exact().check(true), &file);
        let mut s = engine.session(&SessionOptions::default()).unwrap();
        match s.feed(0, &[5, 6]) {
            Err(Error::NonFinite { what: w, layer: l }) => assert_eq!((w, l), (what, layer)),
            other => panic!("{name}: {:?}", other.map(|l| l.len())),
        }
        assert_eq!(s.len(0), 0);
        let mut s = load(exact(), &file).session(&SessionOptions::default()).unwrap();
        let e = s.generate(0, &[5, 6], &GenerateOptions::default(), &mut silent()).unwrap_err();
        assert!(matches!(e, Error::Logits(_)), "{e}");
    }
}

// N13: what is not a number in a gate is not taken for a neuron that does not fire.
#[test]
fn a_damaged_gate_is_seen_in_the_logits_of_every_activation() {
    for act in ["relu", "relu2", "fatrelu", "silu", "gelu", "gelu_tanh"] {
        let model = TinyModel { hidden_act: Some(act), ..TinyModel::default() };
        let file = planted(&model, "blk.0.ffn_gate.weight", 3, f32::NAN);
        for isa in Isa::available() {
            for sparsity in [Sparsity::Auto, Sparsity::Off] {
                let engine = load(with_isa(isa).sparsity(sparsity), &file);
                let mut s = engine.session(&SessionOptions::default()).unwrap();
                assert!(s.feed(0, &[9]).unwrap().iter().all(|l| l.is_nan()), "{act}, {isa}, {sparsity:?}");
            }
        }
    }
}

// P03, without a device beside the CPU
#[test]
fn prompts_of_any_length_give_the_same_logits_dense_and_sparse_with_an_oracle() {
    for ty in [QuantType::F16, QuantType::Q4_0] {
        let model = TinyModel { neuron_major: true, gate_shift: -0.5, layers: 1, ..TinyModel::wide(ty) };
        let file = model.file();
        for isa in Isa::available() {
            let of = |sparsity| with_isa(isa).threads(2).sparsity(sparsity);
            let dense = load(of(Sparsity::Off), &file);
            let sparse =
                [load(of(Sparsity::Exact), &file), load(of(Sparsity::Predictor).predictors(Predictors::Oracle), &file)];
            for n in [1, 2, 9, 33, 200] {
                let tokens = ids(n, 12);
                let want = logits(&dense, &tokens);
                for (what, engine) in ["exact", "oracle"].iter().zip(&sparse) {
                    let off = difference(&logits(engine, &tokens), &want);
                    assert!(off < 1e-5, "{ty}, {isa}, {n} tokens, {what}: {off:e}");
                }
                let mut s = sparse[1].session(&SessionOptions::default()).unwrap();
                s.feed(0, &tokens).unwrap();
                // Or it would be no sparse computation.
                let share = s.stats().active_share().unwrap();
                assert!(share < 0.99, "{ty}, {isa}, {n} tokens: {share} active");
            }
        }
    }
}

// P04: the kernels themselves are in the conformance suite; here whole models, skipping and not.
#[test]
fn every_type_equals_its_dequantised_twin() {
    let tokens = ids(8, 7);
    for ty in QuantType::ALL {
        for neuron_major in [true, false] {
            let model = TinyModel { neuron_major, layers: 1, gate_shift: -0.5, ..TinyModel::wide(ty) };
            let (_, tensors) = model.parts().unwrap();
            let (b, _) = TinyModel { ty: QuantType::F32, ..model.clone() }.parts().unwrap();
            let decoded =
                |m: &Matrix| Matrix::encode(m.name(), QuantType::F32, m.rows(), m.cols(), &m.decode()).unwrap();
            let twin: Vec<_> = tensors.iter().map(decoded).collect();
            let twin = File::from_bytes(tiny::write(b, &twin), "twin.gguf").unwrap();
            let file = model.file();
            for sparsity in [Sparsity::Exact, Sparsity::Off] {
                let of = |file| logits(&load(exact().sparsity(sparsity), file), &tokens);
                let off = difference(&of(&file), &of(&twin));
                assert!(off < 1e-5, "{ty}, neuron-major {neuron_major}, {sparsity:?}: {off:e}");
            }
        }
    }
}

// P06
#[test]
fn a_prompt_of_1600_tokens_is_computed_in_steps_of_512() {
    let model =
        TinyModel { layers: 1, dim: 32, heads: 2, kv_heads: 1, neurons: 32, context: 2048, ..Default::default() };
    let engine = load(exact().kv(KvType::F16).threads(2), &model.file());
    let prompt = ids(1600, 8);
    let mut s = engine.session(&SessionOptions::default()).unwrap();
    assert_eq!((s.context(), s.batch()), (2048, 512));
    let want = vec![s.feed(0, &prompt).unwrap().to_vec()];
    assert_eq!(s.len(0), 1600);
    let mut other = engine.session(&SessionOptions { batch: 77, ..Default::default() }).unwrap();
    assert!(same_bits(&[other.feed(0, &prompt).unwrap().to_vec()], &want));
    s.truncate(0, 0);
    let options = GenerateOptions { max_tokens: Some(5), ignore_eos: true, ..Default::default() };
    assert_eq!(s.generate(0, &prompt, &options, &mut silent()).unwrap().tokens.len(), 5);
}

// P10
#[test]
fn an_ordinary_dense_file_runs_dense_and_says_why() {
    for act in [None, Some("silu"), Some("gelu")] {
        let file = TinyModel { hidden_act: act, ..TinyModel::default() }.file();
        let engine = load(exact(), &file);
        let report = engine.sparsity();
        assert!(!report.is_on());
        assert!(report.to_string().contains("never exactly 0"), "{report}");
        let mut s = engine.session(&SessionOptions::default()).unwrap();
        s.feed(0, &[5]).unwrap();
        assert_eq!(s.stats().active_share(), Some(1.0));
        assert_names(&refusal(exact().sparsity(Sparsity::Exact), &file), &["sparsity exact", "never exactly 0"]);
        // What cannot be skipped can be made skippable: another activation than the file's.
        assert!(load(exact().activation(Activation::Relu).sparsity(Sparsity::Exact), &file).sparsity().is_on());
    }
    let q4 = load(exact(), &TinyModel::wide(QuantType::Q4_0).file());
    assert!(q4.sparsity().skips_up && !q4.sparsity().skips_down);
    assert!(q4.sparsity().to_string().contains("Q4_0"), "{}", q4.sparsity());
}

/// A sampler that says what it was told to say.
struct Script(Vec<TokenId>);

impl Sampler for Script {
    fn sample(&mut self, _: &mut [f32]) -> Result<TokenId> {
        Ok(self.0.remove(0))
    }

    fn accept(&mut self, _: TokenId) {}
}

fn silent() -> impl FnMut(&str) -> ControlFlow<()> {
    |_: &str| ControlFlow::Continue(())
}

/// Tokens of the bytes of `text` in a tiny model's vocabulary.
fn byte_tokens(text: &[u8]) -> Vec<TokenId> {
    text.iter().map(|b| 3 + TokenId::from(*b)).collect()
}

/// Generates what `script` says, and returns the streamed pieces as well.
fn say(s: &mut Session, script: &[TokenId], options: &GenerateOptions) -> (Generated, Vec<String>) {
    let mut pieces = Vec::new();
    let mut sink = |text: &str| {
        pieces.push(text.to_owned());
        ControlFlow::Continue(())
    };
    s.truncate(0, 0);
    let out = s.generate_with(0, &[1, 5], options, &mut Script(script.to_vec()), &mut sink).unwrap();
    (out, pieces)
}

// C03
#[test]
fn a_full_context_ends_a_generation_and_refuses_a_prompt_with_the_numbers() {
    let engine = tiny_engine();
    let mut s = engine.session(&SessionOptions { context: Some(16), ..Default::default() }).unwrap();
    let options = GenerateOptions { ignore_eos: true, ..Default::default() };
    let out = s.generate(0, &ids(10, 1), &options, &mut silent()).unwrap();
    // The last token needs no place: nothing comes after it.
    assert_eq!((out.stop, out.tokens.len(), s.len(0)), (StopReason::Context, 7, 16));
    for n in [16, 17, 300] {
        s.truncate(0, 0);
        match s.generate(0, &ids(n, 1), &options, &mut silent()) {
            Err(Error::Context { needed, context }) => assert_eq!((needed, context), (n + 1, 16)),
            other => panic!("{other:?}"),
        }
        assert_eq!(s.len(0), 0);
    }
    let none = GenerateOptions { max_tokens: Some(0), ..Default::default() };
    let out = s.generate(0, &ids(16, 1), &none, &mut silent()).unwrap();
    assert_eq!((out.stop, out.tokens.len(), s.len(0)), (StopReason::Length, 0, 16));
    match s.feed(0, &[5]) {
        Err(Error::Context { needed: 17, context: 16 }) => {}
        other => panic!("{:?}", other.map(|l| l.len())),
    }
    s.truncate(0, 15);
    let out = s.generate(0, &[5], &GenerateOptions { max_tokens: Some(1), ..options }, &mut silent());
    assert!(matches!(out, Err(Error::Context { needed: 17, context: 16 })));
}

// S17
#[test]
fn characters_split_between_tokens_are_streamed_whole_and_pieces_join_to_the_text() {
    let mut s = tiny_engine().session(&SessionOptions::default()).unwrap();
    let options = GenerateOptions { max_tokens: None, ..Default::default() };
    let text = "né€🦙 Ω";
    let mut script = byte_tokens(text.as_bytes());
    script.push(2);
    let (out, pieces) = say(&mut s, &script, &options);
    assert_eq!((out.text.as_str(), out.stop), (text, StopReason::Eos(2)));
    assert_eq!(pieces.concat(), text);
    assert_eq!(pieces.len(), text.chars().count(), "{pieces:?}");
    // The end inside a character: one replacement character.
    for cut in 1..4 {
        let mut script = byte_tokens(&[b"ab", &"🦙".as_bytes()[..cut]].concat());
        script.push(2);
        let (out, pieces) = say(&mut s, &script, &options);
        assert_eq!((out.text.as_str(), pieces.concat()), ("ab\u{fffd}", "ab\u{fffd}".into()));
    }
    // Words and bytes in mixture: what the tokenizer itself makes of the tokens.
    let mut script = [vec![259, 260], byte_tokens("ß€".as_bytes()), vec![287]].concat();
    script.push(2);
    let (out, pieces) = say(&mut s, &script, &options);
    let engine = s.engine().clone();
    let all = [&[1, 5], &script[..script.len() - 1]].concat();
    let of = |tokens: &[u32]| engine.tokenizer().decode(tokens, DecodeOptions::default()).unwrap();
    let (whole, prompt) = (of(&all), of(&[1, 5]));
    assert_eq!(out.text.as_bytes(), &whole[prompt.len()..], "{:?}", out.text);
    assert_eq!(pieces.concat(), out.text);
    // A stop string across tokens is taken out, and what came before it is shown.
    let options = GenerateOptions { stop: vec!["🦙x".into()], ..options };
    let (out, pieces) = say(&mut s, &byte_tokens("ok 🦙🦙xyz".as_bytes()), &options);
    assert_eq!((out.text.as_str(), out.stop), ("ok 🦙", StopReason::Stop("🦙x".into())));
    assert_eq!(pieces.concat(), out.text);
}

// S18
#[test]
fn every_end_of_generation_token_stops_and_its_text_is_not_sent() {
    let file = with_keys(&[
        ("tokenizer.ggml.eot_token_id", Some(260u32.into())),
        ("tokenizer.ggml.eom_token_id", Some(261u32.into())),
    ]);
    let engine = load(exact(), &file);
    let eog = engine.tokenizer().special().eog.clone();
    assert_eq!(eog, [2, 260, 261]);
    let mut s = engine.session(&SessionOptions::default()).unwrap();
    let plain = GenerateOptions { max_tokens: Some(4), ..Default::default() };
    let ignoring = GenerateOptions { ignore_eos: true, ..plain.clone() };
    for end in eog {
        let script = [3 + u32::from(b'a'), 3 + u32::from(b'b'), end, 3 + u32::from(b'c')];
        let (out, pieces) = say(&mut s, &script, &plain);
        assert_eq!((out.text.as_str(), out.stop, out.tokens.len()), ("ab", StopReason::Eos(end), 2));
        assert_eq!(pieces.concat(), "ab");
        let (out, _) = say(&mut s, &script, &ignoring);
        assert_eq!((out.stop, out.tokens.len()), (StopReason::Length, 4));
    }
    // The arg-max of the model itself can be the end: force it.
    let sampling = SamplingParams { logit_bias: vec![(260, 1e4)], ..SamplingParams::greedy() };
    s.truncate(0, 0);
    let out = s.generate(0, &[5], &GenerateOptions { sampling, ..Default::default() }, &mut silent()).unwrap();
    assert_eq!((out.stop, out.text.as_str()), (StopReason::Eos(260), ""));
}

// P18
#[test]
fn the_same_seed_gives_the_same_tokens_with_any_number_of_threads() {
    let file = TinyModel::wide(QuantType::Q4_0).file();
    let sampling = SamplingParams { temperature: 2.0, top_k: 0, top_p: 1.0, seed: Some(7), ..Default::default() };
    let options = GenerateOptions { max_tokens: Some(40), sampling, ignore_eos: true, ..Default::default() };
    let run = |threads, seq| {
        let engine = load(with_isa(*Isa::available().last().unwrap()).threads(threads), &file);
        let mut s = engine.session(&SessionOptions { sequences: 2, ..Default::default() }).unwrap();
        let out = s.generate(seq, &[1, 5, 6], &options, &mut silent()).unwrap();
        assert_eq!(out.seed, 7);
        out.tokens
    };
    let want = run(1, 0);
    assert!(want.iter().collect::<std::collections::HashSet<_>>().len() > 10, "{want:?}");
    for (threads, seq) in [(1, 0), (2, 0), (3, 1)] {
        assert_eq!(run(threads, seq), want);
    }
}

#[test]
fn a_sink_that_breaks_ends_the_generation_at_once() {
    let mut s = tiny_engine().session(&SessionOptions::default()).unwrap();
    let mut shown = String::new();
    let mut sink = |text: &str| {
        shown += text;
        if text == "c" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = GenerateOptions { max_tokens: Some(9), ..Default::default() };
    let out = s.generate_with(0, &[1], &options, &mut Script(byte_tokens(b"abcdef")), &mut sink).unwrap();
    assert_eq!((out.text.as_str(), out.stop, out.tokens.len()), ("abc", StopReason::Cancelled, 3));
    assert_eq!(shown, "abc");
}

#[test]
fn a_refused_step_leaves_every_sequence_as_it_was() {
    let engine = tiny_engine();
    let options = SessionOptions { context: Some(12), batch: 6, sequences: 2, logits: 2 };
    let token = |token, seq| StepToken { token, seq, logits: true };
    let quiet = |token, seq| StepToken { token, seq, logits: false };
    let bad: Vec<(&str, Vec<StepToken>)> = vec![
        ("tokens of a step", vec![]),
        ("tokens of a step", vec![quiet(5, 0); 7]),
        ("token", vec![quiet(5, 0), quiet(288, 1)]),
        ("token", vec![token(u32::MAX, 0)]),
        ("sequence", vec![token(5, 0), token(5, 2)]),
        ("sequence", vec![token(5, u32::MAX)]),
        ("logits of a step", vec![token(5, 0), token(6, 0), token(7, 1)]),
        ("13 tokens do not fit", vec![quiet(5, 1), quiet(5, 0), quiet(5, 0), quiet(5, 0), quiet(5, 0)]),
    ];
    let run = |spoiled: bool| {
        let mut s = engine.session(&options).unwrap();
        s.step(&[quiet(9, 0), quiet(8, 1), quiet(7, 0), quiet(6, 0), token(5, 0), quiet(4, 1)]).unwrap();
        for t in 0..5 {
            s.step(&[quiet(20 + t, 0)]).unwrap();
        }
        assert_eq!((s.len(0), s.len(1)), (9, 2));
        for (what, step) in bad.iter().filter(|_| spoiled) {
            let e = s.step(step).unwrap_err();
            assert_names(&e, &[what]);
            assert_eq!((s.len(0), s.len(1)), (9, 2), "{what}");
            assert!(s.logits(0).is_err(), "{what}: logits of a step that was refused");
        }
        s.step(&[quiet(31, 1), token(32, 0), token(33, 1)]).unwrap();
        [s.logits(0).unwrap().to_vec(), s.logits(1).unwrap().to_vec()]
    };
    assert!(same_bits(&run(true), &run(false)));

    // A failure of an operator in the middle of the layers, and of a later step of a prompt.
    let file = changed(&TinyModel::default().file(), &[], |name, bytes| {
        if name == "token_embd.weight" {
            bytes[200 * 256..201 * 256].as_chunks_mut().0.iter_mut().for_each(|b| *b = 1e30f32.to_le_bytes());
        }
        if name == "blk.1.ffn_norm.weight" {
            bytes.as_chunks_mut().0.iter_mut().for_each(|b| *b = 1e19f32.to_le_bytes());
        }
        true
    });
    let engine = load(exact().check(true), &file);
    let mut s = engine.session(&SessionOptions { batch: 4, ..Default::default() }).unwrap();
    let failing = s.feed(0, &[5; 10]).is_err();
    assert!(failing, "1e19 squared passes f32");
    assert_eq!(s.len(0), 0);
}

#[test]
fn settings_out_of_range_are_refused_by_name_and_memory_that_is_not_there_is_an_error() {
    let engine = tiny_engine();
    let plain = SessionOptions::default();
    for (name, options) in [
        ("context", SessionOptions { context: Some(0), ..plain.clone() }),
        ("context", SessionOptions { context: Some(usize::MAX), ..plain.clone() }),
        ("context", SessionOptions { context: Some((1 << 24) + 1), ..plain.clone() }),
        ("batch", SessionOptions { batch: 0, ..plain.clone() }),
        ("batch", SessionOptions { batch: usize::MAX, ..plain.clone() }),
        ("sequences", SessionOptions { sequences: 0, ..plain.clone() }),
        ("sequences", SessionOptions { sequences: 1 << 25, ..plain.clone() }),
        ("logits", SessionOptions { logits: 0, ..plain.clone() }),
    ] {
        assert_names(&engine.session(&options).err().expect("out of range"), &[name]);
    }
    // 2^54 bytes of keys, more than any machine addresses.
    let huge = SessionOptions { context: Some(1 << 24), sequences: 1 << 24, ..plain.clone() };
    assert_names(&engine.session(&huge).err().expect("no memory"), &["no memory", "bytes"]);
    // A long context costs nothing until it is used.
    let mut s = engine.session(&SessionOptions { context: Some(1 << 20), ..plain }).unwrap();
    s.feed(0, &[5, 6]).unwrap();
    for threads in [0, 1025, usize::MAX] {
        assert_names(&refusal(exact().threads(threads), &TinyModel::default().file()), &["threads", "1 to 1024"]);
    }
    assert!(s.feed(0, &[]).is_err() && s.feed(1, &[5]).is_err());
    assert_eq!(s.len(0), 2);
    s.step(&step(0, &[7])).unwrap();
}
