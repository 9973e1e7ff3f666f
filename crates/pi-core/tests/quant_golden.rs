//! The quant types against data made with a reference engine; see `data/quant/README.md`.

use base64::{Engine, prelude::BASE64_STANDARD};
use pi_core::QuantType;
use serde_json::Value;
use std::sync::LazyLock;

const N: usize = 512;
const ROWS: usize = 5;

static GOLDEN: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("data/quant/blocks.json")).expect("valid JSON"));

fn bytes(v: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(v.as_str().expect("a base64 field")).expect("valid base64")
}

fn floats(v: &Value) -> Vec<f32> {
    bytes(v).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

/// The types of the file, with their data.
fn types() -> impl Iterator<Item = (QuantType, &'static Value)> {
    let types = GOLDEN["types"].as_object().expect("types");
    types.iter().map(|(name, v)| (QuantType::from_name(name).expect("one of our types"), v))
}

fn decode(ty: QuantType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / ty.info().block_bytes * ty.info().block_len];
    (ty.info().decode)(bytes, &mut out);
    out
}

fn encode(ty: QuantType, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0; ty.row_bytes(x.len()).expect("whole blocks")];
    (ty.info().encode)(x, &mut out);
    out
}

/// Equal to the bit; NaN equals NaN whatever its bits.
fn assert_same(ty: QuantType, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{ty}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan(), "{ty} at {i}: {g} instead of {w}");
    }
}

#[test]
fn layouts_are_those_of_the_reference() {
    assert_eq!(types().count(), 14);
    for (ty, v) in types() {
        let info = ty.info();
        assert_eq!(u64::from(info.gguf_id), v["id"], "{ty}");
        assert_eq!(info.block_len as u64, v["block"], "{ty}");
        assert_eq!(info.block_bytes as u64, v["block_bytes"], "{ty}");
    }
}

#[test]
fn decoding_equals_the_reference_to_the_bit() {
    for (ty, v) in types() {
        assert_same(ty, &decode(ty, &bytes(&v["quant"])), &floats(&v["dequant_f32"]));
    }
}

#[test]
fn random_bytes_decode_as_in_the_reference() {
    let mut rows = 0;
    for (ty, v) in types() {
        for block in v["random_blocks"].as_array().into_iter().flatten() {
            assert_same(ty, &decode(ty, &bytes(&block["quant"])), &floats(&block["dequant_f32"]));
            rows += 1;
        }
    }
    assert!(rows >= 24, "{rows}");
}

/// Q8_1 and Q8_K must be equal to the byte. Q8_0 has one encoder, that of weights (multiplies by `1 / (max / 127)`, ties
/// away from zero); the reference's vector code for activations multiplies by `127 / max` and rounds ties to even, so that
/// a code may differ by one where the product lies within an ulp of a tie.
#[test]
fn activations_equal_the_reference() {
    let y = floats(&GOLDEN["y_f32"]);
    let mut seen = 0;
    for (ty, v) in types() {
        let activation = ty.info().activation;
        if activation == QuantType::F32 {
            continue;
        }
        assert_eq!(activation.name(), v["vec_dot_type"], "{ty}");
        let (got, want) = (encode(activation, &y), bytes(&v["act"]));
        if activation == QuantType::Q8_0 {
            let off = got.iter().zip(&want).filter(|(g, w)| g != w).count();
            println!("{ty}: {off} of {} activation bytes differ", got.len());
            assert!(off <= 2, "{off} bytes differ");
            for (g, w) in got.chunks(34).zip(want.chunks(34)) {
                assert_eq!(g[..2], w[..2], "scales");
                assert!(g[2..].iter().zip(&w[2..]).all(|(g, w)| (*g as i8 as i32 - *w as i8 as i32).abs() <= 1));
            }
        } else {
            assert!(got == want, "{ty}: activations as {activation}");
        }
        seen += 1;
    }
    assert_eq!(seen, 12);
}

/// With the reference's activation bytes, products agree within 1e-5 of themselves, or of 1 % of the sum of the terms'
/// magnitudes where that is more (where terms cancel, the reference's own f32 sums are no better).
#[test]
fn products_equal_the_reference() {
    for (ty, v) in types() {
        let (rows, act) = (bytes(&v["quant"]), bytes(&v["act"]));
        // the reference multiplies F16 with F16 and BF16 with BF16; here activations of these stay F32
        let act = if ty.is_float() { encode(QuantType::F32, &decode(ty, &act)) } else { act };
        let stride = ty.row_bytes(N).unwrap();
        for field in ["dot", "dot_generic"] {
            if v[field].is_null() || (ty, field) == (QuantType::Q5_0, "dot_generic") {
                continue;
            }
            let mut worst = 0.0f64;
            for (row, want) in rows.chunks(stride).zip(numbers(&v[field])) {
                let got = f64::from((ty.info().dot)(row, &act));
                let x = decode(ty.info().activation, &act);
                let magnitude: f64 = decode(ty, row).iter().zip(x).map(|(w, x)| f64::from((w * x).abs())).sum();
                let off = (got - want).abs() / want.abs().max(magnitude / 100.0);
                worst = worst.max(off);
                assert!(off <= 1e-5, "{ty} {field}: {got} instead of {want}, terms add to {magnitude}");
            }
            println!("{ty} {field}: {worst:.1e}");
        }
    }
}

/// All types must be equal to the byte, those whose scales are searched for too: the searches run in the same order of f32
/// operations. Then errors are the same; they are compared as well, for a day when the bytes are allowed to differ.
#[test]
fn weights_encode_as_in_the_reference() {
    let x = floats(&GOLDEN["x_f32"]);
    for (ty, v) in types() {
        let info = ty.info();
        let (got, want) = (encode(ty, &x), bytes(&v["quant"]));
        let blocks = want.len() / info.block_bytes;
        let pairs = || got.chunks(info.block_bytes).zip(want.chunks(info.block_bytes));
        let equal = pairs().filter(|(g, w)| g == w).count();
        let decoded = decode(ty, &got);
        let rmse = x
            .chunks(N)
            .zip(decoded.chunks(N))
            .map(|(x, d)| (x.iter().zip(d).map(|(x, d)| f64::from(x - d).powi(2)).sum::<f64>() / N as f64).sqrt());
        let ratios: Vec<_> = rmse.zip(numbers(&v["rmse"])).map(|(r, w)| r / w).collect();
        println!("{ty}: {equal} of {blocks} blocks equal, rmse ratios {ratios:.6?}");
        assert_eq!(ratios.len(), ROWS);
        assert!(ratios.iter().all(|r| *r <= 1.001), "{ty}: {ratios:?}");
        assert!(equal == blocks, "{ty}: {equal} of {blocks} blocks are equal");
    }
}
