//! Rotations that layers share.

use crate::split;
use pi_core::{Batch, Executor, Rope, RopeSpec};
use std::sync::Mutex;

/// A [`Rope`] that layers share: sines and cosines of a step are computed by the first layer that needs them.
#[derive(Debug)]
pub(crate) struct Rotations {
    rope: Rope,
    last: Mutex<Last>,
}

/// The step whose table was computed last.
#[derive(Debug, Default)]
struct Last {
    positions: Vec<u32>,
    table: Vec<f32>,
}

impl Rotations {
    pub(crate) fn new(spec: &RopeSpec) -> Self {
        Self { rope: Rope::new(spec), last: Mutex::default() }
    }

    /// Makes room for steps of `tokens` tokens, and returns the numbers of a table per token.
    pub(crate) fn open(&self, tokens: usize) -> usize {
        let n = self.table_len();
        if let Ok(mut last) = self.last.lock() {
            let Last { positions, table } = &mut *last;
            // Without this memory, tables are computed anew in every layer.
            let _ = positions.try_reserve_exact(tokens.saturating_sub(positions.len()));
            let _ = table.try_reserve_exact(tokens.saturating_mul(n).saturating_sub(table.len()));
        }
        n
    }

    pub(crate) fn table_len(&self) -> usize {
        self.rope.table_len()
    }

    pub(crate) fn rotate(&self, head: &mut [f32], table: &[f32]) {
        self.rope.rotate(head, table);
    }

    /// Writes the tables of a step's positions. Sessions do not wait for each other: whoever finds another one here computes.
    pub(crate) fn table(&self, exec: &dyn Executor, batch: &Batch, out: &mut [f32]) {
        let mut last = self.last.try_lock().ok();
        if let Some(last) = &last
            && last.table.len() == out.len()
            && last.positions.iter().copied().eq(batch.iter().map(|t| t.pos))
        {
            out.copy_from_slice(&last.table);
            return;
        }
        split::chunks(exec, out, self.table_len(), |t, out| self.rope.table(batch[t].pos, out));
        if let Some(last) = &mut last
            && last.table.capacity() >= out.len()
            && last.positions.capacity() >= batch.len()
        {
            last.table.clear();
            last.table.extend_from_slice(out);
            last.positions.clear();
            last.positions.extend(batch.iter().map(|t| t.pos));
        }
    }
}
