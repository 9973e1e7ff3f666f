//! What the files of this folder share: walking over blocks, half-precision fields, rounding.
//!
//! Every walk stops at the shorter of its slices and leaves a partial block alone, so no length can make it panic.

use half::f16;

/// Calls `f` with each whole block of bytes and the numbers it stands for.
#[inline(always)]
pub(super) fn decode<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    f: impl Fn(&[u8; B], &mut [f32; N]),
) {
    for (b, o) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        f(b, o);
    }
}

/// Calls `f` with the numbers of each whole block and the bytes to fill.
#[inline(always)]
pub(super) fn encode<const B: usize, const N: usize>(x: &[f32], out: &mut [u8], f: impl Fn(&[f32; N], &mut [u8; B])) {
    for (x, o) in x.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        f(x, o);
    }
}

/// Sums `f` over pairs of blocks that stand for equally many numbers. Blocks add in f64, so the order does not show.
#[inline(always)]
pub(super) fn dot<const W: usize, const X: usize>(w: &[u8], x: &[u8], f: impl Fn(&[u8; W], &[u8; X]) -> f64) -> f32 {
    w.as_chunks().0.iter().zip(x.as_chunks().0).map(|(w, x)| f(w, x)).sum::<f64>() as f32
}

/// The half-precision number at byte `at`.
#[inline(always)]
pub(super) fn half_at<const B: usize>(block: &[u8; B], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores `v` in half precision at byte `at` and returns what was stored.
#[inline(always)]
pub(super) fn put_half<const B: usize>(block: &mut [u8; B], at: usize, v: f32) -> f32 {
    let v = f16::from_f32(v);
    block[at..at + 2].copy_from_slice(&v.to_le_bytes());
    v.to_f32()
}

/// The `N` bytes at `at` as an array.
#[inline(always)]
pub(super) fn field<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("a field lies within its block")
}

/// The `N` signed bytes at `at`.
#[inline(always)]
pub(super) fn signed<const N: usize>(block: &[u8], at: usize) -> &[i8; N] {
    bytemuck::cast_slice::<u8, i8>(&block[at..]).first_chunk().expect("a field lies within its block")
}

/// The low halves of bytes to the first half of `q`, their high halves to the second.
#[inline(always)]
pub(super) fn split_bytes(bytes: &[u8], q: &mut [i8]) {
    let (low, high) = q.split_at_mut(bytes.len());
    for ((low, high), b) in low.iter_mut().zip(high).zip(bytes) {
        *low = (b & 15) as i8;
        *high = (b >> 4) as i8;
    }
}

/// Codes less `by`. They are far from overflowing; without saying so, builds that check stay scalar here.
#[inline(always)]
pub(super) fn lowered<const N: usize>(q: [i8; N], by: i8) -> [i8; N] {
    q.map(|q| q.wrapping_sub(by))
}

/// Sum of products of codes.
#[inline(always)]
pub(super) fn sum_products(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

/// The nearest integer, ties to even, for magnitudes below 2²². For anything else, some integer of at most that magnitude.
///
/// Adding 1.5·2²³ makes the unit the last place of the sum, so the addition itself rounds.
#[inline(always)]
pub(super) fn nearest_even(v: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    const MANTISSA: i32 = (1 << 23) - 1;
    ((v + SHIFT).to_bits() as i32 & MANTISSA).wrapping_sub(1 << 22)
}

/// The nearest integer, ties away from zero; saturates, and 0 for NaN.
#[inline(always)]
pub(super) fn nearest_away(v: f32) -> i32 {
    const BELOW_HALF: f32 = 0.499_999_97;
    (v + BELOW_HALF.copysign(v)) as i32
}

/// `1 / d`, or 0 where that is not a number to multiply with (d is 0, NaN or too small).
#[inline(always)]
pub(super) fn inverse(d: f32) -> f32 {
    let i = 1.0 / d;
    if i.is_finite() { i } else { 0.0 }
}

/// The first number of the largest magnitude, with its sign; 0 for none. NaN is passed over.
#[inline(always)]
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m: f32, v| if v.abs() > m.abs() { *v } else { m })
}

/// The largest magnitude; NaN if there is any.
#[inline(always)]
pub(super) fn magnitude(x: &[f32]) -> f32 {
    // Without their sign, the bits of floats sort like the numbers, and NaN above all.
    f32::from_bits(x.iter().fold(0, |m, v| v.abs().to_bits().max(m)))
}

/// The smallest and the largest number. NaN is passed over.
#[inline(always)]
pub(super) fn range(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::MAX, f32::MIN), |(lo, hi), v| (if *v < lo { *v } else { lo }, if *v > hi { *v } else { hi }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_agrees_with_the_standard_library() {
        for i in -8000..8000 {
            let v = i as f32 / 16.0;
            for v in [v, v.next_up(), v.next_down()] {
                assert_eq!(nearest_even(v), v.round_ties_even() as i32, "{v}");
                assert_eq!(nearest_away(v), v.round() as i32, "{v}");
            }
        }
        for v in [0.5, 1.5, 2.5, 126.5, 4_194_303.0, -4_194_303.0, f32::MIN_POSITIVE, -1e-45] {
            assert_eq!(nearest_even(v), v.round_ties_even() as i32, "{v}");
            assert_eq!(nearest_away(v), v.round() as i32, "{v}");
        }
        assert_eq!(nearest_away(f32::NAN), 0);
        for v in [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN] {
            assert!(nearest_even(v).abs() <= 1 << 22, "{v}");
        }
    }

    #[test]
    fn the_extreme_is_the_first_of_the_largest() {
        assert_eq!(extreme(&[1.0, -3.0, 3.0]), -3.0);
        assert_eq!(extreme(&[f32::NAN, 2.0]), 2.0);
        assert_eq!(extreme(&[]), 0.0);
        assert!(magnitude(&[f32::INFINITY, f32::NAN, -2.0]).is_nan());
        assert_eq!(magnitude(&[1.0, -2.0]), 2.0);
    }
}
