//! What neurons take of a device, as a price per neuron.

/// A line above what neurons take, for whoever needs a price per neuron: `fixed` bytes, and `each` for every neuron.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub fixed: u64,
    pub each: u64,
}

impl Line {
    /// The line that rises as `bytes` does between 1 neuron and all but one, through its highest point. Memory comes in pieces, so what
    /// neurons take need not be a line.
    pub fn above(neurons: usize, bytes: impl Fn(usize) -> u64) -> Self {
        let (one, most) = (bytes(1), bytes(neurons.saturating_sub(1).max(1)));
        let steps = neurons.saturating_sub(2).max(1) as u64;
        let each = if neurons < 3 { bytes(neurons.max(1)) } else { most.saturating_sub(one).div_ceil(steps) };
        let over = |n: usize| bytes(n).saturating_sub(each.saturating_mul(n as u64));
        Self { fixed: (1..=neurons).map(over).max().unwrap_or(0), each }
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn a_line_is_above_what_neurons_take_and_exact_where_that_is_one() {
        let exact = Line::above(100, |n| 7 + 3 * n as u64);
        assert_eq!(exact, Line { fixed: 7, each: 3 });
        for neurons in [1, 2, 3, 4, 99, 1000] {
            // pieces of 512 bytes, one more for each 256 neurons, and something that only parts need
            let bytes = |n: usize| {
                (33 * n as u64).next_multiple_of(512)
                    + 4096 * n.div_ceil(256) as u64
                    + if n < neurons { 900 } else { 0 }
            };
            let line = Line::above(neurons, bytes);
            assert!((1..=neurons).all(|n| bytes(n) <= line.fixed + n as u64 * line.each), "{neurons}: {line:?}");
        }
    }
}
