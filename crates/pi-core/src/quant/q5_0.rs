//! Q5_0: 32 codes of 5 bits and a scale, `x = d · (q − 16)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…1 | scale `d`, half precision, signed as in Q4_0 |
//! | 2…5 | the fifth bit of number `j` is bit `j` of this 32-bit word |
//! | 6…21 | low four bits: number `j` in the low and `j + 16` in the high half of byte `j` |

use super::block::{self, extreme, field, half_at, inverse, lowered, put_half, signed, split_bytes, sum_products};
use super::{QuantInfo, QuantType};

pub(super) static Q5_0: QuantInfo = QuantInfo {
    ty: QuantType::Q5_0,
    name: "Q5_0",
    gguf_id: 6,
    block_len: 32,
    block_bytes: 22,
    activation: QuantType::Q8_0,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

/// Joins 32 low halves (16 bytes) and 32 high bits (4 bytes) to codes of 0…31. Q5_1 stores them the same way.
#[inline(always)]
pub(super) fn join(low: &[u8; 16], high: &[u8; 4]) -> [i8; 32] {
    let high = u32::from_le_bytes(*high);
    let mut q = [0; 32];
    split_bytes(low, &mut q);
    for (j, q) in q.iter_mut().enumerate() {
        *q |= (((high >> j) & 1) << 4) as i8;
    }
    q
}

/// The inverse of [`join`]: fills four bytes of high bits, then 16 of low halves.
#[inline(always)]
pub(super) fn split(out: &mut [u8], code: impl Fn(usize) -> u8) {
    let mut high = 0;
    for j in 0..16 {
        let (a, b) = (code(j), code(j + 16));
        out[4 + j] = (a & 15) | (b & 15) << 4;
        high |= u32::from(a >> 4) << j | u32::from(b >> 4) << (j + 16);
    }
    out[..4].copy_from_slice(&high.to_le_bytes());
}

#[inline(always)]
fn codes(b: &[u8; 22]) -> [i8; 32] {
    lowered(join(field(b, 6), field(b, 2)), 16)
}

fn decode(b: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (o, q) in out.iter_mut().zip(codes(b)) {
        *o = f32::from(q) * d;
    }
}

fn encode(x: &[f32; 32], out: &mut [u8; 22]) {
    let d = extreme(x) / -16.0;
    let id = inverse(d);
    put_half(out, 0, d);
    split(&mut out[2..], |j| ((x[j] * id + 16.5) as u8).min(31));
}

fn dot(w: &[u8; 22], x: &[u8; 34]) -> f64 {
    let sum = sum_products(&codes(w), signed::<32>(x, 2));
    f64::from(sum) * f64::from(half_at(w, 0)) * f64::from(half_at(x, 0))
}
