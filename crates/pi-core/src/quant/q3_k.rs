//! Q3_K: 256 codes of 3 bits in 16 groups of 16, each with a signed 6-bit scale: `x = d · (s − 32) · (q − 4)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…31 | third bits: of number `32 i + j`, bit `i` of byte `j` |
//! | 32…95 | low two bits, as in Q2_K |
//! | 96…107 | scales, see [`scales`] |
//! | 108…109 | `d`, half precision |

use super::block::{self, half_at, lowered, nearest_even, put_half, sum_products};
use super::search::{codes_of, fit_descent};
use super::{QuantInfo, QuantType, q2_k, q8_k};

pub(super) static Q3_K: QuantInfo = QuantInfo {
    ty: QuantType::Q3_K,
    name: "Q3_K",
    gguf_id: 11,
    block_len: 256,
    block_bytes: 110,
    activation: QuantType::Q8_K,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

#[inline(always)]
fn codes(b: &[u8; 110]) -> [i8; 256] {
    let mut q = q2_k::codes(&b[32..96]);
    for (i, part) in q.chunks_exact_mut(32).enumerate() {
        for (q, high) in part.iter_mut().zip(&b[..32]) {
            *q |= (((high >> i) & 1) << 2) as i8;
        }
    }
    lowered(q, 4)
}

/// Scales from −32 to 31. The low halves of scales `i` and `i + 8` share byte `i` (of 8); the high two bits of scales
/// `i`, `i + 4`, `i + 8`, `i + 12` share byte `8 + i` (of 4).
#[inline(always)]
fn scales(b: &[u8; 110]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = b[96 + i % 8] >> (4 * (i / 8)) & 15;
        let high = b[104 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

fn decode(b: &[u8; 110], out: &mut [f32; 256]) {
    let d = half_at(b, 108);
    let q = codes(b);
    for ((out, q), s) in out.chunks_exact_mut(16).zip(q.chunks_exact(16)).zip(scales(b)) {
        let scale = d * f32::from(s);
        for (o, q) in out.iter_mut().zip(q) {
            *o = scale * f32::from(*q);
        }
    }
}

fn encode(x: &[f32; 256], out: &mut [u8; 110]) {
    let groups = x.as_chunks::<16>().0;
    let mut q = [0; 256];
    let mut fitted = [0.0; 16];
    for ((x, q), s) in groups.iter().zip(q.as_chunks_mut::<16>().0).zip(&mut fitted) {
        *s = fit_descent(x, q);
    }
    out.fill(0);
    let unit = -32.0 / block::extreme(&fitted);
    let unit = if unit.is_finite() { unit } else { 0.0 };
    let d = put_half(out, 108, if unit != 0.0 { 1.0 / unit } else { 0.0 });
    for (i, s) in fitted.iter().enumerate() {
        if unit == 0.0 {
            break;
        }
        let s = nearest_even(unit * s).clamp(-32, 31);
        codes_of(&groups[i], d * s as f32, 0.0, -4, 3, &mut q.as_chunks_mut::<16>().0[i]);
        let s = (s + 32) as u8;
        out[96 + i % 8] |= (s & 15) << (4 * (i / 8));
        out[104 + i % 4] |= (s >> 4) << (2 * (i / 4));
    }
    for (i, q) in q.iter().enumerate() {
        out[i % 32] |= (q >> 2) << (i / 32);
    }
    q2_k::pack(&q.map(|q| q & 3), &mut out[32..96]);
}

fn dot(w: &[u8; 110], x: &[u8; 292]) -> f64 {
    let q = codes(w);
    let mut sum = 0;
    for ((q, x), s) in q.chunks_exact(16).zip(q8_k::codes(x).chunks_exact(16)).zip(scales(w)) {
        sum += i32::from(s) * sum_products(q, x);
    }
    f64::from(sum) * f64::from(half_at(w, 108)) * q8_k::scale(x)
}
