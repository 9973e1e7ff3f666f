//! `config.json` and the other small files of a checkpoint.

use std::fs;
use std::path::{Path, PathBuf};

use pi_gguf::Builder;
use serde_json::Value as Json;

use crate::error::{Error, Result};

/// Larger sizes are taken for damage, and products of such numbers stay far from overflow.
const MAX: u64 = 1 << 24;

/// A JSON file of a checkpoint, and the folder that it is in.
#[derive(Debug)]
pub(super) struct Config {
    pub dir: PathBuf,
    pub path: PathBuf,
    pub json: Json,
}

/// A value for a model file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    U32(u32),
    F32(f32),
    Text(String),
}

impl Value {
    pub(super) fn set(&self, builder: &mut Builder, key: &str) -> Result<()> {
        match self {
            Self::U32(x) => builder.set(key, *x)?,
            Self::F32(x) => builder.set(key, *x)?,
            Self::Text(x) => builder.set(key, x)?,
        };
        Ok(())
    }
}

impl From<usize> for Value {
    fn from(size: usize) -> Self {
        Self::U32(size as u32) // sizes were checked against `MAX`
    }
}

impl Config {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let json =
            json(&path)?.ok_or_else(|| Error::MissingFile { path: path.clone(), what: "the model's config".into() })?;
        Ok(Self { dir: dir.to_owned(), path, json })
    }

    pub(super) fn error(&self, key: &str, expected: impl ToString, got: impl ToString) -> Error {
        Error::key(&self.path, key, expected, got)
    }

    /// The first of these keys that is there and not null.
    pub(super) fn find<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &Json)> {
        keys.iter().map(|&key| (key, &self.json[key])).find(|(_, value)| !value.is_null())
    }

    /// A number from 1 to 2²⁴, under the first of these keys that is there.
    pub(super) fn size(&self, keys: &[&str]) -> Result<usize> {
        let missing = || self.error(keys[0], "a number", "nothing");
        self.size_if_any(keys)?.ok_or_else(missing)
    }

    pub(super) fn size_if_any(&self, keys: &[&str]) -> Result<Option<usize>> {
        let Some((key, value)) = self.find(keys) else { return Ok(None) };
        let number = value.as_u64().filter(|n| (1..=MAX).contains(n));
        number.map(|n| Some(n as usize)).ok_or_else(|| self.error(key, format!("a number from 1 to {MAX}"), value))
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, keys: &[&str]) -> Result<Option<f32>> {
        let Some((key, value)) = self.find(keys) else { return Ok(None) };
        positive(value).map(Some).ok_or_else(|| self.error(key, "a finite number above 0", value))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match &self.json[key] {
            Json::Null => Ok(None),
            Json::Bool(flag) => Ok(Some(*flag)),
            other => Err(self.error(key, "true or false", other)),
        }
    }

    /// Refuses a value other than this, of a key that may be missing.
    pub(super) fn only(&self, key: &str, value: bool, why: &str) -> Result<()> {
        match self.flag(key)? {
            Some(found) if found != value => Err(self.error(key, format!("{value} ({why})"), found)),
            _ => Ok(()),
        }
    }
}

pub(super) fn positive(value: &Json) -> Option<f32> {
    value.as_f64().map(|x| x as f32).filter(|x| x.is_finite() && *x > 0.0)
}

/// A JSON file, `None` if it is not there.
pub(super) fn json(path: &Path) -> Result<Option<Json>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read(path).map_err(Error::io(path, "read"))?;
    serde_json::from_slice(&text).map(Some).map_err(|source| Error::Json { path: path.to_owned(), source })
}
