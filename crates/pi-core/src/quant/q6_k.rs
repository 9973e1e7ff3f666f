//! Q6_K: 256 codes of 6 bits in 16 groups of 16, each with a signed 8-bit scale: `x = d · s · (q − 32)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…127 | low halves: of each 128 numbers, bytes `j < 64` hold number `j` in the low and `j + 64` in the high half |
//! | 128…191 | high two bits, as the codes of Q2_K |
//! | 192…207 | scales |
//! | 208…209 | `d`, half precision |

use super::block::{self, half_at, lowered, nearest_even, put_half, signed, sum_products};
use super::search::{codes_of, fit_symmetric};
use super::{QuantInfo, QuantType, q2_k, q8_k};

pub(super) static Q6_K: QuantInfo = QuantInfo {
    ty: QuantType::Q6_K,
    name: "Q6_K",
    gguf_id: 14,
    block_len: 256,
    block_bytes: 210,
    activation: QuantType::Q8_K,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

#[inline(always)]
fn codes(b: &[u8; 210]) -> [i8; 256] {
    let mut q = q2_k::codes(&b[128..192]).map(|high| high << 4);
    for (q, low) in q.chunks_exact_mut(128).zip(b[..128].chunks_exact(64)) {
        let (first, second) = q.split_at_mut(64);
        for ((a, b), low) in first.iter_mut().zip(second).zip(low) {
            *a |= (low & 15) as i8;
            *b |= (low >> 4) as i8;
        }
    }
    lowered(q, 32)
}

fn decode(b: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(b, 208);
    let q = codes(b);
    let scales = signed::<16>(b, 192);
    for ((out, q), s) in out.chunks_exact_mut(16).zip(q.chunks_exact(16)).zip(scales) {
        let scale = d * f32::from(*s);
        for (o, q) in out.iter_mut().zip(q) {
            *o = scale * f32::from(*q);
        }
    }
}

fn encode(x: &[f32; 256], out: &mut [u8; 210]) {
    let groups = x.as_chunks::<16>().0;
    let mut q = [0; 256];
    let mut fitted = [0.0; 16];
    for ((x, q), s) in groups.iter().zip(q.as_chunks_mut::<16>().0).zip(&mut fitted) {
        *s = fit_symmetric(x, q);
    }
    out.fill(0);
    let max = block::extreme(&fitted);
    if max.abs() < 1e-15 {
        return;
    }
    let unit = -128.0 / max;
    let d = put_half(out, 208, 1.0 / unit);
    for (i, (x, q)) in groups.iter().zip(q.as_chunks_mut::<16>().0).enumerate() {
        let s = nearest_even(unit * fitted[i]).clamp(-128, 127);
        out[192 + i] = s as u8;
        codes_of(x, d * s as f32, 0.0, -32, 31, q);
    }
    for (q, low) in q.chunks_exact(128).zip(out[..128].chunks_exact_mut(64)) {
        for (j, b) in low.iter_mut().enumerate() {
            *b = q[j] & 15 | (q[j + 64] & 15) << 4;
        }
    }
    q2_k::pack(&q.map(|q| q >> 4), &mut out[128..192]);
}

fn dot(w: &[u8; 210], x: &[u8; 292]) -> f64 {
    let q = codes(w);
    let mut sum = 0;
    for ((q, x), s) in q.chunks_exact(16).zip(q8_k::codes(x).chunks_exact(16)).zip(signed::<16>(w, 192)) {
        sum += i32::from(*s) * sum_products(q, x);
    }
    f64::from(sum) * f64::from(half_at(w, 208)) * q8_k::scale(x)
}
