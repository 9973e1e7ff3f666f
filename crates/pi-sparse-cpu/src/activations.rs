//! How activations are written for kernels.
//!
//! The kernels of quantised weights multiply integers, so activations are rounded to integers of 15 bits, with one scale per
//! 256. That is 128 times finer than the 8 bits that engines usually round to, costs no more time where the CPU multiplies
//! 16-bit integers (or widens bytes to them anyway), and keeps a quantised model within 10⁻³ of what f32 activations give.

use pi_core::Form;

/// An encoder of rows of activations.
pub type Encode = fn(x: &[f32], out: &mut [u8]);

/// A form of activations: what a kernel wants beside its weights.
#[derive(Debug, Clone, Copy)]
pub struct Activations {
    /// Its name. Two forms with one name must be the same.
    pub form: Form,
    /// Numbers per block; the last block of a row may be filled up with zeros.
    pub block_len: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// Writes a row. Whatever was in `out` is overwritten.
    pub encode: Encode,
    /// Reads whole blocks.
    pub decode: fn(bytes: &[u8], out: &mut [f32]),
}

impl Activations {
    /// The numbers themselves. (Operators read them where they lie and do not call the encoder.)
    pub const F32: Self = Self {
        form: Form::F32,
        block_len: 1,
        block_bytes: 4,
        encode: |x, out| {
            out.as_chunks_mut().0.iter_mut().zip(x).for_each(|(out, x)| *out = x.to_le_bytes());
        },
        decode: |bytes, out| {
            out.iter_mut().zip(bytes.as_chunks().0).for_each(|(out, bytes)| *out = f32::from_le_bytes(*bytes));
        },
    };

    /// Integers of 15 bits in blocks of 256, for weights in blocks of 256: kernels take 32 bytes of weights apart into even
    /// and odd ones. Block (640 bytes): 8 groups of 32 codes (16 bits each; the even ones, then the odd ones), 8 sums of the
    /// codes of a group (f32), 16 sums of the halves of groups (f32), the scale (f32), 28 bytes of 0.
    pub const SPLIT15: Self = Self {
        form: Form("split15"),
        block_len: BLOCK,
        block_bytes: split15::BYTES,
        encode: |x, out| encode::<{ split15::BYTES }>(x, out, split15::SCALE, split15::place, split15::add_to_sums),
        decode: |bytes, out| decode::<{ split15::BYTES }>(bytes, out, split15::SCALE, split15::place),
    };

    /// The same numbers for weights in blocks of 32, of which kernels take two at a time. Block (704 bytes): 4 pairs of groups
    /// of 32 codes (16 bits each), of each pair first the even codes of the groups' first halves (8 of the one group, then 8
    /// of the other), then the odd ones, then the same of the second halves; for each pair 8 sums (f32), each of the codes that
    /// stand in the same 32 bits of the pair's 4 vectors of 256 bits; the scale (f32), 60 bytes of 0.
    pub const PAIRS15: Self = Self {
        form: Form("pairs15"),
        block_len: BLOCK,
        block_bytes: pairs15::BYTES,
        encode: |x, out| encode::<{ pairs15::BYTES }>(x, out, pairs15::SCALE, pairs15::place, pairs15::add_to_sums),
        decode: |bytes, out| decode::<{ pairs15::BYTES }>(bytes, out, pairs15::SCALE, pairs15::place),
    };

    /// The same for [repacked](crate::Packed) weights, of which kernels take eight blocks of 32 at a time. Block (576 bytes): 16
    /// vectors of 256 bits, of which vector `k` has codes `2 k` and `2 k + 1` of each of 8 groups of 32; the sums of the groups'
    /// codes (f32); the scale (f32), 28 bytes of 0.
    pub const LANES15: Self = Self {
        form: Form("lanes15"),
        block_len: BLOCK,
        block_bytes: lanes15::BYTES,
        encode: |x, out| encode::<{ lanes15::BYTES }>(x, out, lanes15::SCALE, lanes15::place, lanes15::add_to_sums),
        decode: |bytes, out| decode::<{ lanes15::BYTES }>(bytes, out, lanes15::SCALE, lanes15::place),
    };

    /// Bytes of a row of `dim` numbers.
    pub fn row_bytes(&self, dim: usize) -> usize {
        dim.div_ceil(self.block_len) * self.block_bytes
    }
}

/// Numbers under one scale.
pub(crate) const BLOCK: usize = 256;
/// The largest code. With it, 32 products with codes of weights times scales of groups, at most 4096 together, add up to
/// less than 2³¹.
pub(crate) const LARGEST: f32 = 16383.0;
/// The scale of a block with this largest magnitude (NaN above all), and what numbers are multiplied with. Nothing is left
/// of blocks that are nearly 0; a block with a number that is not finite is NaN altogether.
#[inline]
pub(crate) fn scales(largest: f32) -> (f32, f32) {
    let inverse = LARGEST / largest;
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if !inverse.is_finite() {
        (0.0, 0.0)
    } else {
        (largest / LARGEST, inverse)
    }
}

/// Places in a block of [`Activations::SPLIT15`].
pub(crate) mod split15 {
    /// Bytes of a block.
    pub(crate) const BYTES: usize = 640;
    /// Where the sums of groups are.
    pub(crate) const SUMS: usize = 512;
    /// Where the sums of halves of groups are.
    pub(crate) const HALF_SUMS: usize = 544;
    /// Where the scale is.
    pub(crate) const SCALE: usize = 608;

    pub(super) fn place(i: usize) -> usize {
        i / 32 * 64 + i % 2 * 32 + i % 32 / 2 * 2
    }

    pub(super) fn add_to_sums(out: &mut [u8; BYTES], i: usize, code: i16) {
        super::add(out, SUMS + i / 32 * 4, code);
        super::add(out, HALF_SUMS + i / 16 * 4, code);
    }
}

/// Places in a block of [`Activations::PAIRS15`].
pub(crate) mod pairs15 {
    /// Bytes of a block.
    pub(crate) const BYTES: usize = 704;
    /// Where the sums of lanes are.
    pub(crate) const SUMS: usize = 512;
    /// Where the scale is.
    pub(crate) const SCALE: usize = 640;

    pub(super) fn place(i: usize) -> usize {
        let (pair, group, half) = (i / 64, i / 32 % 2, i / 16 % 2);
        pair * 128 + half * 64 + i % 2 * 32 + group * 16 + i % 16 / 2 * 2
    }

    pub(super) fn add_to_sums(out: &mut [u8; BYTES], i: usize, code: i16) {
        let place = place(i);
        super::add(out, SUMS + place / 128 * 32 + place % 32 / 4 * 4, code);
    }
}

/// Places in a block of [`Activations::LANES15`].
pub(crate) mod lanes15 {
    /// Bytes of a block.
    pub(crate) const BYTES: usize = 576;
    /// Where the sums of groups are.
    pub(crate) const SUMS: usize = 512;
    /// Where the scale is.
    pub(crate) const SCALE: usize = 544;

    pub(super) fn place(i: usize) -> usize {
        i % 32 / 2 * 32 + i / 32 * 4 + i % 2 * 2
    }

    pub(super) fn add_to_sums(out: &mut [u8; BYTES], i: usize, code: i16) {
        super::add(out, SUMS + i / 32 * 4, code);
    }
}

fn encode<const B: usize>(
    x: &[f32],
    out: &mut [u8],
    scale_at: usize,
    place: impl Fn(usize) -> usize,
    add_to_sums: impl Fn(&mut [u8; B], usize, i16),
) {
    for (x, out) in x.chunks(BLOCK).zip(out.as_chunks_mut::<B>().0) {
        let largest = x.iter().fold(0, |m, v| v.abs().to_bits().max(m));
        let (scale, by) = scales(f32::from_bits(largest));
        out.fill(0);
        for (i, v) in x.iter().enumerate() {
            let code = if scale.is_nan() { 0 } else { (v * by).round_ties_even() as i16 };
            out[place(i)..][..2].copy_from_slice(&code.to_le_bytes());
            add_to_sums(out, i, code);
        }
        out[scale_at..][..4].copy_from_slice(&scale.to_le_bytes());
    }
}

fn decode<const B: usize>(bytes: &[u8], out: &mut [f32], scale_at: usize, place: impl Fn(usize) -> usize) {
    for (bytes, out) in bytes.as_chunks::<B>().0.iter().zip(out.chunks_mut(BLOCK)) {
        let scale = float(bytes, scale_at);
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(i16::from_le_bytes([bytes[place(i)], bytes[place(i) + 1]]));
        }
    }
}

fn float(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Adds a code to a sum. Exact: sums have fewer bits than f32 holds.
fn add(out: &mut [u8], at: usize, code: i16) {
    let sum = float(out, at) + f32::from(code);
    out[at..][..4].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_come_back_within_half_a_step() {
        let forms = [Activations::SPLIT15, Activations::PAIRS15, Activations::LANES15];
        let lengths = [0, 1, 31, 32, 255, 256, 257, 700];
        for (a, n) in forms.into_iter().flat_map(|a| lengths.map(|n| (a, n))) {
            let x: Vec<f32> = (0..n).map(|i| (i as f32 * 1.7).sin() * if i < 256 { 1e-3 } else { 1e4 }).collect();
            let mut bytes = vec![0xa5; a.row_bytes(n)];
            (a.encode)(&x, &mut bytes);
            let mut back = vec![7.0; n.next_multiple_of(BLOCK)];
            (a.decode)(&bytes, &mut back);
            for (block, (x, back)) in x.chunks(BLOCK).zip(back.chunks(BLOCK)).enumerate() {
                let step = x.iter().fold(0.0f32, |m, v| m.max(v.abs())) / LARGEST;
                for (i, (x, b)) in x.iter().zip(back).enumerate() {
                    assert!((x - b).abs() <= step * 0.501, "{i} of block {block}: {b} instead of {x}");
                }
                assert!(back[x.len()..].iter().all(|v| *v == 0.0));
            }
        }
    }

    #[test]
    fn numbers_that_are_not_finite_make_their_block_nan_and_tiny_ones_vanish() {
        let odd = [(f32::NAN, f32::NAN), (f32::INFINITY, f32::NAN), (f32::NEG_INFINITY, f32::NAN), (1e-44, 0.0)];
        let forms = [Activations::SPLIT15, Activations::PAIRS15, Activations::LANES15];
        for (a, (odd, want)) in forms.into_iter().flat_map(|a| odd.map(|odd| (a, odd))) {
            let mut x = [1e-44f32; 512];
            x[300] = odd;
            let (mut bytes, mut back) = (vec![0; a.row_bytes(512)], [7.0; 512]);
            (a.encode)(&x, &mut bytes);
            (a.decode)(&bytes, &mut back);
            assert!(back[..256].iter().all(|v| *v == 0.0));
            assert!(back[256..].iter().all(|v| *v == want || v.is_nan() && want.is_nan()), "{odd}");
        }
    }
}
