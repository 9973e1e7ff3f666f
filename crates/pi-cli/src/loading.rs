//! Loading a model as the shared options say, and saying what was loaded.

use crate::{
    crossover,
    failure::{Failure, Result},
    flags::EngineFlags,
    kernels, machine,
    output::{say, size},
    placing::{PlacingFlags, Setup},
};
use pi_engine::{
    Engine, Error, SessionOptions, Sparsity, arch,
    pi_gguf::{File, Source},
    pi_sparse_cpu::{Crossover, Kernels},
};
use std::path::Path;

/// The engine that the flags describe, on the CPU alone.
///
/// # Errors
/// If an option has no meaning, or the model cannot be loaded.
pub fn load_as(flags: &EngineFlags, sparsity: Sparsity, path: &Path) -> Result<Engine> {
    load(flags, &PlacingFlags::default(), sparsity, &|_| SessionOptions::default(), path)
}

/// The engine that the flags describe, with what goes to an accelerator. `session` says, given the positions that the model was made for,
/// what it is to hold at most.
///
/// # Errors
/// As [`load_as`]; also if there is no accelerator, or no plan for it.
pub fn load(
    flags: &EngineFlags,
    placing: &PlacingFlags,
    sparsity: Sparsity,
    session: &dyn Fn(usize) -> SessionOptions,
    path: &Path,
) -> Result<Engine> {
    let failure = |e: Error| Failure::engine(&e, path);
    let source = if flags.no_mmap { Source::InMemory } else { Source::Mapped };
    let predictors = flags.predictor.predictors(sparsity)?;
    let mut builder = Engine::builder().kv(flags.kv_types()).check(flags.check);
    builder = builder.sparsity(sparsity).predictors(predictors.clone());
    let kernels = kernels::forced()?.unwrap_or_else(Kernels::best);
    let isa = kernels.isa();
    builder = builder.kernels(kernels);
    let cores = machine::usable_cores();
    let mut used = cores;
    if let Some(threads) = flags.threads {
        // More threads than cores only take turns: each product then waits for the last of them.
        if threads as usize > cores {
            say(&format!("--threads {threads}: this process may use {cores} cores, so there will be {cores} threads"));
        }
        used = (threads as usize).min(cores);
        builder = builder.threads(used);
    }
    let crossover = match flags.crossover {
        Some(share) => Crossover::uniform(share),
        None => crossover::stored(isa, used).unwrap_or_default(),
    };
    builder = builder.crossover(crossover).repacking(flags.repack.limit());
    if let Some(activation) = flags.activation {
        builder = builder.activation(activation);
    }
    let file = File::open_with(path, source).map_err(|e| failure(e.into()))?;
    if placing.is_asked() {
        let (_, config) = arch::detect(&file).map_err(failure)?;
        let (kv, activation) = (flags.kv_types(), flags.activation);
        let setup = Setup { session: session(config.context), kv, sparsity, predictors: &predictors, activation };
        builder = placing.apply(&file, &setup, builder)?;
    }
    builder.load(&file).map_err(failure)
}

/// Says what was loaded, where it is computed, and what is left out or why nothing is.
pub fn introduce(engine: &Engine, path: &Path) {
    for warning in engine.warnings() {
        say(&format!("warning: {}: {warning}", path.display()));
    }
    let (c, device) = (engine.config(), engine.device().info());
    let name = c.name.as_ref().map_or_else(String::new, |n| format!("{n}: "));
    let weights = size(engine.weight_bytes());
    say(&format!(
        "model: {name}{}, {} layers of {} neurons, {weights} of weights",
        c.architecture, c.layers, c.neurons
    ));
    say(&format!("device: {} ({})", device.name, device.detail));
    let sparsity = engine.sparsity();
    match &sparsity.reason {
        Some(reason) if !sparsity.is_on() => say(&format!("sparsity: none, the model runs dense: {reason}")),
        _ => say(&format!("sparsity: {sparsity}")),
    }
}

/// Tokens that are computed together from an empty context, by commands that read whole texts: 512 unless the flags say
/// otherwise, 0 for as many as the model was made for.
pub fn window(flags: &EngineFlags, engine: &Engine) -> usize {
    let made_for = engine.config().context;
    let context = window_of(flags, made_for);
    if context > made_for {
        say(&format!("warning: the model was made for a context of {made_for} positions, not for {context}"));
    }
    context
}

/// The same for a model that was made for so many positions.
pub fn window_of(flags: &EngineFlags, made_for: usize) -> usize {
    match flags.ctx_size {
        None => made_for.min(512),
        Some(0) => made_for,
        Some(n) => n as usize,
    }
}
