//! A back end of your own, checked and then used: `cargo run --release -p examples --example own_device [MODEL.gguf]`
//!
//! Here matrices are multiplied by plain loops and everything else is left to the CPU device. [`check`] compares every
//! operator with plain arithmetic and offers it input that does not fit: what passes can be given to the engine.

use pi_engine::{
    Engine, GenerateOptions, SamplingParams, SessionOptions,
    pi_core::{
        Attention, AttentionSpec, Dense, Device, DeviceInfo, Error, FfnWeights, Hidden, LinearSpec, MlpSpec, NeuronSet,
        NormSpec, Predictor, QuantType, Result, SparseFfn, Write,
    },
    pi_sparse_cpu::CpuDevice,
};
use pi_testkit::device::check;
use std::{ops::ControlFlow, sync::Arc};

/// A matrix, decoded.
struct Loops {
    spec: LinearSpec,
    weights: Vec<f32>,
}

impl Dense for Loops {
    fn apply(&self, x: &mut Hidden, y: &mut Hidden, how: Write) -> Result<()> {
        let w = &self.spec.weight;
        if how == Write::Set {
            y.resize(x.tokens())?;
        }
        if (x.dim(), y.dim(), y.tokens()) != (w.cols(), w.rows(), x.tokens()) {
            return Err(Error::shape(w.name(), format!("{} to {} numbers", w.cols(), w.rows()), x.dim()));
        }
        let x = x.host()?.chunks_exact(w.cols());
        for (x, y) in x.zip(y.host_mut()?.chunks_exact_mut(w.rows())) {
            for (r, (row, y)) in self.weights.chunks_exact(w.cols()).zip(y).enumerate() {
                let bias = self.spec.bias.as_ref().map_or(0.0, |b| b[r]);
                let product = row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + bias;
                *y = if how == Write::Set { product } else { *y + product };
            }
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        4 * self.weights.len() as u64
    }
}

struct Mine(CpuDevice);

impl Device for Mine {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "mine".into(), detail: "plain loops for matrices".into() }
    }

    fn supports(&self, ty: QuantType) -> bool {
        self.0.supports(ty)
    }

    fn hidden(&self, max_tokens: usize, dim: usize) -> Result<Hidden> {
        self.0.hidden(max_tokens, dim)
    }

    fn norm(&self, spec: &NormSpec) -> Result<Arc<dyn Dense>> {
        self.0.norm(spec)
    }

    fn linear(&self, spec: &LinearSpec) -> Result<Arc<dyn Dense>> {
        spec.check()?;
        Ok(Arc::new(Loops { spec: spec.clone(), weights: spec.weight.decode() }))
    }

    fn attention(&self, spec: &AttentionSpec) -> Result<Arc<dyn Attention>> {
        self.0.attention(spec)
    }

    fn sparse_ffn(&self, weights: &FfnWeights, neurons: &NeuronSet) -> Result<Arc<dyn SparseFfn>> {
        self.0.sparse_ffn(weights, neurons)
    }

    fn mlp(&self, spec: &MlpSpec) -> Result<Arc<dyn Predictor>> {
        self.0.mlp(spec)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mine = Arc::new(Mine(CpuDevice::with_threads(2)?));
    check(&*mine)?;
    let model = std::env::args_os().nth(1).unwrap_or("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf".into());
    let text = |engine: &Engine| -> std::result::Result<String, pi_engine::Error> {
        let mut session = engine.session(&SessionOptions::default())?;
        let prompt = engine.encode_prompt("Once upon a time")?;
        let options =
            GenerateOptions { max_tokens: Some(40), sampling: SamplingParams::greedy(), ..Default::default() };
        Ok(session.generate(0, &prompt, &options, &mut |_: &str| ControlFlow::Continue(()))?.text)
    };
    let ours = text(&Engine::builder().device(mine).open(&model)?)?;
    let theirs = text(&Engine::open(&model)?)?;
    println!("{ours}\n[own device: conforms; same text as with the engine's: {}]", ours == theirs);
    Ok(())
}
