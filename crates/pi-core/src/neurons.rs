//! Sets of FFN neurons: which a device owns, and which may fire.

use crate::{Error, Resident, Result};

/// The neurons of one layer that one device owns, in ascending order: the neuron table of the paper (§5.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeuronSet {
    total: usize,
    ids: Option<Vec<u32>>,
}

impl NeuronSet {
    /// All `total` neurons of a layer.
    pub fn all(total: usize) -> Self {
        Self { total, ids: None }
    }

    /// None of a layer's `total` neurons.
    pub fn none(total: usize) -> Self {
        Self { total, ids: (total > 0).then(Vec::new) }
    }

    /// The neurons of the layer that are not in this set.
    pub fn others(&self) -> Self {
        let mut own = self.iter().peekable();
        let ids = (0..self.total).filter(|id| own.next_if_eq(id).is_none()).map(|id| id as u32).collect::<Vec<_>>();
        Self { total: self.total, ids: (ids.len() != self.total).then_some(ids) }
    }

    /// Some neurons of a layer of `total`.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `ids` ascend strictly and are below `total`.
    pub fn some(total: usize, ids: Vec<u32>) -> Result<Self> {
        if let Some(w) = ids.windows(2).find(|w| w[0] >= w[1]) {
            return Err(Error::shape("neuron set", "strictly ascending ids", format!("{} before {}", w[0], w[1])));
        }
        if let Some(&last) = ids.last().filter(|&&last| last as usize >= total) {
            return Err(Error::shape("neuron set", format!("ids below {total}"), last));
        }
        Ok(Self { total, ids: (ids.len() != total).then_some(ids) })
    }

    /// Neurons in the layer, owned or not.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of owned neurons.
    pub fn len(&self) -> usize {
        self.ids.as_ref().map_or(self.total, Vec::len)
    }

    /// True if no neuron is owned.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if every neuron of the layer is owned.
    pub fn is_all(&self) -> bool {
        self.ids.is_none()
    }

    /// The id of the `i`-th owned neuron.
    ///
    /// # Panics
    /// If `i` is not below [`len`](Self::len).
    #[inline]
    pub fn id(&self, i: usize) -> usize {
        match &self.ids {
            Some(ids) => ids[i] as usize,
            None => {
                assert!(i < self.total);
                i
            }
        }
    }

    /// The owned ids in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len()).map(|i| self.id(i))
    }

    /// The owned ids as ranges, as long as there are, in ascending order.
    pub fn runs(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let mut ids = self.iter().peekable();
        let all = self.is_all().then_some(0..self.total).filter(|r| !r.is_empty());
        let some = std::iter::from_fn(move || {
            let start = ids.next()?;
            let mut end = start + 1;
            while ids.next_if_eq(&end).is_some() {
                end += 1;
            }
            Some(start..end)
        });
        all.into_iter().chain(some.take(if self.is_all() { 0 } else { usize::MAX }))
    }
}

/// Which neurons of a layer may fire: a row of bits per token. What is not in the set is neither read nor computed.
#[derive(Debug)]
pub struct ActiveSet {
    neurons: usize,
    tokens: usize,
    all: bool,
    bits: Resident<u64>,
}

impl ActiveSet {
    /// Room for `max_tokens` rows of `neurons` bits; every neuron may fire until [`marks`](Self::marks) is called.
    pub fn new(max_tokens: usize, neurons: usize) -> Self {
        let words = max_tokens * neurons.div_ceil(64);
        Self { neurons, tokens: max_tokens, all: true, bits: Resident::new(words) }
    }

    /// The same, but an error instead of an abort when there is no memory.
    ///
    /// # Errors
    /// [`Error::Device`] naming the bytes that were asked for.
    pub fn try_new(max_tokens: usize, neurons: usize) -> Result<Self> {
        let words = max_tokens.saturating_mul(neurons.div_ceil(64));
        Ok(Self { neurons, tokens: max_tokens, all: true, bits: Resident::try_new(words)? })
    }

    /// The same over an array that a device made.
    ///
    /// # Panics
    /// Unless it holds `max_tokens × neurons.div_ceil(64)` words.
    pub fn with_bits(max_tokens: usize, neurons: usize, bits: Resident<u64>) -> Self {
        assert_eq!(bits.len(), max_tokens * neurons.div_ceil(64));
        Self { neurons, tokens: max_tokens, all: true, bits }
    }

    /// Makes the set "all neurons" for `tokens` tokens (no predictor was asked).
    ///
    /// # Errors
    /// [`Error::Limit`] if there is no room for so many tokens.
    pub fn set_all(&mut self, tokens: usize) -> Result<()> {
        self.resize(tokens)?;
        self.all = true;
        Ok(())
    }

    /// The rows of bits for `tokens` tokens, to be filled by a predictor: `neurons.div_ceil(64)` words per token, bit `i % 64`
    /// of word `i / 64` for neuron `i`. Bits from `neurons` on must stay 0.
    ///
    /// # Errors
    /// [`Error::Limit`] if there is no room for so many tokens.
    pub fn marks(&mut self, tokens: usize) -> Result<&mut [u64]> {
        self.resize(tokens)?;
        self.all = false;
        let n = tokens * self.words();
        Ok(&mut self.bits.host_overwrite()[..n])
    }

    /// The same for a predictor on a device: its array, to be overwritten for `tokens` tokens, in the same layout.
    ///
    /// # Errors
    /// [`Error::Limit`] if there is no room for so many tokens.
    pub fn marks_elsewhere(&mut self, tokens: usize) -> Result<&mut Resident<u64>> {
        self.resize(tokens)?;
        self.all = false;
        Ok(&mut self.bits)
    }

    /// True if every neuron may fire.
    pub fn is_all(&self) -> bool {
        self.all
    }

    /// Number of neurons per token.
    pub fn neurons(&self) -> usize {
        self.neurons
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Words per token.
    pub fn words(&self) -> usize {
        self.neurons.div_ceil(64)
    }

    /// The rows of bits, or `None` if every neuron may fire.
    ///
    /// # Errors
    /// If the newest copy is on a device and cannot be fetched.
    pub fn host(&mut self) -> Result<Option<&[u64]>> {
        if self.all {
            return Ok(None);
        }
        let n = self.tokens * self.words();
        Ok(Some(&self.bits.host()?[..n]))
    }

    /// The bits as an array that knows where its newest copy is.
    pub fn resident(&mut self) -> &mut Resident<u64> {
        &mut self.bits
    }

    fn resize(&mut self, tokens: usize) -> Result<()> {
        let words = tokens.saturating_mul(self.words());
        if words > self.bits.len() {
            let limit = self.bits.len().checked_div(self.words()).unwrap_or(0);
            return Err(Error::Limit { what: "tokens of an active set".into(), limit, got: tokens });
        }
        self.tokens = tokens;
        self.bits.set_used(words);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neuron_set_is_ascending_and_within_its_layer() {
        assert!(NeuronSet::some(4, vec![0, 2, 2]).is_err());
        assert!(NeuronSet::some(4, vec![2, 4]).is_err());
        let s = NeuronSet::some(4, vec![1, 3]).unwrap();
        assert_eq!((s.len(), s.total(), s.id(1), s.is_all()), (2, 4, 3, false));
        assert_eq!(NeuronSet::some(3, vec![0, 1, 2]).unwrap(), NeuronSet::all(3));
        assert_eq!(s.others(), NeuronSet::some(4, vec![0, 2]).unwrap());
        assert_eq!((NeuronSet::all(3).others(), NeuronSet::none(3).others()), (NeuronSet::none(3), NeuronSet::all(3)));
        assert_eq!(NeuronSet::none(0), NeuronSet::all(0));
        let runs = |ids: &[u32]| NeuronSet::some(9, ids.to_vec()).unwrap().runs().collect::<Vec<_>>();
        assert_eq!(runs(&[0, 1, 2, 4, 7, 8]), [0..3, 4..5, 7..9]);
        assert_eq!((runs(&[]), NeuronSet::all(0).runs().count()), (vec![], 0));
        assert!(NeuronSet::all(3).runs().eq(std::iter::once(0..3)));
    }

    #[test]
    fn an_active_set_holds_no_more_tokens_than_it_was_made_for() {
        let mut a = ActiveSet::new(2, 100);
        assert_eq!(a.marks(2).unwrap().len(), 4);
        assert!(!a.is_all());
        assert!(matches!(a.marks(3), Err(Error::Limit { limit: 2, got: 3, .. })));
        a.set_all(1).unwrap();
        assert!(a.host().unwrap().is_none());
    }
}
