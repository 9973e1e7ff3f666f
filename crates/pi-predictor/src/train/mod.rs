//! Training of predictors (paper §5.1): two matrices with a ReLU between them, fitted to what was seen to fire.
//!
//! [`Samples`] holds what a layer's predictor would have got, and which neurons fired then. [`fit`] trains matrices of one rank,
//! [`Curve`] says how good they are at any threshold. Which rank and threshold a layer gets is decided by whoever can measure
//! what they cost and save.

mod adam;
mod curve;
mod fit;
mod samples;

pub use curve::{Curve, Point};
pub use fit::{FitOptions, Fitted, fit};
pub use samples::Samples;
