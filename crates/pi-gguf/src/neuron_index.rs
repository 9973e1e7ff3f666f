//! PowerInfer's neuron index files (`*.generated.gpuidx`): which neurons of each layer are hot.

use std::path::Path;

use crate::error::{Error, Result};
use crate::file::File;
use crate::header::{Kind, NEURON_INDEX_ARCHITECTURE};
use crate::tensor::{Tensor, TensorType};
use crate::writer::Builder;

const LAYERS_KEY: &str = "generic.gpu_index.block_count";
const CAPACITY_KEY: &str = "split.vram_capacity";

/// The content of a neuron index file: the hot neurons of every layer, and the memory they were chosen for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NeuronIndex {
    /// Bytes of device memory that the hot neurons were chosen for.
    pub vram_capacity: u64,
    /// The layers in their order.
    pub layers: Vec<LayerIndex>,
}

/// The hot neurons of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LayerIndex {
    neurons: u32,
    hot: Vec<u32>,
}

impl LayerIndex {
    /// A layer of `neurons` neurons of which `hot` are hot. `None` unless those are ascending and exist.
    pub fn new(neurons: u32, hot: Vec<u32>) -> Option<Self> {
        let ascending = hot.windows(2).all(|pair| pair[0] < pair[1]);
        let exist = hot.last().is_none_or(|&last| last < neurons) && i32::try_from(neurons).is_ok();
        (ascending && exist).then_some(Self { neurons, hot })
    }

    /// How many neurons the layer has.
    pub fn neurons(&self) -> u32 {
        self.neurons
    }

    /// The hot ones, ascending.
    pub fn hot(&self) -> &[u32] {
        &self.hot
    }
}

impl NeuronIndex {
    /// Opens the neuron index at `path`.
    ///
    /// # Errors
    /// As [`File::open`] and [`from_file`](Self::from_file).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_file(&File::open(path)?)
    }

    /// The neuron index that `file` holds. Layers are found by the number in their tensors' names, so that the order of
    /// tensors in the file does not matter.
    ///
    /// # Errors
    /// [`Error::Value`] if the file is something else, [`Error::MissingKey`] and [`Error::MissingTensor`] if it is
    /// incomplete, [`Error::Shape`] if a layer's two tensors are wrong or contradict each other.
    pub fn from_file(file: &File) -> Result<Self> {
        let metadata = file.metadata();
        let architecture: &str = metadata.require("general.architecture")?;
        if architecture != NEURON_INDEX_ARCHITECTURE {
            return Err(Error::Value {
                path: file.path().to_owned(),
                key: "general.architecture".to_owned(),
                expected: format!("{NEURON_INDEX_ARCHITECTURE} (a neuron index)"),
                got: architecture.to_owned(),
            });
        }
        let count: u32 = metadata.require(LAYERS_KEY)?;
        let layers = (0..count).map(|layer| read_layer(file, layer)).collect::<Result<_>>()?;
        Ok(Self { vram_capacity: metadata.require(CAPACITY_KEY)?, layers })
    }

    /// Writes the file `path`, as the original's solver does.
    ///
    /// # Errors
    /// As [`Builder::create`] and [`AtomicFile::commit`](crate::AtomicFile::commit).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let count = u32::try_from(self.layers.len()).unwrap_or(u32::MAX);
        let mut builder = Builder::new(Kind::PowerInfer);
        builder.set("general.architecture", NEURON_INDEX_ARCHITECTURE)?;
        builder.set(LAYERS_KEY, count)?.set(CAPACITY_KEY, self.vram_capacity)?;
        for (i, layer) in self.layers.iter().enumerate() {
            builder.tensor(&mask_name(i), TensorType::I32, &[layer.neurons as usize])?;
            builder.tensor(&list_name(i), TensorType::I32, &[layer.hot.len()])?;
        }
        let mut writer = builder.create(path)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let mut mask = vec![0u8; layer.neurons as usize * 4];
            // Hot neurons exist (`LayerIndex::new`).
            layer.hot.iter().for_each(|&neuron| mask[neuron as usize * 4] = 1);
            writer.write(&mask_name(i), &mask)?;
            let list: Vec<u8> = layer.hot.iter().flat_map(|neuron| neuron.to_le_bytes()).collect();
            writer.write(&list_name(i), &list)?;
        }
        writer.finish()?.commit()
    }
}

fn mask_name(layer: impl std::fmt::Display) -> String {
    format!("blk.{layer}.gpu_idx")
}

fn list_name(layer: impl std::fmt::Display) -> String {
    format!("blk.{layer}.gpu_bucket")
}

fn read_layer(file: &File, layer: u32) -> Result<LayerIndex> {
    let wrong = |tensor: Tensor<'_>, expected: &str, got: String| Error::Shape {
        path: file.path().to_owned(),
        tensor: tensor.name().to_owned(),
        expected: expected.to_owned(),
        got,
    };
    let integers = |tensor: Tensor<'_>| match (tensor.ty(), tensor.dims()) {
        (TensorType::I32, [_]) => Ok(tensor.data().as_chunks::<4>().0.iter().map(|&n| i32::from_le_bytes(n)).collect()),
        (ty, dims) => Err(wrong(tensor, "a row of I32", format!("{ty} {dims:?}"))),
    };
    let mask_tensor = file.require_tensor(&mask_name(layer))?;
    let mask: Vec<i32> = integers(mask_tensor)?;
    if let Some(other) = mask.iter().find(|n| !matches!(n, 0 | 1)) {
        return Err(wrong(mask_tensor, "a 0 or 1 for each neuron", other.to_string()));
    }
    let neurons = u32::try_from(mask.len()).ok().filter(|&n| i32::try_from(n).is_ok());
    let neurons = neurons.ok_or_else(|| wrong(mask_tensor, "fewer neurons", mask.len().to_string()))?;
    let hot: Vec<u32> = (0..neurons).zip(&mask).filter(|(_, hot)| **hot == 1).map(|(neuron, _)| neuron).collect();

    // The list says the same once more; the original leaves it out of use where all or no neurons are hot.
    if let Some(list_tensor) = file.tensor(&list_name(layer)) {
        let list: Vec<i32> = integers(list_tensor)?;
        if !list.is_empty() && !list.iter().map(|&n| i64::from(n)).eq(hot.iter().map(|&n| i64::from(n))) {
            let expected = format!("the {} neurons that '{}' marks", hot.len(), mask_tensor.name());
            return Err(wrong(list_tensor, &expected, format!("{} others", list.len())));
        }
        if list.is_empty() && !hot.is_empty() && hot.len() != mask.len() {
            let expected = format!("the {} neurons that '{}' marks", hot.len(), mask_tensor.name());
            return Err(wrong(list_tensor, &expected, "none".to_owned()));
        }
    }
    Ok(LayerIndex { neurons, hot })
}
