//! PowerInfer's neuron index files, as hot neurons of a plan.

use crate::{Error, Plan, Result, config::ModelConfig};
use pi_core::NeuronSet;
use pi_gguf::{LayerIndex, NeuronIndex};

/// The hot neurons that an index has for a model of this shape, one set per layer.
///
/// # Errors
/// [`Error::Setting`] if the index is of another shape, naming the layer and the numbers.
pub fn hot_of_index(index: &NeuronIndex, config: &ModelConfig) -> Result<Vec<NeuronSet>> {
    if index.layers.len() != config.layers {
        let got = format!("one of {} layers", index.layers.len());
        return Err(Error::setting("neuron index", format!("one of {} layers, as the model has", config.layers), got));
    }
    let set = |(i, layer): (usize, &LayerIndex)| {
        if layer.neurons() as usize != config.neurons {
            let expected = format!("layers of {} neurons, as the model has", config.neurons);
            return Err(Error::setting("neuron index", expected, format!("{} in layer {i}", layer.neurons())));
        }
        Ok(NeuronSet::some(config.neurons, layer.hot().to_vec())?)
    };
    index.layers.iter().enumerate().map(set).collect()
}

/// A plan's hot neurons as an index, which says for how many bytes of memory they were chosen.
///
/// # Errors
/// [`Error::Setting`] if a layer has more neurons than the format can number.
pub fn index_of_plan(plan: &Plan, budget: u64) -> Result<NeuronIndex> {
    let layer = |(i, hot): (usize, &NeuronSet)| {
        let ids = hot.iter().map(|id| id as u32).collect();
        u32::try_from(hot.total()).ok().and_then(|total| LayerIndex::new(total, ids)).ok_or_else(|| {
            Error::setting("neuron index", "layers of fewer than 2^31 neurons", format!("{} in layer {i}", hot.total()))
        })
    };
    let layers = plan.layers.iter().map(|l| &l.hot).enumerate().map(layer).collect::<Result<_>>()?;
    Ok(NeuronIndex { vram_capacity: budget, layers })
}
