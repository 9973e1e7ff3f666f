//! Synthetic models: random weights of a given shape, whose neurons fire as often as asked.
//!
//! [`SynthModel`] says what is wanted, [`SynthModel::create`] writes it to a file and [`SynthModel::write`] to anything; the
//! [`Report`] says what was measured. No more than a few megabytes of a matrix are in memory at a time, so models far larger
//! than memory can be written. The same request gives the same bytes with any number of threads.
//!
//! # How it is made
//!
//! - The first 32 channels of the residual stream hold the same number for every token and in every layer: embeddings set it,
//!   attention and down matrices leave it alone, other matrices do not look at it. What a gate row has there is its bias. As
//!   the 32 weights are equal, every block format stores them exactly or nearly so.
//! - A gate row is a sum of a few directions and of noise: `g = Σ a·b + n`. The directions are those of the predictor's first
//!   layer, as its type stores them; the noise is what the predictor cannot see.
//! - Neuron `i` is to fire where its input exceeds `t_i` of its standard deviations. The `t_i` are the quantiles of a normal
//!   distribution, whose deviation follows from the skew and whose mean follows from the share ([`Thresholds`]).
//! - The model is computed while it is written: every layer sees the hidden states of a text of random tokens, as the stored
//!   (quantised) weights of the layers before give them. From the inputs of a stored gate row over these tokens follows the
//!   bias. Another text, which plays no part in that, tells what came out.
//!
//! # What it does not do
//!
//! The norms' weights are 1 and their biases 0, so that the construction stays readable. The text is gibberish. The weights
//! are not those of a trained model in any other respect: perplexity and quality of quantisation mean nothing here.

mod attention;
mod error;
mod layer;
mod layout;
mod math;
mod model;
mod neurons;
mod predictor;
mod shape;
mod stream;
mod text;
mod thresholds;
mod vocab;
mod write;

pub use error::{Result, SynthError};
pub use model::SynthModel;
pub use shape::{Family, Preset, Shape};
pub use thresholds::{Thresholds, expected_recall};
pub use write::{LayerReport, Options, Progress, Report, Watcher};
