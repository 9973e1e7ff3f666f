//! The constraint on one answer.

use llguidance::{TokenParser, toktrie::SimpleVob};
use pi_engine::{Constraint, Error, Result, pi_core::text::TokenId};

/// Follows one answer through a compiled form.
pub struct Matcher {
    parser: llguidance::Matcher,
    /// The mask for the next token, if it is known already.
    next: Option<SimpleVob>,
}

impl Matcher {
    pub(crate) fn new(parser: TokenParser) -> Self {
        Self { parser: llguidance::Matcher::new(Ok(parser)), next: None }
    }

    /// Computes the first mask. False if no token can be the first.
    pub(crate) fn begins(&mut self) -> Result<bool, String> {
        let mask = self.parser.compute_mask().map_err(|e| e.to_string())?;
        let some = !mask.is_zero();
        self.next = Some(mask);
        Ok(some)
    }

    /// The same, from where this one is on.
    pub(crate) fn another(&self) -> Self {
        Self { parser: self.parser.deep_clone(), next: self.next.clone() }
    }

    fn failed(error: impl ToString) -> Error {
        let message = error.to_string();
        Error::Constraint(message.lines().next().unwrap_or_default().to_string())
    }
}

/// Tokens in one word of a mask.
const WORD: usize = 32;

impl Constraint for Matcher {
    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let mask = match self.next.take() {
            Some(mask) => mask,
            None => self.parser.compute_mask().map_err(Self::failed)?,
        };
        // a model may have logits for tokens that its vocabulary does not have
        let (logits, beyond) = logits.split_at_mut(mask.len().min(logits.len()));
        beyond.fill(f32::NEG_INFINITY);
        for (logits, word) in logits.chunks_mut(WORD).zip(mask.as_slice()) {
            match *word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    let forbidden = logits.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                    forbidden.for_each(|(_, l)| *l = f32::NEG_INFINITY);
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<()> {
        self.parser.consume_token(token).map_err(Self::failed)
    }

    fn is_complete(&self) -> bool {
        self.parser.is_stopped() && !self.parser.is_error()
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("complete", &self.is_complete()).finish_non_exhaustive()
    }
}
