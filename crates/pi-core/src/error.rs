//! What can go wrong at an operator or weight boundary.

use crate::QuantType;

/// Result of the operators and checks of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the core vocabulary. Every variant names the thing it is about.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape does not fit what it is used with.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// The tensor, operator or argument.
        what: String,
        /// What would have been accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// A row cannot be divided into whole quant blocks.
    #[error("{what}: rows of {cols} numbers cannot be stored as {ty} (blocks of {block})", block = ty.info().block_len)]
    Block {
        /// The tensor.
        what: String,
        /// Numbers per row.
        cols: usize,
        /// The type whose blocks do not divide the row.
        ty: QuantType,
    },
    /// Something valid that this device or operator cannot do.
    #[error("{what} is not supported: {why}")]
    Unsupported {
        /// The request.
        what: String,
        /// The reason, and what to do instead where there is something.
        why: String,
    },
    /// A limit agreed on when a run was opened would be exceeded.
    #[error("{what}: {got} exceeds the limit of {limit}")]
    Limit {
        /// The quantity.
        what: String,
        /// The agreed limit.
        limit: usize,
        /// The value asked for.
        got: usize,
    },
    /// A computation produced NaN or infinity where finite numbers are required.
    #[error("non-finite values in {what}")]
    NonFinite {
        /// The tensor or operator.
        what: String,
    },
    /// A device failed (out of memory, lost, driver error).
    #[error("device {device}: {message}")]
    Device {
        /// The device's name.
        device: String,
        /// What it reported.
        message: String,
    },
}

impl Error {
    /// An [`Error::Shape`].
    pub fn shape(what: impl Into<String>, expected: impl ToString, got: impl ToString) -> Self {
        Self::Shape { what: what.into(), expected: expected.to_string(), got: got.to_string() }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), why: why.into() }
    }
}
