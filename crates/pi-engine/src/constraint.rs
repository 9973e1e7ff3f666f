//! Answers that must have a form: a constraint says which tokens may come next.

use crate::{Error, Result, Sampler, sampler::argmax};
use pi_core::text::TokenId;
use std::task::Waker;

/// What an answer must be like, token by token. One value follows one answer.
pub trait Constraint: Send {
    /// Sets the logits of all tokens to −∞ that may not come next. Tokens that end an answer may come where it can end.
    ///
    /// # Errors
    /// [`Error::Constraint`] if the constraint needs more work than it may do, or no token may come.
    fn mask(&mut self, logits: &mut [f32]) -> Result<()>;

    /// Whether [`mask`](Self::mask) would answer soon. If not, what it needs is being computed elsewhere, and `waker` is woken when it is
    /// there; only the last waker counts. What may come depends on accepted tokens alone, so a constraint can begin as soon as a token is
    /// accepted, beside the model. Nobody has to ask: `mask` waits, if it must. But who makes several answers at once asks, and goes on
    /// with the others meanwhile. For one who asks, a constraint may also be late with the rest: what [`accept`](Self::accept) would
    /// have refused, `mask` refuses, and [`is_complete`](Self::is_complete) is certain only once this is true.
    /// Always true for constraints that need no time.
    fn is_ready(&mut self, waker: &Waker) -> bool {
        let _ = waker;
        true
    }

    /// Goes on behind a token that the last mask allowed.
    ///
    /// # Errors
    /// [`Error::Constraint`] if it cannot come here.
    fn accept(&mut self, token: TokenId) -> Result<()>;

    /// Whether the answer is complete: nothing can follow.
    fn is_complete(&self) -> bool;
}

/// A sampler that sees only the tokens that a constraint allows. Everything that the sampler does comes after the mask: penalties,
/// top-k, top-p and the rest choose among allowed tokens.
pub struct Constrained<S> {
    sampler: S,
    constraint: Box<dyn Constraint>,
    /// The token that was chosen last, until it is accepted. Other tokens that are accepted are a prompt's.
    chosen: Option<TokenId>,
    failed: Option<Error>,
}

impl<S: Sampler> Constrained<S> {
    /// Puts a constraint, which follows an answer from its beginning, before a sampler.
    pub fn new(sampler: S, constraint: Box<dyn Constraint>) -> Self {
        Self { sampler, constraint, chosen: None, failed: None }
    }
}

impl<S: Sampler> Sampler for Constrained<S> {
    fn sample(&mut self, logits: &mut [f32]) -> Result<TokenId> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        // what the model computed is judged as a whole, before the mask hides some of it
        argmax(logits)?;
        self.constraint.mask(logits)?;
        if logits.iter().all(|&l| l == f32::NEG_INFINITY) {
            return Err(Error::Constraint("the model gives no probability to any token that may come next".into()));
        }
        let token = self.sampler.sample(logits)?;
        self.chosen = Some(token);
        Ok(token)
    }

    fn is_ready(&mut self, waker: &Waker) -> bool {
        // what has failed is told at once
        self.failed.is_some() || (self.sampler.is_ready(waker) && self.constraint.is_ready(waker))
    }

    fn accept(&mut self, token: TokenId) {
        self.sampler.accept(token);
        if self.chosen.take() == Some(token) {
            self.failed = self.constraint.accept(token).err();
        }
    }

    fn is_done(&self) -> bool {
        self.failed.is_none() && self.constraint.is_complete()
    }
}

impl<S> std::fmt::Debug for Constrained<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constrained").field("chosen", &self.chosen).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SamplingParams, sampler::Chain};

    /// Tokens 1, 2, 1, 2, … and no more than `left` of them.
    struct Alternating {
        next: TokenId,
        left: usize,
    }

    impl Constraint for Alternating {
        fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
            let others = logits.iter_mut().enumerate().filter(|(id, _)| *id != self.next as usize);
            others.for_each(|(_, l)| *l = f32::NEG_INFINITY);
            Ok(())
        }

        fn accept(&mut self, token: TokenId) -> Result<()> {
            if token != self.next {
                return Err(Error::Constraint(format!("token {token}")));
            }
            (self.next, self.left) = (3 - self.next, self.left - 1);
            Ok(())
        }

        fn is_complete(&self) -> bool {
            self.left == 0
        }
    }

    fn constrained(params: SamplingParams, left: usize) -> Constrained<Chain> {
        Constrained::new(Chain::new(params, 4).unwrap(), Box::new(Alternating { next: 1, left }))
    }

    #[test]
    fn only_allowed_tokens_come_whatever_the_sampler_is_told_and_the_prompt_is_none_of_them() {
        let settings = [
            SamplingParams::greedy(),
            SamplingParams { temperature: 5.0, top_k: 1, ..Default::default() },
            SamplingParams { temperature: 1.0, top_p: 0.01, min_p: 1.0, repeat_penalty: 9.0, ..Default::default() },
            SamplingParams { logit_bias: vec![(0, 100.0), (1, -100.0)], ..Default::default() },
        ];
        for params in settings {
            let mut sampler = constrained(params.clone(), 4);
            [3, 2, 1].into_iter().for_each(|token| sampler.accept(token));
            for want in [1, 2, 1, 2] {
                assert!(!sampler.is_done());
                let token = sampler.sample(&mut [9.0, 1.0, 0.0, 8.0]).unwrap();
                assert_eq!(token, want, "{params:?}");
                sampler.accept(token);
            }
            assert!(sampler.is_done());
        }
    }

    #[test]
    fn numbers_that_are_none_are_found_behind_the_mask_too() {
        let mut sampler = constrained(SamplingParams::greedy(), 2);
        assert!(matches!(sampler.sample(&mut [f32::NAN, 1.0, 0.0, 0.0]), Err(Error::Logits(_))));
        let all_gone = sampler.sample(&mut [1.0, f32::NEG_INFINITY, 0.0, 0.0]);
        assert!(matches!(all_gone, Err(Error::Constraint(_))), "{all_gone:?}");
    }
}
