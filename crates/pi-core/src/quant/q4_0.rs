//! Q4_0: 32 codes of 4 bits and a scale, `x = d · (q − 8)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…1 | scale `d`, half precision; its sign is that of the largest number, which gets code 0 or 15 |
//! | 2…17 | codes: number `j` in the low and `j + 16` in the high half of byte `j` |

use super::block::{self, extreme, half_at, inverse, lowered, put_half, signed, split_bytes, sum_products};
use super::{QuantInfo, QuantType};

pub(super) static Q4_0: QuantInfo = QuantInfo {
    ty: QuantType::Q4_0,
    name: "Q4_0",
    gguf_id: 2,
    block_len: 32,
    block_bytes: 18,
    activation: QuantType::Q8_0,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

#[inline(always)]
fn codes(b: &[u8; 18]) -> [i8; 32] {
    let mut q = [0; 32];
    split_bytes(&b[2..], &mut q);
    lowered(q, 8)
}

fn decode(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (o, q) in out.iter_mut().zip(codes(b)) {
        *o = f32::from(q) * d;
    }
}

fn encode(x: &[f32; 32], out: &mut [u8; 18]) {
    let d = extreme(x) / -8.0;
    let id = inverse(d);
    put_half(out, 0, d);
    let code = |v: f32| ((v * id + 8.5) as u8).min(15);
    for j in 0..16 {
        out[2 + j] = code(x[j]) | code(x[j + 16]) << 4;
    }
}

fn dot(w: &[u8; 18], x: &[u8; 34]) -> f64 {
    let sum = sum_products(&codes(w), signed::<32>(x, 2));
    f64::from(sum) * f64::from(half_at(w, 0)) * f64::from(half_at(x, 0))
}
