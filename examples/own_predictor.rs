//! A predictor of your own: `cargo run --release -p examples --example own_predictor [MODEL.gguf]`
//!
//! Here the bold guess that whatever fired for the last token fires again, and nothing else; every eighth token looks at all neurons. The text shows
//! what such a guess costs, the numbers what it saves.

use pi_engine::{
    Engine, GenerateOptions, Observer, Predictors, SamplingParams, SessionOptions, Sparsity, StepToken,
    pi_core::{ActiveSet, Hidden, Limits, Predictor, PredictorRun, Result, text::DecodeOptions},
};
use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex},
};

/// Neurons of a layer that fired at the last look, as bits.
#[derive(Default)]
struct Seen(Mutex<Vec<u64>>);

/// Marks what was seen, or everything while nothing was.
struct Again {
    seen: Arc<Seen>,
    dim: usize,
    neurons: usize,
}

impl Predictor for Again {
    fn kind(&self) -> &str {
        "again"
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn neurons(&self) -> usize {
        self.neurons
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn open(self: Arc<Self>, _: &Limits) -> Result<Box<dyn PredictorRun>> {
        Ok(Box::new(Run(self)))
    }
}

struct Run(Arc<Again>);

impl PredictorRun for Run {
    fn mark(&mut self, h: &mut Hidden, _: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let seen = self.0.seen.0.lock().unwrap_or_else(|e| e.into_inner());
        if seen.is_empty() {
            return active.set_all(h.tokens());
        }
        active.marks(h.tokens())?.chunks_exact_mut(seen.len()).for_each(|row| row.copy_from_slice(&seen));
        Ok(())
    }
}

/// Remembers which neurons fired.
struct Watch<'a>(&'a [Arc<Seen>]);

impl Observer for Watch<'_> {
    fn inputs(&mut self, _: usize, _: &[f32], _: &[f32]) {}

    fn values(&mut self, layer: usize, values: &[f32]) {
        let word = |values: &[f32]| values.iter().enumerate().fold(0, |w, (i, v)| w | u64::from(*v != 0.0) << i);
        *self.0[layer].0.lock().unwrap_or_else(|e| e.into_inner()) = values.chunks(64).map(word).collect();
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args_os().nth(1).unwrap_or("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf".into());
    let exact = Engine::builder().sparsity(Sparsity::Exact).open(&model)?;
    let (layers, dim, neurons) = (exact.config().layers, exact.config().dim, exact.config().neurons);
    let seen: Vec<Arc<Seen>> = (0..layers).map(|_| Arc::default()).collect();
    let own = |seen: &Arc<Seen>| Some(Arc::new(Again { seen: seen.clone(), dim, neurons }) as Arc<dyn Predictor>);
    let predictors = Predictors::Own(seen.iter().map(own).collect());
    let engine = Engine::builder().sparsity(Sparsity::Predictor).predictors(predictors).open(&model)?;

    let mut session = engine.session(&SessionOptions::default())?;
    let mut tokens = engine.encode_prompt("Once upon a time")?;
    let (prompt, mut done) = (tokens.len(), 0);
    while tokens.len() < prompt + 40 {
        for at in done..tokens.len() {
            if at % 8 == 0 {
                seen.iter().for_each(|s| s.0.lock().unwrap_or_else(|e| e.into_inner()).clear());
            }
            session.step_with(&[StepToken { token: tokens[at], seq: 0, logits: true }], &mut Watch(&seen))?;
        }
        done = tokens.len();
        tokens.push(pi_engine::sampler::argmax(session.logits(0)?)?);
    }
    let marked = session.stats().marked_share().unwrap_or(1.0);

    let mut session = exact.session(&SessionOptions::default())?;
    let options = GenerateOptions { max_tokens: Some(40), sampling: SamplingParams::greedy(), ..Default::default() };
    let right = session.generate(0, &tokens[..prompt], &options, &mut |_: &str| ControlFlow::Continue(()))?;
    let text = engine.tokenizer().decode(&tokens[prompt..], DecodeOptions::default())?;
    println!("own predictor:{}\nevery neuron: {}", String::from_utf8_lossy(&text), right.text);
    println!("[own predictor: looked at {:.1} % of the neurons]", 100.0 * marked);
    Ok(())
}
