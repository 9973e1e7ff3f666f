//! Runs language models from GGUF files, computing only the neurons that fire.
//!
//! An [`Engine`] is a loaded model: immutable, `Send + Sync`, shared. A [`Session`] holds what changes: sequences of tokens with
//! their KV caches. Operators come from a [`Device`](pi_core::Device) — the CPU's by default — and everything can be replaced
//! through the [`EngineBuilder`]: single kernels, the device, the weights' source.
//!
//! ```no_run
//! use pi_engine::{Engine, GenerateOptions, SessionOptions};
//! use std::ops::ControlFlow;
//!
//! let engine = Engine::open("model.gguf")?;
//! let mut session = engine.session(&SessionOptions::default())?;
//! let prompt = engine.encode_prompt("Once upon a time")?;
//! session.generate(0, &prompt, &GenerateOptions::default(), &mut |text: &str| {
//!     print!("{text}");
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), pi_engine::Error>(())
//! ```
//!
//! What it does not do: serve HTTP, render chat templates, train predictors.

pub mod arch;
pub mod config;
mod constraint;
pub mod costs;
mod engine;
mod error;
pub mod evaluate;
mod fallback;
mod generate;
mod hybrid;
mod inspect;
mod layer;
mod likeness;
mod load;
mod model;
mod plan;
pub mod planner;
mod positions;
mod predictors;
pub mod profile;
pub mod sampler;
pub mod schedule;
mod session;
mod source;
mod sparsity;
mod step;
mod stop;
mod stream;
pub mod tokenizer;
#[cfg(feature = "train")]
pub mod train;
mod turn;
mod watched;

pub use config::{ModelConfig, NormKind};
pub use constraint::{Constrained, Constraint};
pub use engine::{Engine, EngineBuilder};
pub use error::{Error, Result};
pub use fallback::OnDeviceLoss;
pub use generate::{GenerateOptions, Generated, Sink, StopReason};
pub use inspect::{LayerPredictor, ModelReport, PredictorForm, PredictorReport, inspect, is_predictors};
pub use layer::Observer;
pub use plan::{LayerPlan, Plan, Side};
pub use predictors::{KINDS, MARGINS, Predictors, THRESHOLD, THRESHOLDS};
pub use sampler::{Sampler, SamplingParams};
pub use schedule::Schedule;
pub use session::{Session, SessionOptions, Stats, StepToken};
pub use source::WeightSource;
pub use sparsity::{Sparsity, SparsityReport};
pub use stream::Streaming;
pub use turn::Turn;

pub use pi_core;
pub use pi_gguf;
pub use pi_placement;
pub use pi_predictor;
pub use pi_sparse_cpu;
