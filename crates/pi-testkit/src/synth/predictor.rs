//! Predictors: directions that neurons share, and what each neuron makes of them.
//!
//! `relu(b·h) − relu(−b·h) = b·h`, so a predictor whose first layer has every direction twice, with both signs, computes a
//! neuron's `Σ a·(b·h)` exactly. Its last units see the constant channels only; they carry the neurons' thresholds.

use super::{
    error::Result,
    math::{Packed, Source, add_scaled},
    model::{BIAS, SynthModel},
    stream::{Plan, Stream, as_stored},
    text::Text,
};
use rayon::prelude::*;
use std::io::Write;

/// Directions per neuron.
const PARTS: usize = 8;
/// What the constant units give together, so that their weights are about as large as those of the directions.
const CONSTANT: f32 = 4.0;

/// The predictor of a layer, and what it makes of the calibration's tokens.
pub(super) struct Predictor {
    dim: usize,
    rank: usize,
    /// How many directions there are.
    count: usize,
    /// The directions as they are stored, one behind the other.
    directions: Vec<f32>,
    /// `seen[direction][token]`.
    seen: Vec<f32>,
    tokens: usize,
    random: Source,
}

/// How often neurons fire, are predicted, and both, over the held-out tokens.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub fired: u64,
    pub predicted: u64,
    pub both: u64,
}

impl Predictor {
    /// For a layer whose predictor sees `h`.
    pub fn new(model: &SynthModel, layer: usize, h: &[f32]) -> Self {
        let (dim, rank) = (model.shape.dim, model.rank());
        // A block of constant units where there is room: its equal weights are stored exactly.
        let constants = if rank >= 128 { 32 } else { rank / 4 };
        let count = (rank - constants) / 2;
        let source = Source::new(model.seed, &format!("blk.{layer}.fc1"));
        let ty = model.predictor_type();
        let mut directions = vec![0.0; count * dim];
        directions.par_chunks_exact_mut(dim).enumerate().for_each_init(Vec::new, |bytes, (i, row)| {
            source.row(i).fill(BIAS, &mut row[BIAS..], 1.0 / (dim as f32).sqrt());
            as_stored(ty, row, bytes);
        });
        let (tokens, packed) = (h.len() / dim, Packed::new(h, dim));
        let mut seen = vec![0.0; count * tokens];
        let groups = directions.par_chunks(8 * dim).zip(seen.par_chunks_mut(8 * tokens));
        groups.for_each(|(rows, out)| packed.products(rows, out));
        Self {
            dim,
            rank,
            count,
            directions,
            seen,
            tokens,
            random: Source::new(model.seed, &format!("blk.{layer}.fc2")),
        }
    }

    /// The directions of a neuron and their factors. Squares of the factors sum to 1.
    fn parts(&self, neuron: usize) -> impl Iterator<Item = (usize, f32)> {
        let (n, random) = (PARTS.min(self.count), self.random.row(neuron));
        let factor = 1.0 / (n as f32).sqrt();
        (0..n).map(move |i| {
            // One of every n-th part of the directions, so that they differ.
            let (from, to) = (i * self.count / n, (i + 1) * self.count / n);
            let bits = random.bits(i as u32) as usize;
            (from + (bits >> 1) % (to - from), if bits & 1 == 0 { factor } else { -factor })
        })
    }

    /// Adds what a predictor can see of a neuron to its row.
    pub fn add_to(&self, neuron: usize, row: &mut [f32]) {
        for (i, a) in self.parts(neuron) {
            add_scaled(&mut row[BIAS..], a, &self.directions[i * self.dim..][BIAS..self.dim]);
        }
    }

    /// Adds `factor` times what it sees of a neuron, for every token.
    pub fn add_seen(&self, neuron: usize, factor: f32, out: &mut [f32]) {
        for (i, a) in self.parts(neuron) {
            add_scaled(out, factor * a, &self.seen[i * self.tokens..][..self.tokens]);
        }
    }

    /// Writes the predictor. It sees `h`; `offsets` are the neurons' thresholds as it should know them, `inputs[neuron]` what
    /// the neurons compute.
    pub fn write<W: Write>(
        &self,
        model: &SynthModel,
        text: &Text,
        s: &mut Stream<'_, W>,
        h: &[f32],
        offsets: &[f32],
        inputs: &[f32],
    ) -> Result<Counts> {
        let (dim, rank, tokens, ty) = (self.dim, self.rank, self.tokens, model.predictor_type());
        let signed = 2 * self.count;
        let constants = (rank - signed) as f32;
        let constant = CONSTANT / constants / (BIAS as f32 * model.constant());
        let first = |r: usize, row: &mut [f32]| {
            if r >= signed {
                return row[..BIAS].fill(constant);
            }
            row.copy_from_slice(&self.directions[r % self.count * dim..][..dim]);
            if r >= self.count {
                row.iter_mut().for_each(|v| *v = -*v);
            }
        };
        let packed = Packed::new(h, dim);
        let mut units = vec![0.0; rank * tokens];
        let name = format!("blk.{}.fc1.weight", s.layer);
        let plan = Plan { name: &name, ty, rows: rank, cols: dim };
        s.panels(plan, &mut units, first, |rows| packed.products(rows.stored, rows.out), |_, _| {})?;
        units.iter_mut().for_each(|u| *u = u.max(0.0));

        let second = |neuron: usize, row: &mut [f32]| {
            for (i, a) in self.parts(neuron) {
                row[i] = a;
                row[self.count + i] = -a;
            }
            row[signed..].fill(offsets[neuron] / CONSTANT);
        };
        let held_out = text.calibration..tokens;
        let mut counts = vec![0.0; offsets.len() * 3];
        let name = format!("blk.{}.fc2.weight", s.layer);
        let plan = Plan { name: &name, ty, rows: offsets.len(), cols: rank };
        let judge = |rows: super::stream::Rows<'_>| {
            let mut logits = vec![0.0; held_out.len()];
            for (r, (row, out)) in rows.stored.chunks_exact(rank).zip(rows.out.chunks_exact_mut(3)).enumerate() {
                logits.fill(0.0);
                for (unit, &w) in row.iter().enumerate().filter(|(_, w)| **w != 0.0) {
                    add_scaled(&mut logits, w, &units[unit * tokens..][held_out.clone()]);
                }
                let fires = &inputs[(rows.first + r) * tokens..][held_out.clone()];
                for (logit, input) in logits.iter().zip(fires) {
                    let (predicted, fired) = (*logit >= 0.0, *input > 0.0);
                    out[0] += f32::from(fired);
                    out[1] += f32::from(predicted);
                    out[2] += f32::from(fired && predicted);
                }
            }
        };
        s.panels(plan, &mut counts, second, judge, |_, _| {})?;
        let sum = |i: usize| counts.chunks_exact(3).map(|c| c[i] as u64).sum();
        Ok(Counts { fired: sum(0), predicted: sum(1), both: sum(2) })
    }
}
