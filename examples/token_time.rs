//! What a decoded token costs, and how much of it is spent outside the products with weight matrices:
//! `cargo run --release -p examples --example token_time -- MODEL.gguf [THREADS...]`
//!
//! For models that run dense. For every number of threads, steps of one token alternate with the bare products of all its matrices; medians are printed.

use pi_engine::{
    Engine, SessionOptions, StepToken, WeightSource,
    pi_core::{Dense, Hidden, LinearSpec, Write},
    pi_gguf::File,
    sampler::argmax,
};
use std::{sync::Arc, time::Instant};

const ROUNDS: usize = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or("name a model that runs dense (SiLU or GELU), then numbers of threads")?;
    let mut threads = args.map(|a| a.parse()).collect::<Result<Vec<usize>, _>>()?;
    if threads.is_empty() {
        threads.push(std::thread::available_parallelism().map_or(1, usize::from));
    }
    for threads in threads {
        let engine = Engine::builder().threads(threads).open(&model)?;
        let products = products(&File::open(&model)?, &engine)?;
        let mut buffers: Vec<_> =
            products.iter().map(|p| (Hidden::new(1, p.inputs), Hidden::new(1, p.outputs))).collect();
        buffers.iter_mut().for_each(|(x, _)| x.host_overwrite().fill(0.5));
        let mut session = engine.session(&SessionOptions::default())?;
        let mut token = argmax(session.feed(0, &engine.encode_prompt("Once upon a time")?)?)?;
        let (mut tokens, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            session.step(&[StepToken { token, seq: 0, logits: true }])?;
            token = argmax(session.logits(0)?)?;
            tokens.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            for (p, (x, y)) in products.iter().zip(&mut buffers) {
                p.matrix.apply(x, y, Write::Set)?;
            }
            bare.push(start.elapsed().as_secs_f64());
        }
        let (token, bare) = (median(tokens), median(bare));
        println!(
            "{threads} threads: {:.2} ms per token ({:.1} tokens/s), {:.2} ms of it products, {:.1} % outside",
            1e3 * token,
            1.0 / token,
            1e3 * bare,
            100.0 * (1.0 - bare / token)
        );
    }
    Ok(())
}

struct Product {
    matrix: Arc<dyn Dense>,
    inputs: usize,
    outputs: usize,
}

/// The matrices that a token meets, in the file's order: all but norms and the table of embeddings, unless that is the head too.
fn products(file: &File, engine: &Engine) -> Result<Vec<Product>, Box<dyn std::error::Error>> {
    let names: Vec<&str> = file.tensors().map(|t| t.name()).collect();
    let tied = !names.contains(&"output.weight");
    let mut products = Vec::new();
    for name in names.into_iter().filter(|n| n.ends_with(".weight") && (tied || *n != "token_embd.weight")) {
        let Some(weight) = file.matrix(name)?.filter(|m| m.rows() > 1) else { continue };
        let (inputs, outputs) = (weight.cols(), weight.rows());
        products.push(Product { matrix: engine.device().linear(&LinearSpec::new(weight))?, inputs, outputs });
    }
    Ok(products)
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}
