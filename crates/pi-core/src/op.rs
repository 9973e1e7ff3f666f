//! The operators a model is made of.
//!
//! Weights are shared and immutable; a *run* owns what changes: scratch memory, queues and the KV cache. So one engine serves
//! many sessions, each with runs of its own.

use crate::{ActiveSet, Error, Hidden, NeuronSet, Result};
use std::sync::Arc;

/// What happens to the old contents of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `y = f(x)`.
    Set,
    /// `y += f(x)`: a residual connection costs no extra pass.
    Add,
}

/// One token of a step: which conversation it belongs to, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchToken {
    /// The sequence (conversation), below [`Limits::sequences`].
    pub seq: u32,
    /// Position in the sequence, from 0. It must be the sequence's next one.
    pub pos: u32,
}

/// The tokens of a step, in any mixture of sequences; within a sequence in order.
pub type Batch = [BatchToken];

/// What a run must be able to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens per step.
    pub tokens: usize,
    /// Sequences at the same time.
    pub sequences: usize,
    /// Positions per sequence.
    pub context: usize,
}

impl Limits {
    /// Checks the batch of a step whose input has `rows` rows, where `len` is how many positions a sequence has.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is no token for each row, or a position is not the next of its sequence; [`Error::Limit`] beyond
    /// the limits.
    pub fn check(&self, batch: &Batch, rows: usize, len: impl Fn(usize) -> usize) -> Result<()> {
        if batch.len() != rows {
            return Err(Error::shape("batch", format!("{} tokens", rows), batch.len()));
        }
        if batch.len() > self.tokens {
            return Err(Error::Limit { what: "tokens per step".into(), limit: self.tokens, got: batch.len() });
        }
        for (i, t) in batch.iter().enumerate() {
            let seq = t.seq as usize;
            if seq >= self.sequences {
                return Err(Error::Limit { what: "sequences".into(), limit: self.sequences, got: seq + 1 });
            }
            let pos = t.pos as usize;
            if pos >= self.context {
                return Err(Error::Limit { what: "positions of a sequence".into(), limit: self.context, got: pos + 1 });
            }
            let before = batch[..i].iter().rev().find(|o| o.seq == t.seq).map_or(len(seq), |o| o.pos as usize + 1);
            if pos != before {
                return Err(Error::shape(format!("position in sequence {seq}"), before, pos));
            }
        }
        Ok(())
    }
}

/// What an operator did since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Bytes of weights and cache read.
    pub bytes: u64,
    /// Neurons × tokens that could have fired.
    pub neurons: u64,
    /// Neurons × tokens that a predictor let through; all of them where there is none.
    pub marked: u64,
    /// Neurons × tokens that contributed: marked, and with a gate that fires where idle neurons are left out.
    pub active: u64,
    /// Neurons × tokens that were computed without a look at single neurons, because so many were expected to be active.
    pub dense: u64,
}

impl std::ops::AddAssign for OpStats {
    fn add_assign(&mut self, o: Self) {
        self.bytes += o.bytes;
        self.neurons += o.neurons;
        self.marked += o.marked;
        self.active += o.active;
        self.dense += o.dense;
    }
}

/// A row-wise function with fixed weights: a matrix or a norm.
pub trait Dense: Send + Sync {
    /// Computes `y` from `x`, row by row. `y` is resized to the rows of `x` when it is [set](Write::Set).
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if widths do not fit; whatever the device reports.
    fn apply(&self, x: &mut Hidden, y: &mut Hidden, how: Write) -> Result<()>;
    /// Bytes of weights that one call reads.
    fn bytes(&self) -> u64;
}

/// Attention with its projections.
pub trait Attention: Send + Sync {
    /// Opens a run with an empty KV cache.
    ///
    /// # Errors
    /// If the device has no memory for these limits.
    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn AttentionRun>>;
}

/// Attention of one session: owns the keys and values of its sequences.
pub trait AttentionRun: Send {
    /// Appends the batch's keys and values, then lets every token attend to its sequence up to itself.
    ///
    /// # Errors
    /// [`crate::Error::Limit`] beyond the limits, [`crate::Error::Shape`] if a position is not the next of its sequence.
    fn apply(&mut self, x: &mut Hidden, batch: &Batch, y: &mut Hidden, how: Write) -> Result<()>;
    /// Forgets the positions of `seq` from `len` on.
    fn truncate(&mut self, seq: u32, len: usize);
    /// What was done since the last call.
    fn take_stats(&mut self) -> OpStats;
}

/// The part of an FFN that one device computes: "add what my neurons contribute" (paper §5).
pub trait SparseFfn: Send + Sync {
    /// The neurons this operator owns.
    fn neurons(&self) -> &NeuronSet;
    /// Opens a run.
    ///
    /// # Errors
    /// If the device has no memory for these limits.
    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn FfnRun>>;
}

/// An FFN operator in a session. `submit` and `collect` alternate.
pub trait FfnRun: Send {
    /// Starts `Σ` over the owned neurons that are in `active`; may return before the work is done.
    ///
    /// # Errors
    /// As [`Dense::apply`].
    fn submit(&mut self, x: &mut Hidden, active: &mut ActiveSet) -> Result<()>;
    /// Waits for the work and sets or adds the result.
    ///
    /// # Errors
    /// As [`Dense::apply`].
    fn collect(&mut self, y: &mut Hidden, how: Write) -> Result<()>;
    /// What each owned neuron contributed with in the last step, `[tokens, owned neurons]`: 0 where it did not fire. For
    /// profiling and training; valid after [`submit`](Self::submit).
    ///
    /// # Errors
    /// If the numbers are on a device that fails.
    fn values(&mut self) -> Result<&mut Hidden>;
    /// What was done since the last call.
    fn take_stats(&mut self) -> OpStats;
}
