//! What can be wrong with a problem, and why there may be no placement.

/// Result of this crate's constructors and solvers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no problem, or no placement.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number is NaN, negative, infinite or otherwise out of its range.
    #[error("{what} of {place}: expected {expected}, got {got}")]
    Value {
        /// The quantity.
        what: &'static str,
        /// The layer, neuron or setting.
        place: String,
        /// What would have been accepted.
        expected: &'static str,
        /// What came.
        got: f64,
    },
    /// The statistics of a layer belong to another number of neurons.
    #[error("layer {layer}: {neurons} neurons, but statistics of {got}")]
    Length {
        /// The layer's place in the problem.
        layer: usize,
        /// Neurons that the layer has.
        neurons: usize,
        /// Frequencies that came.
        got: usize,
    },
    /// A set of layers or neurons belongs to another problem.
    #[error("the hot neurons of {place}: expected {expected}, got {got}")]
    Sets {
        /// The layer, or the model.
        place: String,
        /// Layers or neurons of the problem.
        expected: usize,
        /// Layers or neurons that came.
        got: usize,
    },
    /// A total cannot be counted in 63 bits.
    #[error("{what}: too many to count ({place})")]
    Overflow {
        /// What was added up.
        what: &'static str,
        /// Where it became too much.
        place: String,
    },
    /// No choice keeps the limits: proved.
    #[error("no placement keeps the limits: {why}")]
    Infeasible {
        /// The limit, and what is needed at least.
        why: String,
    },
    /// No choice that keeps the limits was found, and it was not proved that there is none.
    #[error("no placement found: {why}")]
    Undecided {
        /// What was tried, and what to change.
        why: String,
    },
    /// A solver that does not look at the limit of one side does not keep it.
    #[error("{solver} puts {used} bytes on the {side}, which has {limit}")]
    Exceeds {
        /// The solver's name.
        solver: String,
        /// "device" or "host".
        side: &'static str,
        /// Bytes of the neurons there.
        used: u64,
        /// Its limit.
        limit: u64,
    },
    /// The solver behind [`Ilp`](crate::Ilp) failed.
    #[error("solver {solver}: {message}")]
    Backend {
        /// Its name.
        solver: &'static str,
        /// What it reported.
        message: String,
    },
}
