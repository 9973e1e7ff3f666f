//! From logits to the next token.
//!
//! The order is that of the usual programs: bias, penalties, then — unless the temperature is 0, which means arg-max — top-k,
//! top-p, min-p, temperature, and a draw.

use crate::{Error, Result};
use pi_core::text::TokenId;
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};
use std::{collections::VecDeque, task::Waker};

/// Chooses the next token. Implement it to replace the whole chain.
pub trait Sampler {
    /// A token from logits (one per token of the vocabulary; −∞ forbids a token). The logits may be changed.
    ///
    /// # Errors
    /// [`Error::Logits`] if they contain NaN or +∞, or nothing finite.
    fn sample(&mut self, logits: &mut [f32]) -> Result<TokenId>;
    /// Whether [`sample`](Self::sample) would choose soon. If not, `waker` is woken when it would; only the last waker counts. Nobody has
    /// to ask: `sample` waits, if it must. But who makes several answers at once can go on with the others meanwhile. For one who asks,
    /// [`is_done`](Self::is_done) is certain only once this is true. Most samplers need no time.
    fn is_ready(&mut self, waker: &Waker) -> bool {
        let _ = waker;
        true
    }
    /// Tells the sampler that a token was added to the text, by the prompt or by sampling.
    fn accept(&mut self, token: TokenId);
    /// Whether the text is complete, so that no token needs to come. Most samplers never know.
    fn is_done(&self) -> bool {
        false
    }
}

/// Settings of [`Chain`].
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the most likely token; higher values flatten the distribution. Not negative.
    pub temperature: f32,
    /// Keeps the `k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest most likely tokens whose probabilities sum to at least this, 0 to 1; always at least one.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one, 0 to 1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the window; 1 changes nothing. Above 0.
    pub repeat_penalty: f32,
    /// Subtracted from logits of tokens that occur in the window.
    pub presence_penalty: f32,
    /// Subtracted for every occurrence in the window.
    pub frequency_penalty: f32,
    /// Tokens that the penalties look back on; 0 switches them off.
    pub repeat_last_n: usize,
    /// Added to the logits of single tokens; −∞ forbids one.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Seed of the draws; chosen at random if absent.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks all ranges; `vocab` is the number of tokens.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the setting.
    pub fn check(&self, vocab: usize) -> Result<()> {
        let range = |name, v: f32, ok: bool, expected: &str| {
            if ok && v.is_finite() { Ok(()) } else { Err(Error::setting(name, expected, v)) }
        };
        range("temperature", self.temperature, self.temperature >= 0.0, "a number from 0 on")?;
        range("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p), "a number from 0 to 1")?;
        range("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "a number from 0 to 1")?;
        range("repeat_penalty", self.repeat_penalty, self.repeat_penalty > 0.0, "a number above 0")?;
        range("presence_penalty", self.presence_penalty, true, "a finite number")?;
        range("frequency_penalty", self.frequency_penalty, true, "a finite number")?;
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab {
                return Err(Error::setting("logit_bias", format!("token ids below {vocab}"), id));
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(Error::setting("logit_bias", format!("a number for token {id}"), bias));
            }
        }
        Ok(())
    }
}

/// The usual chain of samplers.
pub struct Chain {
    params: SamplingParams,
    seed: u64,
    rng: Pcg64Mcg,
    window: VecDeque<TokenId>,
    counts: Vec<u32>,
    /// Per token, the last call that penalised it: each is penalised once, however often it occurs in the window.
    penalised: Vec<u64>,
    calls: u64,
    candidates: Vec<(f32, TokenId)>,
    /// The largest logits of runs of the vocabulary.
    runs: Vec<f32>,
}

impl Chain {
    /// A chain for a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// As [`SamplingParams::check`].
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self> {
        params.check(vocab)?;
        let seed = params.seed.unwrap_or_else(random_seed);
        let window = if params.has_penalties() { params.repeat_last_n } else { 0 };
        Ok(Self {
            seed,
            rng: Pcg64Mcg::seed_from_u64(seed),
            window: VecDeque::with_capacity(window.min(1 << 16)),
            counts: if window > 0 { vec![0; vocab] } else { Vec::new() },
            penalised: if window > 0 { vec![0; vocab] } else { Vec::new() },
            calls: 0,
            candidates: Vec::with_capacity(if params.temperature > 0.0 { vocab } else { 0 }),
            runs: Vec::with_capacity(2 * (vocab / RUN)),
            params,
        })
    }

    /// The seed in use, also if it was chosen at random: the same seed gives the same text.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn penalise(&mut self, logits: &mut [f32]) {
        let p = &self.params;
        self.calls += 1;
        for &id in &self.window {
            let id = id as usize;
            let Some(l) = logits.get_mut(id) else { continue };
            if std::mem::replace(&mut self.penalised[id], self.calls) == self.calls {
                continue;
            }
            *l = if *l > 0.0 { *l / p.repeat_penalty } else { *l * p.repeat_penalty };
            *l -= p.presence_penalty + self.counts[id] as f32 * p.frequency_penalty;
            *l = l.min(f32::MAX);
        }
    }

    fn draw(&mut self, logits: &[f32]) -> TokenId {
        let (p, c) = (&self.params, &mut self.candidates);
        c.clear();
        top_logits(logits, p.top_k, &mut self.runs, |i, l| {
            if l > f32::NEG_INFINITY {
                c.push((l, i as TokenId));
            }
        });
        // Likeliest first; equal ones by id, so that the order is the same everywhere.
        let order = |a: &(f32, TokenId), b: &(f32, TokenId)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if p.top_k > 0 && p.top_k < c.len() {
            c.select_nth_unstable_by(p.top_k, order);
            c.truncate(p.top_k);
        }
        c.sort_unstable_by(order);
        let max = c[0].0;
        if p.top_p < 1.0 {
            let total: f32 = c.iter().map(|(l, _)| (l - max).exp()).sum();
            let mut sum = 0.0;
            let keep = c.iter().position(|(l, _)| {
                sum += (l - max).exp() / total;
                sum >= p.top_p
            });
            c.truncate(keep.map_or(c.len(), |k| k + 1));
        }
        if p.min_p > 0.0 {
            let keep = c.partition_point(|(l, _)| (l - max).exp() >= p.min_p);
            c.truncate(keep.max(1));
        }
        let weight = |l: f32| ((l - max) / p.temperature).exp() as f64;
        let total: f64 = c.iter().map(|(l, _)| weight(*l)).sum();
        let mut left = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        for &(l, id) in c.iter() {
            left -= weight(l);
            if left < 0.0 {
                return id;
            }
        }
        c[0].1
    }
}

impl SamplingParams {
    fn has_penalties(&self) -> bool {
        self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

impl Sampler for Chain {
    fn sample(&mut self, logits: &mut [f32]) -> Result<TokenId> {
        // What the model computed is judged before the user's settings change it; those cannot make infinity.
        let best = argmax(logits)?;
        for &(id, bias) in &self.params.logit_bias {
            if let Some(l) = logits.get_mut(id as usize) {
                *l = (*l + bias).min(f32::MAX);
            }
        }
        self.penalise(logits);
        let unchanged = self.params.logit_bias.is_empty() && self.window.is_empty();
        let best = if unchanged { best } else { argmax(logits)? };
        Ok(if self.params.temperature == 0.0 { best } else { self.draw(logits) })
    }

    fn accept(&mut self, token: TokenId) {
        if !self.params.has_penalties() || self.params.repeat_last_n == 0 || token as usize >= self.counts.len() {
            return;
        }
        if self.window.len() == self.params.repeat_last_n
            && let Some(old) = self.window.pop_front()
        {
            self.counts[old as usize] -= 1;
        }
        self.window.push_back(token);
        self.counts[token as usize] += 1;
    }
}

/// The most likely token; the first of equals.
///
/// # Errors
/// [`Error::Logits`] if there is NaN or +∞, or nothing finite.
pub fn argmax(logits: &[f32]) -> Result<TokenId> {
    // Lanes that do not depend on each other become vector code.
    const LANES: usize = 16;
    let (mut best, mut bad) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let (blocks, rest) = logits.as_chunks::<LANES>();
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    for block in blocks.iter().chain([&last]) {
        for i in 0..LANES {
            best[i] = if block[i] > best[i] { block[i] } else { best[i] };
            bad[i] |= block[i].is_nan() | (block[i] == f32::INFINITY);
        }
    }
    if bad.contains(&true) {
        let first = logits.iter().find(|l| l.is_nan() || **l == f32::INFINITY);
        return Err(Error::Logits(if first.is_some_and(|l| l.is_nan()) { "NaN" } else { "+infinity" }));
    }
    let top = best.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if top == f32::NEG_INFINITY {
        return Err(Error::Logits("no token has a finite logit"));
    }
    Ok(logits.iter().position(|&l| l == top).unwrap_or(0) as TokenId)
}

/// Logits that are looked at together.
const RUN: usize = 32;

/// Calls `f` with logits and their places: all that are among the `k` largest (0 stands for any number), and few others.
///
/// The `k`-th largest of the largest ones of short runs is a number that at least `k` logits reach; runs that do not reach it
/// are passed over. `runs` is memory to work in.
fn top_logits(logits: &[f32], k: usize, runs: &mut Vec<f32>, mut f: impl FnMut(usize, f32)) {
    let n = logits.len() / RUN;
    if k == 0 || n < k {
        return logits.iter().enumerate().for_each(|(i, &l)| f(i, l));
    }
    runs.clear();
    runs.extend(logits.as_chunks::<RUN>().0.iter().map(|run| {
        let mut best = [f32::NEG_INFINITY; 8];
        for eight in run.as_chunks::<8>().0 {
            (0..8).for_each(|i| best[i] = if eight[i] > best[i] { eight[i] } else { best[i] });
        }
        best.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }));
    runs.extend_from_within(..);
    let (best, work) = runs.split_at_mut(n);
    let floor = *work.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
    let best = best.iter().copied().chain([f32::INFINITY]); // the rest that makes no whole run
    for (r, (run, _)) in logits.chunks(RUN).zip(best).enumerate().filter(|(_, (_, best))| *best >= floor) {
        run.iter().enumerate().filter(|(_, l)| **l >= floor).for_each(|(i, &l)| f(r * RUN + i, l));
    }
}

/// The natural logarithm of the softmax's denominator: `logits[i] - log_sum_exp(logits)` is token `i`'s log-probability.
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return max;
    }
    let sum: f64 = logits.iter().map(|&l| ((l - max) as f64).exp()).sum();
    max + sum.ln() as f32
}

/// The `n` most likely tokens with their log-probabilities (natural logarithm, of the unchanged distribution), likeliest first.
/// Empty if no logit is finite.
pub fn top_logprobs(logits: &[f32], n: usize) -> Vec<(TokenId, f32)> {
    let lse = log_sum_exp(logits);
    if lse == f32::NEG_INFINITY {
        return Vec::new();
    }
    let mut all: Vec<(TokenId, f32)> = logits.iter().enumerate().map(|(i, &l)| (i as TokenId, l - lse)).collect();
    let order = |a: &(TokenId, f32), b: &(TokenId, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if n < all.len() {
        all.select_nth_unstable_by(n, order);
        all.truncate(n);
    }
    all.sort_unstable_by(order);
    all
}

/// The standard library's per-process random keys, mixed with the time.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u128(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos()));
    hasher.finish() >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(params: SamplingParams) -> Chain {
        Chain::new(params, 4).unwrap()
    }

    fn seeded(params: SamplingParams) -> Chain {
        chain(SamplingParams { seed: Some(1), ..params })
    }

    fn wild() -> SamplingParams {
        SamplingParams { temperature: 5.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Default::default() }
    }

    // S01, S02
    #[test]
    fn logits_that_are_not_numbers_end_the_request_with_an_error() {
        for temperature in [0.0, 0.8] {
            for bad in
                [[f32::NAN; 4], [1.0, f32::NAN, 0.0, 2.0], [f32::NEG_INFINITY; 4], [0.0, f32::INFINITY, 0.0, 0.0]]
            {
                let mut c = seeded(SamplingParams { temperature, ..Default::default() });
                assert!(matches!(c.sample(&mut bad.clone()), Err(Error::Logits(_))), "{bad:?}");
            }
            let mut one = [f32::NEG_INFINITY, f32::NEG_INFINITY, -3.0, f32::NEG_INFINITY];
            assert_eq!(seeded(SamplingParams { temperature, ..Default::default() }).sample(&mut one).unwrap(), 2);
        }
    }

    // S03
    #[test]
    fn temperature_zero_is_the_arg_max_for_any_seed() {
        for seed in 0..20 {
            let mut c = chain(SamplingParams { seed: Some(seed), ..SamplingParams::greedy() });
            assert_eq!(c.sample(&mut [0.0, 3.0, 3.0, 1.0]).unwrap(), 1);
        }
    }

    #[test]
    fn the_arg_max_is_the_first_of_the_largest_in_a_list_of_any_length() {
        for n in 1..70 {
            for at in 0..n {
                let mut logits = vec![-1.0; n];
                logits[at..].fill(f32::NEG_INFINITY);
                logits[at] = 0.5;
                logits[n - 1] = logits[n - 1].max(if n % 2 == 0 { 0.5 } else { 0.25 });
                assert_eq!(argmax(&logits).unwrap() as usize, at, "{n} logits");
                for (bad, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "+infinity")] {
                    logits[at] = bad;
                    assert!(matches!(argmax(&logits), Err(Error::Logits(n)) if n == name));
                }
            }
        }
        assert!(argmax(&[]).is_err());
    }

    #[test]
    fn passing_over_most_of_a_vocabulary_keeps_its_top() {
        let mut logits: Vec<f32> = (0..5003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 64.0).collect();
        logits[5002] = 1e3;
        for finite in [5003, 1103] {
            for k in [0, 1, 2, 40, 155, 156, 157, 5000, 6000] {
                let mut kept = Vec::new();
                top_logits(&logits, k, &mut Vec::new(), |i, l| kept.push((i, l)));
                assert!(kept.iter().all(|&(i, l)| logits[i] == l) && kept.is_sorted_by(|a, b| a.0 < b.0));
                let mut sorted = logits.clone();
                sorted.sort_unstable_by(|a, b| b.total_cmp(a));
                kept.sort_unstable_by(|a, b| b.1.total_cmp(&a.1));
                let n = if k == 0 { 5003 } else { k.min(5003) };
                assert!(kept[..n].iter().map(|p| p.1).eq(sorted[..n].iter().copied()), "the top {k}");
                assert!(k == 0 || k > finite / 64 || kept.len() < 500, "{k}: {} are kept", kept.len());
            }
            logits[100..4000].fill(f32::NEG_INFINITY);
        }
    }

    // S03, S05
    #[test]
    fn the_top_list_is_sorted_by_probability_in_natural_logarithms() {
        let top = top_logprobs(&[0.0, 2f32.ln(), 1f32.ln(), 0.0], 2);
        assert_eq!(top[0].0, 1);
        assert!((top[0].1 - 0.4f32.ln()).abs() < 1e-6);
        assert_eq!(top[1].0, 0);
        assert!(top.iter().all(|t| t.1 <= 0.0));
        assert_eq!(top_logprobs(&[1.0, 2.0], 10).len(), 2);
    }

    // S07
    #[test]
    fn the_repetition_penalty_lowers_positive_and_negative_logits_once() {
        let params = SamplingParams { repeat_penalty: 1.5, ..SamplingParams::greedy() };
        let mut c = chain(params);
        [0, 1, 0, 0].into_iter().for_each(|t| c.accept(t));
        let mut logits = [2.0, -2.0, 1.0, 0.0];
        c.sample(&mut logits).unwrap();
        assert_eq!(logits, [2.0 / 1.5, -3.0, 1.0, 0.0]);
    }

    #[test]
    fn presence_and_frequency_penalties_count_within_the_window() {
        let params = SamplingParams {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            repeat_last_n: 3,
            ..SamplingParams::greedy()
        };
        let mut c = chain(params);
        [3, 0, 0, 1].into_iter().for_each(|t| c.accept(t)); // 3 has left the window
        let mut logits = [2.0, 2.0, 2.0, 2.0];
        c.sample(&mut logits).unwrap();
        assert_eq!(logits, [1.0, 1.25, 2.0, 2.0]);
    }

    #[test]
    fn settings_never_make_logits_infinite() {
        let strong = SamplingParams { repeat_penalty: 1e-45, logit_bias: vec![(1, 3e38), (1, 3e38)], ..wild() };
        let mut c = seeded(strong);
        [0, 1, 2].into_iter().for_each(|t| c.accept(t));
        assert!(c.sample(&mut [1.0, 2.0, -3.0, 0.0]).unwrap() < 4);
        assert!(top_logprobs(&[f32::NEG_INFINITY; 2], 2).is_empty());
    }

    #[test]
    fn a_long_window_costs_no_more_than_its_length() {
        let n = 1 << 16;
        let params = SamplingParams { repeat_penalty: 1.1, repeat_last_n: n, ..SamplingParams::greedy() };
        let mut c = Chain::new(params, n).unwrap();
        (0..n as TokenId).for_each(|t| c.accept(t));
        let (mut logits, start) = (vec![1.0; n], std::time::Instant::now());
        (0..10).for_each(|_| {
            c.sample(&mut logits).unwrap();
        });
        // With a look at the whole window for each of its tokens this would take a minute.
        assert!(start.elapsed().as_secs_f64() < 2.0, "{:?}", start.elapsed());
    }

    // S09
    #[test]
    fn edges_of_the_filters_leave_at_least_one_token() {
        for (top_k, top_p, min_p) in
            [(0, 0.0, 0.0), (1, 1.0, 1.0), (9, 0.0, 1.0), (0, 1.0, 1.0), (4, 1.0, 0.0), (usize::MAX, 1.0, 0.0)]
        {
            let mut c = seeded(SamplingParams { top_k, top_p, min_p, ..wild() });
            for _ in 0..50 {
                assert!(c.sample(&mut [1.0, 2.0, 3.0, 0.5]).unwrap() < 4);
            }
        }
        let mut c = seeded(SamplingParams { top_p: 0.0, ..wild() });
        assert!((0..50).all(|_| c.sample(&mut [1.0, 2.0, 3.0, 0.5]).unwrap() == 2));
    }

    // S09
    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let bad = [
            SamplingParams { temperature: -1.0, ..wild() },
            SamplingParams { temperature: f32::NAN, ..wild() },
            SamplingParams { top_p: 1.5, ..wild() },
            SamplingParams { top_p: -1.0, ..wild() },
            SamplingParams { min_p: 2.0, ..wild() },
            SamplingParams { repeat_penalty: 0.0, ..wild() },
            SamplingParams { frequency_penalty: f32::INFINITY, ..wild() },
            SamplingParams { logit_bias: vec![(99_999_999, 5.0)], ..wild() },
            SamplingParams { logit_bias: vec![(1, f32::NAN)], ..wild() },
        ];
        for params in bad {
            assert!(matches!(Chain::new(params.clone(), 4), Err(Error::Setting { .. })), "{params:?}");
        }
    }

    #[test]
    fn a_bias_can_force_and_forbid_tokens() {
        let mut c = seeded(SamplingParams { logit_bias: vec![(3, f32::NEG_INFINITY), (0, 50.0)], ..wild() });
        assert!((0..100).all(|_| c.sample(&mut [0.0, 0.0, 0.0, 9.0]).unwrap() != 3));
        let mut g = chain(SamplingParams { logit_bias: vec![(0, 50.0)], ..SamplingParams::greedy() });
        assert_eq!(g.sample(&mut [0.0, 0.0, 0.0, 9.0]).unwrap(), 0);
    }

    // S14
    #[test]
    fn the_same_seed_draws_the_same_tokens_and_frequencies_follow_the_distribution() {
        let draw = |seed| {
            let mut c = chain(SamplingParams { seed: Some(seed), temperature: 1.0, ..wild() });
            (0..4000).map(|_| c.sample(&mut [0.0, 3f32.ln(), f32::NEG_INFINITY, 0.0]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let share = draw(7).iter().filter(|t| **t == 1).count() as f32 / 4000.0;
        assert!((share - 0.6).abs() < 0.03, "{share}");
        let unseeded = Chain::new(SamplingParams::default(), 4).unwrap();
        assert_eq!(chain(SamplingParams { seed: Some(unseeded.seed()), ..Default::default() }).seed(), unseeded.seed());
    }
}
