//! F32, F16 and BF16: one number per block, little endian.

use super::{QuantInfo, QuantType};
use half::{bf16, f16};

/// IEEE single precision.
pub(super) static F32: QuantInfo = QuantInfo {
    ty: QuantType::F32,
    name: "F32",
    gguf_id: 0,
    block_len: 1,
    block_bytes: 4,
    activation: QuantType::F32,
    decode: decode_f32,
    encode: encode_f32,
    dot: |w, x| dot(w, x, f32::from_le_bytes),
};

/// IEEE half precision.
pub(super) static F16: QuantInfo = QuantInfo {
    ty: QuantType::F16,
    name: "F16",
    gguf_id: 1,
    block_len: 1,
    block_bytes: 2,
    activation: QuantType::F32,
    decode: |bytes, out| decode(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
    encode: |x, out| encode(x, out, |v| f16::from_f32(v).to_le_bytes()),
    dot: |w, x| dot(w, x, |b| f16::from_le_bytes(b).to_f32()),
};

/// The upper half of an F32.
pub(super) static BF16: QuantInfo = QuantInfo {
    ty: QuantType::BF16,
    name: "BF16",
    gguf_id: 30,
    block_len: 1,
    block_bytes: 2,
    activation: QuantType::F32,
    decode: |bytes, out| decode(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
    encode: |x, out| encode(x, out, |v| bf16::from_f32(v).to_le_bytes()),
    dot: |w, x| dot(w, x, |b| bf16::from_le_bytes(b).to_f32()),
};

fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    decode(bytes, out, f32::from_le_bytes);
}

fn encode_f32(x: &[f32], out: &mut [u8]) {
    encode(x, out, f32::to_le_bytes);
}

#[inline(always)]
fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], f: impl Fn([u8; N]) -> f32) {
    for (b, o) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *o = f(*b);
    }
}

#[inline(always)]
fn encode<const N: usize>(x: &[f32], out: &mut [u8], f: impl Fn(f32) -> [u8; N]) {
    for (v, o) in x.iter().zip(out.as_chunks_mut::<N>().0) {
        *o = f(*v);
    }
}

#[inline(always)]
fn dot<const N: usize>(w: &[u8], x: &[u8], f: impl Fn([u8; N]) -> f32) -> f32 {
    let pairs = w.as_chunks::<N>().0.iter().zip(x.as_chunks::<4>().0);
    pairs.map(|(w, x)| f(*w) as f64 * f32::from_le_bytes(*x) as f64).sum::<f64>() as f32
}
