//! Words of marks, made by several threads.

use pi_core::{Error, Executor, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Words that are worth a task of their own.
const MIN_WORDS: usize = 8;

/// Room for the marks of a step while threads write them.
pub(crate) struct Words(Vec<AtomicU64>);

impl Words {
    /// For `tokens` tokens of `words` words.
    pub(crate) fn try_new(tokens: usize, words: usize) -> Result<Self> {
        let (len, mut all) = (tokens.saturating_mul(words), Vec::new());
        all.try_reserve_exact(len).map_err(|_| Error::Device {
            device: "host".into(),
            message: format!("no memory for marks of {tokens} tokens"),
        })?;
        all.resize_with(len, AtomicU64::default);
        Ok(Self(all))
    }

    /// `out[t * words + w] = f(t, w)`, in parallel.
    pub(crate) fn fill(
        &self,
        exec: &dyn Executor,
        out: &mut [u64],
        words: usize,
        f: impl Fn(usize, usize) -> u64 + Sync,
    ) {
        // the task's results come to this thread with the end of the section
        let (words, all) = (words.max(1), &self.0[..out.len()]);
        let parts = words.div_ceil(MIN_WORDS).min(4 * exec.width()).max(1);
        let each = words.div_ceil(parts);
        exec.run(parts, &|part| {
            for w in part * each..words.min((part + 1) * each) {
                for t in 0..all.len() / words {
                    all[t * words + w].store(f(t, w), Ordering::Relaxed);
                }
            }
        });
        out.iter_mut().zip(all).for_each(|(out, word)| *out = word.load(Ordering::Relaxed));
    }
}
