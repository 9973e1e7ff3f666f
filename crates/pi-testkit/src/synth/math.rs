//! Random numbers that depend on their place only, the normal distribution, and products.

use std::f64::consts::{PI, SQRT_2};

/// Random numbers of one tensor. A number depends on the seed, the tensor's name, row and column, and on nothing else, so
/// rows can be made in any order and a matrix and its transpose have the same numbers.
#[derive(Clone, Copy)]
pub(super) struct Source(u64);

impl Source {
    pub fn new(seed: u64, name: &str) -> Self {
        let mix = |h: u64, v: u64| (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Self(name.bytes().fold(mix(0x5851_f42d_4c95_7f2d, seed), |h, b| mix(h, b.into())))
    }

    /// What the numbers of a row have in common.
    pub fn row(self, row: usize) -> Row {
        let v = (self.0 ^ row as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let v = (v ^ v >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        Row((v ^ v >> 33) as u32)
    }
}

/// Random numbers of one row.
#[derive(Clone, Copy)]
pub(super) struct Row(u32);

impl Row {
    /// 32 random bits.
    #[inline(always)]
    pub fn bits(self, col: u32) -> u32 {
        let mut h = self.0 ^ col.wrapping_mul(0x9e37_79b1);
        h = (h ^ h >> 16).wrapping_mul(0x85eb_ca6b);
        h = (h ^ h >> 13).wrapping_mul(0xc2b2_ae35);
        h ^ h >> 16
    }

    /// Roughly normal with standard deviation 1: the sum of the bits' four bytes.
    #[inline(always)]
    pub fn normal(self, col: u32) -> f32 {
        const DEVIATION: f32 = 147.8; // of the sum of four uniform bytes: sqrt(4 · (256² − 1) / 12)
        let h = self.bits(col);
        let sum = (h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24);
        (sum as i32 - 510) as f32 / DEVIATION
    }

    /// Numbers of standard deviation `std` for the columns from `first` on.
    pub fn fill(self, first: usize, out: &mut [f32], std: f32) {
        out.iter_mut().zip(first as u32..).for_each(|(o, col)| *o = self.normal(col) * std);
    }
}

/// The share of a normal distribution below `x`.
pub(super) fn cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x / SQRT_2)
}

/// Its density.
pub(super) fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// The point below which the share `p` lies.
pub(super) fn quantile(p: f64) -> f64 {
    bisect(-9.0, 9.0, |x| cdf(x) < p)
}

/// The place where `is_low` changes from true to false.
pub(super) fn bisect(mut low: f64, mut high: f64, is_low: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if is_low(middle) { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Scalar product.
pub(super) fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (w, w_rest) = w.as_chunks::<8>();
    let (x, x_rest) = x.as_chunks::<8>();
    for (w, x) in w.iter().zip(x) {
        for l in 0..8 {
            sums[l] += w[l] * x[l];
        }
    }
    sums.iter().sum::<f32>() + w_rest.iter().zip(x_rest).map(|(w, x)| w * x).sum::<f32>()
}

/// Tokens side by side: the lanes of products.
const LANES: usize = 16;

/// Vectors of tokens, laid out for products with many rows: column by column, with some tokens side by side.
pub(super) struct Packed {
    /// `[tokens / LANES][cols]`; tokens that are not there are zeros.
    x: Vec<[f32; LANES]>,
    tokens: usize,
    cols: usize,
}

impl Packed {
    /// Of vectors of length `cols`, one behind the other.
    pub fn new(x: &[f32], cols: usize) -> Self {
        let mut packed = Vec::new();
        for few in x.chunks(LANES * cols) {
            let at = |token: usize, col: usize| few.get(token * cols + col).copied().unwrap_or(0.0);
            packed.extend((0..cols).map(|col| std::array::from_fn(|token| at(token, col))));
        }
        Self { x: packed, tokens: x.len() / cols, cols }
    }

    /// `out[row][token] = w[row] · x[token]`.
    pub fn products(&self, w: &[f32], out: &mut [f32]) {
        /// Columns at a time, so that their tokens stay in the nearest cache while rows pass by.
        const WIDTH: usize = 256;
        out.fill(0.0);
        for (i, x) in self.x.chunks_exact(self.cols).enumerate() {
            let tokens = i * LANES..(i * LANES + LANES).min(self.tokens);
            for from in (0..self.cols).step_by(WIDTH) {
                let part = from..(from + WIDTH).min(self.cols);
                let pairs = w.chunks(2 * self.cols).zip(out.chunks_mut(2 * self.tokens));
                for (w, out) in pairs {
                    let (first, second) = w.split_at(self.cols);
                    // The second row of a last pair may be missing.
                    let second = if second.is_empty() { first } else { second };
                    let sums = pair(&x[part.clone()], &first[part.clone()], &second[part.clone()]);
                    for (out, sums) in out.chunks_exact_mut(self.tokens).zip(sums) {
                        out[tokens.clone()].iter_mut().zip(sums).for_each(|(o, s)| *o += s);
                    }
                }
            }
        }
    }
}

/// Products of two rows, written so that the compiler uses vectors.
#[inline(always)]
fn pair(x: &[[f32; LANES]], first: &[f32], second: &[f32]) -> [[f32; LANES]; 2] {
    let (mut a, mut b) = ([0.0f32; LANES], [0.0f32; LANES]);
    for ((x, &first), &second) in x.iter().zip(first).zip(second) {
        for l in 0..LANES {
            a[l] += first * x[l];
        }
        for l in 0..LANES {
            b[l] += second * x[l];
        }
    }
    [a, b]
}

/// `y += a · x`.
pub(super) fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_have_mean_0_and_deviation_1_and_neighbours_are_unrelated() {
        let source = Source::new(3, "blk.0.ffn_gate.weight");
        let (mut sum, mut squares, mut right, mut below) = (0.0, 0.0, 0.0, 0.0);
        let n = 512;
        for r in 0..n {
            for c in 0..n as u32 {
                let v = f64::from(source.row(r).normal(c));
                sum += v;
                squares += v * v;
                right += v * f64::from(source.row(r).normal(c + 1));
                below += v * f64::from(source.row(r + 1).normal(c));
            }
        }
        let n = (n * n) as f64;
        assert!((sum / n).abs() < 0.01 && (squares / n - 1.0).abs() < 0.01, "{sum} {squares}");
        assert!((right / n).abs() < 0.01 && (below / n).abs() < 0.01, "{right} {below}");
        assert_ne!(Source::new(4, "a").row(0).bits(0), Source::new(5, "a").row(0).bits(0));
        assert_ne!(Source::new(4, "a").row(0).bits(0), Source::new(4, "b").row(0).bits(0));
    }

    #[test]
    fn quantiles_are_the_inverse_of_shares() {
        for p in [0.001, 0.1, 0.5, 0.9, 0.999] {
            assert!((cdf(quantile(p)) - p).abs() < 1e-9, "{p}");
        }
        assert!((quantile(0.9) - 1.281_551_6).abs() < 1e-6);
    }

    #[test]
    fn products_equal_sums_over_columns_for_any_number_of_tokens() {
        for (rows, tokens, cols) in [(1, 1, 1), (3, 5, 19), (8, 16, 32), (2, 37, 40), (3, 17, 600)] {
            let source = Source::new(1, "x");
            let (mut w, mut x) = (vec![0.0; rows * cols], vec![0.0; tokens * cols]);
            source.row(0).fill(0, &mut w, 1.0);
            source.row(1).fill(0, &mut x, 1.0);
            let mut out = vec![0.0; rows * tokens];
            Packed::new(&x, cols).products(&w, &mut out);
            for r in 0..rows {
                for t in 0..tokens {
                    let want: f64 = (0..cols).map(|c| f64::from(w[r * cols + c]) * f64::from(x[t * cols + c])).sum();
                    assert!((f64::from(out[r * tokens + t]) - want).abs() < 1e-3, "{rows} {tokens} {cols}");
                }
            }
        }
    }
}
