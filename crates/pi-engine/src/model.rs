//! What is loaded: operators, and the schedule they are run by.

use crate::{
    arch::Architecture,
    layer::Layer,
    positions::Positions,
    schedule::{LayerShape, Schedule},
    sparsity::SparsityReport,
};
use pi_core::{Dense, Matrix};
use std::sync::Arc;

/// A loaded model: immutable, shared by all sessions.
#[derive(Clone)]
pub(crate) struct Model {
    pub embedding: Matrix,
    pub positions: Option<Positions>,
    pub layers: Vec<Layer>,
    /// What a step runs.
    pub schedule: Arc<Schedule>,
    pub norm: Arc<dyn Dense>,
    pub head: Arc<dyn Dense>,
    pub sparsity: SparsityReport,
    pub weight_bytes: u64,
    /// What predictors of their own file are told by. See [`likeness`](crate::likeness).
    #[cfg_attr(not(feature = "train"), expect(dead_code))]
    pub numbers: Arc<[f32]>,
}

impl Model {
    /// The same with a schedule for predictors that were put in.
    pub(crate) fn rescheduled(mut self, arch: &dyn Architecture) -> Self {
        let shapes: Vec<LayerShape> = self.layers.iter().map(|l| l.shape.clone()).collect();
        self.schedule = Arc::new(self.schedule.with_shapes(&shapes, |order| arch.layer(order)));
        self
    }
}
