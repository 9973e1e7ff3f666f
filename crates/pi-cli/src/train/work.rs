//! A training that can be interrupted, and goes on from where it was.

use super::{line::Line, state::State};
use crate::{
    failure::{Failure, Result},
    interrupt::Interrupt,
    output::say,
};
use pi_engine::{
    Engine, Error,
    pi_core::text::TokenId,
    train::{Progress, TrainOptions, Trained, train},
};
use std::ops::ControlFlow;

/// Trains what is not trained yet, with progress on standard error. `None` if it was interrupted: the user knows.
///
/// # Errors
/// What the training reports (`failure` says what it is about), or that layers cannot be kept.
pub fn work(
    engine: &Engine,
    text: &[TokenId],
    kept: &[TokenId],
    options: &TrainOptions,
    state: &State,
    interrupt: &Interrupt,
    failure: impl Fn(Error) -> Failure,
) -> Result<Option<Trained>> {
    let layers = engine.config().layers;
    let known = state.read();
    if !known.is_empty() {
        say(&format!("{} of {layers} layers are there from an earlier run", known.len()));
    }
    let (mut line, mut failed) = (Line::new(layers), None);
    let mut progress = |now: Progress<'_>| {
        if let Progress::Fitted(choice) = &now {
            failed = state.write(choice).err();
        }
        line.show(&now);
        let goes_on = failed.is_none() && !interrupt.writing();
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let done = train(engine, text, kept, options, known, &mut progress);
    line.clear();
    if let Some(failure) = failed {
        return Err(failure);
    }
    if interrupt.writing() {
        say(&match state.folder().is_dir() {
            true => interrupted(state),
            false => "interrupted: nothing was done yet".into(),
        });
        return Ok(None);
    }
    done.map(Some).map_err(failure)
}

/// What is said if there is something to go on with.
pub fn interrupted(state: &State) -> String {
    let folder = state.folder().display();
    format!("interrupted: what is done lies in {folder}, and the same command goes on from there")
}
