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
    decode: |bytes, out| decode(bytes, out, |b| widen(u16::from_le_bytes(b))),
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

/// `f16::to_f32` without branches, so that a loop over it becomes vector code on any CPU.
#[inline(always)]
fn widen(h: u16) -> f32 {
    const ABOVE_FINITE: u32 = 0x7c00 << 13;
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    let (sign, bits) = (u32::from(h & 0x8000) << 16, u32::from(h & 0x7fff) << 13);
    // Read as f32, the exponent is too small by 112; the product is exact, and normalises subnormal numbers.
    let finite = (f32::from_bits(bits) * SCALE).to_bits();
    let quiet = if bits > ABOVE_FINITE { 1 << 22 } else { 0 };
    let infinite = bits | 0x7f80_0000 | quiet;
    f32::from_bits(sign | if bits >= ABOVE_FINITE { infinite } else { finite })
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_agrees_with_half_for_all_numbers() {
        for h in 0..=u16::MAX {
            assert_eq!(widen(h).to_bits(), f16::from_bits(h).to_f32().to_bits(), "{h:#x}");
        }
    }
}
