//! The constraint on one answer.

use crate::aside::{Aside, Computed, Gone, Parser, is_over};
use llguidance::{TokenParser, toktrie::SimpleVob};
use pi_engine::{Constraint, Error, Result, pi_core::text::TokenId};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::Waker,
    time::Duration,
};

/// A mask that took this long is slow: the next is begun as soon as its token is accepted, and not only when somebody asks for it.
/// Whoever asks and could do something else meanwhile is kept for no longer than this.
const SLOW: Duration = Duration::from_millis(1);
/// What a form has to its credit, all its answers together: one for each mask that was not slow, and this much less for each millisecond of
/// one that was (which may be the fault of a busy machine).
const PRICE: u32 = 20;
/// With so much to its credit, a form's masks are computed where they are asked for: to hand one over takes some 25 µs, which is more than
/// usual masks take. So whoever makes a form to hold others up does it with one mask of a thousand. Twice as much is the most there can be.
const TRUSTED: u32 = 1000;

/// Follows one answer through a compiled form.
///
/// A mask takes microseconds as a rule, but some forms need seconds for one. Whoever asks [`is_ready`](Constraint::is_ready) is kept for
/// a millisecond at most: the mask is computed on a thread that belongs to this answer and ends with the matcher, whatever it is computing.
/// Only where a thousand masks of a form took less than that is the next computed here. Whoever just calls [`mask`](Constraint::mask) waits.
pub struct Matcher {
    /// None while a mask is computed aside.
    parser: Option<Parser>,
    /// The mask for the next token, if it is known already.
    next: Option<Result<SimpleVob, String>>,
    complete: bool,
    /// How long the last mask took.
    time: Duration,
    /// From the first mask on that is not computed here.
    aside: Option<Aside>,
    /// Whether somebody asks when masks are ready. To accept a token may take as long as a mask that was slow: then that is done aside too.
    asked: bool,
    /// The form's, shared by all its answers.
    credit: Arc<AtomicU32>,
}

impl Matcher {
    pub(crate) fn new(parser: TokenParser) -> Self {
        Self::of(llguidance::Matcher::new(Ok(parser)).into_cancellable())
    }

    fn of(parser: llguidance::Matcher) -> Self {
        let complete = is_over(&parser);
        let (parser, time) = (Some(Box::new(parser)), Duration::ZERO);
        Self { parser, next: None, complete, time, aside: None, asked: false, credit: Arc::default() }
    }

    /// Computes the first mask. False if no token can be the first.
    pub(crate) fn begins(&mut self) -> Result<bool, String> {
        let mask = self.compute()?;
        let some = !mask.is_zero();
        self.next = Some(Ok(mask));
        Ok(some)
    }

    /// The same, from where this one is on; `None` while a mask is computed aside.
    pub(crate) fn another(&self) -> Option<Self> {
        let parser = self.parser.as_ref()?.deep_clone();
        let (next, credit) = (self.next.clone(), self.credit.clone());
        Some(Self { next, credit, time: self.time, ..Self::of(parser) })
    }

    fn failed(error: impl ToString) -> Error {
        let message = error.to_string();
        Error::Constraint(message.lines().next().unwrap_or_default().to_string())
    }

    /// The next mask, here or, if it was begun there, from aside.
    fn compute(&mut self) -> Result<SimpleVob, String> {
        match (self.parser.take(), &mut self.aside) {
            (Some(parser), _) => self.back(Ok(Computed::here(parser, None))),
            (None, Some(aside)) => {
                let computed = aside.wait();
                self.back(computed)
            }
            (None, None) => self.back(Err(Gone)),
        }
    }

    /// Begins to accept a token, if there is one, and to compute the next mask, aside. False if it has to be done here.
    fn begin(&mut self, token: Option<TokenId>) -> bool {
        if self.aside.is_none() {
            self.aside = Aside::new().ok();
        }
        match (&mut self.aside, self.parser.take()) {
            (Some(aside), Some(parser)) => aside.begin(parser, token),
            (_, parser) => self.parser = parser,
        }
        self.parser.is_none()
    }

    /// Takes the parser back.
    fn back(&mut self, computed: Result<Computed, Gone>) -> Result<SimpleVob, String> {
        let Computed { parser, mask, time } = computed.map_err(|Gone| "computing what may come next failed")?;
        self.complete = is_over(&parser);
        (self.parser, self.time) = (Some(parser), time);
        self.credit.store(credit(self.credit.load(Relaxed), time), Relaxed);
        mask
    }

    #[cfg(test)]
    pub(crate) fn give_credit(&self, credit: u32) {
        self.credit.store(credit, Relaxed);
    }

    /// Whether masks of this form can be expected to be quick.
    pub(crate) fn is_trusted(&self) -> bool {
        self.credit.load(Relaxed) >= TRUSTED
    }
}

/// What a form has to its credit after a mask that took so long.
fn credit(before: u32, time: Duration) -> u32 {
    if time < SLOW {
        return before.saturating_add(1).min(2 * TRUSTED);
    }
    before.saturating_sub(u32::try_from(time.as_millis()).map_or(u32::MAX, |ms| ms.saturating_mul(PRICE)))
}

/// Tokens in one word of a mask.
const WORD: usize = 32;

impl Constraint for Matcher {
    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let known = self.next.take();
        let mask = known.unwrap_or_else(|| self.compute()).map_err(Self::failed)?;
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

    fn is_ready(&mut self, waker: &Waker) -> bool {
        self.asked = true;
        if self.next.is_some() || self.complete {
            return true;
        }
        let fresh = self.parser.is_some();
        if fresh && (self.is_trusted() || !self.begin(None)) {
            return true;
        }
        let Some(aside) = &mut self.aside else { return true };
        match aside.poll(if fresh { SLOW } else { Duration::ZERO }, waker) {
            Ok(None) => return false,
            Ok(Some(computed)) => self.next = Some(self.back(Ok(computed))),
            Err(gone) => self.next = Some(self.back(Err(gone))),
        }
        true
    }

    fn accept(&mut self, token: TokenId) -> Result<()> {
        if self.parser.is_none() {
            let _ = self.compute(); // nobody wanted it; if it failed, so does what follows
        }
        self.next = None;
        let slow = self.time >= SLOW;
        if slow && self.asked && self.begin(Some(token)) {
            return Ok(());
        }
        let Some(parser) = &mut self.parser else { return Err(Self::failed("there is no parser")) };
        let accepted = parser.consume_token(token).map_err(Self::failed);
        self.complete = is_over(parser);
        if slow && accepted.is_ok() && !self.complete {
            self.begin(None);
        }
        accepted
    }

    fn is_complete(&self) -> bool {
        self.complete
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("complete", &self.is_complete()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Grammar, tests::compile};

    #[test]
    fn a_mask_that_nobody_waits_for_any_more_is_broken_off() {
        for away in [true, false] {
            let mut matcher = compile(&Grammar::Regex("[a-z]{9}".into()));
            let cancel = matcher.parser.as_ref().unwrap().cancellation_handle().unwrap();
            if away {
                assert!(matcher.begin(None));
            }
            drop(matcher);
            assert_eq!(cancel.is_cancelled(), away);
        }
    }

    #[test]
    fn credit_grows_slowly_and_a_slow_mask_takes_all_of_it() {
        let (quick, ms) = (Duration::from_micros(30), Duration::from_millis);
        assert_eq!((0..700).fold(0, |so_far, _| credit(so_far, quick)), 700);
        let most = (0..9999).fold(0, |so_far, _| credit(so_far, quick));
        assert_eq!((most, credit(most, ms(4)), credit(most, ms(51)) >= TRUSTED), (2000, 1920, false));
        assert_eq!([ms(500), ms(1 << 40)].map(|time| credit(most, time)), [0, 0]);
    }
}
