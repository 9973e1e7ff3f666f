//! What rows of all block types share.

use super::lanes::prefetch;

/// Tokens that pass by a panel of unpacked weights before the next is made: their sums stay in the nearest cache.
pub(super) const TOKENS: usize = 32;

/// Block `s` of `B` bytes of row `t` of the activations.
#[inline(always)]
pub(super) fn block_of<const B: usize>(x: &[u8], row_bytes: usize, t: usize, s: usize) -> Option<&[u8; B]> {
    x.get(t * row_bytes + s * B..)?.first_chunk()
}

/// How far ahead of the bytes of four rows to ask for more: if they follow each other in memory, more rows will usually be
/// wanted after them. The CPU's own prefetching alone leaves these kernels at half of what memory gives, as they compute too
/// much between loads. 0 if the rows are picked from here and there: whoever picks them knows the next ones.
#[inline(always)]
pub(super) fn ahead<const R: usize>(w: &[&[u8]; R]) -> usize {
    let len = w[0].len();
    let follow = |r: usize| std::ptr::eq(w[r].as_ptr(), w[r - 1].as_ptr().wrapping_add(len));
    if R == 4 && len > 0 && (1..R).all(follow) { 4 * len * FAR_ENOUGH.div_ceil(4 * len) } else { 0 }
}

/// Asks for `n` bytes of each row, those that lie `ahead` after the bytes from `at`: in the order in which they lie in memory,
/// which is what memory is fastest with.
#[inline(always)]
pub(super) fn ask<const R: usize>(w: &[&[u8]; R], at: usize, n: usize, ahead: usize) {
    if ahead > 0 {
        for line in (0..R * n).step_by(64) {
            prefetch(w[0], R * at + line + ahead);
        }
    }
}

/// Bytes that are read while memory answers.
const FAR_ENOUGH: usize = 8192;

/// True if rows are equally long.
#[inline(always)]
pub(super) fn equal(w: &[&[u8]]) -> bool {
    w.iter().all(|row| row.len() == w[0].len())
}

/// The table entry from `dots`, `tiles` (for a multiple of four rows) and `axpys`, for rows of equal length, and `decode`.
macro_rules! row_kernels {
    ($activations:ident, $isa:ident, $features:literal) => {{
        #[target_feature(enable = $features)]
        fn dot(w: &[u8], x: &[u8]) -> f32 {
            dots([w], x)[0]
        }

        #[target_feature(enable = $features)]
        fn dot4(w: [&[u8]; 4], x: &[u8]) -> [f32; 4] {
            if rows::equal(&w) { dots(w, x) } else { [dot(w[0], x), dot(w[1], x), dot(w[2], x), dot(w[3], x)] }
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
            axpys([w], [a], y);
        }

        #[target_feature(enable = $features)]
        fn axpy4(w: [&[u8]; 4], a: [f32; 4], y: &mut [f32]) {
            if rows::equal(&w) {
                return axpys(w, a, y);
            }
            for r in 0..4 {
                axpy(w[r], a[r], y);
            }
        }

        crate::arch::x86_64::avx2::kernel_table!($activations, $isa, dot, dot4, tile, axpy, axpy4, decode)
    }};
}
pub(super) use row_kernels;
