//! The inner loops of attention with AVX2, FMA and F16C.
//!
//! Every number has one order of operations, whatever the tile it is computed in: a score is eight sums along the head, added
//! up in one tree; an output is a chain over positions. So a token gets the same bits alone and in a prompt.
#![allow(unsafe_code)]

use super::lanes::{load, store, sum};
use crate::attention::kernels::{AttentionKernels, BLOCK, Softmax};
use std::arch::x86_64::*;

/// Rows whose sums are held in registers together.
const ROWS: usize = 3;

/// The table, or `None` if this CPU cannot run it.
pub(crate) fn kernels() -> Option<AttentionKernels> {
    super::is_available().then_some(AttentionKernels {
        // SAFETY: the CPU has just been found to have the features.
        scores: |q, k, width, seen, out| unsafe { scores(q, k, width, seen, out) },
        // SAFETY: as above.
        weights: |scores, seen, state, fade| unsafe { weights(scores, seen, state, fade) },
        // SAFETY: as above.
        mix: |p, v, width, seen, fade, out| unsafe { mix(p, v, width, seen, fade, out) },
        // SAFETY: as above.
        to_f16: |x, out| unsafe { to_f16(x, out) },
    })
}

/// Row `r` of `x`, in eights.
#[inline(always)]
fn row(x: &[f32], r: usize, width: usize) -> &[[f32; 8]] {
    x[r * width..(r + 1) * width].as_chunks().0
}

#[target_feature(enable = "avx2,fma,f16c")]
fn scores(q: &[f32], k: &[f32], width: usize, seen: &[usize], out: &mut [f32]) {
    let rows = seen.chunks(ROWS).zip(q.chunks(ROWS * width)).zip(out.chunks_mut(ROWS * BLOCK));
    for ((seen, q), out) in rows {
        let most = seen.iter().fold(0, |m, &s| m.max(s)).min(BLOCK);
        match seen.len() {
            1 => score_rows::<1>(q, k, width, most, out),
            2 => score_rows::<2>(q, k, width, most, out),
            _ => score_rows::<3>(q, k, width, most, out),
        }
    }
}

/// `R` rows with the first `most` keys, four keys at a time: a key is loaded once for all rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn score_rows<const R: usize>(q: &[f32], k: &[f32], width: usize, most: usize, out: &mut [f32]) {
    let n = width / 8;
    let q: [&[[f32; 8]]; R] = std::array::from_fn(|i| &row(q, i, width)[..n]);
    for at in (0..most).step_by(4) {
        let k: [&[[f32; 8]]; 4] = std::array::from_fn(|j| &row(k, at + j, width)[..n]);
        let mut acc = [[_mm256_setzero_ps(); 4]; R];
        for c in 0..n {
            let keys = [load(&k[0][c]), load(&k[1][c]), load(&k[2][c]), load(&k[3][c])];
            for i in 0..R {
                let q = load(&q[i][c]);
                for j in 0..4 {
                    acc[i][j] = _mm256_fmadd_ps(q, keys[j], acc[i][j]);
                }
            }
        }
        for i in 0..R {
            let pairs = _mm256_hadd_ps(_mm256_hadd_ps(acc[i][0], acc[i][1]), _mm256_hadd_ps(acc[i][2], acc[i][3]));
            let four = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
            let out: &mut [f32; 4] = out[i * BLOCK + at..].first_chunk_mut().expect("a block is made of fours");
            // SAFETY: 16 writable bytes; the store needs no alignment.
            unsafe { _mm_storeu_ps(out.as_mut_ptr(), four) };
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn weights(scores: &mut [f32], seen: &[usize], state: &mut [Softmax], fade: &mut [f32]) {
    for (((row, &seen), s), fade) in scores.chunks_exact_mut(BLOCK).zip(seen).zip(state).zip(fade) {
        let seen = seen.min(BLOCK);
        let padded = seen.next_multiple_of(8);
        row[seen..padded].fill(f32::NEG_INFINITY);
        let row = row[..padded].as_chunks_mut::<8>().0;
        // Of two numbers of which one is NaN, `max` takes the second: NaN in the scores is passed over here and stays in them.
        let mut most = _mm256_set1_ps(s.max);
        for eight in row.iter() {
            most = _mm256_max_ps(load(eight), most);
        }
        let top = largest(most);
        *fade = if top > s.max { _mm256_cvtss_f32(exp(_mm256_set1_ps(s.max - top))) } else { 1.0 };
        let (tops, mut sums) = (_mm256_set1_ps(top), _mm256_setzero_ps());
        for eight in row {
            let p = exp(_mm256_sub_ps(load(eight), tops));
            store(eight, p);
            sums = _mm256_add_ps(sums, p);
        }
        // A padded number is exp(-∞) = 0, unless every score is -∞: then the sum is NaN, as it should be.
        *s = Softmax { max: top, sum: s.sum * *fade + sum(sums) };
    }
}

/// The largest of eight numbers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn largest(v: __m256) -> f32 {
    let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
}

/// `e^x` to within 3·10⁻⁷, from -∞ (0) to +∞; NaN stays NaN.
///
/// `x = n ln 2 + r` with `|r| ≤ ln 2 / 2`, where Taylor's polynomial of degree 6 is off by at most 1.2·10⁻⁷; ln 2 in two parts
/// so that `r` is exact; 2ⁿ in two factors so that results below the normal numbers and above the largest come out right.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn exp(x: __m256) -> __m256 {
    // Of two numbers of which one is NaN, `max` and `min` take the second.
    let x = _mm256_max_ps(_mm256_set1_ps(-110.0), _mm256_min_ps(_mm256_set1_ps(90.0), x));
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
        x,
        _mm256_set1_ps(std::f32::consts::LOG2_E),
    ));
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_HIGH), x);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_LOW), r);
    let mut p = _mm256_set1_ps(1.0 / 720.0);
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
    }
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32(n, 1);
    _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(n, half)))
}

/// ln 2, its first bits: products with whole numbers up to 2⁹ are exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
/// And what is missing of it.
const LN2_LOW: f32 = -2.121_944_4e-4;

/// 2ⁿ for -126 ≤ n ≤ 127.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn power(n: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn mix(weights: &[f32], v: &[f32], width: usize, seen: &[usize], fade: &[f32], out: &mut [f32]) {
    let rows = seen.chunks(ROWS).zip(fade.chunks(ROWS)).zip(weights.chunks(ROWS * BLOCK));
    for (((seen, fade), weights), out) in rows.zip(out.chunks_mut(ROWS * width)) {
        let common = seen.iter().fold(BLOCK, |m, &s| m.min(s));
        match seen.len() {
            1 => mix_all::<1>(weights, v, width, 0..common, fade, out),
            2 => mix_all::<2>(weights, v, width, 0..common, fade, out),
            _ => mix_all::<3>(weights, v, width, 0..common, fade, out),
        }
        // Where the rows are of different tokens, some see a position or two more.
        for (i, &seen) in seen.iter().enumerate().filter(|(_, s)| **s > common) {
            let (weights, out) = (&weights[i * BLOCK..][..BLOCK], &mut out[i * width..(i + 1) * width]);
            mix_all::<1>(weights, v, width, common..seen.min(BLOCK), &[1.0], out);
        }
    }
}

/// Positions `range` for `R` rows: as many columns at a time as there are registers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn mix_all<const R: usize>(
    weights: &[f32],
    v: &[f32],
    width: usize,
    range: std::ops::Range<usize>,
    fade: &[f32],
    out: &mut [f32],
) {
    let (n, mut c) = (width / 8, 0);
    let p: [&[f32]; R] = std::array::from_fn(|i| &weights[i * BLOCK..][range.clone()]);
    let v = &v[range.start * width..range.end * width];
    if R == 1 {
        while c + 8 <= n {
            mix_columns::<R, 8>(p, v, width, c, fade, out);
            c += 8;
        }
    }
    while c + 4 <= n {
        mix_columns::<R, 4>(p, v, width, c, fade, out);
        c += 4;
    }
    while c < n {
        mix_columns::<R, 1>(p, v, width, c, fade, out);
        c += 1;
    }
}

/// `C` eights of columns from the `c`-th on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn mix_columns<const R: usize, const C: usize>(
    p: [&[f32]; R],
    v: &[f32],
    width: usize,
    c: usize,
    fade: &[f32],
    out: &mut [f32],
) {
    let mut acc = [[_mm256_setzero_ps(); C]; R];
    for i in 0..R {
        let out = &row(out, i, width)[c..c + C];
        for j in 0..C {
            acc[i][j] = _mm256_mul_ps(load(&out[j]), _mm256_set1_ps(fade[i]));
        }
    }
    for (at, v) in v.chunks_exact(width).enumerate() {
        let Some(v) = v.as_chunks::<8>().0[c..].first_chunk::<C>() else { break };
        for i in 0..R {
            let p = _mm256_set1_ps(p[i][at]);
            for j in 0..C {
                acc[i][j] = _mm256_fmadd_ps(p, load(&v[j]), acc[i][j]);
            }
        }
    }
    for i in 0..R {
        let out = &mut out[i * width..(i + 1) * width].as_chunks_mut::<8>().0[c..c + C];
        for j in 0..C {
            store(&mut out[j], acc[i][j]);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn to_f16(x: &[f32], out: &mut [u8]) {
    let n = x.len().min(out.len() / 2);
    let (eights, rest) = x[..n].as_chunks::<8>();
    let (out, out_rest) = out[..2 * n].as_chunks_mut::<16>();
    for (x, out) in eights.iter().zip(out) {
        narrow(x, out);
    }
    let (mut last, mut bytes) = ([0.0; 8], [0; 16]);
    last[..rest.len()].copy_from_slice(rest);
    narrow(&last, &mut bytes);
    out_rest.copy_from_slice(&bytes[..out_rest.len()]);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn narrow(x: &[f32; 8], out: &mut [u8; 16]) {
    let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load(x));
    // SAFETY: 16 writable bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), half) };
}
