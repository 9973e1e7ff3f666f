//! Every token id, every piece and every text of the reference engine's vocabularies, exactly.
//!
//! `PI_TEST_DATA` names the folder with `goldens/tokenizer` and `vocab`, `PI_TEST_MODELS` one with published models.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pi_core::text::{DecodeOptions, EncodeOptions, TokenId, Tokenizer};
use pi_engine::tokenizer::{StreamDecoder, load};
use pi_testkit::data::{test_data, test_model};
use serde_json::Value;

fn open(path: &Path) -> Arc<dyn Tokenizer> {
    let file = pi_gguf::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    load(file.metadata()).unwrap_or_else(|error| panic!("{}: {error}", path.display())).tokenizer
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

/// The bytes of `{"text": …}` or `{"hex": …}`.
fn bytes(value: &Value) -> Vec<u8> {
    match value["hex"].as_str() {
        Some(text) => hex(text),
        None => value["text"].as_str().unwrap().as_bytes().to_vec(),
    }
}

fn shown_bytes(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Compares one vocabulary with its file of expectations; returns what differs.
fn check(tokenizer: &Arc<dyn Tokenizer>, golden: &Path) -> Vec<String> {
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let name = &golden["model"];
    let special = tokenizer.special();
    let expected = &golden["special"];
    let id = |key: &str| TokenId::try_from(expected[key].as_i64().unwrap()).ok();
    assert_eq!(
        [special.bos, special.eos, special.eot, special.newline, special.pad],
        ["bos", "eos", "eot", "nl", "pad"].map(id),
        "{name}: bos, eos, eot, nl, pad"
    );
    assert_eq!(
        (special.add_bos, special.add_eos),
        (expected["add_bos"] == true, expected["add_eos"] == true),
        "{name}"
    );
    assert_eq!(tokenizer.len() as u64, expected["n_vocab"].as_u64().unwrap(), "{name}");
    assert_eq!(special.eog, ids(&golden["eog"]), "{name}: end of generation");
    let mut checked = 9;
    let mut wrong = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let text = hex(case["hex"].as_str().unwrap());
        let shown = String::from_utf8_lossy(&text);
        let mut compare = |what: &str, got: String, expected: String| {
            checked += 1;
            if got != expected {
                wrong.push(format!("{name} {shown:?} {what}\n  got      {got}\n  expected {expected}"));
            }
        };
        let plain = tokenizer.encode(&text, EncodeOptions::PLAIN).unwrap();
        compare("ids", format!("{plain:?}"), format!("{:?}", ids(&case["ids"])));
        let prompt = tokenizer.encode(&text, EncodeOptions::PROMPT).unwrap();
        compare("ids_special", format!("{prompt:?}"), format!("{:?}", ids(&case["ids_special"])));
        for (key, tokens, special, trim_special) in [
            ("detok", &plain, false, false),
            ("detok_unparse", &prompt, true, false),
            ("detok_remove", &prompt, false, true),
        ] {
            let options = DecodeOptions { special, trim_special, clean_spaces: true };
            compare(key, shown_bytes(&tokenizer.decode(tokens, options).unwrap()), shown_bytes(&bytes(&case[key])));
            // Token by token it is the same text, apart from the cleaning.
            let options = DecodeOptions { clean_spaces: false, ..options };
            let whole = tokenizer.decode(tokens, options).unwrap();
            let mut stream = StreamDecoder::new(Arc::clone(tokenizer), options);
            let mut joined: String = tokens.iter().map(|&id| stream.push(id).unwrap().to_owned()).collect();
            joined.push_str(stream.finish());
            compare("stream", joined, String::from_utf8_lossy(&whole).into_owned());
        }
        let pieces: Vec<_> =
            ids(&case["ids_special"]).iter().map(|&id| tokenizer.piece(id, true).unwrap().to_vec()).collect();
        let expected: Vec<_> =
            case["pieces_hex"].as_array().unwrap().iter().map(|p| hex(p.as_str().unwrap())).collect();
        compare("pieces", format!("{pieces:?}"), format!("{expected:?}"));
    }
    eprintln!("{name}: {} of {checked} comparisons differ", wrong.len());
    wrong
}

#[test]
fn nine_vocabularies_give_exactly_the_reference_engines_tokens_and_texts() {
    let Some(data) = test_data("") else { return };
    let mut wrong = Vec::new();
    for name in
        ["baichuan", "deepseek-coder", "falcon", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "starcoder"]
    {
        let name = format!("ggml-vocab-{name}");
        let tokenizer = open(&data.join("vocab").join(format!("{name}.gguf")));
        wrong.extend(check(&tokenizer, &data.join("goldens/tokenizer").join(format!("{name}.json"))));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn two_published_models_give_exactly_the_reference_engines_tokens_and_texts() {
    let Some(data) = test_data("") else { return };
    let mut wrong = Vec::new();
    for name in ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"] {
        let Some(path) = test_model(&format!("{name}.gguf")) else { continue };
        wrong.extend(check(&open(&path), &data.join("goldens/tokenizer").join(format!("{name}.json"))));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_published_test_files_beside_the_vocabularies_come_out_exactly() {
    let Some(data) = test_data("") else { return };
    let mut cases = 0;
    for entry in std::fs::read_dir(data.join("vocab")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let with = |extension: &str| PathBuf::from(format!("{}.{extension}", path.display()));
        if !with("inp").exists() {
            continue;
        }
        let tokenizer = open(&path);
        let texts = std::fs::read_to_string(with("inp")).unwrap();
        let expected = std::fs::read_to_string(with("out")).unwrap();
        let texts: Vec<_> = texts.split("\n__ggml_vocab_test__\n").collect();
        let expected: Vec<_> = expected.lines().collect();
        assert!(texts.len().abs_diff(expected.len()) <= 1, "{}: {} {}", path.display(), texts.len(), expected.len());
        for (text, expected) in texts.iter().zip(expected) {
            let got = tokenizer.encode(text.as_bytes(), EncodeOptions::PLAIN).unwrap();
            let got: Vec<_> = got.iter().map(ToString::to_string).collect();
            assert_eq!(got, expected.split_whitespace().collect::<Vec<_>>(), "{} {text:?}", path.display());
            cases += 1;
        }
    }
    eprintln!("{cases} cases");
    assert!(cases > 300);
}

#[test]
fn an_emoji_without_a_token_comes_out_as_published() {
    let Some(data) = test_data("") else { return };
    let encode = |name: &str, text: &str, options| {
        let tokenizer = open(&data.join("vocab").join(format!("ggml-vocab-{name}.gguf")));
        let ids = tokenizer.encode(text.as_bytes(), options).unwrap();
        for text in [" ", "  ", "   ", "    ", "\t", "\n\n", " a\n  b\n"] {
            let ids = tokenizer.encode(text.as_bytes(), EncodeOptions::PLAIN).unwrap();
            let back = tokenizer.decode(&ids, DecodeOptions::default()).unwrap();
            assert_eq!(back, text.as_bytes(), "{name} {text:?}");
        }
        ids
    };
    let llama = encode("llama-spm", "This is 🦙.cpp", EncodeOptions { add_special: true, parse_special: false });
    assert_eq!(llama, [1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223]);
    assert_eq!(encode("falcon", " this is 🦙.cpp", EncodeOptions::PLAIN), [414, 304, 3346, 111, 231, 25, 29247]);
}

#[test]
fn a_262144_token_vocabulary_with_thousands_of_special_tokens_is_ready_in_two_seconds() {
    let Some(path) = test_model("gemma-3-270m-q4_k_m.gguf") else { return };
    let file = pi_gguf::File::open(&path).unwrap();
    let start = Instant::now();
    let tokenizer = load(file.metadata()).unwrap().tokenizer;
    let elapsed = start.elapsed();
    eprintln!("{} tokens in {elapsed:?}", tokenizer.len());
    assert!(elapsed.as_secs_f64() < 2.0, "{elapsed:?}");
}
