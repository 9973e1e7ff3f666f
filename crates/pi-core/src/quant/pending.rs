//! Layouts whose functions are not written yet.
use super::{QuantInfo, QuantType};
fn d(_: &[u8], _: &mut [f32]) {}
fn e(_: &[f32], _: &mut [u8]) {}
fn p(_: &[u8], _: &[u8]) -> f32 {
    0.0
}
pub(super) static Q4_0: QuantInfo = QuantInfo {
    ty: QuantType::Q4_0,
    name: "Q4_0",
    gguf_id: 2,
    block_len: 32,
    block_bytes: 18,
    activation: QuantType::Q8_0,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q4_1: QuantInfo = QuantInfo {
    ty: QuantType::Q4_1,
    name: "Q4_1",
    gguf_id: 3,
    block_len: 32,
    block_bytes: 20,
    activation: QuantType::Q8_1,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q5_0: QuantInfo = QuantInfo {
    ty: QuantType::Q5_0,
    name: "Q5_0",
    gguf_id: 6,
    block_len: 32,
    block_bytes: 22,
    activation: QuantType::Q8_0,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q5_1: QuantInfo = QuantInfo {
    ty: QuantType::Q5_1,
    name: "Q5_1",
    gguf_id: 7,
    block_len: 32,
    block_bytes: 24,
    activation: QuantType::Q8_1,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q8_0: QuantInfo = QuantInfo {
    ty: QuantType::Q8_0,
    name: "Q8_0",
    gguf_id: 8,
    block_len: 32,
    block_bytes: 34,
    activation: QuantType::Q8_0,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q8_1: QuantInfo = QuantInfo {
    ty: QuantType::Q8_1,
    name: "Q8_1",
    gguf_id: 9,
    block_len: 32,
    block_bytes: 36,
    activation: QuantType::Q8_1,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q2_K: QuantInfo = QuantInfo {
    ty: QuantType::Q2_K,
    name: "Q2_K",
    gguf_id: 10,
    block_len: 256,
    block_bytes: 84,
    activation: QuantType::Q8_K,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q3_K: QuantInfo = QuantInfo {
    ty: QuantType::Q3_K,
    name: "Q3_K",
    gguf_id: 11,
    block_len: 256,
    block_bytes: 110,
    activation: QuantType::Q8_K,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q4_K: QuantInfo = QuantInfo {
    ty: QuantType::Q4_K,
    name: "Q4_K",
    gguf_id: 12,
    block_len: 256,
    block_bytes: 144,
    activation: QuantType::Q8_K,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q5_K: QuantInfo = QuantInfo {
    ty: QuantType::Q5_K,
    name: "Q5_K",
    gguf_id: 13,
    block_len: 256,
    block_bytes: 176,
    activation: QuantType::Q8_K,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q6_K: QuantInfo = QuantInfo {
    ty: QuantType::Q6_K,
    name: "Q6_K",
    gguf_id: 14,
    block_len: 256,
    block_bytes: 210,
    activation: QuantType::Q8_K,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static Q8_K: QuantInfo = QuantInfo {
    ty: QuantType::Q8_K,
    name: "Q8_K",
    gguf_id: 15,
    block_len: 256,
    block_bytes: 292,
    activation: QuantType::Q8_K,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static IQ4_NL: QuantInfo = QuantInfo {
    ty: QuantType::IQ4_NL,
    name: "IQ4_NL",
    gguf_id: 20,
    block_len: 32,
    block_bytes: 18,
    activation: QuantType::Q8_0,
    decode: d,
    encode: e,
    dot: p,
};
pub(super) static IQ4_XS: QuantInfo = QuantInfo {
    ty: QuantType::IQ4_XS,
    name: "IQ4_XS",
    gguf_id: 23,
    block_len: 256,
    block_bytes: 136,
    activation: QuantType::Q8_K,
    decode: d,
    encode: e,
    dot: p,
};
