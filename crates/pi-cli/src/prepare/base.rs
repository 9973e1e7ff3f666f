//! The model as it will be, but for its predictors: these are trained for the weights that they will run with.

use super::PrepareFlags;
use crate::{
    failure::{Failure, Result},
    interrupt::Interrupt,
    output::say,
    progress::Progress,
    train::state,
};
use pi_convert::{Error, QuantizeOptions, quantize};
use pi_engine::{pi_core::Activation, pi_gguf::File, pi_predictor::profile::fingerprint, profile::model_fingerprint};
use std::{ops::ControlFlow, path::PathBuf};

/// The path of that model: a file in the folder of what is not done yet, or the model itself if nothing in it changes. (Float down
/// matrices are transposed without loss whenever they are read or written.) `None` if it was interrupted.
///
/// # Errors
/// If it cannot be written.
pub fn make(flags: &PrepareFlags, source: &File, interrupt: &Interrupt) -> Result<Option<PathBuf>> {
    let is_down = |name: &str| name.ends_with(".ffn_down.weight");
    let downs = || source.tensors().filter(|t| is_down(t.name()));
    let quantised = downs().any(|t| t.quant().is_some_and(|ty| !ty.is_float()));
    if flags.ty.is_none() && (!quantised || flags.keep_down) {
        return Ok(Some(flags.model.clone()));
    }
    let options = QuantizeOptions {
        transpose_down: downs().next().is_some(),
        // without a type only down matrices change
        allow_requantize: flags.allow_requantize || flags.ty.is_none(),
        threads: flags.engine.threads.map(|n| n as usize),
        ..QuantizeOptions::default()
    };
    let about = format!("{:016x} {:?} {options:?}", model_fingerprint(source, Activation::Relu), flags.ty);
    let folder = state::folder(&flags.output);
    let path = folder.join(format!("base-{:016x}.gguf", fingerprint([about.as_bytes()])));
    if path.is_file() {
        say(&format!("{}: there from an earlier run", path.display()));
        return Ok(Some(path));
    }
    state::make(&folder)?;
    let mut bar: Option<Progress> = None;
    let done = quantize(
        source,
        &path,
        flags.ty,
        &options,
        Some(&mut |now| {
            bar.get_or_insert_with(|| Progress::new(now.total, "bytes")).show(now.bytes, now.tensor);
            if interrupt.writing() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }),
    );
    drop(bar);
    let report = match done {
        Err(Error::Cancelled) => {
            let _ = std::fs::remove_dir(&folder); // unless an earlier run left something
            say("interrupted: nothing was done yet");
            return Ok(None);
        }
        done => done.map_err(|e| Failure::Work(e.to_string()))?,
    };
    report.notes.iter().for_each(|note| say(&format!("note: {note}")));
    if let Some(worst) = report.transposed.iter().map(|t| t.error).max_by(f64::total_cmp) {
        let count = report.transposed.len();
        say(&format!("{count} down matrices transposed, relative error at most {:.3} %", 100.0 * worst));
    }
    Ok(Some(path))
}
