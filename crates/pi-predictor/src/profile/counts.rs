//! Counts of firing neurons, and what they say (paper §3.1).

use super::ProfileError;
use pi_core::NeuronSet;

/// How often each neuron fired along some tokens.
///
/// "Activations" are pairs of a token and a neuron that fires for it. Statistics over the whole model rank the neurons of all layers
/// together, those over a layer only its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    tokens: u64,
    layers: Vec<LayerCounts>,
}

/// How often each neuron of a layer fired.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerCounts {
    layer: u32,
    fired: Vec<u64>,
    sums: Vec<f64>,
}

impl LayerCounts {
    /// Counts of layer number `layer`. `fired` and `sums` must be equally long.
    pub(crate) fn new(layer: u32, fired: Vec<u64>, sums: Vec<f64>) -> Self {
        Self { layer, fired, sums }
    }

    /// The layer's number in the model, from 0.
    pub fn layer(&self) -> u32 {
        self.layer
    }

    /// Tokens for which each neuron fired.
    pub fn fired(&self) -> &[u64] {
        &self.fired
    }

    /// Sum of the absolute values that each neuron contributed with.
    pub fn sums(&self) -> &[f64] {
        &self.sums
    }

    /// Replaces the counts, which must be as many as before.
    pub(crate) fn set_fired(&mut self, fired: Vec<u64>) {
        debug_assert_eq!(fired.len(), self.fired.len());
        self.fired = fired;
    }

    /// Counts what neurons contributed with: rows of a number per neuron, 0 where it did not fire. (The tokens themselves are
    /// counted by [`Counts::count_tokens`].)
    pub fn count(&mut self, values: &[f32]) {
        for row in values.chunks_exact(self.fired.len().max(1)) {
            for ((fired, sum), &v) in self.fired.iter_mut().zip(&mut self.sums).zip(row) {
                *fired += u64::from(v != 0.0);
                *sum += f64::from(v.abs());
            }
        }
    }

    /// Activations of all neurons.
    pub fn activations(&self) -> u64 {
        self.fired.iter().sum()
    }

    /// Neurons that never fired.
    pub fn idle(&self) -> usize {
        self.fired.iter().filter(|&&n| n == 0).count()
    }

    /// See [`Counts::share_for`].
    pub fn share_for(&self, part: f64) -> f64 {
        share_for(&descending(self.fired.iter().copied()), part)
    }

    /// See [`Counts::cdf`].
    pub fn cdf(&self, points: usize) -> Vec<(f64, f64)> {
        cdf(&descending(self.fired.iter().copied()), points)
    }

    /// See [`Counts::overlap`]. 0 if the layers have different numbers of neurons.
    pub fn overlap(&self, other: &Self, share: f64) -> f64 {
        if self.fired.len() != other.fired.len() {
            return 0.0;
        }
        overlap(&self.fired, &other.fired, share)
    }
}

impl Counts {
    /// Nothing counted yet, for layers of these numbers and neurons.
    pub fn new(shape: &[(u32, u32)]) -> Self {
        let layer = |&(layer, neurons): &(u32, u32)| {
            LayerCounts::new(layer, vec![0; neurons as usize], vec![0.0; neurons as usize])
        };
        Self { tokens: 0, layers: shape.iter().map(layer).collect() }
    }

    pub(crate) fn from_layers(tokens: u64, layers: Vec<LayerCounts>) -> Self {
        Self { tokens, layers }
    }

    /// Tokens counted.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// What was counted, by layer.
    pub fn layers(&self) -> &[LayerCounts] {
        &self.layers
    }

    /// The `i`-th layer, to count on.
    pub fn layer_mut(&mut self, i: usize) -> Option<&mut LayerCounts> {
        self.layers.get_mut(i)
    }

    /// Says that `n` more tokens were counted in every layer.
    pub fn count_tokens(&mut self, n: u64) {
        self.tokens += n;
    }

    /// Back to nothing counted.
    pub fn clear(&mut self) {
        self.tokens = 0;
        for layer in &mut self.layers {
            layer.fired.fill(0);
            layer.sums.fill(0.0);
        }
    }

    /// Adds what was counted elsewhere.
    ///
    /// # Errors
    /// If that has other layers or neurons.
    pub fn add(&mut self, other: &Self) -> Result<(), ProfileError> {
        let shape = |c: &Self| c.layers.iter().map(|l| (l.layer, l.fired.len())).collect::<Vec<_>>();
        let (mine, others) = (shape(self), shape(other));
        if mine != others {
            return Err(ProfileError::mismatch("layers and neurons", format!("{mine:?}"), format!("{others:?}")));
        }
        self.add_same(other);
        Ok(())
    }

    /// The same where the shape is known to fit.
    pub(crate) fn add_same(&mut self, other: &Self) {
        self.tokens += other.tokens;
        for (mine, other) in self.layers.iter_mut().zip(&other.layers) {
            mine.fired.iter_mut().zip(&other.fired).for_each(|(a, b)| *a += b);
            mine.sums.iter_mut().zip(&other.sums).for_each(|(a, b)| *a += b);
        }
    }

    /// Neurons of all layers.
    pub fn neurons(&self) -> usize {
        self.layers.iter().map(|l| l.fired.len()).sum()
    }

    /// Activations of all neurons.
    pub fn activations(&self) -> u64 {
        self.layers.iter().map(LayerCounts::activations).sum()
    }

    /// Mean share of neurons that fire for a token, 0 to 1; 0 if nothing was counted.
    pub fn active_share(&self) -> f64 {
        let all = self.tokens as f64 * self.neurons() as f64;
        if all == 0.0 { 0.0 } else { self.activations() as f64 / all }
    }

    /// The smallest share of neurons that gives `part` (0 to 1) of all activations; 0 if there are none (paper fig. 5).
    pub fn share_for(&self, part: f64) -> f64 {
        share_for(&descending(self.fired()), part)
    }

    /// Points of the activation CDF: a share of neurons, the most active first, and which share of activations they give.
    /// `points` steps of equal width, and (0, 0) before them.
    pub fn cdf(&self, points: usize) -> Vec<(f64, f64)> {
        cdf(&descending(self.fired()), points)
    }

    /// How many of the most active neurons two texts have in common: of the top `share` (0 to 1) of each, without neurons that
    /// never fired, the part of the larger group that is in the other too. 1 is all; chance gives about `share`.
    ///
    /// # Errors
    /// If the two have different layers.
    pub fn overlap(&self, other: &Self, share: f64) -> Result<f64, ProfileError> {
        if self.neurons() != other.neurons() {
            return Err(ProfileError::mismatch("neurons", self.neurons(), other.neurons()));
        }
        let (a, b): (Vec<u64>, Vec<u64>) = (self.fired().collect(), other.fired().collect());
        Ok(overlap(&a, &b, share))
    }

    /// The cut between hot and cold: per layer, the hot neurons, as few as give `part` (0 to 1) of all activations. Of neurons that
    /// fire equally often, those of earlier layers and smaller numbers come first.
    pub fn hot(&self, part: f64) -> Vec<NeuronSet> {
        let mut all: Vec<(u64, usize, u32)> = Vec::with_capacity(self.neurons());
        for (l, layer) in self.layers.iter().enumerate() {
            all.extend((0..).zip(&layer.fired).map(|(i, &n)| (n, l, i)));
        }
        all.sort_unstable_by_key(|&(n, l, i)| (std::cmp::Reverse(n), l, i));
        let sorted: Vec<u64> = all.iter().map(|&(n, ..)| n).collect();
        let mut hot = vec![Vec::new(); self.layers.len()];
        all[..needed(&sorted, part)].iter().for_each(|&(_, l, i)| hot[l].push(i));
        let set = |(layer, mut ids): (&LayerCounts, Vec<u32>)| {
            ids.sort_unstable();
            NeuronSet::some(layer.fired.len(), ids).unwrap_or_else(|_| NeuronSet::all(layer.fired.len()))
        };
        self.layers.iter().zip(hot).map(set).collect()
    }

    fn fired(&self) -> impl Iterator<Item = u64> + '_ {
        self.layers.iter().flat_map(|l| l.fired.iter().copied())
    }
}

fn descending(counts: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sorted: Vec<u64> = counts.collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    sorted
}

/// How many of the largest counts it takes to reach `part` of their sum.
fn needed(sorted: &[u64], part: f64) -> usize {
    let all: u64 = sorted.iter().sum();
    // exact for 0 and 1, whatever the rounding between
    let wanted = ((all as f64 * part.clamp(0.0, 1.0)).ceil() as u64).min(all);
    let (mut sum, mut n) = (0, 0);
    while sum < wanted && n < sorted.len() {
        sum += sorted[n];
        n += 1;
    }
    n
}

fn share_for(sorted: &[u64], part: f64) -> f64 {
    if sorted.is_empty() { 0.0 } else { needed(sorted, part) as f64 / sorted.len() as f64 }
}

fn cdf(sorted: &[u64], points: usize) -> Vec<(f64, f64)> {
    let all = sorted.iter().sum::<u64>().max(1) as f64;
    let (mut done, mut sum) = (0, 0u64);
    let mut curve = Vec::with_capacity(points + 1);
    for i in 0..=points {
        let share = if points == 0 { 1.0 } else { i as f64 / points as f64 };
        let end = (share * sorted.len() as f64).round() as usize;
        sum += sorted[done..end.max(done)].iter().sum::<u64>();
        done = end.max(done);
        curve.push((share, sum as f64 / all));
    }
    curve
}

/// Places of the largest counts, without zeros.
fn top(counts: &[u64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..counts.len()).filter(|&i| counts[i] > 0).collect();
    order.sort_unstable_by_key(|&i| (std::cmp::Reverse(counts[i]), i));
    order.truncate(n);
    order.sort_unstable();
    order
}

fn overlap(a: &[u64], b: &[u64], share: f64) -> f64 {
    let n = (share.clamp(0.0, 1.0) * a.len() as f64).round() as usize;
    let (a, b) = (top(a, n), top(b, n));
    let larger = a.len().max(b.len());
    let common = a.iter().filter(|i| b.binary_search(i).is_ok()).count();
    if larger == 0 { 0.0 } else { common as f64 / larger as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(tokens: u64, layers: &[&[u64]]) -> Counts {
        let layer = |(i, fired): (usize, &&[u64])| LayerCounts::new(i as u32, fired.to_vec(), vec![0.0; fired.len()]);
        Counts::from_layers(tokens, layers.iter().enumerate().map(layer).collect())
    }

    #[test]
    fn shares_of_neurons_are_the_fewest_that_reach_a_share_of_activations() {
        let c = counts(10, &[&[8, 1, 0, 1], &[10, 0, 0, 0]]);
        assert_eq!((c.activations(), c.active_share()), (20, 20.0 / 80.0));
        for (part, share) in
            [(0.0, 0.0), (0.5, 1.0 / 8.0), (0.51, 2.0 / 8.0), (0.9, 2.0 / 8.0), (0.95, 3.0 / 8.0), (1.0, 0.5)]
        {
            assert_eq!(c.share_for(part), share, "{part}");
        }
        assert_eq!((c.layers()[0].share_for(0.8), c.layers()[1].share_for(0.8)), (0.25, 0.25));
        assert_eq!((c.layers()[0].idle(), c.layers()[1].idle()), (1, 3));
        let none = counts(0, &[&[0, 0]]);
        assert_eq!((none.share_for(0.8), none.active_share()), (0.0, 0.0));
    }

    #[test]
    fn the_cdf_rises_from_nothing_to_all_and_agrees_with_the_shares() {
        let c = counts(10, &[&[8, 1, 0, 1], &[10, 0, 0, 0]]);
        let curve = c.cdf(8);
        assert_eq!(curve.len(), 9);
        assert_eq!((curve[0], curve[1], curve[2], curve[8]), ((0.0, 0.0), (0.125, 0.5), (0.25, 0.9), (1.0, 1.0)));
        assert!(curve.windows(2).all(|w| w[0].1 <= w[1].1));
        assert_eq!(c.layers()[0].cdf(2), [(0.0, 0.0), (0.5, 0.9), (1.0, 1.0)]);
    }

    #[test]
    fn overlap_is_of_neurons_that_fire() {
        let (a, b) = (counts(9, &[&[9, 8, 1, 0, 0]]), counts(9, &[&[9, 0, 7, 0, 0]]));
        assert_eq!(a.overlap(&a, 0.4), Ok(1.0));
        assert_eq!(a.overlap(&b, 0.4), Ok(0.5));
        // more than fire: 3 of a, 2 of b, 2 in common
        assert_eq!(a.overlap(&b, 1.0), Ok(2.0 / 3.0));
        assert_eq!(a.layers()[0].overlap(&b.layers()[0], 0.2), 1.0);
        let never = counts(9, &[&[0; 5]]);
        assert_eq!(never.overlap(&never, 0.2), Ok(0.0));
        assert!(a.overlap(&counts(9, &[&[1]]), 0.2).is_err());
    }

    #[test]
    fn the_hot_neurons_are_as_few_as_possible_and_shared_out_over_layers() {
        let c = counts(10, &[&[8, 1, 0, 1], &[10, 0, 0, 0]]);
        let hot = |part| c.hot(part).iter().map(|set| set.iter().collect::<Vec<_>>()).collect::<Vec<_>>();
        assert_eq!(hot(0.5), [vec![], vec![0]]);
        assert_eq!(hot(0.9), [vec![0], vec![0]]);
        assert_eq!(hot(0.95), [vec![0, 1], vec![0]]);
        assert_eq!(hot(1.0), [vec![0, 1, 3], vec![0]]);
        assert_eq!(hot(0.0), [vec![], vec![]] as [Vec<usize>; 2]);
    }

    #[test]
    fn counts_add_up_and_only_where_they_fit() {
        let mut a = Counts::new(&[(0, 2), (1, 1)]);
        a.count_tokens(2);
        a.layer_mut(0).unwrap().count(&[1.0, 0.0, -0.5, f32::MIN_POSITIVE]);
        assert_eq!((a.layers()[0].fired(), a.layers()[0].sums()[0]), (&[2, 1][..], 1.5));
        let mut b = a.clone();
        b.add(&a).unwrap();
        assert_eq!((b.tokens(), b.layers()[0].fired(), b.layers()[0].sums()[0]), (4, &[4, 2][..], 3.0));
        b.clear();
        assert_eq!(b, Counts::new(&[(0, 2), (1, 1)]));
        assert!(b.add(&Counts::new(&[(0, 3), (1, 1)])).is_err());
    }
}
