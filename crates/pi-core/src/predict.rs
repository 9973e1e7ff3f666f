//! Predictors: which neurons of a layer may fire, said before the FFN is computed (paper §3.2 and §5.1).

use crate::{ActiveSet, Error, Hidden, Limits, Matrix, Result};
use std::sync::Arc;

/// Says which neurons of one layer may fire.
pub trait Predictor: Send + Sync {
    /// What it is, as in `mlp` or `sign`.
    fn kind(&self) -> &str;
    /// Width of the residual stream.
    fn dim(&self) -> usize;
    /// Neurons of the layer.
    fn neurons(&self) -> usize;
    /// Bytes that one call reads.
    fn bytes(&self) -> u64;
    /// Opens a run.
    ///
    /// # Errors
    /// If there is no memory for these limits.
    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn PredictorRun>>;
}

/// The four answers of a [`Predictor`] that are those of another one, its field: for predictors that watch, move or delay what the other
/// does. `open` remains to be written.
///
/// ```
/// use pi_core::{Limits, Predictor, PredictorRun, Result, answers_of};
/// use std::sync::Arc;
///
/// struct Named(Arc<dyn Predictor>);
///
/// impl Predictor for Named {
///     answers_of!(0);
///     fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn PredictorRun>> {
///         self.0.clone().open(limits)
///     }
/// }
/// ```
#[macro_export]
macro_rules! answers_of {
    ($field:tt) => {
        fn kind(&self) -> &str {
            self.$field.kind()
        }

        fn dim(&self) -> usize {
            self.$field.dim()
        }

        fn neurons(&self) -> usize {
            self.$field.neurons()
        }

        fn bytes(&self) -> u64 {
            self.$field.bytes()
        }
    };
}

/// A predictor in a session: owns its scratch memory.
pub trait PredictorRun: Send {
    /// Marks for each token the neurons that may fire. Both inputs are `[tokens, dim]`: `h` is the residual stream before the
    /// FFN's norm (of parallel layers, the layer's input), which PowerInfer's predictors read; `x` is what the FFN reads.
    ///
    /// # Errors
    /// [`Error::Shape`] if widths do not fit; whatever the device reports.
    fn mark(&mut self, h: &mut Hidden, x: &mut Hidden, active: &mut ActiveSet) -> Result<()>;
}

/// A predictor of two matrices: neuron `i` may fire if `(fc2 · relu(fc1 · h))[i] >= threshold`. A device may round the inputs of
/// both matrices to what it encodes inputs as, and those of F16 matrices to F16.
#[derive(Clone, Debug)]
pub struct MlpSpec {
    /// `[rank, dim]`.
    pub fc1: Matrix,
    /// `[neurons, rank]`.
    pub fc2: Matrix,
    /// On the plain output: there is no sigmoid.
    pub threshold: f32,
}

impl MlpSpec {
    /// Checks that the matrices fit each other.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the matrix; [`Error::Unsupported`] if the threshold is NaN.
    pub fn check(&self) -> Result<()> {
        if self.threshold.is_nan() {
            return Err(Error::unsupported(
                format!("a threshold of NaN for {}", self.fc2.name()),
                "it compares with nothing",
            ));
        }
        self.fc2.expect_shape(self.fc2.rows(), self.fc1.rows())
    }
}
