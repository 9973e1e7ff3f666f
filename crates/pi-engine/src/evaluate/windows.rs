//! Where the windows of a text lie, and which of their tokens count.

use crate::{Error, Result};
use pi_core::text::TokenId;
use std::{borrow::Cow, ops::Range};

/// How a text is cut into windows. A rest that does not fill one is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Windows {
    /// Side by side; the tokens of the second half count, `context - context / 2 - 1` of each window. The window's first token is
    /// replaced by the one that begins a text. llama.cpp's definition.
    #[default]
    Halves,
    /// Each begins `stride` tokens after the last, and its last `stride` tokens count: every token of the text counts once, save
    /// for those before the first window's. The token that begins a text stands *before* the window's part of the text.
    /// `stride` is at most `context - 1`, where nothing overlaps.
    Stride(usize),
}

/// The windows of a text.
pub(crate) struct Plan<'a> {
    tokens: Cow<'a, [TokenId]>,
    /// Replaces the first token of each window.
    first: Option<TokenId>,
    /// Stands before each window.
    before: Option<TokenId>,
    /// Tokens of the text per window.
    width: usize,
    step: usize,
    scored: Range<usize>,
}

impl Windows {
    pub(crate) fn plan<'a>(self, tokens: &'a [TokenId], bos: Option<TokenId>, context: usize) -> Result<Plan<'a>> {
        if !(4..=1 << 24).contains(&context) {
            return Err(Error::setting("context", "a number from 4 to 16777216", context));
        }
        let plan = match self {
            Self::Halves => {
                // The text begins as every text does; windows are counted from there.
                let tokens = match bos {
                    Some(bos) => Cow::Owned([&[bos], tokens].concat()),
                    None => Cow::Borrowed(tokens),
                };
                let scored = context / 2..context - 1;
                Plan { tokens, first: bos, before: None, width: context, step: context, scored }
            }
            Self::Stride(stride) => {
                if !(1..context).contains(&stride) {
                    return Err(Error::setting("stride", format!("a number from 1 to {}", context - 1), stride));
                }
                let width = context - usize::from(bos.is_some());
                let scored = context - 1 - stride..context - 1;
                Plan { tokens: Cow::Borrowed(tokens), first: None, before: bos, width, step: stride, scored }
            }
        };
        if plan.len() == 0 {
            let expected = format!("at least {} tokens, for a window of {context}", plan.width);
            return Err(Error::setting("text", expected, plan.tokens.len()));
        }
        Ok(plan)
    }
}

impl Plan<'_> {
    /// How many windows there are.
    pub fn len(&self) -> usize {
        self.tokens.len().checked_sub(self.width).map_or(0, |rest| rest / self.step + 1)
    }

    /// The tokens of window `i`.
    pub fn write(&self, i: usize, window: &mut Vec<TokenId>) {
        window.clear();
        window.extend(self.before);
        window.extend_from_slice(&self.tokens[i * self.step..][..self.width]);
        if let Some(first) = self.first {
            window[0] = first;
        }
    }

    /// The positions of a window after which the next token is scored.
    pub fn scored(&self) -> Range<usize> {
        self.scored.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(
        windows: Windows,
        tokens: u32,
        bos: Option<TokenId>,
        context: usize,
    ) -> (Vec<Vec<TokenId>>, Range<usize>) {
        let tokens: Vec<TokenId> = (1..=tokens).collect();
        let plan = windows.plan(&tokens, bos, context).unwrap();
        let window = |i| {
            let mut window = Vec::new();
            plan.write(i, &mut window);
            window
        };
        ((0..plan.len()).map(window).collect(), plan.scored())
    }

    #[test]
    fn halves_lie_side_by_side_and_begin_with_the_token_that_begins_a_text() {
        let (all, scored) = windows(Windows::Halves, 11, None, 4);
        assert_eq!((all, scored.clone()), (vec![vec![1, 2, 3, 4], vec![5, 6, 7, 8]], 2..3));
        // the begin of the text is a token of it
        let (all, scored) = windows(Windows::Halves, 11, Some(0), 4);
        assert_eq!((all, scored), (vec![vec![0, 1, 2, 3], vec![0, 5, 6, 7], vec![0, 9, 10, 11]], 2..3));
        assert_eq!(windows(Windows::Halves, 512, None, 512).1.len(), 255);
    }

    #[test]
    fn with_a_stride_every_token_counts_once() {
        for (bos, context, stride) in [(Some(0), 8, 7), (Some(0), 8, 3), (None, 8, 7), (None, 5, 1), (None, 6, 2)] {
            let (all, scored) = windows(Windows::Stride(stride), 40, bos, context);
            let counted: Vec<TokenId> = all.iter().flat_map(|w| w[scored.start + 1..=scored.end].to_vec()).collect();
            assert!(all.iter().all(|w| w.len() == context && (bos.is_none() || w[0] == 0)));
            let first = counted[0];
            assert_eq!(
                counted,
                (first..first + counted.len() as u32).collect::<Vec<_>>(),
                "{bos:?} {context} {stride}"
            );
            assert!(40 - counted.last().unwrap() < stride as u32);
            assert!(bos.is_none() || stride < 7 || first == 1, "a whole stride leaves no token out");
        }
    }

    #[test]
    fn windows_that_cannot_be_are_refused() {
        let plan = |windows: Windows, tokens: &[TokenId], context| windows.plan(tokens, None, context).map(|_| ());
        for (windows, n, context, said) in [
            (Windows::Halves, 100, 3, "context: expected a number from 4"),
            (Windows::Halves, 100, 101, "text: expected at least 101 tokens, for a window of 101, got 100"),
            (Windows::Stride(0), 100, 10, "stride: expected a number from 1 to 9, got 0"),
            (Windows::Stride(10), 100, 10, "stride: expected a number from 1 to 9, got 10"),
        ] {
            let error = plan(windows, &vec![1; n], context).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
