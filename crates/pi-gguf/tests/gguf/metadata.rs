//! Typed access to keys and values.

use crate::common::*;
use pi_gguf::{Array, Builder, File, Kind, Value, ValueType};

fn file() -> File {
    let mut builder = Builder::new(Kind::Gguf);
    builder.set("u8", 200u8).and_then(|b| b.set("i8", -3i8)).and_then(|b| b.set("u16", 7u16)).expect("keys");
    builder.set("u64", u64::MAX).and_then(|b| b.set("i64", i64::MIN)).and_then(|b| b.set("flag", true)).expect("keys");
    builder.set("f32", 0.1f32).and_then(|b| b.set("f64", 0.1f64)).and_then(|b| b.set("f64.big", 1e300)).expect("keys");
    builder.set("text", "héllo").and_then(|b| b.set("u32.odd", (1u32 << 24) + 1)).expect("keys");
    builder.set_array("ids", &[1i32, -1, 3]).and_then(|b| b.set_array("none", &[0f32; 0])).expect("keys");
    builder.set_strings("tokens", ["a", "", "ab"]).and_then(|b| b.set_array("bools", &[true, false])).expect("keys");
    File::from_bytes(builder.start(Vec::new()).and_then(|w| w.finish()).expect("writes"), "keys.gguf").expect("opens")
}

#[test]
fn integers_of_any_width_convert_as_long_as_they_fit() {
    let file = file();
    let m = file.metadata();
    assert_eq!(m.get::<u32>("u8").expect("fits"), Some(200));
    assert_eq!(m.get::<usize>("u16").expect("fits"), Some(7));
    assert_eq!(m.get::<i64>("i8").expect("fits"), Some(-3));
    assert_eq!(m.get::<u64>("u64").expect("fits"), Some(u64::MAX));
    assert_eq!(m.get::<f32>("u8").expect("fits"), Some(200.0));
    for (result, words) in [
        (m.get::<u32>("i8").map(|_| ()), ["keys.gguf", "'i8'", "expected u32, got i8 -3"]),
        (m.get::<i8>("u8").map(|_| ()), ["keys.gguf", "'u8'", "expected i8, got u8 200"]),
        (m.get::<i64>("u64").map(|_| ()), ["keys.gguf", "'u64'", "expected i64, got u64 18446744073709551615"]),
        (m.get::<f32>("u32.odd").map(|_| ()), ["keys.gguf", "'u32.odd'", "expected f32, got u32 16777217"]),
        (m.get::<u32>("flag").map(|_| ()), ["keys.gguf", "'flag'", "expected u32, got bool true"]),
        (m.get::<bool>("u8").map(|_| ()), ["keys.gguf", "'u8'", "expected bool, got u8 200"]),
        (m.get::<u32>("text").map(|_| ()), ["keys.gguf", "'text'", "expected u32, got string \"héllo\""]),
        (m.get::<&str>("ids").map(|_| ()), ["keys.gguf", "'ids'", "expected UTF-8 string, got array of 3 i32"]),
        (m.get::<Vec<u32>>("ids").map(|_| ()), ["keys.gguf", "'ids'", "expected array of u32, got array of 3 i32"]),
        (m.get::<f32>("f64.big").map(|_| ()), ["keys.gguf", "'f64.big'", "expected f32, got f64 1"]),
        (m.require::<f32>("absent").map(|_| ()), ["keys.gguf", "'absent'", "is missing"]),
    ] {
        says(&result.expect_err("must be refused").to_string(), &words);
    }
    assert_eq!(m.get::<u32>("absent").expect("nothing wrong"), None);
}

#[test]
fn floats_convert_between_their_widths() {
    let file = file();
    assert_eq!(file.metadata().require::<f32>("f64").expect("f32"), 0.1f32);
    assert_eq!(file.metadata().require::<f64>("f32").expect("f64"), f64::from(0.1f32));
}

#[test]
fn arrays_convert_as_a_whole_or_are_read_one_by_one() {
    let file = file();
    let m = file.metadata();
    assert_eq!(m.require::<Vec<i64>>("ids").expect("ids"), [1, -1, 3]);
    assert_eq!(m.require::<Vec<bool>>("bools").expect("bools"), [true, false]);
    assert_eq!(m.require::<Vec<&str>>("tokens").expect("tokens"), ["a", "", "ab"]);
    assert!(m.require::<Vec<f32>>("none").expect("none").is_empty());
    let tokens: Array<'_> = m.require("tokens").expect("tokens");
    assert_eq!((tokens.len(), tokens.element_type()), (3, ValueType::String));
    assert_eq!(tokens.get(2).and_then(Value::to::<&str>), Some("ab"));
    assert_eq!(tokens.get(3), None);
    assert_eq!(tokens.get(usize::MAX), None);
    let ids: Array<'_> = m.require("ids").expect("ids");
    assert_eq!((ids.get(1), ids.get(3), ids.get(usize::MAX)), (Some(Value::I32(-1)), None, None));
    assert!(ids.texts().is_none());
}

#[test]
fn keys_come_in_the_order_of_the_file_and_print_briefly() {
    let file = file();
    let keys: Vec<&str> = file.metadata().iter().map(|(key, _)| key).collect();
    assert_eq!(keys[..3], ["u8", "i8", "u16"]);
    let show = |key| file.metadata().value(key).expect("key").to_string();
    assert_eq!(show("ids"), "[1, -1, 3]");
    assert_eq!(show("tokens"), "[\"a\", \"\", \"ab\"]");
    let mut builder = Builder::new(Kind::Gguf);
    builder.set_array("many", &[7u8; 100]).expect("key");
    let bytes = builder.start(Vec::new()).and_then(|w| w.finish()).expect("writes");
    let file = File::from_bytes(bytes, "x").expect("opens");
    assert_eq!(file.metadata().value("many").expect("key").to_string(), "[7, 7, 7, 7, 7, 7, … 100 in all]");
}
