//! How often each neuron fires along the texts, kept as it goes.

use super::PrepareFlags;
use crate::{
    failure::{Failure, Result},
    interrupt::Interrupt,
    output::say,
    profile::same_text,
    progress::Progress,
    train::{
        flags::Texts,
        state::{self, State},
        work::interrupted,
    },
};
use pi_engine::{
    Engine, Error,
    pi_predictor::profile::{Profile, TextProfile},
    profile::{Profiler, load, save},
    train::TrainOptions,
};
use std::time::{Duration, Instant};

/// Between two times that what was counted is written down.
const SAVE: Duration = Duration::from_secs(10);

/// Counts, from where an earlier run left. `None` if it was interrupted: the user knows.
///
/// # Errors
/// If the profile cannot be kept, or the model cannot be run.
pub fn count(
    flags: &PrepareFlags,
    engine: &Engine,
    options: &TrainOptions,
    texts: &Texts,
    model: u64,
    state: &State,
    interrupt: &Interrupt,
) -> Result<Option<Profile>> {
    let failure = |e: Error| Failure::engine(&e, &flags.model);
    let mut profiler = Profiler::new(engine, options.context, options.batch).map_err(failure)?;
    let of_file = || flags.output.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let name = engine.config().name.as_deref().map_or_else(of_file, Into::into);
    let fresh = Profile::new(name, model, &profiler.shape());
    let path = state.profile();
    // what an earlier run left of another model or text is of no use
    let earlier = load(&path).ok().filter(|old| {
        let known = |t: &TextProfile| texts.all.iter().any(|n| n.fingerprint == t.fingerprint);
        old.expect_model(model, fresh.shape()).is_ok() && old.texts().iter().all(known)
    });
    let mut profile = earlier.unwrap_or(fresh);
    state::make(state.folder())?;
    let total = texts.all.iter().map(|t| t.tokens.len() as u64).sum();
    let (mut progress, mut saved, mut done) = (Progress::new(total, "tokens"), Instant::now(), 0);
    for (place, text) in texts.all.iter().enumerate() {
        if let Some(first) = texts.all[..place].iter().find(|t| t.fingerprint == text.fingerprint) {
            say(&same_text(&text.name, &first.name));
        }
        let length = text.tokens.len() as u64;
        let i = profile
            .find(text.fingerprint)
            .unwrap_or_else(|| profile.begin(text.name.clone(), text.fingerprint, length));
        done += profile.texts()[i].position;
        progress.begin_at(done);
        while let Some(now) = profile.text_mut(i).filter(|now| !now.is_complete()) {
            if interrupt.writing() {
                progress.clear();
                save(&profile, &path).map_err(failure)?;
                say(&interrupted(state));
                return Ok(None);
            }
            let rest = text.tokens.get(now.position as usize..).unwrap_or_default();
            let part = &rest[..rest.len().min(profiler.chunk())];
            if part.is_empty() {
                break;
            }
            profiler.count(part, &mut now.counts).map_err(failure)?;
            now.position += part.len() as u64;
            done += part.len() as u64;
            progress.show(done, &format!("profile: {:.2} % of the neurons fire", 100.0 * now.counts.active_share()));
            if saved.elapsed() >= SAVE {
                save(&profile, &path).map_err(failure)?;
                saved = Instant::now();
            }
        }
    }
    save(&profile, &path).map_err(failure)?;
    Ok(Some(profile))
}
