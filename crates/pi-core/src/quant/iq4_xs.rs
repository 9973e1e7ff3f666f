//! IQ4_XS: the values of IQ4_NL in 8 groups of 32, each with a signed 6-bit scale: `x = d · (s − 32) · VALUES[q]`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…1 | `d`, half precision |
//! | 2…3 | the high two bits of scale `i` are bits `2 i` and `2 i + 1` of this 16-bit word |
//! | 4…7 | low halves of the scales, two to a byte, the earlier one low |
//! | 8…135 | codes: 16 bytes a group, as in IQ4_NL |

use super::block::{self, field, half_at, inverse, nearest_even, put_half, sum_products};
use super::iq4_nl::{pack, values};
use super::search::{closest_values, fit_values};
use super::{QuantInfo, QuantType, q8_k};

pub(super) static IQ4_XS: QuantInfo = QuantInfo {
    ty: QuantType::IQ4_XS,
    name: "IQ4_XS",
    gguf_id: 23,
    block_len: 256,
    block_bytes: 136,
    activation: QuantType::Q8_K,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

#[inline(always)]
fn scales(b: &[u8; 136]) -> [i8; 8] {
    let high = u16::from_le_bytes([b[2], b[3]]);
    std::array::from_fn(|i| {
        let low = b[4 + i / 2] >> (4 * (i % 2)) & 15;
        (low | ((high >> (2 * i)) as u8 & 3) << 4) as i8 - 32
    })
}

fn decode(b: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at(b, 0);
    for (i, (out, s)) in out.chunks_exact_mut(32).zip(scales(b)).enumerate() {
        let scale = d * f32::from(s);
        for (o, q) in out.iter_mut().zip(values(field(b, 8 + 16 * i))) {
            *o = scale * f32::from(q);
        }
    }
}

fn encode(x: &[f32; 256], out: &mut [u8; 136]) {
    let groups = x.as_chunks::<32>().0;
    let mut fitted = [0.0; 8];
    for (s, x) in fitted.iter_mut().zip(groups) {
        *s = fit_values(x);
    }
    out.fill(0);
    let d = -block::extreme(&fitted) / 32.0;
    put_half(out, 0, d);
    let unit = inverse(d);
    let mut high = 0;
    for (i, x) in groups.iter().enumerate() {
        let s = nearest_even(unit * fitted[i]).clamp(-32, 31);
        pack(&closest_values(x, inverse(d * s as f32)), &mut out[8 + 16 * i..24 + 16 * i]);
        let s = (s + 32) as u8;
        out[4 + i / 2] |= (s & 15) << (4 * (i % 2));
        high |= u16::from(s >> 4) << (2 * i);
    }
    out[2..4].copy_from_slice(&high.to_le_bytes());
}

fn dot(w: &[u8; 136], x: &[u8; 292]) -> f64 {
    let mut sum = 0;
    for (i, (x, s)) in q8_k::codes(x).chunks_exact(32).zip(scales(w)).enumerate() {
        sum += i32::from(s) * sum_products(&values(field(w, 8 + 16 * i)), x);
    }
    f64::from(sum) * f64::from(half_at(w, 0)) * q8_k::scale(x)
}
