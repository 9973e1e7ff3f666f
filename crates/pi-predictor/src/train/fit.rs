//! Fitting two matrices.

use super::{adam::Adam, samples::Samples};
use ndarray::{Array2, ArrayView2, Axis, linalg::general_mat_mul};
use pi_core::{Error, Result};

/// How a predictor is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FitOptions {
    /// Width between the two matrices.
    pub rank: usize,
    /// Times that every sample is seen.
    pub epochs: usize,
    /// Samples per step.
    pub batch: usize,
    /// Adam's step at the beginning; it falls to a tenth along a cosine.
    pub rate: f32,
    /// How much more a neuron that fires counts: (idle / firing) to this power. 0: all the same, 1: both classes the same.
    pub weight: f32,
    /// How much of that goes by what the neuron contributes with, 0 to 1. 0: neurons that fire count alike; 1: in proportion to
    /// their magnitudes.
    pub magnitude: f32,
    /// Of the first weights and the order of samples: the same seed gives the same bits.
    pub seed: u64,
}

impl Default for FitOptions {
    fn default() -> Self {
        Self { rank: 64, epochs: 8, batch: 128, rate: 2e-3, weight: 0.35, magnitude: 0.7, seed: 1 }
    }
}

/// A trained predictor. Its output for a plain input `h` is `fc2 · relu(fc1 · h)`.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// `[rank, dim]`.
    pub fc1: Array2<f32>,
    /// `[neurons, rank]`.
    pub fc2: Array2<f32>,
    /// Mean loss per neuron and token in the last epoch.
    pub loss: f64,
}

/// Trains a predictor on `samples`. `progress` is told the share that is done, and may end it by returning false.
///
/// # Errors
/// [`Error::Unsupported`] if there are no samples, an option is out of range, or training does not stay finite; and if it was
/// ended.
pub fn fit(samples: &Samples, options: &FitOptions, progress: &mut dyn FnMut(f64) -> bool) -> Result<Fitted> {
    let FitOptions { rank, epochs, batch, rate, weight, magnitude, seed } = *options;
    let refuse = |what: String, why: &str| Err(Error::unsupported(what, why));
    if samples.is_empty() || rank == 0 || epochs == 0 || batch == 0 {
        let what = format!("training with {} samples, rank {rank}, {epochs} epochs, batch {batch}", samples.len());
        return refuse(what, "none of them may be 0");
    }
    let valid = rate > 0.0 && rate <= 1.0 && [weight, magnitude].iter().all(|v| (0.0..=1.0).contains(v));
    if !valid {
        let what = format!("training with rate {rate}, weight {weight} and magnitude {magnitude}");
        return refuse(what, "expected numbers from 0 to 1");
    }
    let (dim, neurons, n) = (samples.dim(), samples.neurons(), samples.len());
    let mut rng = Rng(seed);
    let mut random =
        |rows: usize, cols: usize, size: f32| Array2::from_shape_simple_fn((rows, cols), || rng.normal() * size);
    let mut fc1 = random(rank, dim, (2.0 / dim as f32).sqrt());
    let mut fc2 = random(neurons, rank, (1.0 / rank as f32).sqrt());
    let (mut adam1, mut adam2) = (Adam::new(fc1.len()), Adam::new(fc2.len()));
    let weights = Weights { neurons: class_weights(samples, weight), sizes: size_weights(samples, magnitude) };
    let mut order: Vec<u32> = (0..n as u32).collect();
    let batch = batch.min(n);
    let steps = epochs * n.div_ceil(batch);
    let mut x = Array2::zeros((batch, dim));
    let mut inner = Array2::zeros((batch, rank));
    let mut out = Array2::zeros((batch, neurons));
    let mut inner_gradient = Array2::zeros((batch, rank));
    let (mut gradient1, mut gradient2) = (Array2::zeros((rank, dim)), Array2::zeros((neurons, rank)));
    let (mut step, mut loss) = (0, 0.0);
    for epoch in 1..=epochs {
        rng.shuffle(&mut order);
        loss = 0.0;
        for some in order.chunks(batch) {
            let m = some.len();
            let mut x = x.slice_mut(ndarray::s![..m, ..]);
            for (t, mut row) in some.iter().zip(x.axis_iter_mut(Axis(0))) {
                samples.input(*t as usize, row.as_slice_mut().unwrap_or(&mut []));
            }
            let mut inner = inner.slice_mut(ndarray::s![..m, ..]);
            let mut out = out.slice_mut(ndarray::s![..m, ..]);
            let mut inner_gradient = inner_gradient.slice_mut(ndarray::s![..m, ..]);
            general_mat_mul(1.0, &x, &fc1.t(), 0.0, &mut inner);
            inner.mapv_inplace(|v| v.max(0.0));
            general_mat_mul(1.0, &inner, &fc2.t(), 0.0, &mut out);
            for (t, mut row) in some.iter().zip(out.axis_iter_mut(Axis(0))) {
                let (outputs, values) = (row.as_slice_mut().unwrap_or(&mut []), samples.values(*t as usize));
                if epoch == epochs {
                    loss += loss_of(outputs, values, &weights);
                }
                to_gradient(outputs, values, &weights);
            }
            // the mean over samples; the sum over neurons would make the step depend on the layer's width
            let by = 1.0 / m as f32;
            general_mat_mul(by, &out.t(), &inner, 0.0, &mut gradient2);
            general_mat_mul(1.0, &out, &fc2, 0.0, &mut inner_gradient);
            inner_gradient.zip_mut_with(&inner, |g, v| *g = if *v > 0.0 { *g } else { 0.0 });
            general_mat_mul(by, &inner_gradient.t(), &x, 0.0, &mut gradient1);
            step += 1;
            let done = f64::from(step) / steps as f64;
            let rate = rate * (0.1 + 0.45 * (1.0 + (std::f64::consts::PI * done).cos() as f32));
            adam1.step(flat(&mut fc1), gradient1.as_slice().unwrap_or(&[]), rate, step);
            adam2.step(flat(&mut fc2), gradient2.as_slice().unwrap_or(&[]), rate, step);
            if !progress(done) {
                return refuse("training".into(), "it was interrupted");
            }
        }
    }
    let loss = loss / (n * neurons) as f64;
    if !loss.is_finite() || fc1.iter().chain(&fc2).any(|v| !v.is_finite()) {
        return refuse(format!("training with rate {rate}"), "the numbers did not stay finite; try a smaller rate");
    }
    // plain inputs have about this size, and outputs then that of training: so thresholds mean the same everywhere
    let scale = samples.mean_scale();
    if scale > 0.0 {
        fc1 /= scale;
    }
    Ok(Fitted { fc1, fc2, loss })
}

fn flat(a: &mut Array2<f32>) -> &mut [f32] {
    a.as_slice_mut().unwrap_or(&mut [])
}

/// The loss: weighted cross entropy of `sigmoid(output)` and whether a neuron fired.
fn loss_of(outputs: &[f32], values: &[u8], weights: &Weights) -> f64 {
    let one = |((z, value), weight): ((&f32, &u8), &f32)| {
        let softplus = z.max(0.0) + (-z.abs()).exp().ln_1p(); // log(1 + exp(z))
        if *value != 0 { weight * weights.sizes[usize::from(*value)] * (softplus - z) } else { softplus }
    };
    f64::from(outputs.iter().zip(values).zip(&weights.neurons).map(one).sum::<f32>())
}

/// Outputs become what the loss changes with them.
fn to_gradient(outputs: &mut [f32], values: &[u8], weights: &Weights) {
    for ((z, value), weight) in outputs.iter_mut().zip(values).zip(&weights.neurons) {
        let e = (-z.abs()).exp();
        let p = if *z >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
        *z = if *value != 0 { weight * weights.sizes[usize::from(*value)] * (p - 1.0) } else { p };
    }
}

/// How much firing counts: of each neuron, and at each magnitude.
struct Weights {
    neurons: Vec<f32>,
    sizes: [f32; 256],
}

/// By magnitude, so that the mean over what fires is 1.
fn size_weights(samples: &Samples, part: f32) -> [f32; 256] {
    let (mut sum, mut fired) = (0u64, 0u64);
    for t in 0..samples.len() {
        for value in samples.values(t).iter().filter(|v| **v != 0) {
            (sum, fired) = (sum + u64::from(*value), fired + 1);
        }
    }
    let mean = sum as f64 / fired.max(1) as f64;
    std::array::from_fn(|value| 1.0 - part + part * (value as f64 / mean.max(1.0)) as f32)
}

/// How much each neuron's firing counts.
fn class_weights(samples: &Samples, power: f32) -> Vec<f32> {
    let mut fired = vec![0u32; samples.neurons()];
    for t in 0..samples.len() {
        fired.iter_mut().zip(samples.values(t)).for_each(|(n, v)| *n += u32::from(*v != 0));
    }
    let all = samples.len() as f32;
    // a neuron that hardly ever fires would shout everybody down
    fired.into_iter().map(|n| ((all - n as f32) / (n as f32 + 1.0)).max(1.0).powf(power).min(30.0)).collect()
}

/// A small generator of random numbers: PCG32.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u32 {
        let state = self.0;
        self.0 = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((((state >> 18) ^ state) >> 27) as u32).rotate_right((state >> 59) as u32)
    }

    fn uniform(&mut self) -> f32 {
        (self.next() >> 8) as f32 / (1 << 24) as f32
    }

    /// Nearly normal: the sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    fn shuffle(&mut self, items: &mut [u32]) {
        for i in (1..items.len()).rev() {
            items.swap(i, ((u64::from(self.next()) * (i as u64 + 1)) >> 32) as usize);
        }
    }
}

impl Fitted {
    /// Outputs for inputs `[tokens, dim]`.
    pub fn outputs(&self, inputs: ArrayView2<'_, f32>) -> Array2<f32> {
        let mut inner = inputs.dot(&self.fc1.t());
        inner.mapv_inplace(|v| v.max(0.0));
        inner.dot(&self.fc2.t())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Curve;

    /// Neurons that fire where a random plane says so: a wide enough predictor can know it.
    fn planes(tokens: usize, seed: u64) -> Samples {
        let (dim, neurons) = (24, 60);
        let mut planes = Rng(7);
        let w: Vec<f32> = (0..dim * neurons).map(|_| planes.normal()).collect();
        let mut rng = Rng(seed);
        let mut samples = Samples::new(dim, neurons, tokens).unwrap();
        for _ in 0..tokens {
            let x: Vec<f32> = (0..dim).map(|_| 5.0 * rng.normal()).collect();
            let gate = |w: &[f32]| w.iter().zip(&x).map(|(w, x)| w * x).sum::<f32>() - 20.0;
            let values: Vec<f32> = w.chunks(dim).map(|w| gate(w).max(0.0)).collect();
            samples.push(&x, &values).unwrap();
        }
        samples
    }

    #[test]
    fn a_predictor_learns_which_neurons_fire_and_knows_it_of_tokens_it_never_saw() {
        let (seen, unseen) = (planes(2000, 1), planes(500, 2));
        let options = FitOptions { rank: 48, epochs: 20, batch: 64, ..FitOptions::default() };
        let fitted = fit(&seen, &options, &mut |_| true).unwrap();
        let curve = Curve::new(&fitted, &unseen);
        let found = curve.with_recall(0.95);
        println!("share {:.3}, {found:?}, loss {:.3}", unseen.share(), fitted.loss);
        assert!(found.magnitude >= 0.95 && found.share < 1.7 * unseen.share(), "{found:?} of {:.3}", unseen.share());
    }

    #[test]
    fn the_same_seed_gives_the_same_bits_and_another_does_not() {
        let samples = planes(100, 3);
        let run = |seed| {
            fit(&samples, &FitOptions { rank: 8, epochs: 1, seed, ..FitOptions::default() }, &mut |_| true).unwrap()
        };
        assert_eq!(run(5).fc2, run(5).fc2);
        assert_ne!(run(5).fc2, run(6).fc2);
    }

    #[test]
    fn gradients_are_those_of_the_loss() {
        let sizes = std::array::from_fn(|v| 0.5 + 0.1 * v as f32);
        let (values, weights) = ([0, 1, 7, 0], Weights { neurons: vec![3.0, 2.0, 5.0, 1.0], sizes });
        let z = [0.7f32, -1.2, 2.0, -30.0];
        let mut gradient = z;
        to_gradient(&mut gradient, &values, &weights);
        for i in 0..4 {
            let (mut up, mut down) = (z, z);
            (up[i], down[i]) = (z[i] + 1e-2, z[i] - 1e-2);
            let slope = (loss_of(&up, &values, &weights) - loss_of(&down, &values, &weights)) / 2e-2;
            assert!((slope - f64::from(gradient[i])).abs() < 1e-3, "{i}: {slope} and {}", gradient[i]);
        }
    }

    #[test]
    fn what_cannot_be_trained_is_refused() {
        let empty = Samples::new(4, 4, 4).unwrap();
        assert!(fit(&empty, &FitOptions::default(), &mut |_| true).is_err());
        let samples = planes(10, 4);
        for options in [
            FitOptions { rank: 0, ..FitOptions::default() },
            FitOptions { epochs: 0, ..FitOptions::default() },
            FitOptions { batch: 0, ..FitOptions::default() },
            FitOptions { rate: f32::NAN, ..FitOptions::default() },
            FitOptions { weight: -1.0, ..FitOptions::default() },
            FitOptions { magnitude: 2.0, ..FitOptions::default() },
        ] {
            assert!(fit(&samples, &options, &mut |_| true).is_err(), "{options:?}");
        }
        assert!(fit(&samples, &FitOptions::default(), &mut |_| false).is_err(), "an end was asked for");
    }
}
