//! One layer: its operators, and what a session keeps for it.

use crate::{
    Result,
    hybrid::{PartRuns, Parts},
    schedule::LayerShape,
};
use pi_core::{Attention, AttentionRun, Dense, Limits, Matrix, OpStats, Predictor, PredictorRun};
use std::sync::Arc;

/// The operators of a layer, shared by all sessions.
#[derive(Clone)]
pub(crate) struct Layer {
    pub norm1: Arc<dyn Dense>,
    pub attention: Arc<dyn Attention>,
    pub norm2: Arc<dyn Dense>,
    pub ffn: Parts,
    pub predictor: Option<Arc<dyn Predictor>>,
    /// Where they are.
    pub shape: LayerShape,
    /// The matrix that says which neurons fire: what a predictor saves reading.
    #[cfg_attr(not(feature = "train"), expect(dead_code))]
    pub gate: Matrix,
}

/// What a session keeps for a layer.
pub(crate) struct LayerRun {
    pub attention: Box<dyn AttentionRun>,
    pub ffn: PartRuns,
    pub predictor: Option<Box<dyn PredictorRun>>,
    pub counts: LayerCounts,
}

/// Neurons × tokens of a layer since a session counts.
#[derive(Clone, Copy, Default)]
pub(crate) struct LayerCounts {
    pub marked: u64,
    pub active: u64,
    pub dense: u64,
    pub neurons: u64,
}

impl LayerRun {
    pub(crate) fn open(layer: &Layer, limits: &Limits) -> Result<Self> {
        Ok(Self {
            attention: layer.attention.clone().open(limits)?,
            ffn: PartRuns::open(&layer.ffn, limits)?,
            predictor: layer.predictor.clone().map(|p| p.open(limits)).transpose()?,
            counts: LayerCounts::default(),
        })
    }

    pub(crate) fn take_stats(&mut self) -> OpStats {
        let ffn = self.ffn.take_stats();
        self.counts.marked += ffn.marked;
        self.counts.active += ffn.active;
        self.counts.dense += ffn.dense;
        self.counts.neurons += ffn.neurons;
        let mut stats = ffn;
        stats += self.attention.take_stats();
        stats
    }
}

/// Looks on while steps are computed: for profiling, for training predictors, for tests.
pub trait Observer {
    /// What a layer's predictor gets: the residual stream `h` and the FFN's input `x`, rows of `dim` numbers.
    fn inputs(&mut self, layer: usize, h: &[f32], x: &[f32]);
    /// What each neuron of the layer contributed with, a row per token: 0 where it did not fire.
    fn values(&mut self, layer: usize, values: &[f32]);
}
