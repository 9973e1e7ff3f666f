//! F32, F16 and BF16 with F32.

use super::lanes::*;
use super::rows;
use crate::kernels::TypeKernels;
use std::arch::x86_64::*;

/// Numbers that are decoded at a time for a tile.
const PART: usize = 256;
/// Tokens that pass by a decoded part before the next is made.
const TOKENS: usize = 18;

/// Rows of `N`-byte numbers beside f32 activations, eight at a time with one sum in each lane. The last eight are filled up
/// with zeros.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dots<const R: usize, const N: usize>(w: [&[u8]; R], x: &[u8], read: impl Fn(&[[u8; N]; 8]) -> __m256) -> [f32; R] {
    let bytes = w;
    let w: [&[[u8; N]]; R] = w.map(|w| w.as_chunks().0);
    let x = x.as_chunks::<4>().0;
    let n = w.iter().fold(x.len(), |n, w| n.min(w.len()));
    let (eights, rest) = x[..n].as_chunks::<8>();
    let mut whole: [&[[[u8; N]; 8]]; R] = [&[]; R];
    for r in 0..R {
        whole[r] = &w[r].as_chunks().0[..eights.len()];
    }
    let mut acc = [_mm256_setzero_ps(); R];
    let ahead = rows::ahead(&bytes);
    for (i, x) in eights.iter().enumerate() {
        let x = load_bytes(x);
        for r in 0..R {
            prefetch(bytes[r], 8 * N * i + ahead);
            acc[r] = _mm256_fmadd_ps(read(&whole[r][i]), x, acc[r]);
        }
    }
    if !rest.is_empty() {
        let x = load_bytes(&filled_up(rest));
        for r in 0..R {
            acc[r] = _mm256_fmadd_ps(read(&filled_up(&w[r][n - rest.len()..n])), x, acc[r]);
        }
    }
    let mut y = [0.0; R];
    for r in 0..R {
        y[r] = sum(acc[r]);
    }
    y
}

/// Up to eight numbers, then zeros.
#[inline(always)]
fn filled_up<const N: usize>(few: &[[u8; N]]) -> [[u8; N]; 8] {
    let mut eight = [[0; N]; 8];
    eight[..few.len()].copy_from_slice(few);
    eight
}

/// Four rows of decoded weights.
type Panel = [[__m256; 4]; PART / 8];

/// A multiple of four rows of equal length beside several rows of activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn tile<const N: usize>(
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    (y, stride): (&mut [f32], usize),
    read: impl Fn(&[[u8; N]; 8]) -> __m256,
) {
    let mut totals = [[_mm256_setzero_ps(); 4]; TOKENS];
    let mut panel = [[_mm256_setzero_ps(); 4]; PART / 8];
    let len = w[0].len() / N;
    for (c, y) in y.chunks_mut(TOKENS * stride).enumerate() {
        let x = x.get(c * TOKENS * row_bytes..).unwrap_or(&[]);
        let tokens = y.len() / stride;
        for (four, w) in w.as_chunks::<4>().0.iter().enumerate() {
            totals[..tokens].fill([_mm256_setzero_ps(); 4]);
            for from in (0..len).step_by(PART) {
                let n = (len - from).min(PART);
                for (i, panel) in panel.iter_mut().enumerate().take(n.div_ceil(8)) {
                    for r in 0..4 {
                        let w: &[[u8; N]] = w[r].as_chunks().0;
                        let w = &w[from + 8 * i..(from + 8 * i + 8).min(len)];
                        panel[r] = match w.first_chunk() {
                            Some(eight) => read(eight),
                            None => read(&filled_up(w)),
                        };
                    }
                }
                pass(&panel, n, x, (row_bytes, 4 * from), &mut totals[..tokens]);
            }
            for (y, totals) in y.chunks_exact_mut(stride).zip(&totals) {
                if let Some(y) = y[4 * four..].first_chunk_mut() {
                    *y = sums(*totals);
                }
            }
        }
    }
}

/// `n` numbers of each token, `row_bytes` apart from byte `at` on, pass by decoded rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pass(panel: &Panel, n: usize, x: &[u8], (row_bytes, at): (usize, usize), totals: &mut [[__m256; 4]]) {
    let row = |t: usize| -> &[[u8; 4]] {
        let x = x.get(t * row_bytes + at..).unwrap_or(&[]).as_chunks().0;
        &x[..n.min(x.len())]
    };
    let (threes, rest) = totals.as_chunks_mut::<3>();
    let done = 3 * threes.len();
    for (t, totals) in threes.iter_mut().enumerate() {
        let x = [row(3 * t), row(3 * t + 1), row(3 * t + 2)];
        if x[0].len() == n && x[1].len() == n && x[2].len() == n {
            add(panel, x, totals);
        } else {
            for t in 0..3 {
                add(panel, [x[t]], std::array::from_mut(&mut totals[t]));
            }
        }
    }
    for (t, totals) in rest.iter_mut().enumerate() {
        add(panel, [row(done + t)], std::array::from_mut(totals));
    }
}

/// Tokens of equal length beside decoded rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add<const T: usize>(panel: &Panel, x: [&[[u8; 4]]; T], totals: &mut [[__m256; 4]; T]) {
    let (first, rest) = x[0].as_chunks::<8>();
    let mut whole: [&[[[u8; 4]; 8]]; T] = [first; T];
    for t in 0..T {
        whole[t] = &x[t].as_chunks().0[..first.len()];
    }
    let mut acc = *totals;
    for (i, panel) in panel.iter().enumerate().take(first.len()) {
        let mut v = [_mm256_setzero_ps(); T];
        for t in 0..T {
            v[t] = load_bytes(&whole[t][i]);
        }
        // one register of weights at a time: with the sums and activations, that fills all sixteen
        for r in 0..4 {
            let w = panel[r];
            for t in 0..T {
                acc[t][r] = _mm256_fmadd_ps(w, v[t], acc[t][r]);
            }
        }
    }
    if !rest.is_empty() {
        add_rest(&panel[first.len()], x, first.len() * 8, &mut acc);
    }
    *totals = acc;
}

/// Less than eight numbers of each token.
#[cold]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_rest<const T: usize>(panel: &[__m256; 4], x: [&[[u8; 4]]; T], from: usize, acc: &mut [[__m256; 4]; T]) {
    for t in 0..T {
        let x = load_bytes(&filled_up(&x[t][from..]));
        for r in 0..4 {
            acc[t][r] = _mm256_fmadd_ps(panel[r], x, acc[t][r]);
        }
    }
}

/// Calls `f` with eight numbers of each row and their place in `y`; at the end with copies, of which only what there is
/// counts.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn update<const R: usize, const N: usize>(
    w: [&[u8]; R],
    y: &mut [f32],
    read: impl Fn(&[[u8; N]; 8]) -> __m256,
    f: impl Fn([__m256; R], &mut [f32; 8]),
) {
    let w: [&[[u8; N]]; R] = w.map(|w| w.as_chunks().0);
    let n = w.iter().fold(y.len(), |n, w| n.min(w.len()));
    let mut whole: [&[[[u8; N]; 8]]; R] = [&[]; R];
    for r in 0..R {
        whole[r] = &w[r].as_chunks().0[..n / 8];
    }
    let (y8, y_rest) = y[..n].as_chunks_mut::<8>();
    for (i, y) in y8.iter_mut().enumerate() {
        let mut v = [_mm256_setzero_ps(); R];
        for r in 0..R {
            v[r] = read(&whole[r][i]);
        }
        f(v, y);
    }
    if !y_rest.is_empty() {
        let mut v = [_mm256_setzero_ps(); R];
        for r in 0..R {
            v[r] = read(&filled_up(&w[r][n / 8 * 8..n]));
        }
        let mut y = [0.0; 8];
        y[..y_rest.len()].copy_from_slice(y_rest);
        f(v, &mut y);
        y_rest.copy_from_slice(&y[..y_rest.len()]);
    }
}

macro_rules! float_kernels {
    ($name:ident, $isa:ident, $features:literal, $bytes:literal, $read:ident) => {
        pub(in crate::arch::x86_64) const $name: TypeKernels = {
            #[target_feature(enable = $features)]
            #[inline]
            fn dots<const R: usize>(w: [&[u8]; R], x: &[u8]) -> [f32; R] {
                super::float::dots(w, x, |b: &[[u8; $bytes]; 8]| $read(b))
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn tiles(w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32], stride: usize) {
                super::float::tile(w, (x, row_bytes), (y, stride), |b: &[[u8; $bytes]; 8]| $read(b));
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn axpys<const R: usize>(w: [&[u8]; R], a: [f32; R], y: &mut [f32]) {
                let read = |b: &[[u8; $bytes]; 8]| $read(b);
                update(w, y, read, |v, y| {
                    let mut sum = load(y);
                    for r in 0..R {
                        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[r]), v[r], sum);
                    }
                    store(y, sum);
                });
            }

            #[target_feature(enable = $features)]
            fn decode(w: &[u8], out: &mut [f32]) {
                update([w], out, |b: &[[u8; $bytes]; 8]| $read(b), |[v], out| store(out, v));
            }

            rows::row_kernels!(F32, $isa, $features)
        };
    };
}

float_kernels!(F32, Avx2, "avx2,fma,f16c", 4, load_bytes);
float_kernels!(F16, Avx2, "avx2,fma,f16c", 2, read_f16);
float_kernels!(BF16, Avx2, "avx2,fma,f16c", 2, read_bf16);
float_kernels!(F32_AVX512, Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", 4, load_bytes);
float_kernels!(F16_AVX512, Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", 2, read_f16);
float_kernels!(BF16_AVX512, Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", 2, read_bf16);

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn read_f16(b: &[[u8; 2]; 8]) -> __m256 {
    _mm256_cvtph_ps(load16(bytes(b), 0))
}

#[target_feature(enable = "avx2")]
#[inline]
fn read_bf16(b: &[[u8; 2]; 8]) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(bytes(b), 0)), 16))
}

#[inline(always)]
fn bytes(b: &[[u8; 2]; 8]) -> &[u8; 16] {
    b.as_flattened().first_chunk().expect("16 bytes")
}
