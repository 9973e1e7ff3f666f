//! One layer: its operators, what a session keeps for it, and the five calls a family puts in order.

use crate::{Error, Result};
use pi_core::{ActiveSet, Attention, AttentionRun, Batch, Dense, FfnRun, Hidden, Limits, OpStats, SparseFfn, Write};
use std::sync::Arc;

/// The operators of a layer, shared by all sessions.
pub struct Layer {
    pub(crate) norm1: Arc<dyn Dense>,
    pub(crate) attention: Arc<dyn Attention>,
    pub(crate) norm2: Arc<dyn Dense>,
    pub(crate) ffn: Arc<dyn SparseFfn>,
}

/// What a session keeps for a layer.
pub(crate) struct LayerRun {
    pub attention: Box<dyn AttentionRun>,
    pub ffn: Box<dyn FfnRun>,
    pub active: u64,
    pub dense: u64,
    pub neurons: u64,
}

impl LayerRun {
    pub(crate) fn open(layer: &Layer, limits: &Limits) -> Result<Self> {
        Ok(Self {
            attention: layer.attention.clone().open(limits)?,
            ffn: layer.ffn.clone().open(limits)?,
            active: 0,
            dense: 0,
            neurons: 0,
        })
    }

    pub(crate) fn take_stats(&mut self) -> OpStats {
        let ffn = self.ffn.take_stats();
        self.active += ffn.active;
        self.dense += ffn.dense;
        self.neurons += ffn.neurons;
        let mut stats = ffn;
        stats += self.attention.take_stats();
        stats
    }
}

/// A layer at work on the tokens of one step. The calls read and write the residual stream `h`.
pub struct LayerStep<'a> {
    pub(crate) layer: &'a Layer,
    pub(crate) run: &'a mut LayerRun,
    pub(crate) index: usize,
    pub(crate) h: &'a mut Hidden,
    pub(crate) x: &'a mut Hidden,
    pub(crate) active: &'a mut ActiveSet,
    pub(crate) batch: &'a Batch,
    pub(crate) check: bool,
}

impl LayerStep<'_> {
    /// The layer's number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// `x = norm1(h)`.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn norm1(&mut self) -> Result<()> {
        Ok(self.layer.norm1.apply(self.h, self.x, Write::Set)?)
    }

    /// `h += attention(x)`.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn attention(&mut self) -> Result<()> {
        self.run.attention.apply(self.x, self.batch, self.h, Write::Add)?;
        self.finite("attention")
    }

    /// Marks the neurons that may fire, from `h`. Without a predictor that is all of them.
    ///
    /// # Errors
    /// If there is no room for so many tokens.
    pub fn mark(&mut self) -> Result<()> {
        Ok(self.active.set_all(self.batch.len())?)
    }

    /// `x = norm2(h)`.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn norm2(&mut self) -> Result<()> {
        Ok(self.layer.norm2.apply(self.h, self.x, Write::Set)?)
    }

    /// `h += ffn(x)` over the marked neurons.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn ffn(&mut self) -> Result<()> {
        self.run.ffn.submit(self.x, self.active)?;
        self.run.ffn.collect(self.h, Write::Add)?;
        self.finite("ffn")
    }

    fn finite(&mut self, what: &'static str) -> Result<()> {
        if self.check && self.h.host()?.iter().any(|v| !v.is_finite()) {
            return Err(Error::NonFinite { what, layer: self.index });
        }
        Ok(())
    }
}
