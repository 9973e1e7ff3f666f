//! The tensors of a checkpoint, in one file or several.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pi_core::QuantType;
use pi_gguf::FileBytes;
use safetensors::{Dtype, SafeTensors};

use super::config::json;
use crate::error::{Error, Result};
use crate::pickle::Number;
use crate::stream::Stored;
use crate::torch::{TorchFile, map};

/// All tensors of a checkpoint. Files are mapped.
pub(super) struct Weights {
    dir: PathBuf,
    shards: Vec<Shard>,
    /// Tensors by name: the shard, and where it is in it.
    tensors: BTreeMap<String, Place>,
}

enum Shard {
    Safetensors(PathBuf, FileBytes),
    Torch(TorchFile),
}

struct Place {
    shard: usize,
    stored: Stored,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// A tensor: as many bytes as type and shape say. Shapes are as PyTorch's, slowest varying first.
pub(super) struct Weight<'a> {
    pub path: &'a Path,
    pub stored: Stored,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
}

impl Weights {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let mut weights = Self { dir: dir.to_owned(), shards: Vec::new(), tensors: BTreeMap::new() };
        for name in shards(dir)? {
            let path = dir.join(&name);
            match name.ends_with(".safetensors") {
                true => weights.add_safetensors(path)?,
                false => weights.add_torch(path)?,
            }
        }
        Ok(weights)
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(|name| &**name)
    }

    pub(super) fn get(&self, name: &str) -> Option<Weight<'_>> {
        let place = self.tensors.get(name)?;
        let (path, bytes) = match self.shards.get(place.shard)? {
            Shard::Safetensors(path, bytes) => (&**path, bytes.as_ref()),
            Shard::Torch(file) => (file.path(), file.bytes()),
        };
        Some(Weight { path, stored: place.stored, shape: &place.shape, bytes: bytes.get(place.range.clone())? })
    }

    fn add(&mut self, path: &Path, name: &str, place: Place) -> Result<()> {
        match self.tensors.insert(name.into(), place) {
            None => Ok(()),
            Some(_) => Err(Error::tensor(path, name, "one tensor of this name", "two")),
        }
    }

    fn add_safetensors(&mut self, path: PathBuf) -> Result<()> {
        let bytes = map(&path)?;
        let raw: &[u8] = bytes.as_ref();
        let damaged = |what: String| Error::Safetensors { path: path.clone(), what };
        let (header, table) = SafeTensors::read_metadata(raw).map_err(|e| damaged(e.to_string()))?;
        let shard = self.shards.len();
        for (name, info) in table.tensors() {
            let stored = match info.dtype {
                Dtype::F16 => Stored::Quant(QuantType::F16),
                Dtype::BF16 => Stored::Quant(QuantType::BF16),
                Dtype::F32 => Stored::Quant(QuantType::F32),
                Dtype::F64 => Stored::F64,
                other => {
                    // Positions and masks of old checkpoints are integers; nobody asks for them.
                    if name.ends_with(".weight") {
                        return Err(Error::tensor(&path, name, "F16, BF16, F32 or F64", format!("{other:?}")));
                    }
                    continue;
                }
            };
            let at = |offset: usize| offset.checked_add(header + 8).ok_or_else(|| damaged("offsets overflow".into()));
            let range = at(info.data_offsets.0)?..at(info.data_offsets.1)?;
            let size = size(stored, &info.shape);
            if range.end > raw.len() || size != Some(range.len()) {
                let expected = size.map_or("a size that can be counted".into(), |n| format!("{n} bytes"));
                let got = format!("bytes {} to {} of {}", range.start, range.end, raw.len());
                return Err(Error::tensor(&path, name, expected, got));
            }
            self.add(&path, &name, Place { shard, stored, shape: info.shape.clone(), range })?;
        }
        self.shards.push(Shard::Safetensors(path, bytes));
        Ok(())
    }

    fn add_torch(&mut self, path: PathBuf) -> Result<()> {
        let file = TorchFile::open(&path)?;
        let shard = self.shards.len();
        for (name, tensor) in file.tensors() {
            let stored = match tensor.storage.number {
                Number::F16 => Stored::Quant(QuantType::F16),
                Number::BF16 => Stored::Quant(QuantType::BF16),
                Number::F32 => Stored::Quant(QuantType::F32),
                Number::F64 => Stored::F64,
                _ if !name.ends_with(".weight") => continue,
                other => return Err(Error::tensor(&path, name, "F16, BF16, F32 or F64", format!("{other:?}"))),
            };
            let range = file.range(tensor)?.ok_or_else(|| {
                Error::tensor(&path, name, "numbers that lie in order and are not compressed", "others")
            })?;
            self.add(&path, name, Place { shard, stored, shape: tensor.shape.clone(), range })?;
        }
        self.shards.push(Shard::Torch(file));
        Ok(())
    }
}

fn size(stored: Stored, shape: &[usize]) -> Option<usize> {
    let count = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim))?;
    stored.row_bytes(count) // all of these types are floats: a block is a number
}

/// The names of the files with tensors: those that an index lists, or all there are.
fn shards(dir: &Path) -> Result<Vec<String>> {
    for index in ["model.safetensors.index.json", "pytorch_model.bin.index.json"] {
        let path = dir.join(index);
        let Some(json) = json(&path)? else { continue };
        let map = json["weight_map"].as_object();
        let map = map.ok_or_else(|| Error::key(&path, "weight_map", "an object", &json["weight_map"]))?;
        let mut names = BTreeSet::new();
        for (tensor, file) in map {
            // A name only: an index must not lead out of its folder.
            let name = file.as_str().filter(|name| !name.contains(['/', '\\', ':']) && *name != "..");
            names.insert(name.ok_or_else(|| Error::key(&path, tensor, "a file name", file))?.to_owned());
        }
        if let Some(missing) = names.iter().find(|name| !dir.join(name).exists()) {
            return Err(Error::MissingFile { path: dir.join(missing), what: format!("a part that {index} lists") });
        }
        return Ok(names.into_iter().collect());
    }
    let entries = fs::read_dir(dir).map_err(Error::io(dir, "read"))?;
    let names: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let all = |start: &str, end: &str| {
        let mut found: Vec<_> = names.iter().filter(|n| n.starts_with(start) && n.ends_with(end)).cloned().collect();
        found.sort();
        found
    };
    let found = [all("model", ".safetensors"), all("pytorch_model", ".bin")];
    let found = found.into_iter().find(|found| !found.is_empty());
    let found = found
        .ok_or_else(|| Error::MissingFile { path: dir.join("model.safetensors"), what: "a file of weights".into() })?;
    complete(dir, &found)?;
    Ok(found)
}

/// Without an index, names still say how many parts there are: `model-00001-of-00002.safetensors`.
fn complete(dir: &Path, names: &[String]) -> Result<()> {
    for name in names {
        let Some((_, end)) = name.split_once("-of-") else { continue };
        let digits = end.split('.').next().unwrap_or_default();
        let count = digits.parse::<usize>().unwrap_or(names.len());
        if count != names.len() {
            let what = format!("a part (there are {} of {count})", names.len());
            return Err(Error::MissingFile { path: dir.join(format!("*-of-{end}")), what });
        }
    }
    Ok(())
}
