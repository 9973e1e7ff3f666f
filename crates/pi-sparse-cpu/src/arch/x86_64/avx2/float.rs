//! F32, F16 and BF16 with F32.

use super::lanes::*;
use super::rows;
use crate::kernels::TypeKernels;
use std::arch::x86_64::*;

/// Numbers that are decoded at a time for a tile.
const PART: usize = 256;
/// Tokens that pass by a decoded part before the next is made.
const TOKENS: usize = 18;
/// Fours of rows that meet the same copy of activations.
const FOURS: usize = 16;

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
        if (8 * N * i).is_multiple_of(64) {
            rows::ask(&bytes, 8 * N * i, 64, ahead);
        }
        for r in 0..R {
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

/// A multiple of four rows of equal length, 64 at most, beside several rows of activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn tile<const N: usize>(
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    (y, stride): (&mut [f32], usize),
    read: impl Fn(&[[u8; N]; 8]) -> __m256,
) {
    let zero = _mm256_setzero_ps();
    let mut totals = [[[zero; 4]; TOKENS]; FOURS];
    let mut panel = [[zero; 4]; PART / 8];
    let mut packed = [[zero; PART / 8]; TOKENS];
    let len = w[0].len() / N;
    for (c, y) in y.chunks_mut(TOKENS * stride).enumerate() {
        let x = x.get(c * TOKENS * row_bytes..).unwrap_or(&[]);
        let tokens = y.len() / stride;
        for (w, y_at) in w.chunks(4 * FOURS).zip((0..).step_by(4 * FOURS)) {
            let fours = w.as_chunks::<4>().0;
            totals.fill([[zero; 4]; TOKENS]);
            for from in (0..len).step_by(PART) {
                let n = (len - from).min(PART);
                let eights = n.div_ceil(8);
                // Copied, because rows lie at distances that often fall on the same places in the nearest cache.
                for (t, packed) in packed.iter_mut().enumerate().take(tokens) {
                    let x = x.get(t * row_bytes + 4 * from..).unwrap_or(&[]).as_chunks::<4>().0;
                    let x = &x[..n.min(x.len())];
                    for (i, packed) in packed[..eights].iter_mut().enumerate() {
                        let few = x.get(8 * i..).unwrap_or(&[]);
                        *packed = match few.first_chunk() {
                            Some(eight) => load_bytes(eight),
                            None => load_bytes(&filled_up(few)),
                        };
                    }
                }
                for (w, totals) in fours.iter().zip(&mut totals) {
                    for (i, panel) in panel[..eights].iter_mut().enumerate() {
                        for r in 0..4 {
                            let w: &[[u8; N]] = w[r].as_chunks().0;
                            let w = &w[from + 8 * i..(from + 8 * i + 8).min(len)];
                            panel[r] = match w.first_chunk() {
                                Some(eight) => read(eight),
                                None => read(&filled_up(w)),
                            };
                        }
                    }
                    pass(&panel[..eights], &packed[..tokens], &mut totals[..tokens]);
                }
            }
            for (t, y) in y.chunks_exact_mut(stride).enumerate() {
                for four in 0..fours.len() {
                    if let Some(y) = y[y_at + 4 * four..].first_chunk_mut() {
                        *y = sums(totals[four][t]);
                    }
                }
            }
        }
    }
}

/// Tokens pass by decoded rows, three at a time.
#[target_feature(enable = "avx2,fma,f16c")]
fn pass(panel: &[[__m256; 4]], x: &[[__m256; PART / 8]], totals: &mut [[__m256; 4]]) {
    let (threes, rest) = totals.as_chunks_mut::<3>();
    let (x_threes, x_rest) = x.as_chunks::<3>();
    for (totals, x) in threes.iter_mut().zip(x_threes) {
        add(panel, [&x[0], &x[1], &x[2]], totals);
    }
    for (total, x) in rest.iter_mut().zip(x_rest) {
        add(panel, [x], std::array::from_mut(total));
    }
}

/// Tokens beside decoded rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add<const T: usize>(panel: &[[__m256; 4]], x: [&[__m256; PART / 8]; T], totals: &mut [[__m256; 4]; T]) {
    let mut acc = *totals;
    for (i, panel) in panel.iter().enumerate().take(PART / 8) {
        let mut v = [_mm256_setzero_ps(); T];
        for t in 0..T {
            v[t] = x[t][i];
        }
        // one register of weights at a time: with the sums and activations, that fills all sixteen
        for r in 0..4 {
            let w = panel[r];
            for t in 0..T {
                acc[t][r] = _mm256_fmadd_ps(w, v[t], acc[t][r]);
            }
        }
    }
    *totals = acc;
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
