//! What the families have of their own: positions, norms, projections, and the variants that are refused.

use crate::common::{exact, ids, load, logits, predicted_models, refusal};
use pi_core::{Activation, Gating};
use pi_engine::{Error, SessionOptions, inspect};
use pi_gguf::{Builder, File, Value};
use pi_testkit::{TinyModel, synth::Family, tiny};

fn model(family: Family) -> TinyModel {
    TinyModel { family, hidden_act: None, ..TinyModel::default() }
}

/// The family's file with other keys.
fn with(family: Family, keys: &[(&str, Value<'_>)]) -> File {
    let keys: Vec<_> = keys.iter().map(|(key, value)| (*key, Some(*value))).collect();
    File::from_bytes(tiny::rewrite(&model(family).file(), &keys, |_, _| true), "other.gguf").unwrap()
}

fn without(model: &TinyModel, tensor: &str) -> File {
    let (mut found, file) = (false, model.file());
    let bytes = tiny::rewrite(&file, &[], |name, _| {
        found |= name == tensor;
        name != tensor
    });
    assert!(found, "{tensor}");
    File::from_bytes(bytes, "less.gguf").unwrap()
}

/// The model with one more tensor, or another in the place of one: random numbers, `rows` of `cols`.
fn with_tensor(model: &TinyModel, name: &str, rows: usize, cols: usize) -> File {
    let (b, mut tensors) = model.parts().unwrap();
    tensors.retain(|m| m.name() != name);
    tensors.push(pi_core::Matrix::encode(name, pi_core::QuantType::F32, rows, cols, &vec![0.5; rows * cols]).unwrap());
    let mut other = Builder::new(model.kind);
    let file = File::from_bytes(b.start(Vec::new()).map(|_| model.build().unwrap()).unwrap(), "tiny.gguf").unwrap();
    for (key, value) in file.metadata().iter() {
        other.set(key, value).unwrap();
    }
    for m in &tensors {
        let dims = if m.rows() == 1 { vec![m.cols()] } else { vec![m.cols(), m.rows()] };
        other.tensor(m.name(), m.ty(), &dims).unwrap();
    }
    File::from_bytes(tiny::write(other, &tensors), "more.gguf").unwrap()
}

#[test]
fn files_that_name_no_activation_have_that_of_their_family() {
    for (family, act, gating) in [
        (Family::Llama, Activation::Silu, Gating::Gated),
        (Family::Bamboo, Activation::Relu, Gating::Symmetric),
        (Family::Falcon, Activation::Gelu, Gating::UpOnly),
        (Family::Opt, Activation::Relu, Gating::UpOnly),
    ] {
        let engine = load(exact(), &model(family).file());
        assert_eq!((engine.config().activation, engine.config().gating), (act, gating), "{family}");
    }
    for (name, model) in predicted_models() {
        assert_eq!(load(exact(), &model.file()).config().activation, Activation::Relu, "{name}");
    }
}

#[test]
fn all_families_are_sound_to_inspect() {
    for (name, model) in predicted_models() {
        let report = inspect(&model.file());
        assert_eq!(report.problems, [""; 0], "{name}");
        assert_eq!(report.predictors.unwrap().found.len(), model.layers, "{name}");
    }
}

/// OPT's files state as many positions as the table has rows, two of which are none.
#[test]
fn a_sequence_ends_where_learned_positions_end() {
    let rows = TinyModel { context: 20, ..model(Family::Opt) }.file();
    let stated = tiny::rewrite(&rows, &[("opt.context_length", Some(Value::U32(22)))], |_, _| true);
    for file in [rows, File::from_bytes(stated, "stated.gguf").unwrap()] {
        let engine = load(exact(), &file);
        assert_eq!(engine.config().context, 20);
        let mut s = engine.session(&SessionOptions::default()).unwrap();
        s.feed(0, &ids(20, 1)).unwrap();
        assert!(matches!(s.feed(0, &[5]), Err(Error::Context { needed: 21, context: 20 })));
        let error = engine.session(&SessionOptions { context: Some(21), ..Default::default() }).err().unwrap();
        assert!(error.to_string().contains("context: expected at most 20"), "{error}");
    }
}

#[test]
fn the_same_token_at_another_position_has_other_logits() {
    let rows = logits(&load(exact(), &model(Family::Opt).file()), &[7, 7, 7]);
    assert!(rows[0] != rows[1] && rows[1] != rows[2]);
}

#[test]
fn variants_of_a_family_that_are_not_built_are_refused_by_name() {
    for (family, key, value, said) in [
        (Family::Falcon, "falcon.alibi", Value::Bool(true), "ALiBi"),
        (Family::Falcon, "falcon.attention.max_alibi_bias", Value::F32(8.0), "ALiBi"),
        (Family::Falcon, "falcon.use_parallel_residual", Value::Bool(false), "behind the attention"),
        (Family::Opt, "opt.do_layer_norm_before", Value::Bool(false), "behind the branches"),
        (Family::Opt, "opt.word_embed_proj_dim", Value::U32(32), "projected embeddings"),
    ] {
        let file = with(family, &[(key, value)]);
        let error = refusal(exact(), &file);
        assert!(matches!(&error, Error::Config { key: k, .. } if k == key), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(inspect(&file).problems.iter().any(|p| p.contains(said)), "{key}");
    }
    for (family, key, value) in [
        (Family::Falcon, "falcon.alibi", Value::Bool(false)),
        (Family::Falcon, "falcon.attention.max_alibi_bias", Value::F32(0.0)),
        (Family::Opt, "opt.do_layer_norm_before", Value::Bool(true)),
        (Family::Opt, "opt.word_embed_proj_dim", Value::U32(64)),
    ] {
        load(exact(), &with(family, &[(key, value)]));
    }
}

#[test]
fn variants_that_only_tensors_show_are_refused_by_name() {
    let opt = model(Family::Opt);
    for (file, tensor, said) in [
        (with_tensor(&model(Family::Falcon), "blk.0.ffn_norm.weight", 1, 64), "blk.0.ffn_norm.weight", "falcon-rw"),
        (without(&opt, "output_norm.weight"), "output_norm.weight", "do_layer_norm_before"),
        (with_tensor(&opt, "token_embd.weight", 288, 32), "token_embd.weight", "word_embed_proj_dim"),
    ] {
        let error = refusal(exact(), &file);
        assert!(matches!(&error, Error::Tensor { tensor: t, .. } if t == tensor), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(inspect(&file).problems.iter().any(|p| p.contains(said)), "{tensor}");
    }
}

#[test]
fn tensors_of_a_family_that_are_missing_or_of_another_shape_are_named() {
    for (family, tensor) in [
        (Family::Falcon, "blk.1.attn_norm.bias"),
        (Family::Opt, "blk.0.ffn_norm.bias"),
        (Family::Opt, "output_norm.bias"),
        (Family::Opt, "position_embd.weight"),
    ] {
        let error = refusal(exact(), &without(&model(family), tensor)).to_string();
        assert!(error.contains(tensor), "{error}");
    }
    for (family, tensor, rows, cols) in [
        (Family::Falcon, "blk.0.attn_qkv.weight", 64, 64),
        (Family::Opt, "position_embd.weight", 100, 32),
        (Family::Opt, "position_embd.weight", 2, 64),
        (Family::Opt, "blk.1.ffn_up.bias", 1, 95),
    ] {
        let file = with_tensor(&model(family), tensor, rows, cols);
        let error = refusal(exact(), &file).to_string();
        assert!(error.contains(tensor), "{error}");
        if tensor.ends_with("weight") && rows > 2 {
            assert!(inspect(&file).problems.iter().any(|p| p.contains(tensor)), "{tensor}");
        }
    }
    let error = refusal(exact(), &without(&model(Family::Falcon), "blk.0.attn_qkv.weight")).to_string();
    assert!(error.contains("blk.0.attn_q.weight"), "{error}");
}
