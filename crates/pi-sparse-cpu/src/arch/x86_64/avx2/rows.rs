//! What rows of all block types share.

use super::lanes::{prefetch, sums};
use std::arch::x86_64::__m256;

/// Tokens whose sums stay in registers while a block of a row passes by.
pub(super) const TOKENS: usize = 8;
/// Rows that pass by a block of these tokens one after the other.
pub(super) const ROWS: usize = 16;

/// What to ask memory for while rows are computed. The CPU's own prefetching alone leaves these kernels at half of what memory
/// gives, as they compute too much between loads.
#[derive(Clone, Copy)]
pub(super) enum Ahead<'a, const R: usize> {
    /// The rows follow each other in memory, so more will usually be wanted after them: what lies this far after them.
    Far(usize),
    /// Rows that were picked from here and there, as the next ones are.
    Picked([&'a [u8]; R]),
    None,
}

impl<'a, const R: usize> Ahead<'a, R> {
    /// `next`, if there are any.
    #[inline(always)]
    pub(super) fn picked(next: [&'a [u8]; R]) -> Self {
        if next[0].is_empty() { Self::None } else { Self::Picked(next) }
    }

    #[inline(always)]
    pub(super) fn new(w: &[&[u8]; R], next: [&'a [u8]; R]) -> Self {
        let len = w[0].len();
        let follow = |a: &[u8], b: &[u8]| std::ptr::eq(b.as_ptr(), a.as_ptr().wrapping_add(len));
        match Self::picked(next) {
            Self::Picked(next) if !follow(w[R - 1], next[0]) => Self::Picked(next),
            _ if R == 4 && len > 0 && (1..R).all(|r| follow(w[r - 1], w[r])) => {
                Self::Far(4 * len * FAR_ENOUGH.div_ceil(4 * len))
            }
            ahead => ahead,
        }
    }

    /// Asks for as much as `n` bytes of each row, which those `at` are being computed of. Of rows that follow each other, in the
    /// order in which they lie in memory, which is what memory is fastest with.
    #[inline(always)]
    pub(super) fn ask(self, w: &[&[u8]; R], at: usize, n: usize) {
        match self {
            Self::Far(ahead) => (0..R * n).step_by(64).for_each(|line| prefetch(w[0], R * at + line + ahead)),
            Self::Picked(next) => {
                for next in next {
                    (at.next_multiple_of(64)..at + n).step_by(64).for_each(|line| prefetch(next, line));
                }
            }
            Self::None => {}
        }
    }
}

/// Bytes that are read while memory answers.
const FAR_ENOUGH: usize = 8192;

/// The blocks of `B` bytes of `T` tokens; the last token stands in for those that are not there.
#[inline(always)]
pub(super) fn tokens<const T: usize, const B: usize>(x: &[u8], row_bytes: usize, tokens: usize) -> [&[[u8; B]]; T] {
    std::array::from_fn(|t| {
        let x = x.get(t.min(tokens - 1) * row_bytes..).unwrap_or(&[]);
        x[..x.len().min(row_bytes)].as_chunks().0
    })
}

/// Block `s` of each token; zeros of those that end before.
#[inline(always)]
pub(super) fn block_of<'a, const T: usize, const B: usize>(blocks: &[&'a [[u8; B]]; T], s: usize) -> [&'a [u8; B]; T] {
    let mut all = [&[0; B]; T];
    for t in 0..T {
        all[t] = blocks[t].get(s).unwrap_or(all[t]);
    }
    all
}

/// Asks for the next `n` bytes of a row: those `at`, or, if that is its end, the first of the row to come after it.
#[inline(always)]
pub(super) fn ask_next(row: &[u8], later: Option<&&[u8]>, at: usize, end: usize, n: usize) {
    let (row, at) = match later {
        _ if at < end => (row, at),
        Some(later) => (*later, 0),
        None => return,
    };
    (0..n).step_by(64).for_each(|line| prefetch(row, at + line));
}

/// What the sums of some rows (a multiple of four) and `T` tokens come to.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_sums<const T: usize>(totals: &[[__m256; T]], y: &mut [f32], stride: usize) {
    for (t, y) in y.chunks_mut(stride).enumerate().take(T) {
        for (y, four) in y.as_chunks_mut().0.iter_mut().zip(totals.as_chunks::<4>().0) {
            *y = sums([four[0][t], four[1][t], four[2][t], four[3][t]]);
        }
    }
}

/// True if rows are equally long.
#[inline(always)]
pub(super) fn equal(w: &[&[u8]]) -> bool {
    w.iter().all(|row| row.len() == w[0].len())
}

/// Calls `$some::<T, …>` with [`TOKENS`] rows of activations at a time, or as many as are left; `T` is the next even number of them.
macro_rules! by_tokens {
    ($some:ident::<$($generic:ident),*>, $w:expr, ($x:expr, $row_bytes:expr), ($y:expr, $stride:expr), $($rest:ident),*) => {
        for (c, y) in $y.chunks_mut(rows::TOKENS * $stride).enumerate() {
            let x = ($x.get(c * rows::TOKENS * $row_bytes..).unwrap_or(&[]), $row_bytes);
            match y.len() / $stride {
                0 => {}
                1 | 2 => $some::<2, $($generic),*>($w, x, (y, $stride), $($rest),*),
                3 | 4 => $some::<4, $($generic),*>($w, x, (y, $stride), $($rest),*),
                5 | 6 => $some::<6, $($generic),*>($w, x, (y, $stride), $($rest),*),
                _ => $some::<{ rows::TOKENS }, $($generic),*>($w, x, (y, $stride), $($rest),*),
            }
        }
    };
}
pub(super) use by_tokens;

/// The table entry from `dots`, `tiles` (for a multiple of four rows) and `axpys`, for rows of equal length, and `decode`.
macro_rules! row_kernels {
    ($activations:ident, $isa:ident, $features:literal) => {{
        #[target_feature(enable = $features)]
        fn dot(w: &[u8], x: &[u8]) -> f32 {
            dots([w], [&[]], x)[0]
        }

        #[target_feature(enable = $features)]
        fn dot4(w: [&[u8]; 4], next: [&[u8]; 4], x: &[u8]) -> [f32; 4] {
            if rows::equal(&w) { dots(w, next, x) } else { [dot(w[0], x), dot(w[1], x), dot(w[2], x), dot(w[3], x)] }
        }

        #[target_feature(enable = $features)]
        fn tile(w: &[&[u8]], x: &[u8], row_bytes: usize, y: &mut [f32]) {
            let whole = if rows::equal(w) { w.len() / 4 * 4 } else { 0 };
            if whole > 0 {
                tiles(&w[..whole], x, row_bytes, y, w.len());
            }
            for (t, y) in y.chunks_exact_mut(w.len().max(1)).enumerate() {
                for (w, y) in w[whole..].iter().zip(&mut y[whole..]) {
                    *y = dot(w, x.get(t * row_bytes..).unwrap_or(&[]));
                }
            }
        }

        #[target_feature(enable = $features)]
        fn axpy(w: &[u8], a: f32, y: &mut [f32]) {
            axpys([w], [&[]], [a], y);
        }

        #[target_feature(enable = $features)]
        fn axpy4(w: [&[u8]; 4], next: [&[u8]; 4], a: [f32; 4], y: &mut [f32]) {
            if rows::equal(&w) {
                return axpys(w, next, a, y);
            }
            for r in 0..4 {
                axpy(w[r], a[r], y);
            }
        }

        crate::arch::x86_64::avx2::kernel_table!($activations, $isa, dot, dot4, tile, axpy, axpy4, decode)
    }};
}
pub(super) use row_kernels;
