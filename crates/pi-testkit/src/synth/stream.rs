//! Tensors on their way to the file: a panel of rows at a time is made, stored, and looked at as it was stored.

use super::{
    error::{Result, SynthError},
    write::{Progress, Watcher},
};
use pi_core::QuantType;
use pi_gguf::Writer;
use rayon::prelude::*;
use std::{io::Write, ops::ControlFlow};

/// Rows that one task works on.
const GROUP: usize = 16;
/// Numbers of a panel. A panel is at least a group.
const PANEL: usize = 2 << 20;

/// Which tensor.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub name: &'a str,
    pub ty: QuantType,
    pub rows: usize,
    pub cols: usize,
}

/// Some rows of a matrix in a task's hands.
pub(super) struct Rows<'a> {
    /// Number of the first row.
    pub first: usize,
    /// The rows as they were wanted.
    pub wanted: &'a mut [f32],
    /// As they are stored. What is changed here is written.
    pub bytes: &'a mut [u8],
    /// What that stands for.
    pub stored: &'a mut [f32],
    /// The rows' part of the task's results.
    pub out: &'a mut [f32],
}

/// Where tensors go.
pub(super) struct Stream<'a, W> {
    pub writer: Writer<W>,
    pub progress: &'a mut Watcher<'a>,
    /// The layer that is written.
    pub layer: usize,
    pub layers: usize,
    pub written: u64,
    /// A panel's stored bytes and what they stand for, kept for the next.
    bytes: Vec<u8>,
    stored: Vec<f32>,
}

impl<'a, W: Write> Stream<'a, W> {
    pub fn new(writer: Writer<W>, layers: usize, progress: &'a mut Watcher<'a>) -> Self {
        Self { writer, progress, layer: 0, layers, written: 0, bytes: Vec::new(), stored: Vec::new() }
    }

    /// Writes a vector of numbers.
    pub fn vector(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.written += bytes.len() as u64;
        Ok(self.writer.write(name, &bytes)?)
    }

    /// Writes a matrix whose rows are made by `fill`, into zeros.
    pub fn matrix(&mut self, plan: Plan<'_>, fill: impl Fn(usize, &mut [f32]) + Sync) -> Result<()> {
        self.panels(plan, &mut [], fill, |_| {}, |_, _| {})
    }

    /// Writes a matrix whose rows are made by `fill`, into zeros. `each` sees them group by group, in any order and from
    /// several threads, and fills its part of `out`, which has as many numbers for every row (or none); then `after` sees
    /// the number of a panel's first row and its stored rows.
    pub fn panels(
        &mut self,
        plan: Plan<'_>,
        out: &mut [f32],
        fill: impl Fn(usize, &mut [f32]) + Sync,
        each: impl Fn(Rows<'_>) + Sync,
        mut after: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let Plan { name, ty, rows, cols } = plan;
        let info = ty.info();
        let row_bytes = ty.row_bytes(cols).ok_or_else(|| {
            SynthError::setting("type", format!("one whose blocks divide the {cols} columns of {name}"), ty)
        })?;
        let per_row = out.len() / rows;
        let panel = (PANEL / cols).max(1).next_multiple_of(GROUP).min(rows);
        self.writer.begin(name)?;
        for first in (0..rows).step_by(panel) {
            self.report(None)?;
            let n = panel.min(rows - first);
            self.bytes.resize(n * row_bytes, 0);
            self.stored.resize(n * cols, 0.0);
            let mut parts: Vec<&mut [f32]> = match per_row {
                0 => (0..n.div_ceil(GROUP)).map(|_| Default::default()).collect(),
                _ => out[first * per_row..][..n * per_row].chunks_mut(GROUP * per_row).collect(),
            };
            let bytes = self.bytes.par_chunks_mut(GROUP * row_bytes);
            let stored = self.stored.par_chunks_mut(GROUP * cols);
            bytes.zip(stored).zip(&mut parts).enumerate().for_each_init(
                Vec::new,
                |wanted, (i, ((bytes, stored), out))| {
                    let first = first + i * GROUP;
                    wanted.clear();
                    wanted.resize(stored.len(), 0.0f32);
                    for (r, row) in wanted.chunks_exact_mut(cols).enumerate() {
                        fill(first + r, row);
                    }
                    (info.encode)(wanted, bytes);
                    (info.decode)(bytes, stored);
                    each(Rows { first, wanted, bytes, stored, out });
                },
            );
            after(first, &self.stored);
            self.writer.append(&self.bytes)?;
            self.written += self.bytes.len() as u64;
        }
        Ok(())
    }

    /// Tells how far it is.
    pub fn report(&mut self, done: Option<&super::LayerReport>) -> Result<()> {
        let now = Progress { layer: self.layer, layers: self.layers, bytes: self.written, done };
        match (self.progress)(&now) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(SynthError::Cancelled),
        }
    }
}

/// One row as it would be stored and read again.
pub(super) fn as_stored(ty: QuantType, row: &mut [f32], bytes: &mut Vec<u8>) {
    let info = ty.info();
    bytes.resize(row.len() / info.block_len * info.block_bytes, 0);
    (info.encode)(row, bytes);
    (info.decode)(bytes, row);
}
