//! The second half: the sum of the firing neurons' down rows.

use super::CpuFfn;
use crate::{TypeKernels, arch::prefetch, split::Columns};
use pi_core::{Matrix, QuantType};
use std::ops::Range;

/// Columns of the sum that are worth a task of their own.
pub(super) const MIN_COLUMNS: usize = 64;
/// Bytes of a row that are worth going there for: each piece costs a look-up of its page, and lines at its ends are read twice.
const WIDE: usize = 512;

/// The least columns for a task of `threads` that share `m`'s.
pub(super) fn min_columns(m: &Matrix, threads: usize) -> usize {
    let info = m.ty().info();
    let wide = (WIDE / info.block_bytes).max(1) * info.block_len;
    MIN_COLUMNS.max(info.block_len).max(wide.min(m.cols() / threads.max(1)))
}
/// Numbers of down rows that are decoded at a time: rows times columns.
const DECODED: (usize, usize) = (16, 256);
/// Tokens that want a row, on average, from which on rows are decoded once instead of for each.
const DECODE_FROM: usize = 3;

/// What the second section needs beside its part of the sum.
pub(super) struct Sum<'a> {
    pub op: &'a CpuFfn,
    pub k: &'a TypeKernels,
    pub floats: &'a TypeKernels,
    pub m: &'a Matrix,
    pub fired: &'a [u32],
    /// Numbers of `h` that are not 0: how often a row is wanted, over all tokens.
    pub uses: usize,
    pub h: &'a [f32],
    pub tokens: usize,
}

impl Sum<'_> {
    pub(super) fn columns(&self, part: &mut Columns<'_>) {
        let range = part.range();
        (0..self.tokens).for_each(|t| part.row(t).fill(0.0));
        // The same bits only if both kernels were made for each other.
        let alike = self.k.isa == self.floats.isa && self.k.axpy4.is_some();
        if self.uses >= DECODE_FROM * self.fired.len() && alike && self.m.ty() != QuantType::F32 {
            let step = DECODED.1.next_multiple_of(self.m.ty().info().block_len);
            for from in range.clone().step_by(step) {
                self.decoded(part, from..(from + step).min(range.end));
            }
        } else {
            let view = self.m.view();
            let bytes = self.bytes(&range);
            let row = |place: usize| &view.row(self.op.neurons.id(self.fired[place] as usize))[bytes.clone()];
            for t in 0..self.tokens {
                self.add(self.k, self.fired, t, row, part.row(t));
            }
        }
    }

    fn bytes(&self, columns: &Range<usize>) -> Range<usize> {
        let info = self.m.ty().info();
        let at = |column: usize| column / info.block_len * info.block_bytes;
        at(columns.start)..at(columns.end)
    }

    /// Adds the rows of `some` neurons to a token's sum, four at a time, in order. `row` gets the place among them.
    fn add<'r>(&self, k: &TypeKernels, some: &[u32], t: usize, row: impl Fn(usize) -> &'r [u8], y: &mut [f32]) {
        let h = &self.h[t * self.op.neurons.len()..][..self.op.neurons.len()];
        // four rows are computed when the next four are known
        let (mut before, mut rows, mut by, mut n) = (None, [&[][..]; 4], [0.0; 4], 0);
        for (place, &i) in some.iter().enumerate() {
            let a = h[i as usize];
            if a != 0.0 {
                (rows[n], by[n]) = (row(place), a);
                n += 1;
                if n == 4 {
                    if let Some((before, by)) = before.replace((rows, by)) {
                        k.axpy4(before, rows, by, y);
                    }
                    n = 0;
                }
            }
        }
        if let Some((before, by)) = before {
            k.axpy4(before, [&[]; 4], by, y);
        }
        (0..n).for_each(|j| (k.axpy)(rows[j], by[j], y));
    }

    /// The same for many tokens: some rows are decoded, then each token takes what it needs. The sums have the same order,
    /// and decoding is exact, so they have the same bits.
    fn decoded(&self, part: &mut Columns<'_>, columns: Range<usize>) {
        let start = part.range().start;
        let (view, bytes, width) = (self.m.view(), self.bytes(&columns), columns.len());
        let piece = |i: u32| &view.row(self.op.neurons.id(i as usize))[bytes.clone()];
        let mut numbers = [0.0f32; DECODED.0 * DECODED.1];
        let mut later = self.fired.chunks(DECODED.0).skip(1);
        for some in self.fired.chunks(DECODED.0) {
            for (&i, out) in some.iter().zip(numbers.chunks_exact_mut(width)) {
                (self.k.decode)(piece(i), out);
            }
            // memory brings the next ones in the meantime
            later.next().into_iter().flatten().for_each(|&i| prefetch(piece(i)));
            let numbers: &[u8] = bytemuck::cast_slice(&numbers);
            for t in 0..self.tokens {
                let y = &mut part.row(t)[columns.start - start..columns.end - start];
                self.add(self.floats, some, t, |place| &numbers[4 * place * width..4 * (place + 1) * width], y);
            }
        }
    }
}
