//! What was seen: inputs, and which neurons fired.

use half::f16;
use pi_core::{Error, Result};

/// Inputs of a layer's predictor and the neurons that fired, token by token, in bounded memory.
///
/// Inputs are kept in half precision, divided by their root mean square, which is kept, too: without a bias a predictor's signs
/// do not depend on the scale of its input.
#[derive(Clone, Debug)]
pub struct Samples {
    dim: usize,
    neurons: usize,
    inputs: Vec<f16>,
    scales: Vec<f32>,
    /// Magnitudes of what neurons contributed with, relative to the token's largest: 0 where they did not fire, else at least 1.
    values: Vec<u8>,
    most: usize,
}

impl Samples {
    /// Room for `most` tokens of a layer.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no memory.
    pub fn new(dim: usize, neurons: usize, most: usize) -> Result<Self> {
        let (mut inputs, mut values, mut scales) = (Vec::new(), Vec::new(), Vec::new());
        let room = inputs
            .try_reserve_exact(most.saturating_mul(dim))
            .and_then(|()| values.try_reserve_exact(most.saturating_mul(neurons)))
            .and_then(|()| scales.try_reserve_exact(most));
        room.map_err(|e| Error::Device { device: "host".into(), message: format!("{most} samples: {e}") })?;
        Ok(Self { dim, neurons, inputs, scales, values, most })
    }

    /// Bytes that one token takes.
    pub fn token_bytes(dim: usize, neurons: usize) -> usize {
        2 * dim + 4 + neurons
    }

    /// Adds a token, unless there is no more room: `input` is what the predictor gets, `values` what the neurons contributed
    /// with.
    ///
    /// # Errors
    /// [`Error::Shape`] if lengths do not fit.
    pub fn push(&mut self, input: &[f32], values: &[f32]) -> Result<()> {
        if (input.len(), values.len()) != (self.dim, self.neurons) {
            return Err(Error::shape(
                "sample",
                format!("{} inputs, {} values", self.dim, self.neurons),
                format!("{} inputs, {} values", input.len(), values.len()),
            ));
        }
        if self.len() == self.most {
            return Ok(());
        }
        let square = input.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / self.dim.max(1) as f64;
        let scale = square.sqrt() as f32;
        if !scale.is_finite() {
            return Err(Error::shape("sample", "finite inputs", scale));
        }
        let by = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        self.inputs.extend(input.iter().map(|v| f16::from_f32(v * by)));
        self.scales.push(scale);
        let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let code = |v: &f32| if *v == 0.0 { 0 } else { ((v.abs() / largest * 255.0).round() as u8).max(1) };
        self.values.extend(values.iter().map(code));
        Ok(())
    }

    /// Tokens.
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }

    /// True if no more tokens are taken.
    pub fn is_full(&self) -> bool {
        self.len() == self.most
    }

    /// Width of inputs.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Neurons of the layer.
    pub fn neurons(&self) -> usize {
        self.neurons
    }

    /// The input of token `t`, divided by its root mean square, into `out`.
    pub(crate) fn input(&self, t: usize, out: &mut [f32]) {
        let row = &self.inputs[t * self.dim..(t + 1) * self.dim];
        out.iter_mut().zip(row).for_each(|(out, v)| *out = v.to_f32());
    }

    /// The root mean square of the input of token `t`.
    pub(crate) fn scale(&self, t: usize) -> f32 {
        self.scales[t]
    }

    /// Magnitudes of token `t`: 0 for neurons that did not fire.
    pub(crate) fn values(&self, t: usize) -> &[u8] {
        &self.values[t * self.neurons..(t + 1) * self.neurons]
    }

    /// Share of neurons that fired, over all tokens.
    pub fn share(&self) -> f64 {
        self.values.iter().filter(|v| **v != 0).count() as f64 / self.values.len().max(1) as f64
    }

    /// The root mean square of inputs, on average over tokens.
    pub fn mean_scale(&self) -> f32 {
        (self.scales.iter().map(|v| f64::from(*v)).sum::<f64>() / self.len().max(1) as f64) as f32
    }
}
