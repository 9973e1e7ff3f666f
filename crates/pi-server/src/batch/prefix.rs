//! Which slot has computed most of a prompt already.

use pi_engine::pi_core::text::TokenId;

/// A free slot: its place among all, the tokens it has computed, and when it was last used.
pub(crate) struct Free<'a> {
    pub index: usize,
    pub computed: &'a [TokenId],
    pub used: u64,
}

/// The free slot with the longest common beginning; among equal ones the one that was not used for the longest time, so that
/// other conversations keep theirs. Returns its place and how many tokens it has.
///
/// At least one token of the prompt is left to be computed: the logits after it are needed.
pub(crate) fn choose<'a>(prompt: &[TokenId], free: impl Iterator<Item = Free<'a>>) -> Option<(usize, usize)> {
    free.map(|slot| (common(prompt, slot.computed), slot))
        .max_by(|(a, x), (b, y)| a.cmp(b).then(y.used.cmp(&x.used)).then(y.index.cmp(&x.index)))
        .map(|(n, slot)| (slot.index, n))
}

fn common(prompt: &[TokenId], computed: &[TokenId]) -> usize {
    let same = prompt.iter().zip(computed).take_while(|(a, b)| a == b).count();
    same.min(prompt.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_wins_and_then_the_slot_that_rested_longest() {
        let slots: [(&[TokenId], u64); 4] = [(&[1, 2, 3], 9), (&[1, 2, 3, 4, 5], 3), (&[], 0), (&[7], 1)];
        let pick = |prompt: &[TokenId]| {
            choose(prompt, slots.iter().enumerate().map(|(index, &(computed, used))| Free { index, computed, used }))
        };
        assert_eq!(pick(&[1, 2, 3, 4]), Some((1, 3)), "one token is left to compute");
        assert_eq!(pick(&[1, 2, 9]), Some((1, 2)), "equal: the one used longer ago");
        assert_eq!(pick(&[8, 8]), Some((2, 0)));
        assert_eq!(pick(&[7, 1]), Some((3, 1)));
        assert_eq!(pick(&[7]), Some((2, 0)));
        assert_eq!(choose(&[1], std::iter::empty()), None);
    }
}
