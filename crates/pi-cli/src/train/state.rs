//! What is done so far, in a folder beside the output, until all is.

use crate::{
    failure::{Failure, Result},
    output::say,
};
use pi_engine::{
    pi_core::{KvTypes, text::TokenId},
    pi_predictor::profile::fingerprint,
    train::{Choice, TrainOptions},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The folder `OUT.partial`.
pub struct State {
    folder: PathBuf,
    /// What its layers belong to.
    about: String,
}

impl State {
    /// Beside `output`, for a model ([`pi_engine::profile::model_fingerprint`]) with options and text that decide what comes out.
    pub fn new(output: &Path, model: u64, kv: KvTypes, options: &TrainOptions, text: &[TokenId]) -> Self {
        let bytes: Vec<[u8; 4]> = text.iter().map(|t| t.to_le_bytes()).collect();
        let text = fingerprint(bytes.iter().map(<[u8; 4]>::as_slice));
        let TrainOptions { samples, context, kinds, ranks, fit, ty, .. } = options;
        let about = format!("{model:016x} {kv:?} {text:016x} {samples} {context} {kinds:?} {ranks:?} {fit:?} {ty}");
        Self { folder: folder(output), about }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, layer: usize) -> PathBuf {
        self.folder.join(format!("layer-{layer}.gguf"))
    }

    /// Where the profile is kept until it is whole.
    pub fn profile(&self) -> PathBuf {
        self.folder.join("profile")
    }

    fn files(&self, wanted: fn(&str) -> bool) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let named = |path: &PathBuf| wanted(&path.file_name().unwrap_or_default().to_string_lossy());
        entries.flatten().map(|e| e.path()).filter(named).collect()
    }

    /// The layers that are there. Those that cannot be read are trained again.
    pub fn read(&self) -> Vec<Choice> {
        let mut known = Vec::new();
        for path in self.files(is_layer) {
            match Choice::read(&path, &self.about) {
                Ok(choice) => known.extend(choice),
                Err(e) => {
                    say(&format!("{e}\n{}: left by an earlier run and damaged; it is made again", path.display()))
                }
            }
        }
        known.sort_by_key(|c| c.layer);
        known
    }

    /// Keeps a layer.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, choice: &Choice) -> Result<()> {
        make(&self.folder)?;
        let path = self.path(choice.layer);
        choice.write(&path, &self.about).map_err(|e| Failure::engine(&e, &path))
    }

    /// Removes what runs have left, and the folder if nothing else is in it.
    pub fn remove(&self) {
        let ours =
            |name: &str| is_layer(name) || name == "profile" || (name.starts_with("base-") && name.ends_with(".gguf"));
        self.files(ours).iter().for_each(|path| drop(fs::remove_file(path)));
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Files of layers, whatever they belong to.
fn is_layer(name: &str) -> bool {
    let number = name.strip_prefix("layer-").and_then(|n| n.strip_suffix(".gguf"));
    number.is_some_and(|n| n.parse::<usize>().is_ok())
}

/// The folder for what is not done yet.
pub fn folder(output: &Path) -> PathBuf {
    let mut folder = output.as_os_str().to_owned();
    folder.push(".partial");
    folder.into()
}

/// Makes the folder, unless it is there.
///
/// # Errors
/// If it cannot be made.
pub fn make(folder: &Path) -> Result<()> {
    let failure = |e: io::Error| Failure::Work(format!("{}: {e}", folder.display()));
    if folder.is_dir() { Ok(()) } else { fs::create_dir(folder).map_err(failure) }
}
