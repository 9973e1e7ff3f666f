//! F32, F16 and BF16 with F32.

use super::lanes::*;
use super::rows;
use crate::kernels::TypeKernels;
use std::arch::x86_64::*;
use std::cell::RefCell;

/// Numbers of a row that are decoded at a time for a tile.
const PART: usize = 256;
/// Tokens whose part of the activations is in the nearest cache while decoded rows pass by.
const TOKENS: usize = 18;
/// Tokens that pass by decoded rows before the next are decoded. Their sums, and those rows, fit into the second cache.
const TOKENS_IN_ALL: usize = 128;
/// Fours of rows that are decoded at a time.
const FOURS: usize = 16;

/// Room for a tile, one per thread: too large to be cleared for each.
struct Scratch {
    /// For each four of rows, [`TOKENS_IN_ALL`] times four sums.
    totals: Vec<[__m256; 4]>,
    /// For each four of rows, numbers of each row.
    panels: Vec<[[__m256; 4]; PART / 8]>,
    packed: Vec<[__m256; PART / 8]>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { totals: Vec::new(), panels: Vec::new(), packed: Vec::new() }) };
}

/// Rows of `N`-byte numbers beside f32 activations, eight at a time with one sum in each lane. The last eight are filled up
/// with zeros.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dots<const R: usize, const N: usize>(
    w: [&[u8]; R],
    next: [&[u8]; R],
    x: &[u8],
    read: impl Fn(&[[u8; N]; 8]) -> __m256,
) -> [f32; R] {
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
    let ahead = rows::Ahead::new(&bytes, next);
    for (i, x) in eights.iter().enumerate() {
        let x = load_bytes(x);
        if (8 * N * i).is_multiple_of(64) {
            ahead.ask(&bytes, 8 * N * i, 64);
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

/// A multiple of four rows of equal length beside several rows of activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn tile<const N: usize>(
    w: &[&[u8]],
    x: (&[u8], usize),
    y: (&mut [f32], usize),
    read: impl Fn(&[[u8; N]; 8]) -> __m256,
) {
    SCRATCH.with_borrow_mut(|scratch| tile_with(scratch, w, x, y, read));
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn tile_with<const N: usize>(
    scratch: &mut Scratch,
    w: &[&[u8]],
    (x, row_bytes): (&[u8], usize),
    (y, stride): (&mut [f32], usize),
    read: impl Fn(&[[u8; N]; 8]) -> __m256,
) {
    let zero = _mm256_setzero_ps();
    scratch.totals.resize(FOURS * TOKENS_IN_ALL, [zero; 4]);
    scratch.panels.resize(FOURS, [[zero; 4]; PART / 8]);
    scratch.packed.resize(TOKENS, [zero; PART / 8]);
    let Scratch { totals, panels, packed } = scratch;
    let len = w[0].len() / N;
    for (c, y) in y.chunks_mut(TOKENS_IN_ALL * stride).enumerate() {
        let x = x.get(c * TOKENS_IN_ALL * row_bytes..).unwrap_or(&[]);
        let tokens = y.len() / stride;
        for (w, y_at) in w.chunks(4 * FOURS).zip((0..).step_by(4 * FOURS)) {
            let fours = w.as_chunks::<4>().0;
            let totals = totals.chunks_exact_mut(TOKENS_IN_ALL).take(fours.len());
            let mut totals: [&mut [[__m256; 4]]; FOURS] = collect(totals.map(|t| &mut t[..tokens]));
            totals.iter_mut().for_each(|t| t.fill([zero; 4]));
            for from in (0..len).step_by(PART) {
                let n = (len - from).min(PART);
                let eights = n.div_ceil(8);
                for (w, panel) in fours.iter().zip(panels.iter_mut()) {
                    for r in 0..4 {
                        let w: &[[u8; N]] = &w[r].as_chunks().0[from..from + n];
                        let (whole, rest) = w.as_chunks();
                        for (panel, eight) in panel.iter_mut().zip(whole) {
                            panel[r] = read(eight);
                        }
                        if !rest.is_empty() {
                            panel[eights - 1][r] = read(&filled_up(rest));
                        }
                    }
                }
                for t in (0..tokens).step_by(TOKENS) {
                    let some = (tokens - t).min(TOKENS);
                    // Copied, because rows lie at distances that often fall on the same places in the nearest cache.
                    for (i, packed) in packed.iter_mut().enumerate().take(some) {
                        let next = if t + some < tokens { (t + some + i, from) } else { (i, from + PART) };
                        for line in (0..4 * n).step_by(64) {
                            prefetch(x, next.0 * row_bytes + 4 * next.1 + line);
                        }
                        let x = x.get((t + i) * row_bytes + 4 * from..).unwrap_or(&[]).as_chunks::<4>().0;
                        let (whole, rest) = x[..n.min(x.len())].as_chunks();
                        for (packed, eight) in packed.iter_mut().zip(whole) {
                            *packed = load_bytes(eight);
                        }
                        if let Some(after) = packed.get_mut(whole.len()..eights) {
                            after.fill(zero);
                            if let (false, Some(last)) = (rest.is_empty(), after.first_mut()) {
                                *last = load_bytes(&filled_up(rest));
                            }
                        }
                    }
                    for (panel, totals) in panels.iter().zip(&mut totals) {
                        if let Some(totals) = totals.get_mut(t..t + some) {
                            pass(&panel[..eights], &packed[..some], totals);
                        }
                    }
                }
            }
            for (t, y) in y.chunks_exact_mut(stride).enumerate() {
                for (four, totals) in totals.iter().enumerate().take(fours.len()) {
                    if let Some(y) = y[y_at + 4 * four..].first_chunk_mut() {
                        *y = sums(totals[t]);
                    }
                }
            }
        }
    }
}

/// The first items, and empty ones after them.
fn collect<'a, T>(items: impl Iterator<Item = &'a mut [T]>) -> [&'a mut [T]; FOURS] {
    let mut all: [&mut [T]; FOURS] = Default::default();
    all.iter_mut().zip(items).for_each(|(place, item)| *place = item);
    all
}

/// Tokens pass by decoded rows, three at a time.
#[target_feature(enable = "avx2,fma,f16c")]
fn pass(panel: &[[__m256; 4]], x: &[[__m256; PART / 8]], totals: &mut [[__m256; 4]]) {
    let (threes, rest) = totals.as_chunks_mut::<3>();
    let (x_threes, x_rest) = x.as_chunks::<3>();
    for (totals, x) in threes.iter_mut().zip(x_threes) {
        add(panel, [&x[0], &x[1], &x[2]], totals);
    }
    match (rest, x_rest) {
        ([a, b], [x, y]) => {
            let mut two = [*a, *b];
            add(panel, [x, y], &mut two);
            [*a, *b] = two;
        }
        ([total], [x]) => add(panel, [x], std::array::from_mut(total)),
        _ => {}
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
    next: [&[u8]; R],
    y: &mut [f32],
    read: impl Fn(&[[u8; N]; 8]) -> __m256,
    f: impl Fn([__m256; R], &mut [f32; 8]),
) {
    let (bytes, ahead) = (w, rows::Ahead::picked(next));
    let w: [&[[u8; N]]; R] = w.map(|w| w.as_chunks().0);
    let n = w.iter().fold(y.len(), |n, w| n.min(w.len()));
    let mut whole: [&[[[u8; N]; 8]]; R] = [&[]; R];
    for r in 0..R {
        whole[r] = &w[r].as_chunks().0[..n / 8];
    }
    let (y8, y_rest) = y[..n].as_chunks_mut::<8>();
    for (i, y) in y8.iter_mut().enumerate() {
        if (8 * N * i).is_multiple_of(64) {
            ahead.ask(&bytes, 8 * N * i, 64);
        }
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
            fn dots<const R: usize>(w: [&[u8]; R], next: [&[u8]; R], x: &[u8]) -> [f32; R] {
                super::float::dots(w, next, x, |b: &[[u8; $bytes]; 8]| $read(b))
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn tiles(w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32], stride: usize) {
                super::float::tile(w, (x, row_bytes), (y, stride), |b: &[[u8; $bytes]; 8]| $read(b));
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn axpys<const R: usize>(w: [&[u8]; R], next: [&[u8]; R], a: [f32; R], y: &mut [f32]) {
                let read = |b: &[[u8; $bytes]; 8]| $read(b);
                update(w, next, y, read, |v, y| {
                    let mut sum = load(y);
                    for r in 0..R {
                        sum = _mm256_fmadd_ps(_mm256_set1_ps(a[r]), v[r], sum);
                    }
                    store(y, sum);
                });
            }

            #[target_feature(enable = $features)]
            fn decode(w: &[u8], out: &mut [f32]) {
                update([w], [&[]], out, |b: &[[u8; $bytes]; 8]| $read(b), |[v], out| store(out, v));
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
