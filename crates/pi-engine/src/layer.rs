//! One layer: its operators, what a session keeps for it, and the five calls a family puts in order.

use crate::{Error, Result};
use pi_core::{
    ActiveSet, Attention, AttentionRun, Batch, Dense, FfnRun, Hidden, Limits, Matrix, OpStats, Predictor, PredictorRun,
    SparseFfn, Write,
};
use std::sync::Arc;

/// The operators of a layer, shared by all sessions.
#[derive(Clone)]
pub struct Layer {
    pub(crate) norm1: Arc<dyn Dense>,
    pub(crate) attention: Arc<dyn Attention>,
    pub(crate) norm2: Arc<dyn Dense>,
    pub(crate) ffn: Arc<dyn SparseFfn>,
    pub(crate) predictor: Option<Arc<dyn Predictor>>,
    /// The matrix that says which neurons fire: what a predictor saves reading.
    #[cfg_attr(not(feature = "train"), expect(dead_code))]
    pub(crate) gate: Matrix,
}

/// What a session keeps for a layer.
pub(crate) struct LayerRun {
    pub attention: Box<dyn AttentionRun>,
    pub ffn: Box<dyn FfnRun>,
    pub predictor: Option<Box<dyn PredictorRun>>,
    pub marked: u64,
    pub active: u64,
    pub dense: u64,
    pub neurons: u64,
}

impl LayerRun {
    pub(crate) fn open(layer: &Layer, limits: &Limits) -> Result<Self> {
        Ok(Self {
            attention: layer.attention.clone().open(limits)?,
            ffn: layer.ffn.clone().open(limits)?,
            predictor: layer.predictor.clone().map(|p| p.open(limits)).transpose()?,
            marked: 0,
            active: 0,
            dense: 0,
            neurons: 0,
        })
    }

    pub(crate) fn take_stats(&mut self) -> OpStats {
        let ffn = self.ffn.take_stats();
        self.marked += ffn.marked;
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
    pub(crate) observer: Option<&'a mut dyn Observer>,
    pub(crate) bytes: &'a mut u64,
}

/// Looks on while steps are computed: for profiling, for training predictors, for tests.
pub trait Observer {
    /// What a layer's predictor gets: the residual stream `h` and the FFN's input `x`, rows of `dim` numbers.
    fn inputs(&mut self, layer: usize, h: &[f32], x: &[f32]);
    /// What each neuron of the layer contributed with, a row per token: 0 where it did not fire.
    fn values(&mut self, layer: usize, values: &[f32]);
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
        *self.bytes += self.layer.norm1.bytes();
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

    /// Marks the neurons that may fire, from `h`, which no branch of the layer may have changed yet, or from `x = norm2(h)`.
    /// Without a predictor that is all of them.
    ///
    /// # Errors
    /// Whatever the predictor reports.
    pub fn mark(&mut self) -> Result<()> {
        if let Some(observer) = &mut self.observer {
            observer.inputs(self.index, self.h.host()?, self.x.host()?);
        }
        match (&mut self.run.predictor, &self.layer.predictor) {
            (Some(run), Some(predictor)) => {
                run.mark(self.h, self.x, self.active)?;
                *self.bytes += predictor.bytes();
            }
            _ => self.active.set_all(self.batch.len())?,
        }
        Ok(())
    }

    /// `x = norm2(h)`.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn norm2(&mut self) -> Result<()> {
        *self.bytes += self.layer.norm2.bytes();
        Ok(self.layer.norm2.apply(self.h, self.x, Write::Set)?)
    }

    /// Whether [`norm1`](Self::norm1) and [`norm2`](Self::norm2) are one.
    pub fn shares_norm(&self) -> bool {
        Arc::ptr_eq(&self.layer.norm1, &self.layer.norm2)
    }

    /// `h += ffn(x)` over the marked neurons.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn ffn(&mut self) -> Result<()> {
        self.start_ffn()?;
        self.finish_ffn()
    }

    /// The first half of [`ffn`](Self::ffn): takes `x`, which may be changed then.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn start_ffn(&mut self) -> Result<()> {
        self.run.ffn.submit(self.x, self.active)?;
        if let Some(observer) = &mut self.observer {
            observer.values(self.index, self.run.ffn.values()?.host()?);
        }
        Ok(())
    }

    /// The second half: adds the result to `h`.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn finish_ffn(&mut self) -> Result<()> {
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
