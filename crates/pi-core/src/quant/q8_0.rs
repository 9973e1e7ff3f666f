//! Q8_0: 32 signed bytes and a scale, `x = d · q`. A weight type, and the activations' type for Q4_0, Q5_0, Q8_0, IQ4_NL.
//!
//! | bytes | field |
//! |---|---|
//! | 0…1 | scale `d`, half precision |
//! | 2…33 | codes |

use super::block::{self, half_at, inverse, magnitude, nearest_away, put_half, signed, sum_products};
use super::{QuantInfo, QuantType};

pub(super) static Q8_0: QuantInfo = QuantInfo {
    ty: QuantType::Q8_0,
    name: "Q8_0",
    gguf_id: 8,
    block_len: 32,
    block_bytes: 34,
    activation: QuantType::Q8_0,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

fn decode(b: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (o, q) in out.iter_mut().zip(signed::<32>(b, 2)) {
        *o = f32::from(*q) * d;
    }
}

/// A NaN or infinite number makes the scale non-finite, so that the whole block decodes to NaN.
fn encode(x: &[f32; 32], out: &mut [u8; 34]) {
    let d = magnitude(x) / 127.0;
    let id = inverse(d);
    put_half(out, 0, d);
    for (o, v) in out[2..].iter_mut().zip(x) {
        *o = nearest_away(v * id) as u8;
    }
}

fn dot(w: &[u8; 34], x: &[u8; 34]) -> f64 {
    let sum = sum_products(signed::<32>(w, 2), signed::<32>(x, 2));
    f64::from(sum) * f64::from(half_at(w, 0)) * f64::from(half_at(x, 0))
}
