//! The inner loops of attention, chosen by instruction set; and the plain ones, which are exact.

use crate::Isa;
use half::f16;

/// Positions whose scores are held at once. Blocks are cut at absolute multiples of this, so results do not depend on the batch.
pub(crate) const BLOCK: usize = 64;
/// Rows of queries, keys and values are filled up with zeros to a multiple of this.
pub(crate) const LANES: usize = 8;

/// Online softmax of one row: the largest score so far, and the sum of `exp(score - max)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Softmax {
    pub max: f32,
    pub sum: f32,
}

impl Softmax {
    pub(crate) const NOTHING: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// How one block of keys and values meets a few rows of queries.
///
/// A row is one query head of one token, `width` numbers (a multiple of [`LANES`]); `seen` says how many positions of the block
/// each row may see. What a row comes to must not depend on the rows beside it: the same bits alone and in any company.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::type_complexity)] // their parameters say what they are
pub(crate) struct AttentionKernels {
    /// `out[r][i] = q[r] · k[i]` for `i < seen[r]`; `out` has [`BLOCK`] numbers per row, and the rest of them is undefined.
    pub scores: fn(q: &[f32], k: &[f32], width: usize, seen: &[usize], out: &mut [f32]),
    /// Turns scores into `exp(score - max)`, where `max` is the largest up to now. `fade` is by how much what was summed before
    /// is to be multiplied for that.
    pub weights: fn(scores: &mut [f32], seen: &[usize], state: &mut [Softmax], fade: &mut [f32]),
    /// `out[r] = out[r] · fade[r] + Σ weights[r][i] · v[i]` over `i < seen[r]`, in order.
    pub mix: fn(weights: &[f32], v: &[f32], width: usize, seen: &[usize], fade: &[f32], out: &mut [f32]),
    /// Half-precision numbers, rounded to nearest even. The shorter of the two ends it.
    pub to_f16: fn(x: &[f32], out: &mut [u8]),
}

impl AttentionKernels {
    /// Those of an instruction set that this CPU was found to have.
    pub(crate) fn of(isa: Isa) -> Self {
        match isa {
            Isa::Reference => Self::reference(),
            #[cfg(target_arch = "x86_64")]
            _ => crate::arch::x86_64::avx2::attention::kernels().unwrap_or(Self::reference()),
            #[cfg(not(target_arch = "x86_64"))]
            _ => Self::reference(),
        }
    }

    /// Plain loops with the standard library's exponential.
    pub(crate) const fn reference() -> Self {
        Self { scores, weights, mix, to_f16 }
    }
}

fn scores(q: &[f32], k: &[f32], width: usize, seen: &[usize], out: &mut [f32]) {
    for ((q, &seen), out) in q.chunks_exact(width).zip(seen).zip(out.chunks_exact_mut(BLOCK)) {
        for (k, o) in k.chunks_exact(width).zip(out).take(seen) {
            let mut lanes = [0.0; LANES];
            for (q, k) in q.as_chunks::<LANES>().0.iter().zip(k.as_chunks::<LANES>().0) {
                for i in 0..LANES {
                    lanes[i] += q[i] * k[i];
                }
            }
            let [a, b, c, d, e, f, g, h] = lanes;
            *o = ((a + e) + (c + g)) + ((b + f) + (d + h));
        }
    }
}

fn weights(scores: &mut [f32], seen: &[usize], state: &mut [Softmax], fade: &mut [f32]) {
    for (((row, &seen), s), fade) in scores.chunks_exact_mut(BLOCK).zip(seen).zip(state).zip(fade) {
        let row = &mut row[..seen.min(BLOCK)];
        let top = row.iter().copied().fold(s.max, f32::max);
        *fade = if top > s.max { (s.max - top).exp() } else { 1.0 };
        s.max = top;
        s.sum *= *fade;
        for p in row {
            *p = (*p - top).exp();
            s.sum += *p;
        }
    }
}

fn mix(weights: &[f32], v: &[f32], width: usize, seen: &[usize], fade: &[f32], out: &mut [f32]) {
    let rows = weights.chunks_exact(BLOCK).zip(seen).zip(fade).zip(out.chunks_exact_mut(width));
    for (((p, &seen), &fade), out) in rows {
        out.iter_mut().for_each(|o| *o *= fade);
        for (&p, v) in p.iter().zip(v.chunks_exact(width)).take(seen) {
            out.iter_mut().zip(v).for_each(|(o, v)| *o += p * v);
        }
    }
}

fn to_f16(x: &[f32], out: &mut [u8]) {
    for (o, &v) in out.as_chunks_mut::<2>().0.iter_mut().zip(x) {
        *o = f16::from_f32(v).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed;
        let next = |x: &mut u32| {
            *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (*x >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next(&mut x)).collect()
    }

    fn tables() -> Vec<(Isa, AttentionKernels)> {
        Isa::available().into_iter().map(|isa| (isa, AttentionKernels::of(isa))).collect()
    }

    /// The result of a block on top of an earlier one, for all rows at once.
    fn block(k: &AttentionKernels, width: usize, seen: &[usize], seed: u32) -> (Vec<f32>, Vec<f32>, Vec<Softmax>) {
        let rows = seen.len();
        let (q, keys, values) =
            (numbers(rows * width, seed), numbers(BLOCK * width, seed + 1), numbers(BLOCK * width, seed + 2));
        run(k, &q, &keys, &values, width, seen)
    }

    fn run(
        k: &AttentionKernels,
        q: &[f32],
        keys: &[f32],
        values: &[f32],
        width: usize,
        seen: &[usize],
    ) -> (Vec<f32>, Vec<f32>, Vec<Softmax>) {
        let rows = seen.len();
        let mut scores = vec![f32::NAN; rows * BLOCK];
        let mut state = vec![Softmax { max: 0.25, sum: 2.0 }; rows];
        let (mut fade, mut out) = (vec![f32::NAN; rows], vec![0.5; rows * width]);
        (k.scores)(q, keys, width, seen, &mut scores);
        (k.weights)(&mut scores, seen, &mut state, &mut fade);
        (k.mix)(&scores, values, width, seen, &fade, &mut out);
        (scores, out, state)
    }

    #[test]
    fn every_instruction_set_comes_close_to_the_reference() {
        let seen: [usize; 11] = [64, 1, 2, 3, 7, 8, 9, 31, 63, 64, 5];
        for width in [8, 16, 24, 64, 80, 128, 136] {
            for rows in 1..=seen.len() {
                let seen = &seen[..rows];
                let (_, want, want_state) = block(&AttentionKernels::reference(), width, seen, 3);
                for (isa, k) in tables() {
                    let (_, got, state) = block(&k, width, seen, 3);
                    for (g, w) in got.iter().zip(&want) {
                        assert!((g - w).abs() < 2e-5 * (1.0 + w.abs()), "{isa}, {rows} rows of {width}: {g} for {w}");
                    }
                    for (g, w) in state.iter().zip(&want_state) {
                        assert!((g.max - w.max).abs() < 1e-5, "{isa}: {g:?} for {w:?}");
                        assert!((g.sum / w.sum - 1.0).abs() < 1e-5, "{isa}: {g:?} for {w:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_in_company() {
        let seen = [3usize, 4, 4, 5, 5, 5, 64, 64, 17, 1];
        for (isa, k) in tables() {
            for width in [8, 40, 64] {
                let n = seen.len();
                let (q, keys, values) = (numbers(n * width, 7), numbers(BLOCK * width, 8), numbers(BLOCK * width, 9));
                let (_, all, states) = run(&k, &q, &keys, &values, width, &seen);
                for from in 0..n {
                    for to in from + 1..=n {
                        let (rows, cut) = (from * width..to * width, &seen[from..to]);
                        let (_, out, state) = run(&k, &q[rows.clone()], &keys, &values, width, cut);
                        assert!(out == all[rows] && state == states[from..to], "{isa}, rows {from}..{to} of {width}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_row_may_not_see_does_not_reach_it() {
        for (isa, k) in tables() {
            for seen in [[1usize, 2, 3, 4], [5, 6, 7, 8], [13, 14, 15, 16], [61, 62, 63, 64]] {
                let width = 24;
                let (q, keys, values) = (numbers(4 * width, 1), numbers(BLOCK * width, 2), numbers(BLOCK * width, 3));
                let (_, want, _) = run(&k, &q, &keys, &values, width, &seen);
                for r in 0..4 {
                    let (mut keys, mut values) = (keys.clone(), values.clone());
                    keys[seen[r] * width..].fill(f32::NAN);
                    values[seen[r] * width..].fill(f32::INFINITY);
                    let (_, got, _) = run(&k, &q, &keys, &values, width, &seen);
                    let row = r * width..(r + 1) * width;
                    assert_eq!(got[row.clone()], want[row], "{isa}, row {r} of {seen:?}");
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_not_finite_go_through_without_harm() {
        for (isa, k) in tables() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut scores = vec![0.0; 2 * BLOCK];
                scores[3] = bad;
                let mut state = [Softmax::NOTHING; 2];
                let mut fade = [0.0; 2];
                (k.weights)(&mut scores, &[9, 9], &mut state, &mut fade);
                if bad == f32::NEG_INFINITY {
                    assert_eq!((scores[3], scores[2]), (0.0, 1.0), "{isa}");
                } else {
                    assert!(scores[3].is_nan() && state[0].sum.is_nan(), "{isa}, {bad}");
                }
                assert!(scores[BLOCK..BLOCK + 9].iter().all(|&p| p == 1.0) && state[1].sum == 9.0, "{isa}, {bad}");
            }
            let mut all = [f32::NEG_INFINITY; BLOCK];
            let (mut state, mut fade) = ([Softmax::NOTHING], [0.0]);
            (k.weights)(&mut all, &[5], &mut state, &mut fade);
            assert!(all[..5].iter().all(|p| p.is_nan()), "{isa}: there is no softmax of nothing");
        }
    }

    #[test]
    fn the_exponential_is_exact_to_a_millionth_over_its_whole_range() {
        for (isa, k) in tables() {
            let check = |x: f32| {
                // The largest score is 0, so that the weights are the exponentials themselves.
                let mut row = [f32::NAN; BLOCK];
                (row[0], row[1]) = (0.0, x);
                let (mut state, mut fade) = ([Softmax::NOTHING], [0.0]);
                (k.weights)(&mut row, &[2], &mut state, &mut fade);
                let (got, want) = (f64::from(row[1]), f64::from(x).exp());
                // Below the smallest normal number, a unit of the last place is all that can be asked for.
                let bound = (want * 1e-6).max(f64::from(f32::from_bits(1)));
                assert!((got - want).abs() <= bound, "{isa}: exp({x}) = {got:e} instead of {want:e}");
            };
            (0..=110_000).for_each(|i| check(-(i as f32) / 1000.0));
            (0..1000).for_each(|i| check(-f32::from_bits(0x3f80_0000 - i * 0x2_0000)));
            for x in [0.0, -0.0, -1e-30, -87.0, -87.3, -87.4, -88.0, -103.9, -104.1, -1000.0, f32::MIN] {
                check(x);
            }
            check(f32::NEG_INFINITY);
        }
    }

    #[test]
    fn half_precision_is_rounded_as_the_reference_rounds() {
        for (isa, k) in tables() {
            let mut x = numbers(1003, 5);
            x.extend([0.0, -0.0, 1e-8, 6e-8, 65504.0, 65519.9, 65520.0, 1e9, f32::INFINITY, f32::NEG_INFINITY]);
            x.extend((0..4000).map(|i| f32::from_bits(0x3f80_0000 + i * 0x400)));
            let (mut got, mut want) = (vec![0; 2 * x.len()], vec![0; 2 * x.len()]);
            (k.to_f16)(&x, &mut got);
            to_f16(&x, &mut want);
            assert!(got == want, "{isa}");
            (k.to_f16)(&[f32::NAN], &mut got);
            assert!(f16::from_le_bytes([got[0], got[1]]).is_nan(), "{isa}");
            let mut short = [7u8; 5];
            (k.to_f16)(&x, &mut short);
            assert_eq!((&short[..4], short[4]), (&want[..4], 7), "{isa}");
        }
    }
}
