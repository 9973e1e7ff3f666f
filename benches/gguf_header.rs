//! How long it takes to open a file with a vocabulary of 262,144 tokens.

use std::hint::black_box;

use criterion::Criterion;
use pi_gguf::{Builder, File, Kind, Source};

const TOKENS: u32 = 262_144;

fn vocabulary(path: &std::path::Path) {
    let mut builder = Builder::new(Kind::Gguf);
    let tokens = (0..TOKENS).map(|i| format!("token {i}"));
    builder.set("general.architecture", "gemma3").expect("key");
    builder.set_strings("tokenizer.ggml.tokens", tokens).expect("key");
    builder.set_array("tokenizer.ggml.scores", &vec![0f32; TOKENS as usize]).expect("key");
    builder.set_array("tokenizer.ggml.token_type", &vec![1i32; TOKENS as usize]).expect("key");
    builder.create(path).and_then(|w| w.finish()).and_then(|file| file.commit()).expect("writes");
}

fn header(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("vocabulary.gguf");
    vocabulary(&path);
    let file = File::open(&path).expect("opens");
    let tokens: Vec<&str> = file.metadata().require("tokenizer.ggml.tokens").expect("tokens");
    assert_eq!(tokens.len(), TOKENS as usize);
    assert_eq!(tokens[TOKENS as usize - 1], format!("token {}", TOKENS - 1));

    let mut group = c.benchmark_group("open 262144 tokens");
    for source in [Source::Mapped, Source::InMemory] {
        group.bench_function(format!("{source:?}"), |b| {
            b.iter(|| File::open_with(black_box(&path), source).expect("opens"));
        });
    }
    group.bench_function("and read them", |b| {
        b.iter(|| {
            let file = File::open(black_box(&path)).expect("opens");
            let tokens: Vec<&str> = file.metadata().require("tokenizer.ggml.tokens").expect("tokens");
            let scores: Vec<f32> = file.metadata().require("tokenizer.ggml.scores").expect("scores");
            black_box((tokens.len(), scores.len()))
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    header(&mut criterion);
    criterion.final_summary();
}
