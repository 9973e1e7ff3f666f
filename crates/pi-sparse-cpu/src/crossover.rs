//! From which active share it is faster to compute every neuron than to look at each.
//!
//! Rows of single neurons are multiplied one at a time, all rows four at a time. So above some share of active neurons the
//! dense path wins although it does more. Both give the same bits; where the line lies is a matter of speed only, and differs
//! between types and CPUs.

use crate::kernels::TYPES;
use pi_core::{NeuronSet, QuantType};

/// Per quant type the active share, 0 to 1, above which an FFN takes its dense path: 1 never, 0 always.
///
/// ```
/// use pi_core::QuantType;
/// use pi_sparse_cpu::Crossover;
///
/// let crossover = Crossover::default().with(QuantType::Q4_0, 0.9);
/// assert_eq!(crossover.get(QuantType::Q4_0), 0.9);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossover([f32; TYPES]);

impl Crossover {
    /// The same share for every type. Shares outside 0 to 1 are brought to the nearer end, NaN to 1.
    pub fn uniform(share: f32) -> Self {
        Self([within(share); TYPES])
    }

    /// The same, but with this share for `ty`.
    pub fn with(mut self, ty: QuantType, share: f32) -> Self {
        self.0[ty as usize] = within(share);
        self
    }

    /// The share for weights of type `ty`.
    pub fn get(&self, ty: QuantType) -> f32 {
        self.0[ty as usize]
    }
}

impl Default for Crossover {
    /// 0.9 for every type: below it, no type was seen to gain from the dense path.
    fn default() -> Self {
        Self::uniform(0.9)
    }
}

fn within(share: f32) -> f32 {
    if share.is_nan() { 1.0 } else { share.clamp(0.0, 1.0) }
}

/// Decides for the calls of one operator.
pub(crate) struct Choice {
    above: f32,
    /// Bits of the owned neurons; `None` if all are owned.
    mask: Option<Vec<u64>>,
    owned: usize,
}

impl Choice {
    pub(crate) fn new(above: f32, neurons: &NeuronSet) -> Self {
        let mask = (!neurons.is_all()).then(|| {
            let mut words = vec![0u64; neurons.total().div_ceil(64)];
            neurons.iter().for_each(|id| words[id / 64] |= 1 << (id % 64));
            words
        });
        Self { above, mask, owned: neurons.len() }
    }

    /// Whether a step takes the dense path. Its share of active neurons is that of the marks (`words` per token) if there are
    /// any; if not, the gates decide, and `past` says how many of them let through before.
    pub(crate) fn is_dense(&self, bits: Option<&[u64]>, words: usize, past: &Past) -> bool {
        let share = match bits {
            None => past.share,
            Some(bits) => self.marked(bits, words),
        };
        share.is_some_and(|share| share > self.above)
    }

    /// Share of the owned neurons that are marked, over all tokens.
    fn marked(&self, bits: &[u64], words: usize) -> Option<f32> {
        let tokens = bits.len().checked_div(words)?;
        let ones: u64 = match &self.mask {
            None => bits.iter().map(|w| u64::from(w.count_ones())).sum(),
            Some(mask) => {
                let rows = bits.chunks_exact(words);
                rows.flat_map(|row| row.iter().zip(mask)).map(|(w, m)| u64::from((w & m).count_ones())).sum()
            }
        };
        let all = self.owned * tokens;
        (all > 0).then(|| ones as f32 / all as f32)
    }
}

/// What the steps of a run have shown so far about a layer whose gates decide. It belongs to the run: what other sessions do
/// has no influence on it.
#[derive(Default)]
pub(crate) struct Past {
    share: Option<f32>,
}

impl Past {
    /// How many tokens it takes until the newest steps count for half.
    const MEMORY: f32 = 8.0;

    /// A step of `tokens` tokens, in which this share of the neurons was active.
    pub(crate) fn saw(&mut self, share: f32, tokens: usize) {
        let weight = tokens as f32;
        self.share = Some(match self.share {
            None => share,
            Some(old) => (Self::MEMORY * old + weight * share) / (Self::MEMORY + weight),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_between_0_and_1() {
        let c = Crossover::uniform(7.0).with(QuantType::F16, -1.0).with(QuantType::Q4_0, f32::NAN);
        assert_eq!((c.get(QuantType::F32), c.get(QuantType::F16), c.get(QuantType::Q4_0)), (1.0, 0.0, 1.0));
    }

    #[test]
    fn marks_count_where_the_neuron_is_owned() {
        let past = Past::default();
        let (even, all) = (NeuronSet::some(100, (0..50).map(|i| 2 * i).collect()).unwrap(), NeuronSet::all(100));
        // Two tokens, all even neurons marked.
        let bits = [0x5555_5555_5555_5555, 0x5_5555_5555, 0x5555_5555_5555_5555, 0x5_5555_5555];
        assert_eq!(Choice::new(0.9, &even).marked(&bits, 2), Some(1.0));
        assert_eq!(Choice::new(0.9, &all).marked(&bits, 2), Some(0.5));
        assert!(Choice::new(0.9, &even).is_dense(Some(&bits), 2, &past));
        assert!(!Choice::new(0.5, &all).is_dense(Some(&bits), 2, &past));
        let none = NeuronSet::some(100, Vec::new()).unwrap();
        assert!(!Choice::new(0.0, &none).is_dense(Some(&bits), 2, &past));
    }

    #[test]
    fn without_marks_the_past_decides_and_the_first_step_looks_at_every_neuron() {
        let (choice, mut past) = (Choice::new(0.5, &NeuronSet::all(8)), Past::default());
        assert!(!choice.is_dense(None, 1, &past));
        past.saw(0.9, 1);
        assert!(choice.is_dense(None, 1, &past));
        past.saw(0.2, 512);
        assert!(!choice.is_dense(None, 1, &past));
    }
}
