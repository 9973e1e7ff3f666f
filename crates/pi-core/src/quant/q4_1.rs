//! Q4_1: 32 codes of 4 bits, a scale and a minimum, `x = d · q + m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…1, 2…3 | scale `d` and minimum `m`, half precision |
//! | 4…19 | codes: number `j` in the low and `j + 16` in the high half of byte `j` |

use super::block::{self, half_at, inverse, put_half, range, signed, split_bytes, sum_products};
use super::q8_1::scaled_sum;
use super::{QuantInfo, QuantType};

pub(super) static Q4_1: QuantInfo = QuantInfo {
    ty: QuantType::Q4_1,
    name: "Q4_1",
    gguf_id: 3,
    block_len: 32,
    block_bytes: 20,
    activation: QuantType::Q8_1,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

#[inline(always)]
fn codes(b: &[u8; 20]) -> [i8; 32] {
    let mut q = [0; 32];
    split_bytes(&b[4..], &mut q);
    q
}

fn decode(b: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (o, q) in out.iter_mut().zip(codes(b)) {
        *o = f32::from(q) * d + m;
    }
}

fn encode(x: &[f32; 32], out: &mut [u8; 20]) {
    let (lo, hi) = range(x);
    let d = (hi - lo) / 15.0;
    let id = inverse(d);
    put_half(out, 0, d);
    put_half(out, 2, lo);
    let code = |v: f32| (((v - lo) * id + 0.5) as u8).min(15);
    for j in 0..16 {
        out[4 + j] = code(x[j]) | code(x[j + 16]) << 4;
    }
}

/// The minimum meets the activations only through their sum, which Q8_1 stores.
fn dot(w: &[u8; 20], x: &[u8; 36]) -> f64 {
    let sum = sum_products(&codes(w), signed::<32>(x, 4));
    f64::from(sum) * f64::from(half_at(w, 0)) * f64::from(half_at(x, 0)) + f64::from(half_at(w, 2)) * scaled_sum(x)
}
