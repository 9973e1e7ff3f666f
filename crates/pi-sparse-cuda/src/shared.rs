//! What all operators of a device share, because their kernels run one after the other: scratch that is used within one call, and
//! what the layers of a step have in common.
#![allow(unsafe_code)]

use crate::{event::Done, gpu::Gpu, memory, memory::Memory, pinned::Pinned};
use cudarc::driver::{result, sys::CUdeviceptr};
use pi_core::{Batch, BatchToken, Error, Result, Rope, RopeSpec};
use std::sync::Arc;

/// Steps whose tables are kept: those of sessions that take turns.
const STEPS: usize = 4;

/// Whoever has it locked queues kernels that nobody else's come between.
#[derive(Default)]
pub(crate) struct Shared {
    work: Option<Memory<u8>>,
    /// Bytes of it.
    size: usize,
    tables: Vec<Table>,
    /// Words that a table has to have room for.
    words: usize,
    /// Cosines and sines of a token.
    row: Vec<f32>,
    steps: u64,
    /// Runs that use it.
    runs: usize,
}

/// A run's share in that. When the last one is gone, so is the memory.
pub(crate) struct Lease(Arc<Gpu>);

impl Lease {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Self {
        gpu.shared().runs += 1;
        Self(gpu.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut shared = self.0.shared();
        shared.runs -= 1;
        if shared.runs == 0 {
            *shared = Shared { steps: shared.steps, ..Shared::default() };
            drop(shared);
            self.0.queue.forget();
        }
    }
}

/// Sequence and position of each token, then cosines and sines for each.
struct Table {
    batch: Vec<BatchToken>,
    rope: Option<RopeSpec>,
    device: Memory<u32>,
    host: Pinned<u32>,
    done: Done,
    /// The step that asked last.
    used: u64,
}

impl Drop for Table {
    fn drop(&mut self) {
        let _ = self.done.wait();
    }
}

/// Where kernels find the tables of a step.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    /// `[tokens, 2]`, integers.
    pub places: CUdeviceptr,
    /// `[tokens, dims]`.
    pub rotations: CUdeviceptr,
}

/// Bytes of an array of `[rows, width]` floats in scratch: they are whole lines, so that the next begins aligned.
pub(crate) fn part(rows: usize, width: usize) -> Option<usize> {
    rows.checked_mul(width)?.checked_mul(4)?.checked_next_multiple_of(256)
}

/// What [`Shared::reserve`] takes for so many bytes.
pub(crate) fn taken(bytes: Option<usize>) -> u64 {
    match bytes {
        Some(0) => 0,
        Some(bytes) => memory::room::<u8>([bytes, 1]),
        None => u64::MAX,
    }
}

/// What [`Shared::expect`] takes.
pub(crate) fn tables_bytes(tokens: usize, numbers: usize) -> u64 {
    memory::room::<u32>([tokens, 2 + numbers]).saturating_mul(STEPS as u64)
}

fn new_tables(gpu: &Gpu, words: usize) -> Result<Vec<Table>> {
    (0..STEPS)
        .map(|_| {
            Ok(Table {
                batch: Vec::new(),
                rope: None,
                device: gpu.scratch([words, 1])?,
                host: Pinned::new(&gpu.context, words).map_err(|e| gpu.full(e, 4 * words))?,
                done: Done::new(&gpu.context).map_err(|e| gpu.error(e))?,
                used: 0,
            })
        })
        .collect()
}

impl Shared {
    /// Makes sure that there are so many bytes of scratch, now and later. Called when a run is opened, so that no step allocates.
    pub(crate) fn reserve(&mut self, gpu: &Gpu, bytes: Option<usize>) -> Result<()> {
        let bytes = bytes.ok_or_else(|| gpu.no_memory(usize::MAX))?;
        if bytes > self.size {
            // what is queued still uses the old one, which is freed in the queue's order; first, as there may be no room for both
            let before = std::mem::take(&mut self.size);
            self.work = None;
            let larger = gpu.scratch([bytes, 1]);
            // runs that are open go on with what they had, which was free a moment ago
            let (work, size, done) = match larger {
                Ok(work) => (Some(work), bytes, Ok(())),
                Err(e) if before > 0 => (gpu.scratch([before, 1]).ok(), before, Err(e)),
                Err(e) => (None, 0, Err(e)),
            };
            self.size = if work.is_some() { size } else { 0 };
            self.work = work;
            return done;
        }
        Ok(())
    }

    /// The scratch, 256-byte aligned. Contents are undefined.
    pub(crate) fn scratch(&self, gpu: &Gpu) -> CUdeviceptr {
        self.work.as_ref().map_or(0, |work| gpu.address(work))
    }

    /// Steps will have up to so many tokens, with so many numbers in the table of each.
    pub(crate) fn expect(&mut self, gpu: &Gpu, tokens: usize, numbers: usize) -> Result<()> {
        let words = tokens.checked_mul(2 + numbers).ok_or_else(|| gpu.no_memory(usize::MAX))?;
        if words > self.words {
            let before = std::mem::take(&mut self.words);
            self.tables.clear(); // they are freed in the queue's order
            match new_tables(gpu, words) {
                Ok(tables) => (self.tables, self.words) = (tables, words),
                Err(e) => {
                    // as in `reserve`
                    if let (true, Ok(tables)) = (before > 0, new_tables(gpu, before)) {
                        (self.tables, self.words) = (tables, before);
                    }
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// The tables of a step: sent by the first layer that asks, and found there by the others.
    pub(crate) fn tables(&mut self, gpu: &Gpu, batch: &Batch, rope: Option<(&Rope, &RopeSpec)>) -> Result<Tables> {
        self.steps += 1;
        let (step, spec) = (self.steps, rope.map(|r| r.1));
        let i = match self.tables.iter().position(|t| t.batch == batch && t.rope.as_ref() == spec) {
            Some(i) => i,
            None => self.fill(gpu, batch, rope)?,
        };
        self.tables[i].used = step;
        let places = gpu.address(&self.tables[i].device);
        Ok(Tables { places, rotations: places + 8 * batch.len() as u64 })
    }

    fn fill(&mut self, gpu: &Gpu, batch: &Batch, rope: Option<(&Rope, &RopeSpec)>) -> Result<usize> {
        let failed = |e| gpu.error(e);
        let spec = rope.map(|r| r.1);
        // the step before of the same sequences is over
        let follows = |t: &Table| {
            let next = |(old, new): (&BatchToken, &BatchToken)| old.seq == new.seq && old.pos + 1 == new.pos;
            t.batch.len() == batch.len() && t.rope.as_ref() == spec && t.batch.iter().zip(batch).all(next)
        };
        let i = match self.tables.iter().position(follows) {
            Some(i) => i,
            None => {
                let oldest = (0..self.tables.len()).min_by_key(|&i| self.tables[i].used);
                oldest.ok_or_else(|| Error::shape("a step", "a run that was opened", "none"))?
            }
        };
        let table = &mut self.tables[i];
        table.batch.clear(); // if this fails, nobody finds it
        table.done.wait().map_err(failed)?;
        let numbers = rope.map_or(0, |(rope, _)| rope.table_len());
        let words = &mut table.host.slice_mut()[..batch.len() * (2 + numbers)];
        let (places, rotations) = words.split_at_mut(2 * batch.len());
        places.chunks_exact_mut(2).zip(batch).for_each(|(to, t)| (to[0], to[1]) = (t.seq, t.pos));
        if let Some((rope, _)) = rope {
            let row = &mut self.row;
            row.resize(numbers, 0.0);
            for (to, t) in rotations.chunks_exact_mut(numbers.max(1)).zip(batch) {
                rope.table(t.pos, row);
                to.iter_mut().zip(&*row).for_each(|(to, v)| *to = v.to_bits());
            }
        }
        let stream = gpu.stream()?;
        gpu.context.bind_to_thread().map_err(failed)?;
        // SAFETY: `expect` made room for these words on both sides; `done` keeps them from being written before they are sent.
        unsafe { result::memcpy_htod_async(gpu.address(&table.device), words, stream.cu_stream()) }.map_err(failed)?;
        table.done.record(stream).map_err(failed)?;
        table.batch.extend_from_slice(batch);
        table.rope = spec.cloned();
        Ok(i)
    }
}
