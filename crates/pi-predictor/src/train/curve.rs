//! How good a predictor is at every threshold.

use super::{fit::Fitted, samples::Samples};
use crate::Sign;
use ndarray::Array2;
use pi_core::{Error, Result};

/// Steps of thresholds.
const STEPS: usize = 512;

/// A predictor at one threshold, measured on samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// What outputs have to reach. The output of a [`Sign`] is the share of products that are not negative, less a half: its margin
    /// is the negative of this.
    pub threshold: f32,
    /// Share of all neurons that are let through.
    pub share: f64,
    /// Share of firing neurons that are let through, by count.
    pub recall: f64,
    /// The same by magnitude: share of Σ|value| (of each token relative to its largest) that is kept.
    pub magnitude: f64,
}

/// Everything is let through.
const ALL: Point = Point { threshold: f32::NEG_INFINITY, share: 1.0, recall: 1.0, magnitude: 1.0 };

/// A predictor's [`Point`]s from the lowest threshold to the highest. Everything is let through at the first one.
#[derive(Clone, Debug)]
pub struct Curve(Vec<Point>);

impl Curve {
    /// Measures matrices on samples, which should not be those that it was trained on. Inputs have their plain size, as
    /// when it is used.
    pub fn new(fitted: &Fitted, samples: &Samples) -> Self {
        let (n, dim) = (samples.len(), samples.dim());
        let (low, high) = (-8.0f32, 8.0f32);
        let bin = |z: f32| (((z - low) / (high - low) * STEPS as f32) as isize).clamp(0, STEPS as isize - 1) as usize;
        let mut bins = Bins::new(STEPS);
        let tokens: Vec<usize> = (0..n).collect();
        for some in tokens.chunks(256) {
            let mut x = Array2::zeros((some.len(), dim));
            for (t, mut row) in some.iter().zip(x.rows_mut()) {
                samples.input(*t, row.as_slice_mut().unwrap_or(&mut []));
                row *= samples.scale(*t);
            }
            for (t, row) in some.iter().zip(fitted.outputs(x.view()).rows()) {
                row.iter().zip(samples.values(*t)).for_each(|(z, value)| bins.add(bin(*z), *value));
            }
        }
        bins.curve(|i| if i == 0 { f32::NEG_INFINITY } else { low + (high - low) * i as f32 / STEPS as f32 })
    }

    /// Measures signs, whatever their margin, on the same samples: `inputs` are the packed signs ([`SignKernels::pack`](pi_core::SignKernels::pack)) of what
    /// the FFN got for each of them.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are not as many inputs as samples, or they are of another layer.
    pub fn of_signs(sign: &Sign, inputs: &[u64], samples: &Samples) -> Result<Self> {
        let (dim, neurons) = (pi_core::Predictor::dim(sign), pi_core::Predictor::neurons(sign));
        let (want, got) = ((samples.len() * sign.words(), samples.neurons()), (inputs.len(), neurons));
        if want != got {
            return Err(Error::shape("signs of samples", format!("{want:?} (words, neurons)"), format!("{got:?}")));
        }
        // by the number of products that are not negative: the more, the likelier the neuron fires
        let mut bins = Bins::new(dim + 1);
        let mut counts = vec![0; neurons];
        for (t, x) in inputs.chunks_exact(sign.words().max(1)).enumerate() {
            sign.negatives(x, &mut counts);
            counts.iter().zip(samples.values(t)).for_each(|(n, value)| bins.add(dim - *n as usize, *value));
        }
        // between two counts, so that rounding changes nothing
        Ok(bins.curve(|i| ((i as f64 - 0.5) / dim.max(1) as f64 - 0.5).max(-0.5) as f32))
    }

    /// From points, by ascending threshold.
    pub fn from_points(points: Vec<Point>) -> Self {
        Self(points)
    }

    /// All points.
    pub fn points(&self) -> &[Point] {
        &self.0
    }

    /// The highest threshold that keeps this share of the magnitudes.
    pub fn with_recall(&self, magnitude: f64) -> Point {
        let enough = self.0.partition_point(|p| p.magnitude >= magnitude);
        self.0.get(enough.saturating_sub(1)).copied().unwrap_or(ALL)
    }

    /// The point at a threshold (the nearest that lets no less through).
    pub fn at(&self, threshold: f32) -> Point {
        let at = self.0.partition_point(|p| p.threshold <= threshold);
        self.0.get(at.saturating_sub(1)).copied().unwrap_or(ALL)
    }
}

/// What falls into each step of outputs: neurons, those of them that fire, and their magnitudes.
struct Bins {
    all: Vec<u64>,
    fired: Vec<u64>,
    size: Vec<u64>,
}

impl Bins {
    fn new(steps: usize) -> Self {
        Self { all: vec![0; steps], fired: vec![0; steps], size: vec![0; steps] }
    }

    #[inline]
    fn add(&mut self, bin: usize, value: u8) {
        self.all[bin] += 1;
        self.fired[bin] += u64::from(value != 0);
        self.size[bin] += u64::from(value);
    }

    /// The curve, if the `i`-th step begins at `threshold(i)`.
    fn curve(&self, threshold: impl Fn(usize) -> f32) -> Curve {
        let total = |bins: &[u64]| bins.iter().sum::<u64>();
        let (all, fired, size) = (total(&self.all), total(&self.fired), total(&self.size));
        let share = |part: u64, whole: u64| if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
        let mut left = (all, fired, size);
        let point = |i: usize| {
            let point = Point {
                threshold: threshold(i),
                share: share(left.0, all),
                recall: share(left.1, fired),
                magnitude: share(left.2, size),
            };
            left = (left.0 - self.all[i], left.1 - self.fired[i], left.2 - self.size[i]);
            point
        };
        Curve((0..self.all.len()).map(point).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;
    use pi_core::{ActiveSet, Hidden, Limits, Matrix, Predictor, QuantType, Serial};
    use std::sync::Arc;

    /// At every point of the curve, a predictor with that margin must mark what the curve says.
    #[test]
    fn the_curve_of_signs_says_what_signs_with_that_margin_mark() {
        let (dim, neurons, tokens) = (70, 40, 5);
        let number = |i: usize| ((i as f32 + 0.5) * 12.9898).sin();
        let w: Vec<f32> = (0..dim * neurons).map(number).collect();
        let gate = Matrix::encode("gate", QuantType::F32, neurons, dim, &w).unwrap();
        let sign = |margin| Arc::new(Sign::new(&gate, margin, Arc::new(Serial)).unwrap());
        let mut samples = Samples::new(dim, neurons, tokens).unwrap();
        let (mut signs, mut inputs) = (Vec::new(), Vec::new());
        for t in 0..tokens {
            let x: Vec<f32> = (0..dim).map(|i| number((t * dim + i) * 7 + 3)).collect();
            let values: Vec<f32> =
                w.chunks(dim).map(|w| w.iter().zip(&x).map(|(w, x)| w * x).sum::<f32>().max(0.0)).collect();
            samples.push(&x, &values).unwrap();
            let mut words = [0; 2];
            (pi_core::SignKernels::PLAIN.pack)(&x, &mut words);
            signs.extend(words);
            inputs.extend(x);
        }
        let curve = Curve::of_signs(&sign(0.0), &signs, &samples).unwrap();
        assert_eq!((curve.points().len(), curve.points()[0].share), (dim + 1, 1.0));
        let better = curve.points().iter().find(|p| p.share < 0.7).unwrap();
        assert!(better.magnitude > better.share + 0.05, "{better:?}");
        for point in curve.points() {
            let mut run = sign(-point.threshold).open(&Limits { tokens, sequences: 1, context: 1 }).unwrap();
            let (mut h, mut x) = (Hidden::new(tokens, dim), Hidden::new(tokens, dim));
            x.host_mut().unwrap().copy_from_slice(&inputs);
            let mut active = ActiveSet::new(tokens, neurons);
            run.mark(&mut h, &mut x, &mut active).unwrap();
            let marked: u32 = active.host().unwrap().unwrap().iter().map(|w| w.count_ones()).sum();
            assert!((f64::from(marked) / (tokens * neurons) as f64 - point.share).abs() < 1e-9, "{point:?}");
        }
        assert!(Curve::of_signs(&sign(0.0), &signs[1..], &samples).is_err());
    }

    #[test]
    fn a_curve_counts_what_is_let_through() {
        // one input, two neurons with outputs h and 2 h
        let fitted = Fitted { fc1: array![[1.0]], fc2: array![[1.0], [2.0]], loss: 0.0 };
        let mut samples = Samples::new(1, 2, 4).unwrap();
        for (h, values) in [(0.5, [0.0, 1.0]), (1.5, [3.0, 0.0]), (3.0, [1.0, 1.0])] {
            samples.push(&[h], &values).unwrap();
        }
        let curve = Curve::new(&fitted, &samples);
        let first = curve.points()[0];
        assert_eq!((first.share, first.recall, first.magnitude), (1.0, 1.0, 1.0));
        // outputs: 0.5 1.0 | 1.5 3.0 | 3.0 6.0
        let point = curve.at(1.2);
        assert!((point.share - 4.0 / 6.0).abs() < 1e-9 && (point.recall - 0.75).abs() < 1e-9, "{point:?}");
        assert!((curve.with_recall(0.75).threshold - 1.5).abs() < 0.05);
        assert_eq!(curve.with_recall(1.0).recall, 1.0);
        assert!(curve.with_recall(0.0).threshold > 7.9);
    }
}
