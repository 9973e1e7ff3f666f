//! IQ4_NL: 32 codes of 4 bits that name 16 unevenly spaced values, and a scale: `x = d · VALUES[q]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…1 | scale `d`, half precision |
//! | 2…17 | codes, as in Q4_0 |

use super::block::{self, field, half_at, inverse, put_half, signed, sum_products};
use super::search::{closest_values, fit_values};
use super::{QuantInfo, QuantType};

pub(super) static IQ4_NL: QuantInfo = QuantInfo {
    ty: QuantType::IQ4_NL,
    name: "IQ4_NL",
    gguf_id: 20,
    block_len: 32,
    block_bytes: 18,
    activation: QuantType::Q8_0,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

/// What the codes of IQ4_NL and IQ4_XS stand for, denser around zero.
pub(super) const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values that 16 bytes of codes name.
#[inline(always)]
pub(super) fn values(packed: &[u8; 16]) -> [i8; 32] {
    let mut q = [0; 32];
    for (j, b) in packed.iter().enumerate() {
        q[j] = VALUES[usize::from(b & 15)];
        q[j + 16] = VALUES[usize::from(b >> 4)];
    }
    q
}

/// Packs 32 codes into 16 bytes.
pub(super) fn pack(q: &[u8; 32], packed: &mut [u8]) {
    for (j, b) in packed.iter_mut().enumerate() {
        *b = q[j] | q[j + 16] << 4;
    }
}

fn decode(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (o, q) in out.iter_mut().zip(values(field(b, 2))) {
        *o = d * f32::from(q);
    }
}

fn encode(x: &[f32; 32], out: &mut [u8; 18]) {
    let d = fit_values(x);
    put_half(out, 0, d);
    // the codes are those of the scale before it is rounded to half precision
    pack(&closest_values(x, inverse(d)), &mut out[2..]);
}

fn dot(w: &[u8; 18], x: &[u8; 34]) -> f64 {
    let sum = sum_products(&values(field(w, 2)), signed::<32>(x, 2));
    f64::from(sum) * f64::from(half_at(w, 0)) * f64::from(half_at(x, 0))
}
