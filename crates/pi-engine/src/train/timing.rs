//! How fast models decode, and how much of a token's time predictors take.

use super::Trained;
use crate::{Engine, Error, Result, Session, SessionOptions, StepToken};
use pi_core::{ActiveSet, Hidden, Limits, Predictor, PredictorRun, text::TokenId};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Tokens that are decoded at a stretch.
const TOKENS: usize = 32;
/// Times that each model decodes them; the first does not count.
const ROUNDS: usize = 6;
/// Slow models do so less often, but at least twice.
const ENOUGH: Duration = Duration::from_secs(30);

/// What [`Trained::time`] measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Tokens per second of the exact model.
    pub exact: f64,
    /// Tokens per second with predictors.
    pub predictor: f64,
    /// Per layer: the predictor's share of a token's time, 0 to 1; 0 where there is none.
    pub shares: Vec<f64>,
    /// Per layer: bytes that the predictor reads; 0 where there is none.
    pub bytes: Vec<u64>,
}

impl Trained {
    /// Decodes tokens of a text one by one with the exact model and with the predictors, in turns.
    ///
    /// # Errors
    /// If the text has no tokens, or an operator fails.
    pub fn time(&self, engine: &Engine, text: &[TokenId]) -> Result<Timing> {
        let predictors = self.predictors(engine)?;
        let speeds = decode_speeds(&[engine, &engine.with_predictors(&predictors)?], text)?;
        let watched: Vec<_> = predictors.into_iter().map(|p| p.map(Watched::new)).collect();
        let as_predictors: Vec<_> = watched.iter().map(|p| p.clone().map(|p| p as Arc<dyn Predictor>)).collect();
        let mut decoder = Decoder::new(&engine.with_predictors(&as_predictors)?, text)?;
        decoder.run()?;
        watched.iter().flatten().for_each(|p| p.nanos.store(0, Ordering::Relaxed));
        let all = decoder.run()?.as_nanos().max(1) as f64;
        let share = |p: &Option<Arc<Watched>>| p.as_ref().map_or(0.0, |p| p.nanos.load(Ordering::Relaxed) as f64 / all);
        let bytes = |p: &Option<Arc<Watched>>| p.as_ref().map_or(0, |p| p.bytes());
        Ok(Timing {
            exact: speeds[0],
            predictor: speeds[1],
            shares: watched.iter().map(share).collect(),
            bytes: watched.iter().map(bytes).collect(),
        })
    }
}

/// Tokens per second of several models, or of one in several ways: each decodes the begin of the text, one token at a time, in
/// turns with the others; medians.
///
/// # Errors
/// If the text has no tokens, or an operator fails.
pub fn decode_speeds(engines: &[&Engine], text: &[TokenId]) -> Result<Vec<f64>> {
    let mut decoders = engines.iter().map(|e| Decoder::new(e, text)).collect::<Result<Vec<_>>>()?;
    let mut times = vec![Vec::new(); decoders.len()];
    let begun = Instant::now();
    for round in 0..ROUNDS {
        for (decoder, times) in decoders.iter_mut().zip(&mut times) {
            let time = decoder.run()?;
            if round > 0 {
                times.push(time);
            }
        }
        if round > 0 && begun.elapsed() > ENOUGH {
            break;
        }
    }
    let speed = |(decoder, mut times): (&Decoder, Vec<Duration>)| {
        times.sort_unstable();
        decoder.tokens.len() as f64 / times[times.len() / 2].as_secs_f64().max(1e-9)
    };
    Ok(decoders.iter().zip(times).map(speed).collect())
}

/// A session that decodes the same tokens again and again.
struct Decoder {
    session: Session,
    tokens: Vec<TokenId>,
}

impl Decoder {
    fn new(engine: &Engine, text: &[TokenId]) -> Result<Self> {
        let tokens: Vec<_> = text.iter().copied().take(TOKENS.min(engine.config().context)).collect();
        if tokens.is_empty() {
            return Err(Error::setting("text", "at least one token", 0));
        }
        let context = Some(tokens.len());
        let session = engine.session(&SessionOptions { context, batch: 1, ..SessionOptions::default() })?;
        Ok(Self { session, tokens })
    }

    fn run(&mut self) -> Result<Duration> {
        self.session.truncate(0, 0);
        let begun = Instant::now();
        for &token in &self.tokens {
            self.session.step(&[StepToken { token, seq: 0, logits: true }])?;
        }
        Ok(begun.elapsed())
    }
}

/// A predictor with a stopwatch.
struct Watched {
    inner: Arc<dyn Predictor>,
    nanos: AtomicU64,
}

impl Watched {
    fn new(inner: Arc<dyn Predictor>) -> Arc<Self> {
        Arc::new(Self { inner, nanos: AtomicU64::new(0) })
    }
}

impl Predictor for Watched {
    pi_core::answers_of!(inner);

    fn open(self: Arc<Self>, limits: &Limits) -> pi_core::Result<Box<dyn PredictorRun>> {
        Ok(Box::new(WatchedRun { inner: self.inner.clone().open(limits)?, op: self }))
    }
}

struct WatchedRun {
    inner: Box<dyn PredictorRun>,
    op: Arc<Watched>,
}

impl PredictorRun for WatchedRun {
    fn mark(&mut self, h: &mut Hidden, x: &mut Hidden, active: &mut ActiveSet) -> pi_core::Result<()> {
        let begun = Instant::now();
        let done = self.inner.mark(h, x, active);
        self.op.nanos.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        done
    }
}
