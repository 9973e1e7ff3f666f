//! Which FFN neurons of a model live on the accelerator (the *device*), and which stay with the CPU (the *host*).
//!
//! A [`Problem`] says how often each neuron fires, what it costs on either side in bytes and seconds, what a synchronisation costs and
//! how much memory there is. A [`Solver`] makes a [`Placement`] of it: the hot neurons of each layer, what they are worth, and a
//! certified bound of what any other choice could be worth.
//!
//! | solver | maximises or minimises | |
//! |---|---|---|
//! | [`Exact::impact`] | impact on the device: the problem of the paper (arXiv 2312.12456, §6.3, equations 1–8) | structured, certified |
//! | [`Ilp`] | the same, written as the paper does | an integer linear program, features `ilp` and `highs` |
//! | [`Exact::time`] | expected time per token, `Σ max(host, device) + synchronisation` | structured, certified |
//! | [`Nothing`], [`InOrder`], [`Random`], [`Frequency`] | nothing: to compare with | |
//!
//! ```
//! use pi_placement::{Exact, LayerSpec, Memory, PerNeuron, Problem, Solver, SyncTime};
//!
//! // Two layers of four neurons: the first is skewed, the second is not. There is room for four neurons of 100 bytes.
//! let layer = |frequency: [f32; 4]| LayerSpec {
//!     neurons: 4,
//!     frequency: frequency.to_vec(),
//!     device: PerNeuron { bytes: 100, seconds: 1e-9 },
//!     host: PerNeuron { bytes: 100, seconds: 1e-8 },
//!     sync: SyncTime::host_layer(1e-8), // pays from two neurons on
//! };
//! let layers = vec![layer([0.1, 0.9, 0.8, 0.0]), layer([0.5, 0.4, 0.5, 0.4])];
//! let problem = Problem::new(layers, Memory::device(400), 1)?;
//! let placement = Exact::impact().solve(&problem)?;
//! assert_eq!(placement.layers[0].iter().collect::<Vec<_>>(), [1, 2]);
//! assert_eq!(placement.layers[1].iter().collect::<Vec<_>>(), [0, 2]);
//! assert_eq!(placement.gap(), Some(0.0));
//! # Ok::<(), pi_placement::Error>(())
//! ```
//!
//! What it does not do: measure the times, count activations (`pi-predictor`), or say what else needs the device's memory.

mod baseline;
mod cost;
mod dual;
mod error;
mod exact;
#[cfg(feature = "ilp")]
mod ilp;
mod placement;
mod problem;
mod search;
mod table;

pub use baseline::{Frequency, InOrder, Nothing, Random};
pub use error::{Error, Result};
pub use exact::Exact;
#[cfg(feature = "ilp")]
pub use ilp::{Backend, Ilp};
pub use placement::{Objective, Placement, Remark};
pub use problem::{DEFAULT_BATCH, Layer, LayerSpec, Memory, PerNeuron, Problem, SyncTime};

/// Chooses the hot neurons of a problem.
pub trait Solver: Send + Sync {
    /// A short name, for reports.
    fn name(&self) -> &str;

    /// A placement that keeps both memory limits.
    ///
    /// # Errors
    /// [`Error::Infeasible`] or [`Error::Undecided`] if there is none or none was found; [`Error::Backend`] if a foreign solver failed;
    /// [`Error::Exceeds`] from solvers that do not look at the host's limit.
    fn solve(&self, problem: &Problem) -> Result<Placement>;
}
