//! The second half: the sum of the firing neurons' down rows.

use super::CpuFfn;
use crate::{TypeKernels, arch::prefetch, split::Columns};
use pi_core::{Matrix, QuantType};
use std::ops::Range;

/// Columns of the sum that are worth a task of their own.
pub(super) const MIN_COLUMNS: usize = 64;
/// Numbers of down rows that are decoded at a time: rows times columns.
const DECODED: (usize, usize) = (16, 256);
/// Tokens from which on a down row is decoded once instead of for each.
const DECODE_FROM: usize = 3;

/// What the second section needs beside its part of the sum.
pub(super) struct Sum<'a> {
    pub op: &'a CpuFfn,
    pub k: &'a TypeKernels,
    pub floats: &'a TypeKernels,
    pub m: &'a Matrix,
    pub fired: &'a [u32],
    pub h: &'a [f32],
    pub tokens: usize,
}

impl Sum<'_> {
    pub(super) fn columns(&self, part: &mut Columns<'_>) {
        let range = part.range();
        (0..self.tokens).for_each(|t| part.row(t).fill(0.0));
        // The same bits only if both kernels were made for each other.
        let alike = self.k.isa == self.floats.isa && self.k.axpy4.is_some();
        if self.tokens >= DECODE_FROM && alike && self.m.ty() != QuantType::F32 {
            let step = DECODED.1.next_multiple_of(self.m.ty().info().block_len);
            for from in range.clone().step_by(step) {
                self.decoded(part, from..(from + step).min(range.end));
            }
        } else {
            let view = self.m.view();
            let bytes = self.bytes(&range);
            let row = |i: u32| &view.row(self.op.neurons.id(i as usize))[bytes.clone()];
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

    /// Adds the rows of `some` neurons to a token's sum, four at a time, in order.
    fn add<'r>(&self, k: &TypeKernels, some: &[u32], t: usize, row: impl Fn(u32) -> &'r [u8], y: &mut [f32]) {
        let h = &self.h[t * self.op.neurons.len()..][..self.op.neurons.len()];
        // four rows are computed when the next four are known and asked for
        let (mut rows, mut by, mut n) = ([&[][..]; 8], [0.0; 8], 0);
        for &i in some {
            let a = h[i as usize];
            if a != 0.0 {
                (rows[n], by[n]) = (row(i), a);
                prefetch(rows[n]);
                n += 1;
                if n == 8 {
                    k.axpy4([rows[0], rows[1], rows[2], rows[3]], [by[0], by[1], by[2], by[3]], y);
                    rows.copy_within(4.., 0);
                    by.copy_within(4.., 0);
                    n = 4;
                }
            }
        }
        (0..n).for_each(|j| (k.axpy)(rows[j], by[j], y));
    }

    /// The same for many tokens: some rows are decoded, then each token takes what it needs. The sums have the same order,
    /// and decoding is exact, so they have the same bits.
    fn decoded(&self, part: &mut Columns<'_>, columns: Range<usize>) {
        let start = part.range().start;
        let (view, bytes, width) = (self.m.view(), self.bytes(&columns), columns.len());
        let mut numbers = [0.0f32; DECODED.0 * DECODED.1];
        for some in self.fired.chunks(DECODED.0) {
            for (&i, out) in some.iter().zip(numbers.chunks_exact_mut(width)) {
                (self.k.decode)(&view.row(self.op.neurons.id(i as usize))[bytes.clone()], out);
            }
            let numbers: &[u8] = bytemuck::cast_slice(&numbers);
            for t in 0..self.tokens {
                let y = &mut part.row(t)[columns.start - start..columns.end - start];
                self.add(
                    self.floats,
                    some,
                    t,
                    |i| {
                        let j = some.partition_point(|&s| s < i);
                        &numbers[4 * j * width..4 * (j + 1) * width]
                    },
                    y,
                );
            }
        }
    }
}
