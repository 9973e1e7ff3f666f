//! The optimiser: Adam (arXiv 1412.6980) with a decaying step.

/// Adam's state for one array.
pub(super) struct Adam {
    mean: Vec<f32>,
    square: Vec<f32>,
}

const BETA1: f32 = 0.9;
const BETA2: f32 = 0.999;
const EPS: f32 = 1e-8;

impl Adam {
    pub(super) fn new(len: usize) -> Self {
        Self { mean: vec![0.0; len], square: vec![0.0; len] }
    }

    /// One step, number `step` from 1.
    pub(super) fn step(&mut self, weights: &mut [f32], gradient: &[f32], rate: f32, step: i32) {
        let (c1, c2) = (1.0 - BETA1.powi(step), 1.0 - BETA2.powi(step));
        let state = self.mean.iter_mut().zip(&mut self.square);
        for ((w, g), (mean, square)) in weights.iter_mut().zip(gradient).zip(state) {
            *mean += (1.0 - BETA1) * (g - *mean);
            *square += (1.0 - BETA2) * (g * g - *square);
            *w -= rate * (*mean / c1) / ((*square / c2).sqrt() + EPS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parabola_is_descended() {
        let (mut w, mut adam) = ([3.0, -2.0], Adam::new(2));
        for step in 1..=500 {
            let g = w.map(|w| 2.0 * (w - 1.0));
            adam.step(&mut w, &g, 0.05, step);
        }
        assert!(w.iter().all(|w| (w - 1.0f32).abs() < 1e-2), "{w:?}");
    }
}
