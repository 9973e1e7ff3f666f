//! Q8_1: Q8_0 with the sum of the block beside it. The activations' type for types with a minimum (Q4_1, Q5_1).
//!
//! | bytes | field |
//! |---|---|
//! | 0…1 | scale `d`, half precision |
//! | 2…3 | `d` times the sum of the codes, half precision |
//! | 4…35 | codes |

use super::block::{self, half_at, magnitude, nearest_even, put_half, signed, sum_products};
use super::{QuantInfo, QuantType};

pub(super) static Q8_1: QuantInfo = QuantInfo {
    ty: QuantType::Q8_1,
    name: "Q8_1",
    gguf_id: 9,
    block_len: 32,
    block_bytes: 36,
    activation: QuantType::Q8_1,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

fn decode(b: &[u8; 36], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (o, q) in out.iter_mut().zip(signed::<32>(b, 4)) {
        *o = f32::from(*q) * d;
    }
}

/// Rounds ties to even, as vector units do: this type exists for activations only. Non-finite numbers: see Q8_0.
fn encode(x: &[f32; 32], out: &mut [u8; 36]) {
    let max = magnitude(x);
    let d = max / 127.0;
    if !d.is_finite() {
        out[4..].fill(0);
        put_half(out, 0, d);
        put_half(out, 2, f32::NAN);
        return;
    }
    let id = 127.0 / max;
    let id = if id.is_finite() { id } else { 0.0 };
    let mut sum = 0;
    for (o, v) in out[4..].iter_mut().zip(x) {
        let q = nearest_even(v * id);
        *o = q as u8;
        sum += q;
    }
    put_half(out, 0, d);
    put_half(out, 2, d * sum as f32);
}

/// The scaled sum of a block's codes. It is stored, except where half precision has no number as large.
pub(super) fn scaled_sum(b: &[u8; 36]) -> f64 {
    let stored = f64::from(half_at(b, 2));
    if stored.is_finite() {
        return stored;
    }
    let sum: i32 = signed::<32>(b, 4).iter().map(|&q| i32::from(q)).sum();
    f64::from(half_at(b, 0)) * f64::from(sum)
}

fn dot(w: &[u8; 36], x: &[u8; 36]) -> f64 {
    let sum = sum_products(signed::<32>(w, 4), signed::<32>(x, 4));
    f64::from(sum) * f64::from(half_at(w, 0)) * f64::from(half_at(x, 0))
}
