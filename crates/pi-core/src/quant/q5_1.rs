//! Q5_1: 32 codes of 5 bits, a scale and a minimum, `x = d · q + m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…1, 2…3 | scale `d` and minimum `m`, half precision |
//! | 4…7, 8…23 | fifth bits and low halves, as in Q5_0 |

use super::block::{self, field, half_at, inverse, put_half, range, signed, sum_products};
use super::q5_0::{join, split};
use super::q8_1::scaled_sum;
use super::{QuantInfo, QuantType};

pub(super) static Q5_1: QuantInfo = QuantInfo {
    ty: QuantType::Q5_1,
    name: "Q5_1",
    gguf_id: 7,
    block_len: 32,
    block_bytes: 24,
    activation: QuantType::Q8_1,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

#[inline(always)]
fn codes(b: &[u8; 24]) -> [i8; 32] {
    join(field(b, 8), field(b, 4))
}

fn decode(b: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (o, q) in out.iter_mut().zip(codes(b)) {
        *o = f32::from(q) * d + m;
    }
}

fn encode(x: &[f32; 32], out: &mut [u8; 24]) {
    let (lo, hi) = range(x);
    let d = (hi - lo) / 31.0;
    let id = inverse(d);
    put_half(out, 0, d);
    put_half(out, 2, lo);
    split(&mut out[4..], |j| (((x[j] - lo) * id + 0.5) as u8).min(31));
}

fn dot(w: &[u8; 24], x: &[u8; 36]) -> f64 {
    let sum = sum_products(&codes(w), signed::<32>(x, 4));
    f64::from(sum) * f64::from(half_at(w, 0)) * f64::from(half_at(x, 0)) + f64::from(half_at(w, 2)) * scaled_sum(x)
}
