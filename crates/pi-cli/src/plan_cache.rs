//! Where chosen neurons are kept: neuron index files in the user's cache folder, named by a hash of everything that they depend on.
//! Whatever is wrong with one costs time at most, so it is said and passed over.

use crate::{cache, output::say};
use pi_engine::{
    Predictors,
    pi_core::Activation,
    pi_gguf::{File, NeuronIndex},
    pi_predictor::profile::{Profile, fingerprint},
    planner::{self, Planned, Request, hot_of_index, index_of_plan},
    profile::model_fingerprint,
};
use pi_sparse_cuda::KvPlace;
use std::{fs, path::PathBuf, time::SystemTime};

/// Plans that are kept; older ones make room.
const MOST: usize = 32;

/// What a plan depends on: model, device, budget, profile, session, settings, figures of the machine, and the version of this program. Not
/// where the model lies, nor the time of the file.
pub struct Key(u64);

impl Key {
    pub fn new(request: &Request<'_>, place: KvPlace, model: u64, profile: u64) -> Self {
        let info = request.device.info();
        let r = request;
        let text = format!(
            "{} {model:016x} {profile:016x} {} {} {} {} {place:?} {:?} {:?} {:?} {} {:?} {:?} {} {}",
            env!("CARGO_PKG_VERSION"),
            r.budget,
            r.runtime.unwrap_or_else(|| r.device.footprint().runtime()),
            info.name,
            // its make, memory and driver
            info.detail,
            r.session,
            r.kv,
            r.sparsity,
            told_apart(r.predictors),
            r.activation,
            r.costs,
            r.policy,
            r.group
        );
        Self(fingerprint([text.as_bytes()]))
    }

    /// The file, whether it exists or not. `None` if the system has no cache folder.
    fn path(&self) -> Option<PathBuf> {
        Some(cache::folder()?.join("plans").join(format!("{:016x}.gpuidx", self.0)))
    }
}

/// Tells predictors from others: those of a file by what is in it, as it may be written anew under the same name.
fn told_apart(predictors: &Predictors) -> String {
    match predictors {
        Predictors::Beside { source, threshold } => match File::open(source.metadata().path()) {
            Ok(file) => format!("Beside({:016x} {threshold:?})", model_fingerprint(&file, Activation::Relu)),
            Err(_) => format!("{predictors:?} {threshold:?}"),
        },
        other => format!("{other:?}"),
    }
}

/// Tells a profile from others.
pub fn sum_of(profile: &Profile) -> u64 {
    let counts = profile.merged();
    let tokens = counts.tokens().to_le_bytes();
    let fired =
        counts.layers().iter().flat_map(|l| l.fired().iter().flat_map(|n| n.to_le_bytes())).collect::<Vec<u8>>();
    fingerprint([&tokens[..], &fired])
}

/// The plan that is kept for these settings; `None` if there is none. What is wrong with it is said.
pub fn find(key: &Key, file: &File, request: &Request<'_>) -> Option<Planned> {
    let path = key.path().filter(|path| path.exists())?;
    let ignored = |why: String| {
        let why = why.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&why).to_string();
        say(&format!("note: {} is ignored, and neurons are chosen anew: {why}", path.display()));
    };
    let index = NeuronIndex::open(&path).map_err(|e| ignored(e.to_string())).ok()?;
    if index.vram_capacity != request.budget {
        ignored(format!("it is for {} bytes, not for {}", index.vram_capacity, request.budget));
        return None;
    }
    let planned = pi_engine::arch::detect(file).and_then(|(_, config)| {
        let hot = hot_of_index(&index, &config)?;
        planner::plan(file, &Request { hot: Some(&hot), ..request.clone() })
    });
    let planned = planned.map_err(|e| ignored(e.to_string())).ok()?;
    say(&format!("neurons: as chosen earlier ({}; --reset-gpu-index chooses anew)", path.display()));
    Some(planned)
}

/// Keeps the neurons of a plan. If that is not possible, it is said.
pub fn keep(key: &Key, planned: &Planned) {
    let Some(path) = key.path() else {
        say("note: the system has no cache folder, so neurons are chosen anew each time (PI_CACHE_DIR names one)");
        return;
    };
    let failed = |why: String| say(&format!("note: {} is not kept: {why}", path.display()));
    if let Some(folder) = path.parent()
        && let Err(e) = fs::create_dir_all(folder)
    {
        return failed(e.to_string());
    }
    match index_of_plan(&planned.plan, planned.budget) {
        Err(e) => failed(e.to_string()),
        Ok(index) => match index.save(&path) {
            Err(e) => failed(e.to_string()),
            Ok(()) => tidy(&path),
        },
    }
}

/// Removes the oldest plans beside `path` if there are too many.
fn tidy(path: &std::path::Path) {
    let entries = path.parent().and_then(|folder| fs::read_dir(folder).ok());
    let is_plan = |p: &PathBuf| p.extension().is_some_and(|e| e == "gpuidx");
    let mut plans: Vec<(SystemTime, PathBuf)> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
        .filter(|(_, p)| is_plan(p))
        .collect();
    plans.sort();
    let surplus = plans.len().saturating_sub(MOST);
    for (_, old) in plans.into_iter().take(surplus) {
        let _ = fs::remove_file(old); // somebody else may have been faster
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pi_engine::pi_core::QuantType;
    use pi_testkit::TinyModel;
    use std::sync::Arc;

    #[test]
    fn predictors_of_a_file_are_told_apart_by_what_is_in_it_and_not_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let told = |name: &str, ty| {
            let path = folder.path().join(name);
            fs::write(&path, TinyModel::wide(ty).build().unwrap()).unwrap();
            told_apart(&Predictors::Beside { source: Arc::new(File::open(&path).unwrap()), threshold: None })
        };
        let first = told("a.gguf", QuantType::F32);
        assert_ne!(told("a.gguf", QuantType::F16), first);
        assert_eq!(told("b.gguf", QuantType::F32), first);
    }
}
