//! Vocabularies made for the occasion: odd, broken and minimal ones.

use pi_core::text::{DecodeOptions, EncodeOptions, TextError, TokenId, TokenKind};
use pi_engine::tokenizer::{Loaded, StreamDecoder, Vocab, VocabError, VocabModel, VocabWarning, build, load};
use pi_gguf::{Builder, File, Kind};

/// `<unk> <s> </s>` and then these tokens with these scores.
fn spm(tokens: &[(&str, f32)]) -> Vocab {
    let special = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)];
    let all: Vec<_> = special.iter().chain(tokens).collect();
    let mut vocab = Vocab::new(VocabModel::Spm, all.iter().map(|(text, _)| text));
    vocab.scores = all.iter().map(|(_, score)| *score).collect();
    vocab.kinds = vec![TokenKind::Normal; all.len()];
    vocab.kinds[..3].copy_from_slice(&[TokenKind::Unknown, TokenKind::Control, TokenKind::Control]);
    vocab
}

fn bpe(tokens: &[&str], merges: &[&str]) -> Vocab {
    let mut vocab = Vocab::new(VocabModel::Bpe, tokens);
    vocab.merges = merges.iter().collect();
    vocab.pre = Some("gpt-2".into());
    vocab
}

fn encode(vocab: Vocab, text: &str, options: EncodeOptions) -> Vec<TokenId> {
    build(vocab).unwrap().tokenizer.encode(text.as_bytes(), options).unwrap()
}

fn error(vocab: Vocab) -> VocabError {
    build(vocab).expect_err("this vocabulary contradicts itself")
}

#[test]
fn the_best_score_merges_first_and_the_leftmost_of_equals() {
    let vocab =
        || spm(&[("▁", -9.0), ("a", -9.0), ("b", -9.0), ("ab", -1.0), ("ba", -2.0), ("aa", -1.5), ("▁a", -8.0)]);
    // ▁ a b a: ab before ba. ▁ a a a: the left aa.
    assert_eq!(encode(vocab(), "aba", EncodeOptions::PLAIN), [3, 6, 4]);
    assert_eq!(encode(vocab(), "aaa", EncodeOptions::PLAIN), [3, 8, 4]);
}

#[test]
fn a_space_stands_before_text_and_before_text_behind_a_special_token() {
    let vocab = || spm(&[("▁", -9.0), ("a", -9.0), ("▁a", -1.0)]);
    assert_eq!(encode(vocab(), "a", EncodeOptions::PROMPT), [1, 5]);
    assert_eq!(encode(vocab(), "a</s>a", EncodeOptions::PROMPT), [1, 5, 2, 5]);
    let mut plain = vocab();
    plain.add_space_prefix = Some(false);
    assert_eq!(encode(plain, "a</s>a", EncodeOptions::PROMPT), [1, 4, 2, 4]);
}

#[test]
fn text_from_people_never_becomes_a_control_token() {
    let tokens = ["▁", "<", "/", "s", ">"].map(|text| (text, -1.0));
    let plain = encode(spm(&tokens), "</s>", EncodeOptions { add_special: true, parse_special: false });
    assert_eq!(plain, [1, 3, 4, 5, 6, 7]);
    assert_eq!(encode(spm(&tokens), "</s>", EncodeOptions::PROMPT), [1, 2]);
}

#[test]
fn without_byte_tokens_a_foreign_character_is_the_unknown_token() {
    assert_eq!(encode(spm(&[("▁", 0.0)]), "你", EncodeOptions::PLAIN), [3, 0]);
    let mut vocab = bpe(&["a", "b", "ab", "?"], &["a b"]);
    vocab.special.unk = Some(3);
    assert_eq!(encode(vocab, "ab你", EncodeOptions::PLAIN), [2, 3, 3, 3]);
}

#[test]
fn without_byte_tokens_and_unknown_token_a_foreign_character_is_a_typed_error() {
    let tokenizer = build(bpe(&["a", "b", "ab"], &["a b"])).unwrap().tokenizer;
    let error = tokenizer.encode("你".as_bytes(), EncodeOptions::PLAIN).unwrap_err();
    assert_eq!(error, TextError::NoToken { bytes: vec![0xe4] });
    assert!(error.to_string().contains("e4"), "{error}");
}

#[test]
fn bytes_without_a_token_of_their_own_become_byte_tokens() {
    let mut vocab = spm(&[("▁", 0.0), ("<0xE4>", 0.0), ("<0xBD>", 0.0), ("<0xA0>", 0.0)]);
    vocab.kinds[4..].fill(TokenKind::Byte);
    let tokenizer = build(vocab).unwrap().tokenizer;
    let ids = tokenizer.encode("你".as_bytes(), EncodeOptions::PLAIN).unwrap();
    assert_eq!(ids, [3, 4, 5, 6]);
    assert_eq!(tokenizer.decode(&ids, DecodeOptions::default()).unwrap(), "你".as_bytes());
    // One of three missing: the character is unknown as a whole.
    let mut vocab = spm(&[("▁", 0.0), ("<0xE4>", 0.0), ("<0xBD>", 0.0)]);
    vocab.kinds[4..].fill(TokenKind::Byte);
    assert_eq!(encode(vocab, "你", EncodeOptions::PLAIN), [3, 0]);
}

#[test]
fn token_texts_that_are_not_utf_8_are_kept_as_they_are() {
    for model in [VocabModel::Spm, VocabModel::Bpe] {
        let mut vocab = Vocab::new(model, [b"\xff\xfe".as_slice(), b"a", b"\xe4\xbd", b"<0xZZ>", b""]);
        vocab.merges = ["a a"].into_iter().collect();
        vocab.kinds = vec![TokenKind::Normal; 5];
        vocab.kinds[3] = TokenKind::Byte;
        vocab.add_bos = Some(false);
        let tokenizer = build(vocab).unwrap().tokenizer;
        let piece = |id| tokenizer.piece(id, true).unwrap();
        assert_eq!((piece(0), piece(2)), (b"\xff\xfe".as_slice(), b"\xe4\xbd".as_slice()));
        assert_eq!((piece(3), piece(4)), (b"<0xZZ>".as_slice(), b"".as_slice()));
        assert_eq!(tokenizer.piece(5, true), None);
        let mut stream = StreamDecoder::new(tokenizer, DecodeOptions::default());
        assert_eq!(stream.push(0).unwrap(), "\u{fffd}\u{fffd}");
        assert_eq!(stream.push(2).unwrap(), "");
        assert_eq!(stream.finish(), "\u{fffd}");
    }
}

#[test]
fn merges_may_pass_through_texts_that_are_no_tokens() {
    // "abc" is a token, "ab" is not: its bytes come out again unless c follows.
    let vocab = || bpe(&["a", "b", "c", "abc"], &["a b", "ab c"]);
    assert_eq!(encode(vocab(), "abc", EncodeOptions::PLAIN), [3]);
    assert_eq!(encode(vocab(), "abab", EncodeOptions::PLAIN), [0, 1, 0, 1]);
}

#[test]
fn malformed_lists_of_merges_do_no_harm() {
    let vocab = bpe(&["a", "b", "ab", "Ġ", "Ġa"], &["", " ", "a", "a ", " a", "a b", "Ġ a", "a b"]);
    assert_eq!(encode(vocab, "ab a", EncodeOptions::PLAIN), [2, 4]);
}

#[test]
fn special_ids_beyond_the_vocabulary_are_an_error_that_names_the_key() {
    for id in [4, u32::MAX] {
        for (set, key) in [
            (|v: &mut Vocab, id| v.special.bos = Some(id)) as fn(&mut Vocab, TokenId),
            |v, id| v.special.eos = Some(id),
            |v, id| v.special.unk = Some(id),
            |v, id| v.special.fim_suffix = Some(id),
        ]
        .into_iter()
        .zip(["bos_token_id", "eos_token_id", "unknown_token_id", "fim_suf_token_id"])
        {
            let mut vocab = bpe(&["a", "b", "c", "d"], &["a b"]);
            set(&mut vocab, id);
            let error = error(vocab);
            assert!(matches!(error, VocabError::IdOutOfRange { len: 4, .. }), "{error}");
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}

#[test]
fn defaults_beyond_a_small_vocabulary_are_simply_not_there() {
    let tokenizer = build(bpe(&["a", "b"], &["a b"])).unwrap().tokenizer;
    assert_eq!((tokenizer.special().bos, tokenizer.special().eos), (None, None));
    assert!(tokenizer.special().eog.is_empty());
    assert_eq!(tokenizer.special().newline, None);
}

#[test]
fn a_flag_for_a_token_that_is_not_set_is_an_error() {
    let mut vocab = bpe(&["a", "b"], &["a b"]);
    vocab.add_bos = Some(true);
    assert!(matches!(error(vocab), VocabError::NotSet { key: "tokenizer.ggml.bos_token_id", .. }));
    let mut vocab = bpe(&["a", "b"], &["a b"]);
    vocab.add_eos = Some(true);
    assert!(matches!(error(vocab), VocabError::NotSet { key: "tokenizer.ggml.eos_token_id", .. }));
}

#[test]
fn lists_that_are_too_short_or_missing_are_errors_that_name_the_key() {
    let mut vocab = spm(&[("▁", 0.0)]);
    vocab.scores.pop();
    assert!(matches!(error(vocab), VocabError::TooShort { key: "tokenizer.ggml.scores", expected: 4, got: 3 }));
    let mut vocab = spm(&[("▁", 0.0)]);
    vocab.kinds.pop();
    assert!(matches!(error(vocab), VocabError::TooShort { key: "tokenizer.ggml.token_type", .. }));
    assert!(matches!(error(bpe(&["a"], &[])), VocabError::Missing { key: "tokenizer.ggml.merges", .. }));
    // Neither scores nor kinds: all alike.
    assert!(build(Vocab::new(VocabModel::Spm, ["a", "b", "c"])).is_ok());
}

#[test]
fn an_unknown_pre_tokenizer_is_an_error_and_none_is_a_warning() {
    let mut vocab = bpe(&["a", "b"], &["a b"]);
    vocab.pre = Some("brand-new".into());
    let error = error(vocab);
    assert!(
        matches!(&error, VocabError::UnknownPre { pre } if pre == "brand-new")
            && error.to_string().contains("brand-new")
    );
    let mut vocab = bpe(&["a", "b"], &["a b"]);
    vocab.pre = None;
    assert_eq!(build(vocab).unwrap().warnings, [VocabWarning::NoPre]);
}

#[test]
fn of_tokens_with_the_same_text_the_first_is_used() {
    let vocab = bpe(&["a", "b", "ab", "ab"], &["a b"]);
    let Loaded { tokenizer, warnings, .. } = build(vocab).unwrap();
    assert_eq!(tokenizer.encode(b"ab", EncodeOptions::PLAIN).unwrap(), [2]);
    assert_eq!(warnings, [VocabWarning::Duplicate { id: 3, first: 2 }]);
}

#[test]
fn an_end_of_turn_other_than_end_of_text_ends_generation_and_leaves_no_text() {
    let mut vocab = bpe(&["a", "b", "<|end_of_text|>", "<|eot_id|>"], &["a b"]);
    vocab.special.eos = Some(2);
    let Loaded { tokenizer, warnings, .. } = build(vocab).unwrap();
    let special = tokenizer.special();
    assert_eq!((special.eot, special.eog.as_slice()), (Some(3), [2, 3].as_slice()));
    assert!(special.is_eog(2) && special.is_eog(3) && !special.is_eog(0));
    assert_eq!(tokenizer.decode(&[0, 3], DecodeOptions::default()).unwrap(), b"a");
    assert_eq!(
        tokenizer.decode(&[0, 3], DecodeOptions { special: true, ..Default::default() }).unwrap(),
        b"a<|eot_id|>"
    );
    assert_eq!(warnings, [3, 2].map(|id| VocabWarning::NotControl { id }));
}

#[test]
fn with_message_channels_the_end_of_a_channel_does_not_end_generation() {
    let mut vocab = bpe(&["a", "b", "<|return|>", "<|call|>", "<|end|>", "<|channel|>"], &["a b"]);
    vocab.special.eos = Some(2);
    let tokenizer = build(vocab).unwrap().tokenizer;
    assert_eq!(tokenizer.special().eog, [2, 3]);
    assert_eq!(tokenizer.kind(4), Some(TokenKind::UserDefined));
    assert_eq!(tokenizer.piece(5, false), Some(b"<|channel|>".as_slice()));
}

#[test]
fn a_generated_text_keeps_its_leading_space_and_a_whole_one_does_not() {
    let tokenizer = build(spm(&[("▁", -9.0), ("a", -9.0), ("▁a", -1.0)])).unwrap().tokenizer;
    let mut whole = StreamDecoder::new(tokenizer.clone(), DecodeOptions::default());
    assert_eq!((whole.push(5).unwrap().to_owned(), whole.push(5).unwrap()), ("a".to_owned(), " a"));
    let mut generated = StreamDecoder::continuing(tokenizer.clone(), DecodeOptions::default());
    assert_eq!(generated.push(5).unwrap(), " a");
    assert_eq!(generated.push(99).unwrap_err(), TextError::OutOfRange { id: 99, len: 6 });
    assert!(matches!(tokenizer.decode(&[99], DecodeOptions::default()), Err(TextError::OutOfRange { .. })));
}

#[test]
fn only_an_end_of_text_token_at_the_very_end_is_trimmed() {
    let mut vocab = spm(&[("▁", -9.0), ("a", -9.0)]);
    vocab.add_eos = Some(true);
    let tokenizer = build(vocab).unwrap().tokenizer;
    let options = DecodeOptions { special: true, trim_special: true, ..DecodeOptions::default() };
    for ids in [&[1, 4, 2, 2, 4, 2][..], &[1, 2, 2], &[2], &[1], &[4, 1, 2, 2], &[]] {
        let whole = tokenizer.decode(ids, options).unwrap();
        let mut stream = StreamDecoder::new(tokenizer.clone(), options);
        let mut joined: String = ids.iter().map(|&id| stream.push(id).unwrap().to_owned()).collect();
        joined.push_str(stream.finish());
        assert_eq!(joined.as_bytes(), whole, "{ids:?}");
    }
    assert_eq!(tokenizer.decode(&[1, 4, 2, 2], options).unwrap(), b"a</s>");
}

#[test]
fn a_vocabulary_of_no_tokens_only_encodes_nothing() {
    let mut vocab = Vocab::new::<&str>(VocabModel::Spm, []);
    vocab.add_bos = Some(false);
    let tokenizer = build(vocab).unwrap().tokenizer;
    assert!(tokenizer.is_empty());
    assert_eq!(tokenizer.encode(b"", EncodeOptions::PROMPT).unwrap(), [0; 0]);
    assert!(matches!(tokenizer.encode(b"a", EncodeOptions::PLAIN), Err(TextError::NoToken { .. })));
}

#[test]
fn a_large_vocabulary_of_special_tokens_is_ready_in_two_seconds() {
    let mut vocab = spm(&[]);
    for i in 3..262_144 {
        vocab.tokens.push(if i % 39 == 0 { format!("<unused{i}>") } else { format!("word{i}") }.as_bytes());
        vocab.scores.push(-(i as f32));
        vocab.kinds.push(if i % 39 == 0 { TokenKind::Control } else { TokenKind::Normal });
    }
    let start = std::time::Instant::now();
    let tokenizer = build(vocab).unwrap().tokenizer;
    assert!(start.elapsed().as_secs_f64() < 2.0, "{:?}", start.elapsed());
    assert_eq!(tokenizer.encode(b"<unused39><unused78>", EncodeOptions::PROMPT).unwrap(), [1, 39, 78]);
}

/// A file with four tokens and what `more` adds.
fn file_with(more: impl FnOnce(&mut Builder) -> pi_gguf::Result<()>) -> File {
    let mut builder = Builder::new(Kind::Gguf);
    builder.set("general.architecture", "llama").unwrap();
    builder.set_strings("tokenizer.ggml.tokens", [b"a".as_slice(), b"b", b"ab", b"\xff"]).unwrap();
    more(&mut builder).unwrap();
    File::from_bytes(builder.start(Vec::new()).unwrap().finish().unwrap(), "made for this test").unwrap()
}

#[test]
fn a_file_states_the_whole_vocabulary() {
    let file = file_with(|b| {
        b.set("tokenizer.ggml.model", "gpt2")?.set("tokenizer.ggml.pre", "qwen2")?;
        b.set_strings("tokenizer.ggml.merges", ["a b"])?.set_array("tokenizer.ggml.token_type", &[1i32, 1, 1, 3])?;
        b.set("tokenizer.ggml.bos_token_id", 3u32)?.set("tokenizer.ggml.add_bos_token", true)?;
        Ok(())
    });
    let Loaded { tokenizer, warnings, .. } = load(file.metadata()).unwrap();
    assert_eq!(tokenizer.encode(b"ab", EncodeOptions::PROMPT).unwrap(), [3, 2]);
    assert_eq!(tokenizer.kind(3), Some(TokenKind::Control));
    assert_eq!(tokenizer.piece(3, true), Some(b"\xff".as_slice()));
    assert!(warnings.is_empty());
}

#[test]
fn special_ids_of_a_file_that_are_beyond_the_vocabulary_are_errors_that_name_the_key() {
    for key in ["bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id", "eot_token_id"] {
        let key = format!("tokenizer.ggml.{key}");
        for id in [4, u32::MAX] {
            let file = file_with(|b| b.set("tokenizer.ggml.model", "llama")?.set(&key, id).map(drop));
            let error = load(file.metadata()).unwrap_err().to_string();
            assert!(error.contains(&key) && error.contains(&id.to_string()), "{error}");
        }
        let file = file_with(|b| b.set("tokenizer.ggml.model", "llama")?.set(&key, -1i32).map(drop));
        assert!(matches!(load(file.metadata()), Err(VocabError::IdOutOfRange { id: -1, len: 4, .. })));
        let file = file_with(|b| b.set("tokenizer.ggml.model", "llama")?.set(&key, "x").map(drop));
        assert!(matches!(load(file.metadata()), Err(VocabError::Element { .. })));
    }
}

#[test]
fn keys_of_the_wrong_kind_are_errors_that_name_them() {
    let problem = |more: &dyn Fn(&mut Builder) -> pi_gguf::Result<()>| {
        load(file_with(|b| more(b)).metadata()).unwrap_err().to_string()
    };
    let model = "tokenizer.ggml.model";
    assert!(problem(&|_| Ok(())).contains(model));
    assert!(problem(&|b| b.set(model, "bert").map(drop)).contains("bert"));
    assert!(problem(&|b| b.set(model, 7u32).map(drop)).contains(model));
    for (key, error) in [("scores", "a number"), ("token_type", "an integer")] {
        let key = format!("tokenizer.ggml.{key}");
        let message = problem(&|b| b.set(model, "llama")?.set_strings(&key, ["x"]).map(drop));
        assert!(message.contains(&key) && message.contains(error), "{message}");
        assert!(problem(&|b| b.set(model, "llama")?.set(&key, 1u32).map(drop)).contains(&key));
    }
    assert!(problem(&|b| b.set(model, "gpt2").map(drop)).contains("tokenizer.ggml.merges"));
    let merges = problem(&|b| b.set(model, "gpt2")?.set_array("tokenizer.ggml.merges", &[1u32]).map(drop));
    assert!(merges.contains("tokenizer.ggml.merges"), "{merges}");
}
