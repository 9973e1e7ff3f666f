//! How good a predictor is at every threshold.

use super::{fit::Fitted, samples::Samples};
use ndarray::Array2;

/// Steps of thresholds.
const STEPS: usize = 512;

/// A predictor at one threshold, measured on samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// What outputs have to reach.
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
    /// Measures a predictor on samples, which should not be those that it was trained on. Inputs have their plain size, as
    /// when it is used.
    pub fn new(fitted: &Fitted, samples: &Samples) -> Self {
        let (n, dim) = (samples.len(), samples.dim());
        let (low, high) = (-8.0f32, 8.0f32);
        let bin = |z: f32| (((z - low) / (high - low) * STEPS as f32) as isize).clamp(0, STEPS as isize - 1) as usize;
        let (mut all, mut fired, mut size) = (vec![0u64; STEPS], vec![0u64; STEPS], vec![0u64; STEPS]);
        let tokens: Vec<usize> = (0..n).collect();
        for some in tokens.chunks(256) {
            let mut x = Array2::zeros((some.len(), dim));
            for (t, mut row) in some.iter().zip(x.rows_mut()) {
                samples.input(*t, row.as_slice_mut().unwrap_or(&mut []));
                row *= samples.scale(*t);
            }
            for (t, row) in some.iter().zip(fitted.outputs(x.view()).rows()) {
                for (z, value) in row.iter().zip(samples.values(*t)) {
                    let bin = bin(*z);
                    all[bin] += 1;
                    fired[bin] += u64::from(*value != 0);
                    size[bin] += u64::from(*value);
                }
            }
        }
        let total = |bins: &[u64]| bins.iter().sum::<u64>();
        let (total_all, total_fired, total_size) = (total(&all), total(&fired), total(&size));
        let share = |part: u64, whole: u64| if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
        let (mut left, mut points) = ((total_all, total_fired, total_size), Vec::with_capacity(STEPS));
        for i in 0..STEPS {
            let threshold = if i == 0 { f32::NEG_INFINITY } else { low + (high - low) * i as f32 / STEPS as f32 };
            points.push(Point {
                threshold,
                share: share(left.0, total_all),
                recall: share(left.1, total_fired),
                magnitude: share(left.2, total_size),
            });
            left = (left.0 - all[i], left.1 - fired[i], left.2 - size[i]);
        }
        Self(points)
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

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

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
