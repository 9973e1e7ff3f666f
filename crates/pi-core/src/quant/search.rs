//! How scales are found when weights are encoded.
//!
//! Codes and scale depend on each other: for given codes the best scale is a weighted least-squares fit, and for a given
//! scale the best codes are the nearest ones. Each search here tries a fixed row of scales, fits, and keeps the best fit.
//! Sums run in f32 and in the order of the numbers on purpose: the results then are those of the usual quantisers to the
//! bit, so that files made here and elsewhere can be compared.

use super::block::{extreme, nearest_even};
use super::iq4_nl::VALUES;

/// A group whose numbers are all smaller than this is stored as zeros.
const NOTHING: f32 = 1e-15;

/// The nearest code within `lo..=hi`.
#[inline(always)]
fn code(v: f32, lo: i32, hi: i32) -> i32 {
    nearest_even(v).clamp(lo, hi)
}

/// Codes of `(x + min) / scale` within `lo..=hi`, stored as the distance to `lo`. With a zero scale, `q` stays as it is.
pub(super) fn codes_of<const N: usize>(x: &[f32; N], scale: f32, min: f32, lo: i32, hi: i32, q: &mut [u8; N]) {
    if scale == 0.0 {
        return;
    }
    for (q, v) in q.iter_mut().zip(x) {
        *q = (code((v + min) / scale, lo, hi) - lo) as u8;
    }
}

/// Search for `x ≈ scale · q − min` with `q` in `0..=levels` and `min ≥ 0`.
pub(super) struct Affine {
    /// The largest code.
    pub levels: i32,
    /// The first candidate spreads `levels + first` steps over the group's range, each further one 0.1 steps more.
    pub first: f32,
    /// Candidates after the first.
    pub steps: i32,
    /// Candidates are compared by absolute instead of squared errors.
    pub absolute: bool,
}

impl Affine {
    /// Returns scale and min, and the codes in `q`.
    pub(super) fn fit<const N: usize>(&self, x: &[f32; N], weights: &[f32; N], q: &mut [u8; N]) -> (f32, f32) {
        let top = self.levels as f32;
        let (mut low, mut high) = (x[0], x[0]);
        let (mut sum_w, mut sum_x) = (weights[0], weights[0] * x[0]);
        for (v, w) in x.iter().zip(weights).skip(1) {
            low = if *v < low { *v } else { low };
            high = if *v > high { *v } else { high };
            sum_w += w;
            sum_x += w * v;
        }
        low = if low > 0.0 { 0.0 } else { low };
        q.fill(0);
        if high == low {
            return (0.0, -low);
        }
        let assign = |inverse: f32, low: f32| x.map(|v| code(inverse * (v - low), 0, self.levels) as f32);
        let error = |codes: &[f32; N], scale: f32, low: f32| {
            let mut sum = 0.0;
            for ((l, v), w) in codes.iter().zip(x).zip(weights) {
                let off = scale * l + low - v;
                sum += w * if self.absolute { off.abs() } else { off * off };
            }
            sum
        };

        let inverse = top / (high - low);
        let mut scale = 1.0 / inverse;
        let mut best = assign(inverse, low);
        let mut least = error(&best, scale, low);
        for step in 0..=self.steps {
            // `low` is that of the best fit so far
            let codes = assign((self.first + 0.1 * step as f32 + top) / (high - low), low);
            let (mut l1, mut l2, mut lx) = (0.0, 0.0, 0.0);
            for ((l, v), w) in codes.iter().zip(x).zip(weights) {
                let wl = w * l;
                l1 += wl;
                l2 += wl * l;
                lx += wl * v;
            }
            let det = sum_w * l2 - l1 * l1;
            if det > 0.0 {
                let mut fit = (sum_w * lx - sum_x * l1) / det;
                let mut fit_low = (l2 * sum_x - l1 * lx) / det;
                if fit_low > 0.0 {
                    (fit, fit_low) = (lx / l2, 0.0);
                }
                let err = error(&codes, fit, fit_low);
                if err < least {
                    (least, scale, low, best) = (err, fit, fit_low, codes);
                }
            }
        }
        *q = best.map(|l| l as u8);
        (scale, -low)
    }
}

/// Search for `x ≈ scale · (q − 32)` with `q` in `0..64`; squares of the numbers are the weights. The largest number
/// lies at code 0 (−32), give or take 0.9.
pub(super) fn fit_symmetric<const N: usize>(x: &[f32; N], q: &mut [u8; N]) -> f32 {
    let max = extreme(x);
    q.fill(0);
    if max.abs() < NOTHING {
        return 0.0;
    }
    let sums = |inverse: f32| {
        let (mut lx, mut l2) = (0.0, 0.0);
        for v in x {
            let l = code(inverse * v, -32, 31) as f32;
            let w = v * v;
            lx += w * v * l;
            l2 += w * l * l;
        }
        (lx, l2)
    };
    let mut chosen = -32.0 / max;
    let (lx, l2) = sums(chosen);
    let mut scale = if l2 != 0.0 { lx / l2 } else { 0.0 };
    let mut best = scale * lx;
    for step in (-9..=9).filter(|s| *s != 0) {
        let inverse = -(32.0 + 0.1 * step as f32) / max;
        let (lx, l2) = sums(inverse);
        if l2 > 0.0 && lx * lx > best * l2 {
            scale = lx / l2;
            best = scale * lx;
            chosen = inverse;
        }
    }
    *q = x.map(|v| (code(chosen * v, -32, 31) + 32) as u8);
    scale
}

/// Search for `x ≈ scale · (q − 4)` with `q` in `0..8`; squares of the numbers are the weights. Starts with the largest
/// number at code 0 and then moves one code at a time, as long as that improves the fit, for at most five rounds.
pub(super) fn fit_descent<const N: usize>(x: &[f32; N], q: &mut [u8; N]) -> f32 {
    let max = extreme(x);
    q.fill(0);
    if max.abs() < NOTHING {
        return 0.0;
    }
    let inverse = -4.0 / max;
    let mut codes = x.map(|v| code(inverse * v, -4, 3));
    let (mut lx, mut l2) = (0.0, 0.0);
    for (v, l) in x.iter().zip(&codes) {
        let (w, l) = (v * v, *l as f32);
        lx += w * v * l;
        l2 += w * l * l;
    }
    for _ in 0..5 {
        let mut moved = false;
        for (v, code_of) in x.iter().zip(&mut codes) {
            let (w, old) = (v * v, *code_of as f32);
            let mut rest_lx = lx - w * v * old;
            if rest_lx > 0.0 {
                let mut rest_l2 = l2 - w * old * old;
                let to = code(v * rest_l2 / rest_lx, -4, 3);
                if to != *code_of {
                    let new = to as f32;
                    rest_lx += w * v * new;
                    rest_l2 += w * new * new;
                    if rest_l2 > 0.0 && rest_lx * rest_lx * l2 > lx * lx * rest_l2 {
                        (*code_of, lx, l2) = (to, rest_lx, rest_l2);
                        moved = true;
                    }
                }
            }
        }
        if !moved {
            break;
        }
    }
    *q = codes.map(|l| (l + 4) as u8);
    if l2 > 0.0 { lx / l2 } else { 0.0 }
}

/// Search for `x ≈ scale · VALUES[q]`; squares of the numbers are the weights. The first candidate puts the largest number
/// at 127, the others at −127 give or take 7.
pub(super) fn fit_values(x: &[f32; 32]) -> f32 {
    let max = extreme(x);
    if max.abs() < NOTHING {
        return 0.0;
    }
    let end = f32::from(VALUES[0]);
    let sums = |inverse: f32| {
        let (mut qx, mut q2) = (0.0, 0.0);
        let values = sum_of_steps(x, inverse, end, |j| f32::from(VALUES[j]) - f32::from(VALUES[j - 1]));
        for (v, q) in x.iter().zip(values) {
            let w = v * v;
            qx += w * q * v;
            q2 += w * q * q;
        }
        (qx, q2)
    };
    let (qx, q2) = sums(1.0 / (-max / end));
    let mut scale = if q2 > 0.0 { qx / q2 } else { 0.0 };
    let mut best = scale * qx;
    for step in -7..=7 {
        let (qx, q2) = sums((step as f32 + end) / max);
        if q2 > 0.0 && qx * qx > best * q2 {
            scale = qx / q2;
            best = scale * qx;
        }
    }
    scale
}

/// The codes of [`VALUES`] nearest to `inverse · x`; the upper one of two equally near.
pub(super) fn closest_values(x: &[f32; 32], inverse: f32) -> [u8; 32] {
    sum_of_steps(x, inverse, 0.0, |_| 1.0).map(|q| q as u8)
}

/// For each `inverse · x`: `first` plus `step(j)` for each `j` from 1 that it reaches, which is when it is not below the
/// middle between values `j − 1` and `j`. Middles are multiples of a half, so comparing with them is exact.
#[inline(always)]
fn sum_of_steps(x: &[f32; 32], inverse: f32, first: f32, step: impl Fn(usize) -> f32) -> [f32; 32] {
    let mut sums = [first; 32];
    for j in 1..VALUES.len() {
        let middle = (f32::from(VALUES[j - 1]) + f32::from(VALUES[j])) / 2.0;
        let step = step(j);
        for (sum, v) in sums.iter_mut().zip(x) {
            *sum += if inverse * v >= middle { step } else { 0.0 };
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_value_has_the_least_distance() {
        for i in -6000..6000 {
            let v = i as f32 / 40.0;
            let [closest, ..] = closest_values(&[v; 32], 1.0);
            let least = VALUES.iter().map(|q| (f32::from(*q) - v).abs()).fold(f32::MAX, f32::min);
            assert_eq!((f32::from(VALUES[usize::from(closest)]) - v).abs(), least, "{v}");
        }
        assert_eq!(closest_values(&[f32::NEG_INFINITY; 32], 1.0), [0; 32]);
        assert_eq!(closest_values(&[f32::INFINITY; 32], 1.0), [15; 32]);
        assert_eq!(closest_values(&[-4.5; 32], 1.0), [8; 32], "half way from −10 to 1");
    }
}
