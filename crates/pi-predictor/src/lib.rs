//! Predictors: which neurons of an FFN layer may fire, said before the layer is computed.
//!
//! | predictor | reads | is wrong |
//! |---|---|---|
//! | [`Mlp`] | two small matrices, trained for the layer (paper §5.1) | sometimes |
//! | [`Sign`] | one bit per weight of the gate; nothing is trained (SparseInfer, arXiv 2411.12692) | sometimes |
//! | [`Oracle`] | the whole gate | never: for tests, and as the upper bound of what a predictor can gain |
//!
//! All implement [`pi_core::Predictor`]. [`Mlp`] is the plain form, on any CPU and exact; devices have fast ones
//! ([`pi_core::Device::mlp`]). The others run on the CPU.
//!
//! A [`Profile`](profile::Profile) says how often each neuron fires along texts, which is what predictors and placements start from.
//!
//! ```
//! use pi_core::{ActiveSet, Hidden, Limits, Matrix, Predictor, QuantType, Serial};
//! use pi_predictor::Sign;
//! use std::sync::Arc;
//!
//! // two neurons: one likes what the input is, the other dislikes it
//! let gate = Matrix::encode("gate", QuantType::F32, 2, 4, &[1.0, 2.0, -1.0, 3.0, -1.0, -2.0, 1.0, 1.0])?;
//! let sign = Arc::new(Sign::new(&gate, 0.0, Arc::new(Serial))?);
//! let mut run = sign.open(&Limits { tokens: 1, sequences: 1, context: 1 })?;
//! let (mut h, mut x, mut active) = (Hidden::new(1, 4), Hidden::new(1, 4), ActiveSet::new(1, 2));
//! x.host_mut()?.copy_from_slice(&[1.0, 1.0, -1.0, 1.0]);
//! run.mark(&mut h, &mut x, &mut active)?;
//! assert_eq!(active.host()?, Some(&[0b01][..]));
//! # Ok::<(), pi_core::Error>(())
//! ```
//!
//! What it does not do: load models, or decide which predictor a layer gets.

mod mlp;
mod oracle;
mod popcount;
pub mod profile;
mod sign;
#[cfg(feature = "train")]
pub mod train;
mod words;

pub use mlp::Mlp;
pub use oracle::Oracle;
pub use sign::{Sign, pack_signs};
