//! Q2_K: 256 codes of 2 bits in 16 groups of 16, each with a 4-bit scale and minimum: `x = d · s · q − dmin · m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…15 | per group: scale `s` in the low, minimum `m` in the high half |
//! | 16…79 | codes, see [`codes`] |
//! | 80…81, 82…83 | `d` and `dmin`, half precision |

use super::block::{self, half_at, nearest_even, put_half, sum_products};
use super::q8_k;
use super::search::{Affine, codes_of};
use super::{QuantInfo, QuantType};

pub(super) static Q2_K: QuantInfo = QuantInfo {
    ty: QuantType::Q2_K,
    name: "Q2_K",
    gguf_id: 10,
    block_len: 256,
    block_bytes: 84,
    activation: QuantType::Q8_K,
    decode: |bytes, out| block::decode(bytes, out, decode),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, dot),
};

/// Two-bit codes: each half of the block has 32 bytes, and byte `j` holds its numbers `j`, `j + 32`, `j + 64`, `j + 96`.
/// Q3_K stores its low bits the same way.
#[inline(always)]
pub(super) fn codes(packed: &[u8]) -> [i8; 256] {
    let mut q = [0; 256];
    for (half, bytes) in q.chunks_exact_mut(128).zip(packed.chunks_exact(32)) {
        for (shift, quarter) in half.chunks_exact_mut(32).enumerate() {
            for (q, b) in quarter.iter_mut().zip(bytes) {
                *q = ((b >> (2 * shift)) & 3) as i8;
            }
        }
    }
    q
}

/// The inverse of [`codes`].
pub(super) fn pack(q: &[u8; 256], packed: &mut [u8]) {
    for (half, bytes) in q.chunks_exact(128).zip(packed.chunks_exact_mut(32)) {
        for (j, b) in bytes.iter_mut().enumerate() {
            *b = half[j] | half[j + 32] << 2 | half[j + 64] << 4 | half[j + 96] << 6;
        }
    }
}

fn decode(b: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    let q = codes(&b[16..80]);
    for (i, (out, q)) in out.chunks_exact_mut(16).zip(q.chunks_exact(16)).enumerate() {
        let scale = d * f32::from(b[i] & 15);
        let min = dmin * f32::from(b[i] >> 4);
        for (o, q) in out.iter_mut().zip(q) {
            *o = scale * f32::from(*q) - min;
        }
    }
}

fn encode(x: &[f32; 256], out: &mut [u8; 84]) {
    const SEARCH: Affine = Affine { levels: 3, first: -0.5, steps: 15, absolute: true };
    let groups = x.as_chunks::<16>().0;
    let mut q = [0; 256];
    let mut scales = [0.0; 16];
    let mut mins = [0.0; 16];
    for (i, (x, q)) in groups.iter().zip(q.as_chunks_mut::<16>().0).enumerate() {
        (scales[i], mins[i]) = SEARCH.fit(x, &x.map(f32::abs), q);
    }
    let mut steps = |of: &[f32; 16], at| {
        let max = of.iter().fold(0.0, |m, v| if *v > m { *v } else { m });
        let unit = if max > 0.0 { 15.0 / max } else { 0.0 };
        (put_half(out, at, max / 15.0), of.map(|v| nearest_even(unit * v).clamp(0, 15) as u8))
    };
    let (d, s) = steps(&scales, 80);
    let (dmin, m) = steps(&mins, 82);
    for (i, (x, q)) in groups.iter().zip(q.as_chunks_mut::<16>().0).enumerate() {
        out[i] = s[i] | m[i] << 4;
        codes_of(x, d * f32::from(s[i]), dmin * f32::from(m[i]), 0, 3, q);
    }
    pack(&q, &mut out[16..80]);
}

fn dot(w: &[u8; 84], x: &[u8; 292]) -> f64 {
    let q = codes(&w[16..80]);
    let sums = q8_k::sums(x);
    let (mut scaled, mut mins) = (0, 0);
    for (i, (q, x)) in q.chunks_exact(16).zip(q8_k::codes(x).chunks_exact(16)).enumerate() {
        scaled += i32::from(w[i] & 15) * sum_products(q, x);
        mins += i32::from(w[i] >> 4) * sums[i];
    }
    q8_k::scale(x) * (f64::from(half_at(w, 80)) * f64::from(scaled) - f64::from(half_at(w, 82)) * f64::from(mins))
}
