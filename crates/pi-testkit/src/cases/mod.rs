//! Single operators to be timed: shapes, types and shares of active neurons.
//!
//! `pi bench` and the criterion benches use the same ones. A case makes its own weights, is compared with a reference by
//! [`Case::check`], and when it is [prepared](Case::prepare) can be stepped any number of times. Weights larger than the caches
//! would be read from them all the same if there was one copy of a small matrix; so a case can be given several copies that
//! take turns.
//!
//! ```
//! use pi_core::QuantType;
//! use pi_testkit::cases::{Case, Product};
//!
//! let case = Case::Product(Product { ty: QuantType::Q4_0, rows: 64, cols: 256, tokens: 1 });
//! assert_eq!(case.to_string(), "gemv Q4_0 64x256");
//! ```

mod attention;
mod ffn;
mod product;
mod weights;

pub use attention::Attention;
pub use ffn::{Ffn, Select};
pub use product::Product;

use pi_core::{Device, Error, Hidden, OpStats, QuantType, Result};
use std::fmt;

/// Most memory that copies of a case's weights may take.
const MOST: u64 = 2 << 30;

/// An operator at a certain type and shape.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Case {
    /// A matrix times one vector or several.
    Product(Product),
    /// An FFN of which some neurons are active.
    Ffn(Ffn),
    /// Attention to a context, with its projections.
    Attention(Attention),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Product(c) => c.fmt(f),
            Self::Ffn(c) => c.fmt(f),
            Self::Attention(c) => c.fmt(f),
        }
    }
}

impl Case {
    /// The type of the weights.
    pub fn ty(&self) -> QuantType {
        match self {
            Self::Product(c) => c.ty,
            Self::Ffn(c) => c.ty,
            Self::Attention(c) => c.ty,
        }
    }

    /// Fails if the shape cannot be: blocks of the type do not divide its rows, or heads cannot be grouped. Quick, so that a list of
    /// cases can be looked through before the first is timed.
    ///
    /// # Errors
    /// Naming what does not fit.
    pub fn fit(&self) -> Result<()> {
        match self {
            Self::Product(c) => blocks("w", c.ty, c.cols),
            Self::Ffn(c) => blocks("ffn", c.ty, c.dim),
            Self::Attention(c) => c.fit(),
        }
    }

    /// The operator with its weights and input on `device`. At least `cold` bytes are read between two reads of the same weights
    /// (or keys and values), as far as 2 GB of copies go; 0 makes one copy.
    ///
    /// # Errors
    /// Shapes that do not fit, or whatever the device reports.
    pub fn prepare(&self, device: &dyn Device, cold: u64) -> Result<Prepared> {
        match self {
            Self::Product(c) => c.prepare(device, cold),
            Self::Ffn(c) => c.prepare(device, cold),
            Self::Attention(c) => c.prepare(device, cold),
        }
    }

    /// Error allowed by [`check`](Self::check): 10⁻³ for float weights (keys and values may be kept in 16 bits), 0.02 for
    /// quantised ones, whose activations a device may round to 8 bits. (15 bits give 5·10⁻⁵.)
    pub fn tolerance(&self) -> f64 {
        if self.ty().is_float() && !matches!(self, Self::Attention(_)) { 1e-3 } else { 0.02 }
    }

    /// How far the outputs of two devices are apart, as a share of the length of `reference`'s.
    ///
    /// # Errors
    /// If it is more than [`tolerance`](Self::tolerance) or not a number, with the figures; if a device fails.
    pub fn check(&self, device: &dyn Device, reference: &dyn Device) -> std::result::Result<f64, String> {
        let output = |device: &dyn Device| -> Result<Vec<f32>> {
            let mut case = self.prepare(device, 0)?;
            case.step()?;
            Ok(case.output()?.to_vec())
        };
        let text = |e: Error| format!("{self}: {e}");
        let (got, want) = (output(device).map_err(text)?, output(reference).map_err(text)?);
        let error = distance(&got, &want);
        // Not `error > tolerance`, which NaN would pass.
        if error <= self.tolerance() && got.len() == want.len() {
            return Ok(error);
        }
        Err(format!("{self}: the result is off by {error:.2e} of its length, {:.0e} is allowed", self.tolerance()))
    }
}

fn distance(got: &[f32], want: &[f32]) -> f64 {
    let wide = |v: &f32| f64::from(*v);
    let off: f64 = got.iter().zip(want).map(|(a, b)| (wide(a) - wide(b)).powi(2)).sum();
    let length: f64 = want.iter().map(|v| wide(v).powi(2)).sum();
    if length == 0.0 && off == 0.0 { 0.0 } else { (off / length).sqrt() }
}

/// A turn's step; what it counted only if it is asked for, because a device may have to be waited for to know.
type Step = dyn FnMut(usize, &mut Hidden, bool) -> Result<OpStats>;

/// A case ready to run.
pub struct Prepared {
    step: Box<Step>,
    y: Hidden,
    at: usize,
    turns: usize,
    working_set: u64,
    macs: u64,
}

impl Prepared {
    fn new(y: Hidden, turns: usize, step: impl FnMut(usize, &mut Hidden, bool) -> Result<OpStats> + 'static) -> Self {
        Self { step: Box::new(step), y, at: 0, turns, working_set: 0, macs: 0 }
    }

    /// Runs the operator once, on the next copy of its weights. Input and output lie near the device, so one with a queue may not
    /// be done when this returns: [`output`](Self::output) waits.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn step(&mut self) -> Result<()> {
        self.turn(false).map(drop)
    }

    /// The same, and what the operator counted in it. That may be known only when a device is done with it.
    ///
    /// # Errors
    /// Whatever the operator reports.
    pub fn counted_step(&mut self) -> Result<OpStats> {
        self.turn(true)
    }

    fn turn(&mut self, counted: bool) -> Result<OpStats> {
        let stats = (self.step)(self.at, &mut self.y, counted)?;
        self.at = (self.at + 1) % self.turns;
        Ok(stats)
    }

    /// What the last step computed.
    ///
    /// # Errors
    /// If it cannot be fetched from the device.
    pub fn output(&mut self) -> Result<&[f32]> {
        self.y.host()
    }

    /// Steps until the same weights are read again.
    pub fn turns(&self) -> usize {
        self.turns
    }

    /// Bytes that all turns together go through.
    pub fn working_set(&self) -> u64 {
        self.working_set
    }

    /// Multiplications (each with an addition) of one step.
    pub fn macs(&self) -> u64 {
        self.macs
    }
}

/// Fails unless rows of `cols` numbers are whole blocks of `ty` and of the type that activations are encoded to beside it.
fn blocks(what: &str, ty: QuantType, cols: usize) -> Result<()> {
    for ty in [ty, ty.info().activation] {
        ty.row_bytes(cols).ok_or_else(|| Error::Block { what: what.into(), cols, ty })?;
    }
    Ok(())
}

/// Copies of `size` bytes so that at least `cold` bytes lie between two uses of one.
fn copies(size: u64, read: u64, cold: u64) -> usize {
    if cold == 0 {
        return 1;
    }
    let wanted = 1 + cold.div_ceil(read.max(1));
    wanted.min(MOST / size.max(1)).max(1) as usize
}

/// The types that most models are stored in.
const USUAL: [QuantType; 6] =
    [QuantType::F16, QuantType::BF16, QuantType::Q8_0, QuantType::Q4_0, QuantType::Q4_K, QuantType::Q6_K];

/// A matrix by a vector, in every type: what a token costs.
pub fn gemv() -> Vec<Case> {
    QuantType::ALL.into_iter().map(|ty| Case::Product(Product { ty, ..Product::default() })).collect()
}

/// A matrix by the vectors of a prompt, in the usual types.
pub fn gemm() -> Vec<Case> {
    USUAL.into_iter().map(|ty| Case::Product(Product { ty, tokens: 512, ..Product::default() })).collect()
}

/// The FFN of a 7B model at several shares of active neurons.
pub fn ffn() -> Vec<Case> {
    let types = [QuantType::F16, QuantType::Q4_0];
    let shares = [0.05, 0.1, 0.2, 0.5, 1.0];
    types
        .into_iter()
        .flat_map(|ty| shares.into_iter().map(move |active| Case::Ffn(Ffn { ty, active, ..Ffn::default() })))
        .collect()
}

/// Attention of one token to contexts of several lengths.
pub fn attention() -> Vec<Case> {
    [128, 512, 1024].into_iter().map(|context| Case::Attention(Attention { context, ..Attention::default() })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_cover_what_is_to_lie_between_two_reads() {
        assert_eq!(copies(10, 10, 0), 1);
        assert_eq!(copies(10, 10, 95), 11);
        assert_eq!(copies(10, 5, 95), 20);
        assert_eq!(copies(MOST, MOST, 1), 1);
        assert_eq!(copies(MOST / 3, MOST / 3, u64::MAX / 2), 3);
    }

    #[test]
    fn a_distance_that_is_not_a_number_is_not_close() {
        assert!(distance(&[f32::NAN], &[1.0]).is_nan());
        assert_eq!(distance(&[0.0], &[0.0]), 0.0);
        assert_eq!(distance(&[3.0, 0.0], &[0.0, 4.0]), 1.25);
    }
}
