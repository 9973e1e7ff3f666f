//! Rotary position embedding (arXiv 2104.09864) with linear, YaRN (arXiv 2309.00071) and table scaling.

use crate::{RopeKind, RopeScaling, RopeSpec};

/// Frequencies of a [`RopeSpec`], ready to rotate heads.
#[derive(Clone, Debug)]
pub struct Rope {
    kind: RopeKind,
    dims: usize,
    /// Radians per position and pair, in f64: at position 30,000 an f32 angle would already be off by a milliradian.
    freqs: Vec<f64>,
    magnitude: f32,
}

impl Rope {
    /// Computes the frequencies.
    pub fn new(spec: &RopeSpec) -> Self {
        let (dims, base) = (spec.dims, spec.base as f64);
        let mut magnitude = 1.0;
        let mut freqs: Vec<f64> = (0..dims / 2).map(|i| base.powf(-2.0 * i as f64 / dims as f64)).collect();
        if let Some(factors) = &spec.factors {
            freqs.iter_mut().zip(factors.iter()).for_each(|(f, &d)| *f /= d as f64);
        }
        match spec.scaling {
            RopeScaling::Linear { factor } => freqs.iter_mut().for_each(|f| *f /= factor as f64),
            RopeScaling::Yarn { factor, original_context, ext_factor, attn_factor, beta_fast, beta_slow } => {
                // The pair that turns `beta` times over the original context (the paper's eq. 17 ff.).
                let pair = |beta: f32| {
                    let turns = original_context as f64 / (beta as f64 * std::f64::consts::TAU);
                    dims as f64 * turns.ln() / (2.0 * base.ln())
                };
                let low = pair(beta_fast).floor().max(0.0);
                let high = pair(beta_slow).ceil().min(dims as f64 - 1.0);
                for (i, f) in freqs.iter_mut().enumerate() {
                    let ramp = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    let keep = ramp * ext_factor as f64;
                    *f = *f / factor as f64 * (1.0 - keep) + *f * keep;
                }
                magnitude = attn_factor;
                if ext_factor != 0.0 {
                    magnitude *= 1.0 + 0.1 * factor.ln();
                }
            }
            _ => {}
        }
        Self { kind: spec.kind, dims, freqs, magnitude }
    }

    /// Numbers of [`table`](Self::table) per position: a cosine and a sine for each pair.
    pub fn table_len(&self) -> usize {
        self.dims
    }

    /// Cosines and sines (interleaved) of position `pos`.
    pub fn table(&self, pos: u32, out: &mut [f32]) {
        for (f, cs) in self.freqs.iter().zip(out.chunks_exact_mut(2)) {
            let (sin, cos) = (pos as f64 * f).sin_cos();
            cs[0] = cos as f32 * self.magnitude;
            cs[1] = sin as f32 * self.magnitude;
        }
    }

    /// Rotates one head in place with the table of its position.
    pub fn rotate(&self, head: &mut [f32], table: &[f32]) {
        let turn = |x: &mut f32, y: &mut f32, &[cos, sin]: &[f32; 2]| {
            (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
        };
        let table = table.as_chunks::<2>().0;
        let head = &mut head[..self.dims];
        match self.kind {
            RopeKind::Interleaved => {
                head.as_chunks_mut::<2>().0.iter_mut().zip(table).for_each(|([x, y], t)| turn(x, y, t));
            }
            RopeKind::SplitHalf => {
                let (x, y) = head.split_at_mut(self.dims / 2);
                x.iter_mut().zip(y).zip(table).for_each(|((x, y), t)| turn(x, y, t));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { kind: RopeKind::Interleaved, dims: 64, base: 10000.0, scaling, factors: None }
    }

    #[test]
    fn position_zero_rotates_nothing_and_lengths_are_kept() {
        let rope = Rope::new(&spec(RopeScaling::None));
        let mut table = vec![0.0; rope.table_len()];
        let head: Vec<f32> = (0..64).map(|i| (i as f32).sin()).collect();
        rope.table(0, &mut table);
        let mut h = head.clone();
        rope.rotate(&mut h, &table);
        assert_eq!(h, head);
        rope.table(30_000, &mut table);
        rope.rotate(&mut h, &table);
        let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
        assert!((norm(&h) / norm(&head) - 1.0).abs() < 1e-5);
    }

    #[test]
    fn linear_scaling_divides_positions() {
        let (a, b) = (Rope::new(&spec(RopeScaling::None)), Rope::new(&spec(RopeScaling::Linear { factor: 4.0 })));
        let (mut x, mut y) = (vec![0.0; 64], vec![0.0; 64]);
        a.table(25, &mut x);
        b.table(100, &mut y);
        assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 1e-6));
    }

    #[test]
    fn split_half_and_interleaved_pairs_differ_only_in_order() {
        let inter = Rope::new(&spec(RopeScaling::None));
        let split = Rope::new(&RopeSpec { kind: RopeKind::SplitHalf, ..spec(RopeScaling::None) });
        let mut table = vec![0.0; 64];
        inter.table(9, &mut table);
        let mut a: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let mut b: Vec<f32> = (0..64).map(|i| a[if i < 32 { 2 * i } else { 2 * (i - 32) + 1 }]).collect();
        inter.rotate(&mut a, &table);
        split.rotate(&mut b, &table);
        for i in 0..32 {
            assert_eq!((a[2 * i], a[2 * i + 1]), (b[i], b[i + 32]));
        }
    }

    #[test]
    fn llama_3_factors_divide_the_frequencies() {
        // Head of 64, factor 32, as Llama 3.2: pairs 0-14 unchanged, 15-17 mixed, 18-31 divided by 32.
        let mut factors = vec![1.0; 32];
        factors[15..18].fill(7.0);
        factors[18..].fill(32.0);
        let base = spec(RopeScaling::None);
        let plain = Rope::new(&base);
        let scaled = Rope::new(&RopeSpec { factors: Some(factors.clone().into()), ..base });
        for i in 0..32 {
            assert!((plain.freqs[i] / scaled.freqs[i] - factors[i] as f64).abs() < 1e-9, "pair {i}");
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let rope = Rope::new(&spec(RopeScaling::Yarn {
            factor: 4.0,
            original_context: 4096,
            ext_factor: 1.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }));
        let plain = Rope::new(&spec(RopeScaling::None));
        assert_eq!(rope.freqs[0], plain.freqs[0]);
        assert!((plain.freqs[31] / rope.freqs[31] - 4.0).abs() < 1e-9);
        assert!((rope.magnitude - (1.0 + 0.1 * 4f32.ln())).abs() < 1e-6);
    }
}
