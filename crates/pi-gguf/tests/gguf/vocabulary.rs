//! A large vocabulary opens at once.

use std::time::{Duration, Instant};

use pi_gguf::{Builder, File, Kind};

#[test]
fn a_header_with_262144_tokens_opens_in_a_fraction_of_a_second() {
    let tokens = || (0..262_144u32).map(|i| format!("token {i}"));
    let mut builder = Builder::new(Kind::Gguf);
    builder.set_strings("tokenizer.ggml.tokens", tokens()).expect("key");
    builder.set_array("tokenizer.ggml.scores", &vec![0f32; 262_144]).expect("key");
    let bytes = builder.start(Vec::new()).and_then(|w| w.finish()).expect("writes");

    let start = Instant::now();
    let file = File::from_bytes(bytes, "vocabulary.gguf").expect("opens");
    let took = start.elapsed();
    assert!(took < Duration::from_millis(500), "{took:?}");
    let read: Vec<&str> = file.metadata().require("tokenizer.ggml.tokens").expect("tokens");
    assert!(read.into_iter().eq(tokens()));
}

#[test]
fn many_keys_and_tensors_are_told_apart_at_once() {
    let mut builder = Builder::new(Kind::Gguf);
    for i in 0..100_000u32 {
        builder.set(&format!("key.{i}"), i).expect("key");
        builder.tensor(&format!("tensor.{i}"), pi_core::QuantType::F32, &[1]).expect("tensor");
    }
    let mut writer = builder.start(Vec::new()).expect("header");
    for i in 0..100_000u32 {
        writer.write(&format!("tensor.{i}"), &i.to_le_bytes()).expect("data");
    }
    let bytes = writer.finish().expect("end");

    let start = Instant::now();
    let file = File::from_bytes(bytes, "many.gguf").expect("opens");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(file.metadata().require::<u32>("key.77777").expect("key"), 77_777);
    assert_eq!(file.require_tensor("tensor.77777").expect("tensor").data(), 77_777u32.to_le_bytes());
}
