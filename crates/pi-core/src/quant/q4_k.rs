//! Q4_K: 256 codes of 4 bits in 8 groups of 32, each with a 6-bit scale and minimum: `x = d · s · q − dmin · m`.
//!
//! | bytes | field |
//! |---|---|
//! | 0…1, 2…3 | `d` and `dmin`, half precision |
//! | 4…15 | scales and minima, see [`Groups`] |
//! | 16…143 | codes, see [`halves`] |

use super::block::{self, half_at, nearest_even, put_half, split_bytes, sum_products};
use super::q8_k;
use super::search::{Affine, codes_of};
use super::{QuantInfo, QuantType};

pub(super) static Q4_K: QuantInfo = QuantInfo {
    ty: QuantType::Q4_K,
    name: "Q4_K",
    gguf_id: 12,
    block_len: 256,
    block_bytes: 144,
    activation: QuantType::Q8_K,
    decode: |bytes, out| {
        block::decode(bytes, out, |b: &[u8; 144], out| decode(&Groups::read(b), &halves(&b[16..]), out))
    },
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, |w: &[u8; 144], x| dot(&Groups::read(w), &halves(&w[16..]), x)),
};

/// The 16-byte head that Q4_K and Q5_K share.
///
/// Of the 12 bytes of scales and minima, byte `i < 4` holds scale `i` in its low six bits, byte `4 + i` minimum `i`,
/// byte `8 + i` the low halves of scale and minimum `4 + i`; the top two bits of the first eight bytes complete these.
pub(super) struct Groups {
    d: f32,
    dmin: f32,
    scales: [u8; 8],
    mins: [u8; 8],
}

impl Groups {
    #[inline(always)]
    pub(super) fn read<const B: usize>(b: &[u8; B]) -> Self {
        let mut g = Self { d: half_at(b, 0), dmin: half_at(b, 2), scales: [0; 8], mins: [0; 8] };
        for i in 0..4 {
            let (s, m, rest) = (b[4 + i], b[8 + i], b[12 + i]);
            g.scales[i] = s & 63;
            g.mins[i] = m & 63;
            g.scales[i + 4] = rest & 15 | s >> 6 << 4;
            g.mins[i + 4] = rest >> 4 | m >> 6 << 4;
        }
        g
    }

    fn write<const B: usize>(&self, b: &mut [u8; B]) {
        for i in 0..4 {
            let (s, m) = (self.scales[i + 4], self.mins[i + 4]);
            b[4 + i] = self.scales[i] | s >> 4 << 6;
            b[8 + i] = self.mins[i] | m >> 4 << 6;
            b[12 + i] = s & 15 | (m & 15) << 4;
        }
    }

    /// Scale and minimum to subtract of group `i`.
    #[inline(always)]
    fn group(&self, i: usize) -> (f32, f32) {
        (self.d * f32::from(self.scales[i]), self.dmin * f32::from(self.mins[i]))
    }
}

/// Four-bit codes: of each 64 numbers, byte `j` holds number `j` in its low and `j + 32` in its high half.
#[inline(always)]
pub(super) fn halves(packed: &[u8]) -> [i8; 256] {
    let mut q = [0; 256];
    for (q, bytes) in q.chunks_exact_mut(64).zip(packed.chunks_exact(32)) {
        split_bytes(bytes, q);
    }
    q
}

/// The inverse of [`halves`]; higher bits of the codes are dropped.
pub(super) fn pack(q: &[u8; 256], packed: &mut [u8]) {
    for (q, bytes) in q.chunks_exact(64).zip(packed.chunks_exact_mut(32)) {
        for (j, b) in bytes.iter_mut().enumerate() {
            *b = q[j] & 15 | q[j + 32] << 4;
        }
    }
}

#[inline(always)]
pub(super) fn decode(groups: &Groups, q: &[i8; 256], out: &mut [f32; 256]) {
    for (i, (out, q)) in out.chunks_exact_mut(32).zip(q.chunks_exact(32)).enumerate() {
        let (scale, min) = groups.group(i);
        for (o, q) in out.iter_mut().zip(q) {
            *o = scale * f32::from(*q) - min;
        }
    }
}

/// Writes the head and returns the codes.
///
/// Weights of the search are magnitudes, lifted by the group's root mean square so that small numbers count too.
pub(super) fn encode_groups<const B: usize>(x: &[f32; 256], search: &Affine, out: &mut [u8; B]) -> [u8; 256] {
    let parts = x.as_chunks::<32>().0;
    let mut q = [0; 256];
    let mut scales = [0.0; 8];
    let mut mins = [0.0; 8];
    for (i, (x, q)) in parts.iter().zip(q.as_chunks_mut::<32>().0).enumerate() {
        let squares = x.iter().fold(0.0, |s, v| s + v * v);
        let rms = (squares / 32.0).sqrt();
        (scales[i], mins[i]) = search.fit(x, &x.map(|v| rms + v.abs()), q);
    }
    let mut steps = |of: &[f32; 8], at| {
        let max = of.iter().fold(0.0, |m, v| if *v > m { *v } else { m });
        let unit = if max > 0.0 { 63.0 / max } else { 0.0 };
        (put_half(out, at, max / 63.0), of.map(|v| nearest_even(unit * v).clamp(0, 63) as u8))
    };
    let (d, scales) = steps(&scales, 0);
    let (dmin, mins) = steps(&mins, 2);
    let groups = Groups { d, dmin, scales, mins };
    groups.write(out);
    for (i, (x, q)) in parts.iter().zip(q.as_chunks_mut::<32>().0).enumerate() {
        let (scale, min) = groups.group(i);
        codes_of(x, scale, min, 0, search.levels, q);
    }
    q
}

fn encode(x: &[f32; 256], out: &mut [u8; 144]) {
    const SEARCH: Affine = Affine { levels: 15, first: -1.0, steps: 20, absolute: false };
    let q = encode_groups(x, &SEARCH, out);
    pack(&q, &mut out[16..]);
}

/// Minima meet the activations only through their sums, which Q8_K stores.
#[inline(always)]
pub(super) fn dot(groups: &Groups, q: &[i8; 256], x: &[u8; 292]) -> f64 {
    let sums = q8_k::sums(x);
    let (mut scaled, mut mins) = (0, 0);
    for (i, (q, x)) in q.chunks_exact(32).zip(q8_k::codes(x).chunks_exact(32)).enumerate() {
        scaled += i32::from(groups.scales[i]) * sum_products(q, x);
        mins += i32::from(groups.mins[i]) * (sums[2 * i] + sums[2 * i + 1]);
    }
    q8_k::scale(x) * (f64::from(groups.d) * f64::from(scaled) - f64::from(groups.dmin) * f64::from(mins))
}
