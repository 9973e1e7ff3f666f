//! How well a model predicts a text, and how far its predictions are from another model's.
//!
//! A text is cut into windows that are computed from an empty context each; [`Windows`] says where they lie and which of their
//! tokens count. Without another setting the numbers are those of llama.cpp's perplexity program.
//!
//! ```no_run
//! use pi_engine::{Engine, Sparsity, evaluate::{evaluate, EvaluateOptions}};
//! use std::ops::ControlFlow;
//!
//! let dense = Engine::builder().sparsity(Sparsity::Off).open("model.gguf")?;
//! let sparse = Engine::builder().sparsity(Sparsity::Predictor).open("model.gguf")?;
//! let tokens = sparse.encode_plain(std::fs::read("text.txt").unwrap())?;
//! let done = evaluate(&sparse, Some(&dense), &tokens, &EvaluateOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//! println!("perplexity {:.3}", done.perplexity());
//! # Ok::<(), pi_engine::Error>(())
//! ```

mod score;
mod windows;

pub use score::{Comparison, Score};
pub use windows::Windows;

use crate::{Engine, Error, Result, Session, SessionOptions, Stats, StepToken};
use pi_core::text::TokenId;
use score::{Row, divergence};
use std::ops::ControlFlow;

/// Logits are asked for in steps of about this many bytes, so that a large vocabulary does not fill the memory.
const LOGITS: usize = 64 << 20;

/// How a text is evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluateOptions {
    /// Tokens of a window, with the one that begins a text. At least 4.
    pub context: usize,
    /// Where windows lie and which of their tokens count.
    pub windows: Windows,
    /// Most tokens computed at once.
    pub batch: usize,
    /// Most windows; the rest of the text is left out.
    pub limit: Option<usize>,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        Self { context: 512, windows: Windows::Halves, batch: 512, limit: None }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// The model's own score.
    pub score: Score,
    /// Windows computed.
    pub windows: usize,
    /// Windows that the text has (no more than the limit).
    pub of: usize,
    /// What the model's session did.
    pub stats: Stats,
    /// How far it is from the other model; `None` without one.
    pub against: Option<Comparison>,
}

impl Evaluation {
    /// `exp` of the mean negative log-likelihood; NaN if nothing was scored.
    pub fn perplexity(&self) -> f64 {
        self.score.perplexity()
    }

    /// Whether all windows were computed.
    pub fn is_complete(&self) -> bool {
        self.windows == self.of
    }
}

/// Evaluates `engine` over `tokens`, the text's tokens without any that mark its begin or end: the token that begins a text is
/// put into each window if the vocabulary wants one.
///
/// With `base`, both models compute the same windows, and the divergence KL(base ‖ engine) is measured at every token that counts.
/// Only the logits of one step are kept at a time. `progress` is called before the first window and after
/// every one, and may end the evaluation: what was found so far is returned then.
///
/// # Errors
/// If a setting is out of range, the text has not one window, the two models have different tokens, logits are not finite, or an
/// operator fails.
pub fn evaluate(
    engine: &Engine,
    base: Option<&Engine>,
    tokens: &[TokenId],
    options: &EvaluateOptions,
    progress: &mut dyn FnMut(&Evaluation) -> ControlFlow<()>,
) -> Result<Evaluation> {
    let special = engine.tokenizer().special();
    let bos = special.bos.filter(|_| special.add_bos);
    if let Some(base) = base {
        same_tokens(engine, base)?;
    }
    if let Some(&token) = tokens.iter().find(|&&token| token as usize >= engine.vocab()) {
        return Err(Error::setting("token", format!("an id below {}", engine.vocab()), token));
    }
    let all = options.windows.plan(tokens, bos, options.context)?;
    let of = all.len().min(options.limit.unwrap_or(usize::MAX));
    // Without the last token of a window: what comes after it is not scored.
    let width = options.context - 1;
    let batch = options.batch.min(width);
    let rows = (LOGITS / (4 * engine.vocab().max(1))).clamp(1, batch.max(1));
    let open =
        |engine: &Engine| engine.session(&SessionOptions { context: Some(width), batch, sequences: 1, logits: rows });
    let mut session = open(engine)?;
    let mut other = base.map(open).transpose()?;
    let mut found = Evaluation { of, against: base.map(|_| Comparison::default()), ..Default::default() };
    let (mut window, mut step) = (Vec::with_capacity(options.context), Vec::with_capacity(batch));
    for i in 0..of {
        if progress(&found).is_break() {
            return Ok(found);
        }
        all.write(i, &mut window);
        let scored = all.scored();
        session.truncate(0, 0);
        other.iter_mut().for_each(|s| s.truncate(0, 0));
        let mut at = 0;
        while at < scored.end {
            let wanted = at >= scored.start;
            let end = if wanted { scored.end.min(at + rows) } else { scored.start.min(at + batch) };
            step.clear();
            step.extend(window[at..end].iter().map(|&token| StepToken { token, seq: 0, logits: wanted }));
            session.step(&step)?;
            if let Some(other) = &mut other {
                other.step(&step)?;
            }
            if wanted {
                rate(&mut session, other.as_mut(), &window[at + 1..=end], &mut found)?;
            }
            at = end;
        }
        found.windows += 1;
        found.stats = session.stats();
    }
    // That all is done is not for the caller to change any more.
    let _ = progress(&found);
    Ok(found)
}

/// Scores the logits of the last step; `next` are the tokens that follow in the text.
fn rate(session: &mut Session, mut base: Option<&mut Session>, next: &[TokenId], found: &mut Evaluation) -> Result<()> {
    for (i, &token) in next.iter().enumerate() {
        let row = Row::new(session.logits(i)?)?;
        let nll = row.nll(token);
        found.score.add(nll);
        if let (Some(base), Some(against)) = (&mut base, &mut found.against) {
            let other = Row::new(base.logits(i)?)?;
            against.base.add(other.nll(token));
            against.add(divergence(&other, &row), other.best == row.best, nll - other.nll(token));
        }
    }
    Ok(())
}

/// The two must mean the same by every token.
fn same_tokens(engine: &Engine, base: &Engine) -> Result<()> {
    let (a, b) = (engine.tokenizer(), base.tokenizer());
    if a.len() != b.len() {
        return Err(Error::setting("the other model", format!("a vocabulary of {} tokens", a.len()), b.len()));
    }
    let differs = |&id: &TokenId| a.piece(id, true) != b.piece(id, true);
    let bos = |e: &Engine| e.tokenizer().special().bos.filter(|_| e.tokenizer().special().add_bos);
    match (0..a.len() as TokenId).find(differs) {
        Some(id) => Err(Error::setting("the other model", "the same vocabulary", format!("another token {id}"))),
        None if bos(engine) != bos(base) => {
            let named = |bos: Option<TokenId>| bos.map_or("none".into(), |id| format!("token {id}"));
            Err(Error::setting("the other model's begin of text", named(bos(engine)), named(bos(base))))
        }
        None => Ok(()),
    }
}
