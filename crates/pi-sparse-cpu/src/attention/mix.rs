//! Softmax(q·k)·v over blocks of queries and keys.
//!
//! A *task* has the query heads of one key/value head for a few tokens of one sequence. It goes over the keys in blocks of
//! [`BLOCK`] positions, which are decoded to f32 once for all rows of the task, and keeps a running softmax per row. Every
//! [`SEGMENT`] positions a softmax of its own begins; segments are merged in order. Blocks and segments are cut at absolute
//! positions, so a row's bits depend on nothing but its position and what it sees: not on the batch, the threads, or on
//! whether the segments of a long context were computed one after the other or side by side.

use super::kernels::{AttentionKernels, BLOCK, LANES, Softmax};
use crate::kv::KvStore;
use std::sync::{Mutex, TryLockError};

/// Positions that can be computed by different threads.
pub(super) const SEGMENT: usize = 4 * BLOCK;
/// Rows of a task: enough that decoding keys and values does not count, few enough that they stay in the nearest caches.
const ROWS: usize = 64;

/// Tokens of a task, for `group` query heads per key/value head.
pub(super) fn tokens_per_task(group: usize) -> usize {
    (ROWS / group).max(1)
}

/// What does not change from task to task.
pub(super) struct Mixer<'a> {
    pub kernels: &'a AttentionKernels,
    pub keys: &'a KvStore,
    pub values: &'a KvStore,
    pub decode_key: fn(&[u8], &mut [f32]),
    pub decode_value: fn(&[u8], &mut [f32]),
    pub head_dim: usize,
}

/// The query heads of key/value head `head` for tokens at positions `pos`, `pos + 1`, … of sequence `seq`.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub seq: usize,
    pub head: usize,
    pub pos: usize,
    pub group: usize,
}

/// Memory of a running task.
pub(super) struct Scratch {
    q: Vec<f32>,
    /// A block of keys, then of values.
    block: Vec<f32>,
    scores: Vec<f32>,
    seen: Vec<usize>,
    fade: Vec<f32>,
    /// Sums of the segment at hand, and of those before.
    part: Vec<f32>,
    total: Vec<f32>,
    part_state: Vec<Softmax>,
    total_state: Vec<Softmax>,
}

impl Scratch {
    pub(super) fn new(group: usize, head_dim: usize) -> Self {
        let (rows, width) = (tokens_per_task(group) * group, head_dim.next_multiple_of(LANES));
        Self {
            q: vec![0.0; rows * width],
            block: vec![0.0; BLOCK * width],
            scores: vec![0.0; rows * BLOCK],
            seen: vec![0; rows],
            fade: vec![0.0; rows],
            part: vec![0.0; rows * width],
            total: vec![0.0; rows * width],
            part_state: vec![Softmax::NOTHING; rows],
            total_state: vec![Softmax::NOTHING; rows],
        }
    }

    /// Takes over queries: `row(r)` is row `r`.
    pub(super) fn queries<'q>(&mut self, rows: usize, head_dim: usize, scale: f32, row: impl Fn(usize) -> &'q [f32]) {
        let width = head_dim.next_multiple_of(LANES);
        for (r, to) in self.q.chunks_exact_mut(width).enumerate().take(rows) {
            to.iter_mut().zip(row(r)).for_each(|(to, q)| *to = q * scale);
        }
    }
}

/// One [`Scratch`] per thread that can be at work.
pub(super) struct Scratches {
    all: Vec<Mutex<Scratch>>,
    make: (usize, usize),
}

impl Scratches {
    pub(super) fn new(threads: usize, group: usize, head_dim: usize) -> Self {
        let all = (0..threads.max(1)).map(|_| Mutex::new(Scratch::new(group, head_dim))).collect();
        Self { all, make: (group, head_dim) }
    }

    /// Calls `f` with one that is free; where an executor has more tasks at work than it said, with a new one.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Scratch) -> R) -> R {
        for scratch in &self.all {
            match scratch.try_lock() {
                Ok(mut scratch) => return f(&mut scratch),
                // Its user panicked; nothing in it is kept from task to task.
                Err(TryLockError::Poisoned(e)) => return f(&mut e.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        f(&mut Scratch::new(self.make.0, self.make.1))
    }
}

impl Mixer<'_> {
    fn width(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// All segments of `rows` rows whose queries are in `s`; `emit(r, row)` takes the results.
    pub(super) fn whole(&self, s: &mut Scratch, at: Place, rows: usize, mut emit: impl FnMut(usize, &[f32])) {
        let (width, len) = (self.width(), at.pos + rows / at.group);
        for segment in 0..len.div_ceil(SEGMENT) {
            let from = segment * SEGMENT;
            let first = self.segment(s, at, rows, from);
            if segment == 0 {
                std::mem::swap(&mut s.part, &mut s.total);
                std::mem::swap(&mut s.part_state, &mut s.total_state);
                continue;
            }
            for r in first..rows {
                let row = r * width..(r + 1) * width;
                merge(&mut s.total[row.clone()], &mut s.total_state[r], &s.part[row], s.part_state[r]);
            }
        }
        for r in 0..rows {
            let row = &mut s.total[r * width..][..self.head_dim];
            finish(row, s.total_state[r]);
            emit(r, row);
        }
    }

    /// One segment of one token's rows. Each row of `out` gets its sums, then its softmax: `head_dim + 2` numbers.
    pub(super) fn part(&self, s: &mut Scratch, at: Place, segment: usize, out: &mut [f32]) {
        self.segment(s, at, at.group, segment * SEGMENT);
        let rows = s.part.chunks_exact(self.width()).zip(&s.part_state);
        for ((row, state), out) in rows.zip(out.chunks_exact_mut(self.head_dim + 2)) {
            out[..self.head_dim].copy_from_slice(&row[..self.head_dim]);
            out[self.head_dim..].copy_from_slice(&[state.max, state.sum]);
        }
    }

    /// Merges what [`part`](Self::part) left for one row, segment by segment.
    pub(super) fn merged<'p>(&self, parts: impl Iterator<Item = &'p [f32]>, out: &mut [f32]) {
        let mut total = Softmax::NOTHING;
        for (segment, part) in parts.enumerate() {
            let (row, state) = part.split_at(self.head_dim);
            let state = Softmax { max: state[0], sum: state[1] };
            if segment == 0 {
                out.copy_from_slice(row);
                total = state;
            } else {
                merge(out, &mut total, row, state);
            }
        }
        finish(out, total);
    }

    /// The segment that begins at position `from`, into `s.part`. Returns the first row that sees any of it.
    fn segment(&self, s: &mut Scratch, at: Place, rows: usize, from: usize) -> usize {
        let (width, len) = (self.width(), at.pos + rows / at.group);
        let first = |from: usize| from.saturating_sub(at.pos) * at.group;
        s.part[..rows * width].fill(0.0);
        s.part_state[..rows].fill(Softmax::NOTHING);
        for from in (from..len.min(from + SEGMENT)).step_by(BLOCK) {
            let to = (from + BLOCK).min(len);
            // Rows are in the order of their positions: those that come before the block see nothing of it.
            let (r0, n) = (first(from), to - from);
            for r in r0..rows {
                s.seen[r] = (at.pos + r / at.group + 1 - from).min(BLOCK);
            }
            let (seen, fade) = (&s.seen[r0..rows], &mut s.fade[r0..rows]);
            let (q, scores) = (&s.q[r0 * width..rows * width], &mut s.scores[r0 * BLOCK..rows * BLOCK]);
            let k = self.kernels;
            self.decode(self.decode_key, self.keys.rows(at.seq, at.head, from, to), n, &mut s.block);
            (k.scores)(q, &s.block, width, seen, scores);
            (k.weights)(scores, seen, &mut s.part_state[r0..rows], fade);
            self.decode(self.decode_value, self.values.rows(at.seq, at.head, from, to), n, &mut s.block);
            (k.mix)(scores, &s.block, width, seen, fade, &mut s.part[r0 * width..rows * width]);
        }
        first(from)
    }

    /// `n` rows to f32, each filled up with zeros (which are there from the beginning and never overwritten).
    fn decode(&self, decode: fn(&[u8], &mut [f32]), rows: &[u8], n: usize, out: &mut [f32]) {
        let width = self.width();
        if width == self.head_dim {
            decode(rows, &mut out[..n * width]);
            return;
        }
        for (row, out) in rows.chunks_exact(rows.len() / n.max(1)).zip(out.chunks_exact_mut(width)) {
            decode(row, &mut out[..self.head_dim]);
        }
    }
}

/// Adds the sums of a later segment to those before.
fn merge(out: &mut [f32], state: &mut Softmax, part: &[f32], other: Softmax) {
    let max = state.max.max(other.max);
    let (a, b) = ((state.max - max).exp(), (other.max - max).exp());
    out.iter_mut().zip(part).for_each(|(o, p)| *o = *o * a + p * b);
    *state = Softmax { max, sum: state.sum * a + other.sum * b };
}

fn finish(out: &mut [f32], state: Softmax) {
    let norm = 1.0 / state.sum;
    out.iter_mut().for_each(|o| *o *= norm);
}
