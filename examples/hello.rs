//! Text from a model in a dozen lines: `cargo run --release -p examples --example hello [MODEL.gguf]`

use pi_engine::{Engine, GenerateOptions, SessionOptions};
use std::ops::ControlFlow;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args_os().nth(1).unwrap_or("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf".into());
    let engine = Engine::open(model)?;
    let mut session = engine.session(&SessionOptions::default())?;
    print!("Once upon a time");
    let prompt = engine.encode_prompt("Once upon a time")?;
    let options = GenerateOptions { max_tokens: Some(60), ..Default::default() };
    let result = session.generate(0, &prompt, &options, &mut |text: &str| {
        print!("{text}");
        ControlFlow::Continue(())
    })?;
    let share = result.stats.active_share().unwrap_or(1.0);
    println!("\n[{:.0} tokens/s, {:.1} % of the neurons]", result.decode_tps().unwrap_or(0.0), 100.0 * share);
    Ok(())
}
