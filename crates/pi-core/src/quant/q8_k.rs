//! Q8_K: 256 signed bytes, an f32 scale and sums of 16. The activations' type for all types with blocks of 256.
//!
//! | bytes | field |
//! |---|---|
//! | 0…3 | scale `d`, single precision; its sign is opposite to that of the largest number |
//! | 4…259 | codes |
//! | 260…291 | 16 sums of 16 codes each, 16-bit signed |

use super::block::{self, extreme, field, magnitude, nearest_even, signed, sum_products};
use super::{QuantInfo, QuantType};

pub(super) static Q8_K: QuantInfo = QuantInfo {
    ty: QuantType::Q8_K,
    name: "Q8_K",
    gguf_id: 15,
    block_len: 256,
    block_bytes: 292,
    activation: QuantType::Q8_K,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

/// The scale.
#[inline(always)]
pub(super) fn scale(b: &[u8; 292]) -> f64 {
    f32::from_le_bytes(*field(b, 0)).into()
}

/// The codes.
#[inline(always)]
pub(super) fn codes(b: &[u8; 292]) -> &[i8; 256] {
    signed(b, 4)
}

/// The stored sums over 16 codes each.
#[inline(always)]
pub(super) fn sums(b: &[u8; 292]) -> [i32; 16] {
    std::array::from_fn(|i| i16::from_le_bytes(*field(b, 260 + 2 * i)).into())
}

fn decode(b: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_le_bytes(*field(b, 0));
    for (o, q) in out.iter_mut().zip(codes(b)) {
        *o = d * f32::from(*q);
    }
}

/// Non-finite numbers: see Q8_0.
fn encode(x: &[f32; 256], out: &mut [u8; 292]) {
    let max = magnitude(x);
    out.fill(0);
    if !max.is_finite() {
        out[..4].copy_from_slice(&max.to_le_bytes());
        return;
    }
    let id = -127.0 / extreme(x);
    if !id.is_finite() {
        return; // all zero, or nearly
    }
    out[..4].copy_from_slice(&(1.0 / id).to_le_bytes());
    for (i, part) in x.chunks_exact(16).enumerate() {
        let mut sum = 0;
        for (j, v) in part.iter().enumerate() {
            let q = nearest_even(id * v).min(127);
            out[4 + 16 * i + j] = q as u8;
            sum += q;
        }
        out[260 + 2 * i..262 + 2 * i].copy_from_slice(&(sum as i16).to_le_bytes());
    }
}

fn dot(w: &[u8; 292], x: &[u8; 292]) -> f64 {
    f64::from(sum_products(codes(w), codes(x))) * scale(w) * scale(x)
}
